"""Charts of lines as SVG: a logarithmic axis across, readable on a light and on a dark page."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass

from stepfast.diagrams.svg import Markup, element

WIDTH, HEIGHT = 640, 360
LEFT, RIGHT, TOP, BOTTOM = 64, 600, 44, 292
STYLE = """
text { font: 12px system-ui, sans-serif; fill: #444; }
.title { font-size: 14px; font-weight: 600; }
.grid { stroke: #8886; stroke-width: 1; }
.ours { stroke: #2563eb; fill: #2563eb; }
.theirs { stroke: #b45309; fill: #b45309; }
path { fill: none !important; stroke-width: 2; }
.second { stroke-dasharray: 6 4; }
@media (prefers-color-scheme: dark) {
  text { fill: #ccc; }
  .ours { stroke: #60a5fa; fill: #60a5fa; }
  .theirs { stroke: #fbbf24; fill: #fbbf24; }
}
"""

Spot = tuple[float, float, float, float]
"""Across, and upright: the median, the lowest and the highest."""


@dataclass(frozen=True)
class Axes:
    """What is across, what is upright, and whether that begins at zero."""

    across: str
    upright: str
    from_zero: bool


@dataclass(frozen=True)
class Line:
    """One line: what it is called, whose it is, and whether it is the second of its owner."""

    name: str
    ours: bool
    second: bool
    spots: list[Spot]


def chart(title: str, axes: Axes, lines: Iterable[Line]) -> str:
    """The picture as a file of its own."""
    lines = [line for line in lines if line.spots]
    across = _Scale([x for line in lines for x, *_ in line.spots], LEFT, RIGHT, False)
    upright = _Scale([y for line in lines for _, *ys in line.spots for y in ys], BOTTOM, TOP, axes.from_zero)
    parts = [
        element("style", Markup(STYLE)),
        element("text", title, x=LEFT, y=22, class_="title"),
        element("text", axes.across, x=RIGHT, y=BOTTOM + 34, text_anchor="end"),
        element("text", axes.upright, x=LEFT - 56, y=TOP - 8),
    ]
    for value in across.ticks():
        parts.append(element("text", _said(value), x=across(value), y=BOTTOM + 16, text_anchor="middle"))
    for value in upright.ticks():
        y = upright(value)
        parts.append(element("line", x1=LEFT, x2=RIGHT, y1=y, y2=y, class_="grid"))
        parts.append(element("text", _said(value), x=LEFT - 6, y=y + 4, text_anchor="end"))
    for number, line in enumerate(lines):
        parts += _drawn(line, across, upright)
        parts += _key(line, LEFT - 40 + number % 4 * 150, BOTTOM + 56)
    inside = element("g", *parts)
    head = f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" width="{WIDTH}" height="{HEIGHT}">'
    return f"{head}{inside}</svg>\n"


class _Scale:
    """From values to places on an axis."""

    def __init__(self, values: list[float], begin: float, end: float, from_zero: bool) -> None:
        self._even, self._begin, self._length = from_zero, begin, end - begin
        self._most = max(values)
        self._least = 0.0 if from_zero else min(values)
        self._low, self._high = self._at(self._least), self._at(self._most)

    def _at(self, value: float) -> float:
        return value if self._even else math.log10(value)

    def __call__(self, value: float) -> float:
        share = (self._at(value) - self._low) / ((self._high - self._low) or 1)
        return self._begin + share * self._length

    def ticks(self) -> list[float]:
        """Round values to be written beside the axis."""
        if self._even:
            step = 10 ** math.floor(math.log10(self._most))
            step = next(step * part for part in (0.1, 0.2, 0.5, 1, 2) if self._most / (step * part) <= 6)
            return [step * number for number in range(int(self._most / step) + 1)]
        powers = range(math.floor(self._low), math.ceil(self._high) + 1)
        parts = (1, 2, 5) if self._high - self._low < 2 else (1, 3) if self._high - self._low < 3 else (1,)
        found = [part * 10.0**power for power in powers for part in parts]
        return [value for value in found if self._least * 0.999 <= value <= self._most * 1.001]


def _drawn(line: Line, across: _Scale, upright: _Scale) -> list[Markup]:
    whose = "ours" if line.ours else "theirs"
    spots = sorted(line.spots)
    path = "M" + "L".join(f"{across(x):.1f} {upright(y):.1f}" for x, y, *_ in spots)
    drawn = [element("path", d=path, class_=f"{whose} second" if line.second else whose)]
    for x, y, low, high in spots:
        drawn.append(element("circle", cx=across(x), cy=upright(y), r=3, class_=whose))
        if high > low:
            place = across(x)
            drawn.append(element("line", x1=place, x2=place, y1=upright(low), y2=upright(high), class_=whose))
    return drawn


def _key(line: Line, x: float, y: float) -> list[Markup]:
    whose = "ours" if line.ours else "theirs"
    style = f"{whose} second" if line.second else whose
    return [element("path", d=f"M{x} {y - 4}h24", class_=style), element("text", line.name, x=x + 30, y=y)]


def _said(value: float) -> str:
    for least, unit in ((1e6, "M"), (1e3, "k")):
        if value >= least:
            return f"{value / least:g}{unit}"
    return f"{value:g}"
