"""A schedule as it is stored, and which of its ticks are started when a worker comes to it."""

from __future__ import annotations

from typing import Literal, NamedTuple, get_args

from msgspec import Struct, structs

from ..errors import ConfigurationError
from .cron import Timetable, next_tick, spelled, timetable

Missed = Literal["skip", "latest", "all"]
"""What becomes of missed ticks."""
Overlap = Literal["allow", "skip"]
"""What becomes of a tick while the run of the one before it goes on."""

TAG = "schedule:"
"""How the tag begins that runs of a schedule have; its name follows."""
BY_ROUND = 100
"""Runs that one schedule starts in one transaction at most."""
BYTES_BY_ROUND = 8 * 1024 * 1024
"""About how many bytes of inputs they may have together."""
RETRY_MS = 60_000
"""After this a schedule that could not be started is looked at again."""


class ScheduleSpec(Struct, frozen=True):
    """What was asked for: all that is said of a schedule in code or by a call."""

    name: str
    workflow: str
    cron: str | None
    every_ms: int | None
    tz: str
    input: str
    format: int
    options: str
    """JSON: the options of a start."""
    missed: str
    overlap: str
    jitter_ms: int

    def timetable(self, anchor: int) -> Timetable:
        """The ticks of the schedule. The anchor is what those of ``every`` are counted from."""
        return timetable(self.cron, self.every_ms, self.tz, anchor)

    def same_times(self, other: ScheduleSpec) -> bool:
        """Whether both have the same ticks."""
        return (self.cron, self.every_ms, self.tz) == (other.cron, other.every_ms, other.tz)


class ScheduleRow(Struct):
    """A schedule as it is stored. The columns come in the order of the fields."""

    name: str
    workflow: str
    cron: str | None
    every_ms: int | None
    tz: str
    input: str
    format: int
    options: str
    missed: str
    overlap: str
    jitter_ms: int
    declared: bool
    """Whether code declares it; else it was made by a call."""
    paused: bool
    next_at: int | None
    """The first tick that nothing was decided about yet."""
    due_at: int | None
    """When a worker has to come to it; None: paused, or there is no tick any more."""
    woken_at: int
    """Ticks until then are missed ones: there was no live worker that could have started them."""
    last_at: int | None
    last_run: str | None
    """The last tick that started a run, and which."""
    error: str | None
    """Why it could not be started the last time."""
    created_at: int
    now_ms: int = 0

    @property
    def spec(self) -> ScheduleSpec:
        """The schedule as it was declared or put."""
        return ScheduleSpec(*(getattr(self, name) for name in ScheduleSpec.__struct_fields__))

    def timetable(self) -> Timetable:
        """The ticks of the schedule; those of ``every`` are counted from when it was made."""
        return self.spec.timetable(self.created_at)

    def same(self, other: ScheduleRow) -> bool:
        """Whether nothing was changed between two looks at it."""
        return structs.replace(self, now_ms=0) == structs.replace(other, now_ms=0)


class Round(NamedTuple):
    """What is decided about the ticks that have come."""

    ticks: list[int]
    """To be started now, oldest first."""
    next_at: int | None
    dropped: bool = False
    """Whether there were more missed ticks than are made good for."""


def decide(row: ScheduleRow, times: Timetable, now: int, most: int, grace_ms: int) -> Round:
    """The ticks that have come, and what ``missed`` says of them. Only the last of them can be on time: one is missed
    if the next has come, if it is older than the grace, or if it passed while no live worker declared the schedule."""
    if row.next_at is None or row.next_at > now:
        return Round([], row.next_at)
    before = row.next_at - 1
    if row.missed == "all":
        return _catch_up(times, before, now, most, max(1, BYTES_BY_ROUND // max(len(row.input), 1)))
    found = times.newest(before, now, 1)
    if row.missed == "skip":
        found = [tick for tick in found if tick > row.woken_at and now - tick <= grace_ms]
    return Round(found, next_tick(times, now))


def _catch_up(times: Timetable, before: int, now: int, most: int, room: int) -> Round:
    """All of them, but no more than ``most``, and those in groups: what is left comes at once in the next round."""
    found = times.newest(before, now, most + 1)
    dropped, found = len(found) > most, found[-most:] if most else []
    some = found[: min(BY_ROUND, room)]
    left = found[len(some)] if len(some) < len(found) else next_tick(times, now)
    return Round(some, left, dropped)


def made(spec: ScheduleSpec, now: int, declared: bool) -> ScheduleRow:
    """A schedule that is new: its first tick is the first later than now."""
    first = next_tick(spec.timetable(now), now)
    values = [*structs.astuple(spec), declared, False, first, first, now, None, None, None, now, now]
    return ScheduleRow(*values)


def changed(row: ScheduleRow, spec: ScheduleSpec, now: int, declared: bool) -> ScheduleRow:
    """A schedule of which something else is said now. If it has other ticks, the next is the first later than now."""
    new = ScheduleRow(*structs.astuple(spec), *structs.astuple(row)[len(ScheduleSpec.__struct_fields__) :])
    new.declared, new.error = declared, None
    if not spec.same_times(row.spec):
        new.next_at = next_tick(new.timetable(), now)
    return due(new)


def woken(row: ScheduleRow, now: int) -> ScheduleRow:
    """A live worker declares it again: what passed until then was missed."""
    return structs.replace(row, woken_at=now)


def paused(row: ScheduleRow) -> ScheduleRow:
    """Paused: no tick starts anything."""
    return structs.replace(row, paused=True, due_at=None)


def resumed(row: ScheduleRow, now: int) -> ScheduleRow:
    """Goes on with the next tick; those that passed while it was paused are skipped, as requested."""
    if not row.paused:
        return row
    return due(structs.replace(row, paused=False, next_at=next_tick(row.timetable(), now)))


def fired(row: ScheduleRow, done: Round, last: tuple[int, str] | None) -> ScheduleRow:
    """After a round: ``last`` is the newest tick that started a run, and the run."""
    last_at, last_run = last or (row.last_at, row.last_run)
    return due(structs.replace(row, next_at=done.next_at, last_at=last_at, last_run=last_run, error=None))


def failed(row: ScheduleRow, error: str, now: int) -> ScheduleRow:
    """A schedule could not be started. Its ticks wait; once it can be, ``missed`` decides about them."""
    return structs.replace(row, error=error, due_at=now + RETRY_MS)


def due(row: ScheduleRow) -> ScheduleRow:
    """With the time at which a worker has to come to it."""
    return structs.replace(row, due_at=None if row.paused else row.next_at)


def check_policies(missed: object, overlap: object) -> None:
    """Words that mean nothing are refused."""
    for name, given, known in (("missed", missed, get_args(Missed)), ("overlap", overlap, get_args(Overlap))):
        if given not in known:
            words = ", ".join(repr(word) for word in known)
            raise ConfigurationError(f"{name}= must be one of {words}, not {given!r}")


def schedule_of(tags: list[str], key: str | None) -> tuple[str, str | None] | None:
    """The schedule that started a run, and the tick as it is spelled; no tick, if an operator triggered it."""
    for tag in tags:
        if tag.startswith(TAG):
            name = tag.removeprefix(TAG)
            return name, key.removeprefix(f"{name}@") if key is not None and key.startswith(f"{name}@") else None
    return None


def told(row: ScheduleRow) -> str:
    """What a sentence says of when it fires."""
    times = f"cron {row.cron!r} ({row.tz})" if row.cron is not None else f"every {(row.every_ms or 0) / 1000:g} s"
    return times if row.next_at is None else f"{times}, next at {spelled(row.next_at)}"
