"""Schedules as code declares them, or a call asks for them: checked, made into rows, and their ticks into runs."""

from __future__ import annotations

import logging
import time
from collections.abc import Awaitable, Callable, Sequence
from typing import TYPE_CHECKING, Any, cast

import msgspec

from .engine.options import ChildKeywords, ScheduleKeywords
from .engine.workflow import Workflow
from .errors import ConfigurationError, UnknownWorkflow
from .model.backoff import seconds
from .model.cron import jitter, refuse_never, tick_key, timetable
from .model.names import check_name, refuse_unknown
from .model.payload import Payloads
from .model.records import NewRun
from .model.schedules import TAG, ScheduleRow, ScheduleSpec, check_policies, made
from .planning import Plan, Planner
from .settings import Settings
from .store.flows.schedules import Make

if TYPE_CHECKING:
    from .connected import Connected

_ROOM_IN_KEYS = 30
"""Characters that a key, or a tag, of a run has beside the name of its schedule."""
_OF_RUNS = tuple(name for name in ChildKeywords.__annotations__ if name not in ("delay", "at"))
"""The options of starts that runs of a schedule can have."""
_SPANS = ("expires_in", "deadline", "timeout")


class DeclaredSchedules:
    """What the code of an application declares; and for its workers, how schedules become runs."""

    def __init__(
        self,
        planner: Planner,
        payloads: Payloads,
        settings: Settings,
        logger: logging.Logger,
        connect: Callable[[], Awaitable[Connected]],
    ) -> None:
        self._planner = planner
        self._payloads = payloads
        self._settings = settings
        self._logger = logger
        self._connect = connect
        self.specs: dict[str, ScheduleSpec] = {}

    # -- what is asked for -----------------------------------------------------------------------------------------

    def add(self, name: str, workflow: Workflow[Any, Any] | str, given: ScheduleKeywords) -> None:
        """Take a declaration in. The same may come again, as when a module is loaded twice."""
        code = self._planner.code(workflow)
        if code is None:
            raise UnknownWorkflow(str(workflow), list(self._planner.names))
        spec = self._spec("app.schedule", name, given, self._planner.plan_code(code, run_options(given)))
        known = self.specs.get(name)
        if known is not None and self._as_stored(spec, known) != known:
            raise ConfigurationError(f"there is already a schedule named {name!r} in this code; names must differ")
        self.specs[name] = spec

    async def asked(
        self, connected: Connected, name: str, workflow: Workflow[Any, Any] | str, given: ScheduleKeywords
    ) -> ScheduleSpec:
        """What a call asks for, checked against the code or the stored definition."""
        if name in self.specs:
            raise ConfigurationError(f"the schedule {name!r} is declared in this code: change it there")
        plan = await self._planner.plan(connected, workflow, run_options(given))
        return self._spec("app.put_schedule", name, given, plan)

    def _spec(self, call: str, name: str, given: ScheduleKeywords, plan: Plan) -> ScheduleSpec:
        refuse_unknown(call, given, ScheduleKeywords.__annotations__)
        check_name(name, "the name of a schedule", self._settings.max_name - _ROOM_IN_KEYS)
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
            options=_stored(run_options(given)),
            missed=missed,
            overlap=overlap,
            jitter_ms=round(seconds(given.get("jitter", 0), "jitter") * 1000),
        )

    # -- what workers do with it -----------------------------------------------------------------------------------

    async def declare(self, worker: str | None) -> None:
        """Store what the code declares, as that of a worker; without one, only what is not there yet."""
        if worker is None and not self.specs:
            return
        store = (await self._connect()).store
        there = {row.name: row.spec for row in await store.schedules(list(self.specs))} if self.specs else {}
        if worker is None and there.keys() == self.specs.keys():
            return
        specs = [self._as_stored(spec, there.get(name)) for name, spec in self.specs.items()]
        done = await store.declare_schedules(worker, specs)
        for name in done.changed:
            self._logger.warning(
                "the schedule %r was stored otherwise than this code declares it; what was declared last holds", name
            )

    def not_among(self, rows: Sequence[ScheduleRow]) -> list[ScheduleRow]:
        """What is declared here and not stored, as it would be if it were stored now."""
        there, now = {row.name for row in rows}, int(time.time() * 1000)
        return [made(spec, now, declared=True) for name, spec in self.specs.items() if name not in there]

    def _as_stored(self, spec: ScheduleSpec, known: ScheduleSpec | None) -> ScheduleSpec:
        """With the stored text, where the input is the same: a codec may write it otherwise each time."""
        if known is None or spec.input == known.input:
            return spec
        try:
            stored = self._payloads.plain(known.input, known.format, "")
            if stored != self._payloads.plain(spec.input, spec.format, ""):
                return spec
        except Exception:  # a codec of the user's has a word in it
            return spec
        return msgspec.structs.replace(spec, input=known.input, format=known.format)

    async def plan(self, row: ScheduleRow) -> Make:
        """How the runs of a schedule are made."""
        connected = await self._connect()
        plan = await self.plan_runs(connected, row)

        def make(tick: int) -> list[NewRun]:
            late = jitter(row.name, tick, row.jitter_ms)
            shape = plan.shape._replace(at_ms=tick + late) if late else plan.shape
            return plan._replace(shape=shape).rows(connected.new_id(), row.input, tick_key(row.name, tick))

        return make

    async def plan_runs(self, connected: Connected, row: ScheduleRow) -> Plan:
        """What the runs of a schedule have in common. They are found by a tag."""
        options = cast(ChildKeywords, msgspec.json.decode(row.options))
        options["tags"] = (*options.get("tags", ()), TAG + row.name)
        plan = await self._planner.plan(connected, row.workflow, options)
        return plan._replace(shape=plan.shape._replace(format=row.format))


def run_options(given: ScheduleKeywords) -> ChildKeywords:
    """What is said of the runs."""
    for name in ("delay", "at"):
        if name in given:
            raise ConfigurationError(f"a schedule takes no {name}=: cron= or every= says when its runs are started")
    return cast(ChildKeywords, {name: value for name, value in given.items() if name in _OF_RUNS})


def _stored(options: ChildKeywords) -> str:
    """As JSON; spans of time as seconds."""
    given: dict[str, Any] = {name: value for name, value in options.items() if value is not None}
    for name in _SPANS:
        if name in given:
            given[name] = seconds(given[name], name)
    if isinstance(given.get("tags"), Sequence):
        given["tags"] = list(given["tags"])
    return msgspec.json.encode(given, order="sorted").decode()
