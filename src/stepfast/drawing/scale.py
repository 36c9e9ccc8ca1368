"""Where a moment stands on a timeline. Long stretches in which nothing was done are drawn as narrow gaps."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable
from typing import NamedTuple

GAP = 68.0
"""How wide a collapsed gap is drawn: its length has to fit."""
_SHORTEST_GAP = 2.0
"""Seconds: shorter ones are never collapsed."""
_WORTH = 0.25
"""A gap is collapsed if it is longer than this part of all that is left when every gap is."""
_MOST = 0.6
"""Gaps together take no more than this part of the width; the longest are collapsed first."""
_LEAST = 28.0
"""A stretch between two gaps is at least so wide, if there is room."""


class Part(NamedTuple):
    """A stretch of the axis: from when to when, in seconds, and where it stands."""

    start: float
    end: float
    x: float
    width: float
    collapsed: bool

    def place(self, moment: float) -> float:
        """Where a moment of it stands."""
        length = self.end - self.start
        share = (moment - self.start) / length if length > 0 else 0.0
        return self.x + self.width * min(max(share, 0.0), 1.0)


class Scale:
    """Moments to places. The parts cover the axis without holes, each beginning where the one before ends."""

    def __init__(self, parts: list[Part]) -> None:
        self.parts = parts
        self._starts = [part.start for part in parts]

    def x(self, moment: float) -> float:
        """Where a moment stands; what lies outside stands at the edge."""
        return self.parts[max(bisect_right(self._starts, moment) - 1, 0)].place(moment)


def make_scale(
    start: float, end: float, work: Iterable[tuple[float, float]], x: float, width: float, *, collapse: bool = True
) -> Scale:
    """The axis from a start to an end, given when something was done."""
    end = max(end, start)
    gaps = _chosen(_gaps(start, end, work), end - start, width) if collapse else []
    stretches = _cut(start, end, gaps)
    open_ = [stretch for stretch in stretches if not stretch[2]]
    free = width - GAP * len(gaps)
    least = min(_LEAST, free / (2 * len(open_)))
    total = sum(until - since for since, until, _ in open_)
    rest = free - least * len(open_)
    spare = rest / len(gaps) if gaps and total <= 0 else 0.0
    """Where nothing took any time, the gaps share the room."""
    parts: list[Part] = []
    for since, until, collapsed in stretches:
        share = (until - since) / total if total > 0 else 0.0 if gaps else 1.0
        wide = GAP + spare if collapsed else least + rest * share
        parts.append(Part(since, until, x, wide, collapsed))
        x += wide
    return Scale(parts)


def _gaps(start: float, end: float, work: Iterable[tuple[float, float]]) -> list[tuple[float, float]]:
    """When nothing was done, for long enough to be worth a thought."""
    found, reached = [], start
    for since, until in sorted(work):
        if since - reached >= _SHORTEST_GAP:
            found.append((reached, min(since, end)))
        reached = max(reached, until)
    if end - reached >= _SHORTEST_GAP:
        found.append((reached, end))
    return found


def _chosen(gaps: list[tuple[float, float]], length: float, width: float) -> list[tuple[float, float]]:
    """Which of them are collapsed."""
    busy = length - sum(until - since for since, until in gaps)
    longest = sorted(gaps, key=lambda gap: gap[0] - gap[1])[: int(width * _MOST / GAP)]
    return sorted(gap for gap in longest if gap[1] - gap[0] > _WORTH * busy)


def _cut(start: float, end: float, gaps: list[tuple[float, float]]) -> list[tuple[float, float, bool]]:
    """The axis as stretches that are drawn to scale, with collapsed ones between. It begins and ends with one of the
    former, however short, so that there is a place for what happened then."""
    found, reached = [], start
    for since, until in gaps:
        found += [(reached, since, False), (since, until, True)]
        reached = until
    return [*found, (reached, end, False)]
