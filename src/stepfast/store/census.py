"""The census: how things stand in the database, by questions whose cost is bounded; for whoever watches over it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple, Protocol

from msgspec import Struct


class Census(Struct):
    """How things stand. Counts stop at the bound that was given: so many, or more."""

    runs: dict[str, int]
    """Unfinished runs by status: those that workers hold, that wait, are paused, or are being undone."""
    timer_lag: float
    """For how many seconds something has been due that nobody has made ready yet."""
    undelivered: int
    """Mail that was sent and has not been delivered."""
    queues: dict[str, tuple[int, float]]
    """Of each queue that has something ready: how much, and for how many seconds its first run has been."""
    late: list[tuple[str, bool, float]]
    """Schedules that nobody has come to in time: the name, whether code declares it, and for how many seconds."""


LONG_AT_WORK = 3600.0
"""Seconds. What has been executing for longer is named to operators: it may hang."""


class AtWork(NamedTuple):
    """A run that a worker executes, or a step of it."""

    run_id: str
    workflow: str
    step: str | None
    seconds: float
    """For how long it has been executing."""


class CensusStore(Protocol):
    """A database that can be watched."""

    async def long_at_work(self, seconds: float, most: int) -> list[AtWork]:
        """What has been executing for so long, the longest first; looking at ``most`` runs that workers hold."""
        ...

    async def census(self, most: int) -> Census:
        """How things stand now, counting up to ``most`` of each."""
        ...


class BaseCensus:
    """The census as every database takes it: by the statements of its own."""

    async def _fetch(self, name: str, *arguments: Any) -> Sequence[Any]:
        raise NotImplementedError

    async def census(self, most: int) -> Census:
        """How things stand now."""
        [(now, running, waiting, paused, compensating, next_due, undelivered)] = await self._fetch("census", most)
        runs = {"running": running, "waiting": waiting, "paused": paused, "compensating": compensating}
        lag = 0.0 if next_due is None else max(0, now - next_due) / 1000
        queues = await self.ready(most)
        late = [(name, bool(declared), ms / 1000) for name, declared, ms in await self._fetch("census_schedules", most)]
        return Census(runs, lag, undelivered, queues, late)

    async def long_at_work(self, seconds: float, most: int) -> list[AtWork]:
        """What has been executing for so long; of a run rather its steps than itself."""
        rows = await self._fetch("long_at_work", int(seconds * 1000), most)
        return [AtWork(run_id, workflow, step, lasted / 1000) for run_id, workflow, step, lasted in rows]

    async def ready(self, most: int) -> dict[str, tuple[int, float]]:
        """How much is ready in each queue that has something, and for how many seconds its first run has been."""
        queues: dict[str, tuple[int, float]] = {}
        for queue, ready, oldest in await self._fetch("census_queues", most):
            before = queues.get(queue, (0, 0.0))
            queues[queue] = min(most, before[0] + ready), max(before[1], oldest / 1_000_000)
        return queues
