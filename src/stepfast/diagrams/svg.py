"""SVG elements as text, escaped in one place; how a state looks; and a drawing as a file of its own."""

from __future__ import annotations

import re
from functools import cache
from pathlib import Path

from ..model import status

_FORBIDDEN = re.compile(r"[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069\ud800-\udfff\ufffe\uffff]")
"""What XML does not allow, and what turns the direction of the text around it."""
_ESCAPES = str.maketrans({"&": "&amp;", "<": "&lt;", ">": "&gt;", '"': "&quot;", "'": "&#39;"})


class Markup(str):
    """Text that is markup already. Templates that escape by themselves ask for ``__html__``, and leave it as it is."""

    __slots__ = ()

    def __html__(self) -> str:
        """This text as it is: it needs no escaping."""
        return str(self)


def escaped(text: str) -> Markup:
    """Text as it may stand between tags and within quotes."""
    return Markup(_FORBIDDEN.sub("\ufffd", text).translate(_ESCAPES))


def element(tag: str, *inside: str | None, **attributes: str | float | None) -> Markup:
    """One element. What is inside is escaped unless it is markup; an attribute that is None is left out. In the names
    of attributes ``_`` stands for ``-``, and at the end for nothing: ``class_``."""
    names = {name: name.rstrip("_").replace("_", "-") for name in attributes}
    said = "".join(f' {names[name]}="{_value(value)}"' for name, value in attributes.items() if value is not None)
    content = "".join(part if isinstance(part, Markup) else escaped(part) for part in inside if part is not None)
    return Markup(f"<{tag}{said}>{content}</{tag}>" if content else f"<{tag}{said}/>")


def number(value: float) -> str:
    """A length with a tenth of a unit, which is as much as an eye can see."""
    return f"{value:.1f}".removesuffix(".0")


def _value(value: str | float) -> str:
    return escaped(value) if isinstance(value, str) else number(value)


_KNOWN = frozenset({*status.RUN_STATUSES, status.SKIPPED, status.COMPENSATION_FAILED})


def class_of(state: str) -> str:
    """The class of a state in the stylesheet."""
    return f"sf-{state.replace('_', '-')}" if state in _KNOWN else "sf-declared"


def mark(state: str, x: float, y: float) -> Markup:
    """The mark of a state around a point: a tick, a cross, a ring …"""
    return element(
        "g", *_SHAPES.get(state, _RING), class_=f"sf-mark {class_of(state)}", transform=f"translate({x:.1f} {y:.1f})"
    )


def _line(path: str) -> Markup:
    return element("path", d=path, class_="sf-line")


_DISC = element("circle", r=5.5, class_="sf-disc")
_RING = (element("circle", r=4.5, class_="sf-ring"),)
_CROSS = (_DISC, _line("M-2.2 -2.2 2.2 2.2M2.2 -2.2 -2.2 2.2"))
_BACK = (_DISC, _line("M2.6 1.6V.6A1.6 1.6 0 0 0 1 -1H-2.4M-.8 -2.8-2.6 -1-.8 .8"))
_SHAPES = {
    status.COMPLETED: (_DISC, _line("M-2.6 .2-.8 2 2.6 -1.8")),
    status.RUNNING: (*_RING, element("path", d="M0 -4.5A4.5 4.5 0 0 1 0 4.5Z", class_="sf-fill")),
    status.WAITING: (*_RING, element("path", d="M0 -2.6V.2L1.8 1.4", class_="sf-hand")),
    status.QUEUED: _RING,
    status.PAUSED: (*_RING, element("path", d="M-1.4 -1.9V1.9M1.4 -1.9V1.9", class_="sf-hand")),
    status.FAILED: _CROSS,
    status.COMPENSATION_FAILED: _CROSS,
    status.COMPENSATED: _BACK,
    status.COMPENSATING: _BACK,
    status.CANCELLED: (*_RING, element("path", d="M-3 3 3 -3", class_="sf-hand")),
    status.SKIPPED: (element("circle", r=2, class_="sf-fill"),),
}


@cache
def stylesheet() -> str:
    """The colours of all drawings, light and dark. The console serves it, for it allows no style within a page."""
    return (Path(__file__).parent / "diagrams.css").read_text()


def standalone(svg: Markup) -> str:
    """A drawing with its colours inside, to be written to a file. The stylesheet is ours and holds no markup."""
    head, _, rest = svg.partition(">")
    return f"{head}><style>{stylesheet()}</style>{rest}\n"
