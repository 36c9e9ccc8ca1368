"""What people read of a schedule."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, field
from datetime import datetime
from itertools import islice
from typing import Any

import msgspec

from .errors import ConfigurationError
from .model.cron import milliseconds, next_tick, timetable
from .model.moments import moment, moment_or_none
from .model.payload import Payloads
from .model.schedules import ScheduleRow


@dataclass(frozen=True, slots=True)
class ScheduleInfo:
    """A schedule as it stands."""

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
    """The next tick that is still to come; one that has passed is started late or not at all."""
    if row.paused or row.next_at is None or row.next_at > row.now_ms:
        return None if row.paused else row.next_at
    try:
        return next_tick(row.timetable(), row.now_ms)
    except ConfigurationError:  # somebody has changed the row by hand
        return None


def _options(row: ScheduleRow) -> dict[str, Any]:
    try:
        return msgspec.json.decode(row.options, type=dict[str, Any])
    except msgspec.MsgspecError:
        return {}


def _readable(row: ScheduleRow, payloads: Payloads) -> Any:
    """One schedule that cannot be read must not keep the others from being listed."""
    try:
        return payloads.shown(row.input, row.format, "the input")
    except Exception as error:  # also whatever the application's codec raises
        return f"(cannot be read: {type(error).__name__})"
