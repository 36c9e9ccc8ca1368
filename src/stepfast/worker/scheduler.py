"""The scheduler: starts the runs of ticks that have come.

The sweeper's question tells when a schedule is due. Whichever worker comes first locks the schedule, starts the run and
moves the schedule on, all in one transaction; the others find nothing left to do. A schedule that cannot be started
says why, in the log and in its row, and keeps no other from being started.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

from ..errors import ConfigurationError, DatabaseUnavailable, SchemaError, sentence
from ..model.schedules import ScheduleRow
from ..store.flows.schedules import DueSchedule, Fired, Make
from .context import WorkerContext

if TYPE_CHECKING:
    from .worker import WorkerRuntime


T = TypeVar("T")

_BATCH = 100
"""Schedules whose runs are started in one transaction at most."""
NOT_THEIRS = (DatabaseUnavailable, SchemaError, ConfigurationError)
"""What is wrong with the database as a whole, and with no schedule."""


class Planning(Protocol):
    """What the application does for its schedules. A protocol, because the application is in a layer above."""

    async def declare(self, worker: str) -> None:
        """Store the schedules that the code declares, as those of this worker."""

    async def plan(self, row: ScheduleRow) -> Make:
        """How the runs of a schedule are made. Raises if there can be none."""
        ...


class Scheduler:
    """Starts what is due whenever the sweeper says that something is."""

    def __init__(self, context: WorkerContext, planning: Planning, runtime: WorkerRuntime) -> None:
        self._context = context
        self._planning = planning
        self._runtime = runtime
        self._bell = asyncio.Event()
        self.stopped = False
        """The worker stops: no further tick is started here."""

    def due(self) -> None:
        """A schedule is due."""
        self._bell.set()

    def stop(self) -> None:
        """End when what is under way is done."""
        self.stopped = True
        self._bell.set()

    async def run(self) -> None:
        """Start what is due until the worker stops. First it is stored that there is a worker again, unless
        that was done when the schedules of its code were declared."""
        if not self._context.me.schedules:
            await self._ask(lambda: self._planning.declare(self._context.me.id))
        while not self.stopped:
            await self._bell.wait()
            self._bell.clear()
            while not self.stopped and await self.round():
                pass

    async def round(self) -> bool:
        """Start the runs of some schedules that are due; whether there may be more."""
        store, declared = self._context.store, self._context.me.schedules
        rows = await self._ask(lambda: store.due_schedules(declared, _BATCH))
        try:
            shots = [shot for row in rows if (shot := await self._due_schedule(row)) is not None]
        except DatabaseUnavailable:
            return False  # the sweeper meets it too, rides it out, and tells us again
        return await self._fire(shots)

    async def _due_schedule(self, row: ScheduleRow) -> DueSchedule | None:
        """A schedule that is ready to be started; None, if it cannot be."""
        try:
            return DueSchedule(row, row.timetable(), await self._planning.plan(row))
        except DatabaseUnavailable:
            raise
        except Exception as error:  # of any content of the row, or of the definitions
            await self._fail(row, error)
            return None

    async def _fire(self, shots: list[DueSchedule]) -> bool:
        """Whether something was decided. What cannot be started, because the database refuses it or because of nonsense
        in a row, is looked for one by one: it must not keep the others."""
        if not shots:
            return False
        store, settings = self._context.store, self._context.settings
        grace_ms = int(settings.schedule_grace * 1000)
        try:
            done = await self._ask(lambda: store.fire(shots, settings.max_missed, grace_ms), refusable=True)
        except NOT_THEIRS:
            raise  # the worker stops, and has ridden it out until now
        except Exception as error:
            if len(shots) > 1:
                return any([await self._fire([shot]) for shot in shots])
            await self._fail(shots[0].row, error)
            return True
        self._tell(done)
        return done.moved > 0

    def _tell(self, done: Fired) -> None:
        if done.runs:
            self._runtime.started(done.runs)
        for name in done.overlapped:
            self._context.logger.info("schedule %r: a tick is skipped, because the run of the one before goes on", name)
        for name in done.dropped:
            self._context.logger.warning(
                "schedule %r has missed more ticks than are made good for (setting max_missed): the oldest are skipped",
                name,
            )

    async def _fail(self, row: ScheduleRow, error: Exception) -> None:
        why = sentence(error).replace("\0", "").encode(errors="replace").decode()
        if await self._ask(lambda: self._context.store.fail_schedule(row, why)):
            told = "schedule %r cannot start %r: %s. It is tried again in a minute; the others go on"
            self._context.logger.error(told, row.name, row.workflow, why)

    def _ask(self, call: Callable[[], Awaitable[T]], *, refusable: bool = False) -> Coroutine[Any, Any, T]:
        return self._context.ask(call, "schedules", lambda: self.stopped, refusable=refusable)
