"""Schedules, as users call them: a part of ``Stepfast``."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from datetime import datetime
from typing import TYPE_CHECKING, Any, Unpack

from .engine.invocation import refuse_in_workflow
from .engine.options import ScheduleKeywords, shows_options
from .engine.workflow import Workflow
from .errors import ConfigurationError, InvalidState, ScheduleNotFound
from .model.backoff import to_milliseconds
from .model.cron import tick_key
from .model.names import nearest
from .model.payload import Payloads
from .model.schedules import BYTES_BY_ROUND, ScheduleRow
from .run import Run
from .schedule_info import ScheduleInfo, schedule_info
from .schedule_specs import DeclaredSchedules
from .settings import Settings
from .store.flows.schedules import FoundSchedule
from .worker.db_retry import patiently
from .worker.threads import REAL

if TYPE_CHECKING:
    from .connected import Connected

_BATCH = 1000
"""Runs of a backfill that are started by one statement at most; fewer, if their inputs are large."""
_PATIENCE = 5.0
"""Seconds for which trouble is ridden out before the caller hears of it."""


@shows_options
class Scheduling:
    """Runs that are started by the clock."""

    settings: Settings
    _payloads: Payloads
    _declared: DeclaredSchedules
    _connect: Callable[[], Awaitable[Connected]]

    def schedule(self, name: str, workflow: Workflow[Any, Any] | str, **given: Unpack[ScheduleKeywords]) -> None:
        """Declare a schedule in code: ``app.schedule("nightly", report, cron="0 3 * * *", tz="Europe/Berlin")`` or
        ``app.schedule("feed", poll_feed, every=60)``. It is stored when a worker of this application begins, and sleeps
        while no live worker declares it."""
        self._declared.add(name, workflow, given)

    async def put_schedule(
        self, name: str, workflow: Workflow[Any, Any] | str, **given: Unpack[ScheduleKeywords]
    ) -> ScheduleInfo:
        """Make a schedule at run time, or change the one of this name. It is kept in the database, and whichever worker
        there is starts its runs."""
        connected = await self._connect_for("app.put_schedule")
        spec = await self._declared.asked(connected, name, workflow, given)
        row = _changeable(await _patient(connected, lambda: connected.store.put_schedule(spec)), name)
        connected.switchboard.tick_everywhere()
        return schedule_info(row, (), self._payloads)

    async def delete_schedule(self, name: str) -> None:
        """Delete a schedule that was made at run time, or that no live worker declares any more. Its runs stay."""
        connected = await self._connect_for("app.delete_schedule")
        if name in self._declared.specs:
            raise ConfigurationError(f"the schedule {name!r} is declared in this code: take it out there")
        found = await _patient(connected, lambda: connected.store.delete_schedule(name))
        if found.row is None:
            await self._refuse_unknown(connected, name)
        _changeable(found, name)

    async def schedules(self) -> list[ScheduleInfo]:
        """All schedules, by name: those in the database, and what this code declares and no worker has stored yet."""
        store = (await self._connect()).store
        rows, workers = await store.schedules(), await store.workers()
        declared = {name for worker in workers if worker.state == "live" for name in worker.schedules}
        rows += self._declared.not_among(rows)
        return [schedule_info(row, declared, self._payloads) for row in sorted(rows, key=lambda row: row.name)]

    async def pause_schedule(self, name: str) -> None:
        """Hold a schedule: its ticks start nothing until it is resumed. Runs that were started go on."""
        await self._hold("app.pause_schedule", name, True)

    async def resume_schedule(self, name: str) -> None:
        """Let a paused schedule go on with its next tick. Ticks that passed meanwhile are skipped."""
        await self._hold("app.resume_schedule", name, False)

    async def trigger(self, name: str) -> Run[Any]:
        """Start a run of a schedule now, beside its ticks: also while it is paused, or the run of a tick goes on."""
        connected = await self._connect_for("app.trigger")
        row = await self._schedule(connected, name)
        plan = await self._declared.plan_runs(connected, row)
        run_id = (await connected.starter.start_many(plan.rows(connected.new_id(), row.input)))[0]
        return Run(run_id, self._connect, self._payloads, plan.output_type, known=True)

    async def backfill(
        self,
        name: str,
        since: datetime,
        until: datetime,
        *,
        progress: Callable[[int, int], None] | None = None,
    ) -> list[Run[Any]]:
        """Start a run for each tick from ``since`` on and before ``until`` that has come already, whatever ``missed``
        and ``overlap`` say. A tick whose run is there starts none, so that a backfill may be repeated. ``progress`` is
        called with the number of ticks that are done, and of all."""
        connected = await self._connect_for("app.backfill")
        row = await self._schedule(connected, name)
        ticks = await self._ticks(row, *_span(since, until, row.now_ms))
        plan = await self._declared.plan_runs(connected, row)
        ids, batch = list[str](), min(_BATCH, max(1, BYTES_BY_ROUND // len(row.input)))
        for first in range(0, len(ticks), batch):
            some = ticks[first : first + batch]
            new_id = connected.new_id
            runs = [run for tick in some for run in plan.rows(new_id(), row.input, tick_key(name, tick))]
            started = await connected.starter.start_many(runs)
            ids += [run_id for run_id, run in zip(started, runs, strict=True) if run.dag_step is None]
            if progress is not None:
                progress(len(ids), len(ticks))
        return [Run(run_id, self._connect, self._payloads, plan.output_type, known=True) for run_id in ids]

    async def _ticks(self, row: ScheduleRow, since: int, until: int) -> list[int]:
        """All in a span, in pieces, so that the event loop is not blocked by a long one."""
        most, found = self.settings.max_backfill, list[int]()
        for tick in row.timetable().after(since - 1):
            if tick >= until:
                break
            found.append(tick)
            if len(found) > most:
                raise ConfigurationError(
                    f"the schedule {row.name!r} has more than {most} ticks in this span (setting max_backfill): "
                    "backfill it in several shorter ones"
                )
            if len(found) % _BATCH == 0:
                await asyncio.sleep(0)
        return found

    async def _hold(self, call: str, name: str, hold: bool) -> None:
        connected = await self._connect_for(call)
        if (await _patient(connected, lambda: connected.store.hold_schedule(name, hold))).row is None:
            await self._refuse_unknown(connected, name)
        connected.switchboard.tick_everywhere()

    async def _connect_for(self, call: str) -> Connected:
        """What this code declares is stored, if it is not there: so that it can be asked for before a worker begins."""
        refuse_in_workflow(call, "a step that calls it")
        connected = await self._connect()
        await self._declared.declare(None)
        return connected

    async def _schedule(self, connected: Connected, name: str) -> ScheduleRow:
        rows = await connected.store.schedules([name])
        if not rows:
            await self._refuse_unknown(connected, name)
        return rows[0]

    async def _refuse_unknown(self, connected: Connected, name: str) -> None:
        known = [row.name for row in await connected.store.schedules()]
        raise ScheduleNotFound(name, nearest(name, known))


def _span(since: datetime, until: datetime, now: int) -> tuple[int, int]:
    """From when to when ticks are made good for: not beyond the present."""
    begin, end = to_milliseconds(since, "since"), to_milliseconds(until, "until")
    if end < begin:
        raise ConfigurationError(f"until ({until.isoformat()}) is before since ({since.isoformat()}): swap them")
    return begin, min(end, now + 1)


async def _patient(connected: Connected, call: Callable[[], Awaitable[FoundSchedule]]) -> FoundSchedule:
    """What the database says, also if it is away for a moment."""
    until = time.monotonic() + _PATIENCE
    return await patiently(call, "schedules", connected.logger, 1.0, lambda: time.monotonic() > until, clock=REAL)


def _changeable(found: FoundSchedule, name: str) -> ScheduleRow:
    """Not what live workers declare: they would change it back."""
    assert found.row is not None
    if found.refused:
        raise InvalidState(
            f"the schedule {name!r} is declared by the code of live workers: change it there, or pause it"
        )
    return found.row
