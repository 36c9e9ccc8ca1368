"""The depth of each queue, counted up to a bound, and its last hour in memory."""

from __future__ import annotations

import time
from collections import defaultdict, deque
from typing import NamedTuple

from ..app import Stepfast
from ..model.health import claiming_workers
from ..model.records import WorkerInfo
from ..model.rows import QueueDepth
from ..queues import QueueInfo, queue_infos
from ..store.readonly import BaseGlance
from .changes import glance_of

MOST = 10_000
"""Runs of each kind are counted up to this."""
_RECENT = 10_000
"""Newest runs among which ended ones are counted."""
_MINUTE = 60_000


class Depths(NamedTuple):
    """The present state of the queues."""

    queues: list[QueueInfo]
    workers: list[WorkerInfo]
    """Those that take new runs."""
    ended: dict[str, int]
    """Of each queue: the runs that ended within the last minute, among the newest ten thousand."""
    full: bool
    """Whether so many are running, waiting or delayed that not all of them were counted."""


async def depths_of(app: Stepfast) -> Depths:
    """Return every queue that has runs or limits, is paused, or is named by a definition or a worker."""
    glance = await glance_of(app)
    gates = {gate.name: gate for gate in await glance.queues()}
    depths, full = await _counted(glance)
    workers = claiming_workers(await glance.workers())
    infos = queue_infos(gates, depths, workers, await glance.definitions())
    ended: dict[str, int] = defaultdict(int)
    for tally in await glance.ended_lately(_RECENT, _MINUTE):
        ended[tally.queue] += tally.number
    return Depths(infos, workers, dict(ended), full)


async def _counted(glance: BaseGlance) -> tuple[dict[str, QueueDepth], bool]:
    """Count the runs of each queue; True if the bound was reached."""
    found: dict[str, QueueDepth] = {}
    totals: dict[str, int] = defaultdict(int)
    for queue, (ready, oldest) in (await glance.ready(MOST)).items():
        found[queue] = QueueDepth(queue, ready, oldest=max(0.0, oldest))
    for queue, stands, number in await glance.depths(MOST):
        depth = found.setdefault(queue, QueueDepth(queue))
        column = "ready" if stands == "due" else stands
        setattr(depth, column, getattr(depth, column) + number)
        totals[stands] += number
    return found, any(number >= MOST for number in totals.values())


SPAN = 3600.0
EVERY = 10.0
"""Seconds between two points at least: 360 make an hour."""
_QUEUES = 200
"""Queues of which points are kept: those with the most to do."""


class Point(NamedTuple):
    """The state of a queue at one time."""

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
        """Add a point of each queue, unless the last one is too recent."""
        now = time.monotonic()
        if self._taken and now - self._taken[-1][0] < EVERY:
            return
        busiest = sorted(depths.queues, key=lambda info: -(info.ready + info.running))[:_QUEUES]
        self._taken.append(
            (now, {info.name: (info.ready, info.running, depths.ended.get(info.name, 0)) for info in busiest})
        )

    def of(self, queue: str) -> list[Point]:
        """Return the points of a queue, the oldest first; none for times without an open page."""
        now = time.monotonic()
        return [
            Point(now - at, *standing.get(queue, (0, 0, 0))) for at, standing in self._taken if now - at <= SPAN
        ]  # fmt: skip
