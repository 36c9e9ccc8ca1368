"""How a state looks: a class for its colour, and a mark whose shape tells it to those who see no colours."""

from __future__ import annotations

from ..model import status
from .markup import Markup, element

_KNOWN = frozenset({*status.RUN_STATUSES, status.SKIPPED, status.COMPENSATION_FAILED})


def class_of(state: str) -> str:
    """The class of a state in the stylesheet."""
    return f"sf-{state.replace('_', '-')}" if state in _KNOWN else "sf-declared"


def mark(state: str, x: float, y: float) -> Markup:
    """The mark of a state around a point: a tick, a cross, a ring …"""
    return element("g", *_SHAPES.get(state, _RING), class_=f"sf-mark {class_of(state)}", transform=_at(x, y))


def _at(x: float, y: float) -> str:
    return f"translate({x:.1f} {y:.1f})"


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
