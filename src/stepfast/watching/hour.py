"""The last hour of each queue, kept in memory: looked at when somebody looks, and never more often than needed."""

from __future__ import annotations

import time
from collections import deque
from typing import NamedTuple

from .depths import Depths

SPAN = 3600.0
EVERY = 10.0
"""Seconds between two points at least: 360 make an hour."""
_QUEUES = 200
"""Queues of which points are kept: those with the most to do."""


class Point(NamedTuple):
    """How a queue stood at a time."""

    ago: float
    """How many seconds before now."""
    ready: int
    running: int
    ended: int


class Hour:
    """Points of the last hour, of all queues."""

    def __init__(self) -> None:
        self._taken: deque[tuple[float, dict[str, tuple[int, int, int]]]] = deque(maxlen=int(SPAN / EVERY) + 1)

    def add(self, depths: Depths) -> None:
        """Keep how the queues stand now, unless that was kept a moment ago."""
        now = time.monotonic()
        if self._taken and now - self._taken[-1][0] < EVERY:
            return
        busiest = sorted(depths.queues, key=lambda info: -(info.ready + info.running))[:_QUEUES]
        self._taken.append(
            (now, {info.name: (info.ready, info.running, depths.ended.get(info.name, 0)) for info in busiest})
        )

    def of(self, queue: str) -> list[Point]:
        """How a queue stood, the oldest first. Where nobody looked, there is nothing."""
        now = time.monotonic()
        return [
            Point(now - at, *standing.get(queue, (0, 0, 0))) for at, standing in self._taken if now - at <= SPAN
        ]  # fmt: skip
