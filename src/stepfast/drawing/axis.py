"""The marks on the axis of a timeline: round spans since a stretch began, as close as they can be read."""

from __future__ import annotations

import itertools
from typing import NamedTuple

from ..monitoring.text import lasting
from .scale import Part

_DAY = 86400.0
_ROUND = (
    *(factor * unit for unit in (0.001, 0.01, 0.1) for factor in (1, 2, 5)),
    *(1.0, 2.0, 5.0, 10.0, 15.0, 30.0, 60.0, 120.0, 300.0, 600.0, 900.0, 1800.0),
    *(3600.0, 7200.0, 10800.0, 21600.0, 43200.0, _DAY, 2 * _DAY, 7 * _DAY, 14 * _DAY, 28 * _DAY),
)
_APART = 72.0
"""How far two of them stand from each other at least."""


LETTER = 6.0
"""How wide a letter is, more or less: nobody has measured the font of the reader."""


class AxisMark(NamedTuple):
    """A mark, and how long after the beginning of its stretch it stands."""

    x: float
    label: str


def marks_of(part: Part) -> list[AxisMark]:
    """The marks of one stretch; that of its beginning is left to whoever writes down when that was."""
    length = part.end - part.start
    if part.collapsed or length <= 0:
        return []
    every = _round(length * _APART / part.width)
    inside = itertools.takewhile(lambda at: at <= length, (every * number for number in itertools.count(1)))
    return [_mark(part, at) for at in inside]


def _mark(part: Part, at: float) -> AxisMark:
    """One mark; its label is left out where it would stand over what comes next to the stretch."""
    x, label = part.place(part.start + at), f"+{lasting(at)}"
    half = LETTER * len(label) / 2
    return AxisMark(x, label if part.x + half <= x <= part.x + part.width - half else "")


def _round(least: float) -> float:
    """The smallest round span that is long enough."""
    fitting = next((span for span in _ROUND if span >= least), None)
    return fitting if fitting is not None else _ROUND[-1] * -(-least // _ROUND[-1])
