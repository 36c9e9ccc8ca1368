"""How things stand in the database, in one look: by bounded questions, for whoever watches over all of it."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from ..model.health import claiming_workers, serves_any
from ..model.queue_config import Gate
from ..model.records import WorkerInfo
from ..store.store import Census

if TYPE_CHECKING:
    from ..store import Store

MOST = 10_000
"""Counts stop here: so many, or more."""


class QueueNow(NamedTuple):
    """A queue as it stands."""

    name: str
    ready: int
    oldest: float
    """For how many seconds its first run has been ready."""
    workers: int
    """Live workers that look at it, and have the code of a workflow that is at home there."""
    paused: bool
    limited: bool


class Overview(NamedTuple):
    """What one look has found."""

    census: Census
    workers: list[WorkerInfo]
    gates: dict[str, Gate]
    """What is said about queues; nothing is about most."""
    at_home: dict[str, set[str]]
    """Queues that workflows are at home in, and which."""

    @property
    def queues(self) -> list[QueueNow]:
        """All queues that anything is known of, those that wait longest first."""
        live = claiming_workers(self.workers)
        named = self.at_home.keys() | self.gates.keys() | self.census.queues.keys()
        named |= {queue for worker in live for queue in worker.queues or ()}
        return sorted((self._queue(name, live) for name in named), key=lambda queue: (-queue.oldest, queue.name))

    def _queue(self, name: str, live: list[WorkerInfo]) -> QueueNow:
        ready, oldest = self.census.queues.get(name, (0, 0.0))
        gate = self.gates.get(name)
        paused, limited = (False, False) if gate is None else (gate.paused, gate.limited)
        workers = sum(serves_any(worker, self.at_home.get(name), name) for worker in live)
        return QueueNow(name, ready, oldest, workers, paused, limited)

    @property
    def late(self) -> list[tuple[str, float]]:
        """Schedules whose tick is late, and for how many seconds. One that code declares sleeps while no worker has
        that code."""
        declared = {name for worker in claiming_workers(self.workers) for name in worker.schedules}
        return [(name, late) for name, in_code, late in self.census.late if not in_code or name in declared]


async def look(store: Store) -> Overview:
    """Ask, one question after the other: a watcher takes one connection, and leaves the others to those who work."""
    census = await store.census(MOST)
    workers = await store.workers()
    gates = {gate.name: gate for gate in await store.queues()}
    at_home: dict[str, set[str]] = {}
    for definition in await store.definitions():
        at_home.setdefault(definition.queue, set()).add(definition.name)
    return Overview(census, workers, gates, at_home)
