"""What every store can do with schedules: the part of the protocol, and how it is done alike on every database."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Protocol

from ..model.schedules import ScheduleRow, ScheduleSpec
from .flows import scheduling
from .flows.requests import Flow, T
from .flows.scheduling import Declaration, Fired, FoundSchedule, Shot


class ScheduleStore(Protocol):
    """A database that holds schedules."""

    async def schedules(self, names: Sequence[str] | None = None) -> list[ScheduleRow]:
        """All schedules, or those of some names, in the order of their names."""
        ...

    async def declare_schedules(self, worker: str | None, specs: Sequence[ScheduleSpec]) -> Declaration:
        """Store what the code of a worker declares; without a worker only what is not there yet."""
        ...

    async def put_schedule(self, spec: ScheduleSpec) -> FoundSchedule:
        """Make a schedule, or change it; refused if live workers declare it."""
        ...

    async def delete_schedule(self, name: str) -> FoundSchedule:
        """Delete a schedule; refused if live workers declare it."""
        ...

    async def hold_schedule(self, name: str, hold: bool) -> FoundSchedule:
        """Pause a schedule, or let it go on."""
        ...

    async def due_schedules(self, declared: Sequence[str], limit: int) -> list[ScheduleRow]:
        """The schedules that are due, for a worker whose code declares these."""
        ...

    async def fire(self, shots: Sequence[Shot], most: int, grace_ms: int) -> Fired:
        """Start the runs of ticks that have come, one for each, and move the schedules on. Of the missed ticks of a
        schedule at most ``most``; a tick within the grace is not missed yet."""
        ...

    async def fail_schedule(self, row: ScheduleRow, error: str) -> bool:
        """A schedule cannot be started; whether it was still as it is said to be."""
        ...


class BaseSchedules:
    """Schedules as every database holds them: by flows, and by the statements of its own."""

    async def _fetch(self, name: str, *arguments: Any) -> Sequence[Any]:
        raise NotImplementedError

    async def _drive(self, flow: Callable[..., Flow[T]], *arguments: Any) -> T:
        raise NotImplementedError

    async def schedules(self, names: Sequence[str] | None = None) -> list[ScheduleRow]:
        """All schedules, or those of some names."""
        wanted = None if names is None else list(names)
        found = [scheduling.read_row(row) for row in await self._fetch("schedules", wanted)]
        return sorted(found, key=lambda row: row.name)  # a database may have an order of its own

    async def declare_schedules(self, worker: str | None, specs: Sequence[ScheduleSpec]) -> Declaration:
        """Store what code declares."""
        return await self._drive(scheduling.declare, worker, specs)

    async def put_schedule(self, spec: ScheduleSpec) -> FoundSchedule:
        """Make or change the schedule of a name."""
        return await self._drive(scheduling.put_schedule, spec)

    async def delete_schedule(self, name: str) -> FoundSchedule:
        """Delete the schedule of a name."""
        return await self._drive(scheduling.delete_schedule, name)

    async def hold_schedule(self, name: str, hold: bool) -> FoundSchedule:
        """Pause a schedule, or let it go on."""
        return await self._drive(scheduling.hold_schedule, name, hold)

    async def due_schedules(self, declared: Sequence[str], limit: int) -> list[ScheduleRow]:
        """The schedules that are due, for a worker."""
        return [scheduling.read_row(row) for row in await self._fetch("due_schedules", list(declared), limit)]

    async def fire(self, shots: Sequence[Shot], most: int, grace_ms: int) -> Fired:
        """Start the runs of ticks that have come."""
        return await self._drive(scheduling.fire, shots, most, grace_ms)

    async def fail_schedule(self, row: ScheduleRow, error: str) -> bool:
        """Say why a schedule cannot be started."""
        return await self._drive(scheduling.fail_schedule, row, error)
