"""Schedules: how they are declared and stored, how their ticks become runs, and what people read of one."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Collection, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from itertools import islice
from typing import TYPE_CHECKING, Any, Unpack, cast

import msgspec

from .engine.invocation import refuse_in_workflow
from .engine.options import ChildKeywords, ScheduleKeywords, shows_options
from .engine.workflow import Workflow
from .errors import ConfigurationError, InvalidState, ScheduleNotFound, UnknownWorkflow
from .model.attributes import decode, encode_attributes
from .model.backoff import seconds, to_milliseconds
from .model.cron import jitter, milliseconds, next_tick, refuse_never, tick_key, timetable
from .model.names import check_name, nearest, refuse_unknown
from .model.payload import Payloads
from .model.records import NewRun
from .model.schedules import BYTES_BY_ROUND, TAG, ScheduleRow, ScheduleSpec, check_policies, made
from .model.stored import moment, moment_or_none
from .run import Run
from .settings import Settings
from .starts import Plan
from .store.flows.schedules import FoundSchedule, Make

if TYPE_CHECKING:
    from .app import Stepfast
    from .runtime import Connected


_ROOM_IN_KEYS = 30
"""Characters of a key, or a tag, in addition to the name of its schedule."""
_OF_RUNS = tuple(name for name in ChildKeywords.__annotations__ if name not in ("delay", "at"))
"""The options of starts that runs of a schedule can have."""
_SPANS = ("expires_in", "deadline", "timeout")


class DeclaredSchedules:
    """The schedules that the code of an application declares, and how schedules become runs."""

    def __init__(self, app: Stepfast) -> None:
        self._app = app
        self.specs: dict[str, ScheduleSpec] = {}

    # -- declarations -----------------------------------------------------------------------------------------

    def add(self, name: str, workflow: Workflow[Any, Any] | str, given: ScheduleKeywords) -> None:
        """Add a declaration. The same may come again, as when a module is loaded twice."""
        code = self._app._planner.code(workflow)
        if code is None:
            raise UnknownWorkflow(str(workflow), list(self._app.workflows))
        spec = self._spec("app.schedule", name, given, self._app._planner.plan_code(code, run_options(given)))
        known = self.specs.get(name)
        if known is not None and self._as_stored(spec, known) != known:
            raise ConfigurationError(f"there is already a schedule named {name!r} in this code; names must differ")
        self.specs[name] = spec

    async def asked(
        self, connected: Connected, name: str, workflow: Workflow[Any, Any] | str, given: ScheduleKeywords
    ) -> ScheduleSpec:
        """Return the schedule that a call requests, checked against the code or the stored definition."""
        if name in self.specs:
            raise ConfigurationError(f"the schedule {name!r} is declared in this code: change it there")
        plan = await self._app._planner.plan(connected, workflow, run_options(given))
        return self._spec("app.put_schedule", name, given, plan)

    def _spec(self, call: str, name: str, given: ScheduleKeywords, plan: Plan) -> ScheduleSpec:
        refuse_unknown(call, given, ScheduleKeywords.__annotations__)
        check_name(name, "the name of a schedule", self._app.settings.max_name - _ROOM_IN_KEYS)
        missed, overlap = given.get("missed", "latest"), given.get("overlap", "allow")
        check_policies(missed, overlap)
        cron, every, tz = given.get("cron"), given.get("every"), given.get("tz", "UTC")
        every_ms = None if every is None else round(seconds(every, "every") * 1000)
        now = int(time.time() * 1000)
        refuse_never(timetable(cron, every_ms, tz, now), cron, now)
        return ScheduleSpec(
            name=name,
            workflow=plan.shape.workflow,
            cron=cron,
            every_ms=every_ms,
            tz=tz,
            input=plan.encode(given.get("input")),
            format=plan.shape.format,
            options=_stored(run_options(given), self._app.settings.max_attributes),
            missed=missed,
            overlap=overlap,
            jitter_ms=round(seconds(given.get("jitter", 0), "jitter") * 1000),
        )

    # -- for workers -----------------------------------------------------------------------------------

    async def declare(self, worker: str | None) -> None:
        """Store what the code declares, for a worker; without one, only what is not stored yet."""
        if worker is None and not self.specs:
            return
        store = (await self._app._connect()).store
        there = {row.name: row.spec for row in await store.schedules(list(self.specs))} if self.specs else {}
        if worker is None and there.keys() == self.specs.keys():
            return
        specs = [self._as_stored(spec, there.get(name)) for name, spec in self.specs.items()]
        done = await store.declare_schedules(worker, specs)
        for name in done.changed:
            self._app.logger.warning(
                "the schedule %r was stored otherwise than this code declares it; what was declared last holds", name
            )

    def not_among(self, rows: Sequence[ScheduleRow]) -> list[ScheduleRow]:
        """Return the rows of schedules that are declared here and not stored yet."""
        there, now = {row.name for row in rows}, int(time.time() * 1000)
        return [made(spec, now, declared=True) for name, spec in self.specs.items() if name not in there]

    def _as_stored(self, spec: ScheduleSpec, known: ScheduleSpec | None) -> ScheduleSpec:
        """Return the schedule with the stored text of an equal input: a codec may encode it differently each time."""
        if known is None or spec.input == known.input:
            return spec
        try:
            stored = self._app._payloads.plain(known.input, known.format, "")
            if stored != self._app._payloads.plain(spec.input, spec.format, ""):
                return spec
        except Exception:  # an error of the application's codec
            return spec
        return msgspec.structs.replace(spec, input=known.input, format=known.format)

    async def plan(self, row: ScheduleRow) -> Make:
        """Return a function that makes the runs of a tick."""
        connected = await self._app._connect()
        plan = await self.plan_runs(connected, row)

        def make(tick: int) -> list[NewRun]:
            late = jitter(row.name, tick, row.jitter_ms)
            shape = plan.shape._replace(at_ms=tick + late) if late else plan.shape
            return plan._replace(shape=shape).rows(connected.new_id(), row.input, tick_key(row.name, tick))

        return make

    async def plan_runs(self, connected: Connected, row: ScheduleRow) -> Plan:
        """Return what the runs of a schedule have in common; a tag names the schedule."""
        options = cast(ChildKeywords, _with_attributes(msgspec.json.decode(row.options)))
        options["tags"] = (*options.get("tags", ()), TAG + row.name)
        plan = await self._app._planner.plan(connected, row.workflow, options)
        return plan._replace(shape=plan.shape._replace(format=row.format))


def run_options(given: ScheduleKeywords) -> ChildKeywords:
    """Return the options for the runs of a schedule."""
    for name in ("delay", "at"):
        if name in given:
            raise ConfigurationError(f"a schedule takes no {name}=: cron= or every= says when its runs are started")
    return cast(ChildKeywords, {name: value for name, value in given.items() if name in _OF_RUNS})


def _with_attributes(options: dict[str, Any]) -> dict[str, Any]:
    """Return stored options with their attributes as they were given."""
    if isinstance(stored := options.get("attributes"), dict):
        options["attributes"] = {name: decode(str(value)) for name, value in stored.items()}
    return options


def _stored(options: ChildKeywords, most: int) -> str:
    """As JSON; spans of time as seconds, attributes (``most`` of them) as they are stored."""
    given: dict[str, Any] = {name: value for name, value in options.items() if value is not None}
    for name in _SPANS:
        if name in given:
            given[name] = seconds(given[name], name)
    if isinstance(given.get("tags"), Sequence):
        given["tags"] = list(given["tags"])
    if "attributes" in given:
        given["attributes"] = dict(encode_attributes(given["attributes"], most))
    return msgspec.json.encode(given, order="sorted").decode()


@dataclass(frozen=True, slots=True)
class ScheduleInfo:
    """A schedule."""

    name: str
    workflow: str
    cron: str | None
    every: float | None
    """Seconds between two ticks."""
    tz: str
    paused: bool
    next_at: datetime | None
    """The next tick; None: it is paused, or there is none any more."""
    last_at: datetime | None
    """The last tick that started a run; and that run's id."""
    last_run: str | None
    missed: str
    overlap: str
    jitter: float
    declared: bool
    """Whether code declares it; else it was made by ``app.put_schedule``."""
    awake: bool
    """Whether workers start its runs. One that code declares sleeps while no live worker has that code."""
    error: str | None
    """Why it could not be started the last time, if it could not."""
    input: Any = field(repr=False)
    options: dict[str, Any]
    """How its runs are started: queue, priority and so on, as far as they were given."""
    created_at: datetime
    """Ticks of ``every`` are counted from here."""
    read_at: datetime
    """When this was read, by the database's clock."""

    def times(self, count: int = 5, after: datetime | None = None) -> list[datetime]:
        """The next ticks, or those after a time; also of one that is paused or sleeps."""
        every_ms = None if self.every is None else round(self.every * 1000)
        ticks = timetable(self.cron, every_ms, self.tz, milliseconds(self.created_at))
        return [moment(tick) for tick in islice(ticks.after(milliseconds(after or self.read_at)), count)]


def schedule_info(row: ScheduleRow, declared: Collection[str], payloads: Payloads) -> ScheduleInfo:
    """From its row, and the names that live workers declare."""
    return ScheduleInfo(
        name=row.name,
        workflow=row.workflow,
        cron=row.cron,
        every=None if row.every_ms is None else row.every_ms / 1000,
        tz=row.tz,
        paused=row.paused,
        next_at=moment_or_none(_coming(row)),
        last_at=moment_or_none(row.last_at),
        last_run=row.last_run,
        missed=row.missed,
        overlap=row.overlap,
        jitter=row.jitter_ms / 1000,
        declared=row.declared,
        awake=not row.declared or row.name in declared,
        error=row.error,
        input=_readable(row, payloads),
        options=_options(row),
        created_at=moment(row.created_at),
        read_at=moment(row.now_ms),
    )


def _coming(row: ScheduleRow) -> int | None:
    """Return the next tick after the present."""
    if row.paused or row.next_at is None or row.next_at > row.now_ms:
        return None if row.paused else row.next_at
    try:
        return next_tick(row.timetable(), row.now_ms)
    except ConfigurationError:  # the row was changed by hand
        return None


def _options(row: ScheduleRow) -> dict[str, Any]:
    try:
        return _with_attributes(msgspec.json.decode(row.options, type=dict[str, Any]))
    except msgspec.MsgspecError:
        return {}


def _readable(row: ScheduleRow, payloads: Payloads) -> Any:
    """Return the input, or a note if it cannot be read."""
    try:
        return payloads.shown(row.input, row.format, "the input")
    except Exception as error:  # also any error of the application's codec
        return f"(cannot be read: {type(error).__name__})"


_BATCH = 1000
"""Runs of a backfill that are started by one statement at most; fewer, if their inputs are large."""


@shows_options
class Scheduling:
    """The methods of the application for schedules."""

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
        row = _changeable(await connected.ask(lambda: connected.store.put_schedule(spec), "schedules"), name)
        connected.switchboard.tick_everywhere()
        return schedule_info(row, (), self._payloads)

    async def delete_schedule(self, name: str) -> None:
        """Delete a schedule that was made at run time, or that no live worker declares any more. Its runs stay."""
        connected = await self._connect_for("app.delete_schedule")
        if name in self._declared.specs:
            raise ConfigurationError(f"the schedule {name!r} is declared in this code: take it out there")
        found = await connected.ask(lambda: connected.store.delete_schedule(name), "schedules")
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
        """Pause a schedule: its ticks start no runs until it is resumed. Runs that were started continue."""
        await self._hold("app.pause_schedule", name, True)

    async def resume_schedule(self, name: str) -> None:
        """Resume a paused schedule with its next tick. Ticks that passed while it was paused are skipped."""
        await self._hold("app.resume_schedule", name, False)

    async def trigger(self, name: str) -> Run[Any]:
        """Start a run of a schedule now, in addition to its ticks: also while it is paused, or a run of it is
        unfinished."""
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
        """Start a run for each past tick from ``since`` on and before ``until``, regardless of ``missed`` and
        ``overlap``. A tick whose run is there starts none, so that a backfill may be repeated. ``progress`` is called
        with the number of ticks that are done, and of all."""
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
        """Return the ticks of a span; a long span does not block the event loop."""
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
        if (await connected.ask(lambda: connected.store.hold_schedule(name, hold), "schedules")).row is None:
            await self._refuse_unknown(connected, name)
        connected.switchboard.tick_everywhere()

    async def _connect_for(self, call: str) -> Connected:
        """Connect, and store schedules that this code declares and no worker has stored yet."""
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
    """Check a span, and cut it at the present."""
    begin, end = to_milliseconds(since, "since"), to_milliseconds(until, "until")
    if end < begin:
        raise ConfigurationError(f"until ({until.isoformat()}) is before since ({since.isoformat()}): swap them")
    return begin, min(end, now + 1)


def _changeable(found: FoundSchedule, name: str) -> ScheduleRow:
    """Refuse a change of a schedule that live workers declare: they would change it back."""
    assert found.row is not None
    if found.refused:
        raise InvalidState(
            f"the schedule {name!r} is declared by the code of live workers: change it there, or pause it"
        )
    return found.row
