"""A small chart of the last hour, drawn as SVG: a line for each stretch in which somebody looked."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from markupsafe import Markup

from ..monitoring.queue_stats import SPAN, Point

_WIDE, _HIGH = 120, 24
_SHORTEST = 300.0
"""Seconds that the chart is wide at least; it grows with what was seen, up to an hour."""
_GAP = 90.0
"""Seconds without a point that break the line: nobody looked."""


def sparkline(points: Sequence[Point]) -> Markup:
    """How many runs were ready, over the last hour; nothing, if there are not two points yet."""
    lines = [stretch for stretch in _stretches(points) if len(stretch) > 1]
    if not lines:
        return Markup("")
    most = max(1, *(point.ready for point in points))
    span = min(SPAN, max(_SHORTEST, points[0].ago))
    drawn = Markup("").join(
        Markup('<polyline points="{}" fill="none" stroke="currentColor" stroke-width="1.5"/>').format(
            " ".join(_place(point, most, span) for point in stretch)
        )
        for stretch in lines
    )
    label = f"ready within the last hour: {points[-1].ready:,} now, {max(point.ready for point in points):,} at most"
    return Markup(
        '<svg class="spark" viewBox="0 0 {} {}" width="{}" height="{}" role="img" aria-label="{}">{}</svg>'
    ).format(_WIDE, _HIGH, _WIDE, _HIGH, label, drawn)


def _stretches(points: Sequence[Point]) -> Iterator[list[Point]]:
    stretch: list[Point] = []
    for point in points:
        if stretch and stretch[-1].ago - point.ago > _GAP:
            yield stretch
            stretch = []
        stretch.append(point)
    yield stretch


def _place(point: Point, most: int, span: float) -> str:
    across = _WIDE * (1 - point.ago / span)
    up = (_HIGH - 2) * point.ready / most
    return f"{across:.1f},{_HIGH - 1 - up:.1f}"
