"""Elements of a drawing as text. Whatever is put into one is escaped here, and nowhere else: a name that looks like
markup stays a name."""

from __future__ import annotations

import re

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
