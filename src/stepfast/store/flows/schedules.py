"""What is done with schedules: they are made, changed, held, and their ticks start runs."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any, NamedTuple

import msgspec

from ...errors import DatabaseUnavailable
from ...model import schedules as model
from ...model.cron import Timetable, tick_key
from ...model.records import NewRun
from ...model.schedules import Round, ScheduleRow, ScheduleSpec
from ...model.stored import read_json
from .base import Flow, Rows, ask, put
from .starts import insert_runs

Make = Callable[[int], list[NewRun]]
"""The rows of the run that a tick starts."""
_TRIES = 10
"""How often a schedule is made that is deleted before it can be locked."""


class DueSchedule(NamedTuple):
    """A schedule that is due, as it was when it was read, its ticks, and how their runs are made."""

    row: ScheduleRow
    times: Timetable
    make: Make


class Fired(NamedTuple):
    """What became of due schedules."""

    runs: list[NewRun]
    """Those that were to be started."""
    moved: int
    """Of how many schedules something was decided."""
    overlapped: list[str]
    """Schedules of which a tick was skipped, because the run of the one before has not ended."""
    dropped: list[str]
    """Schedules that have missed more ticks than are made good for."""


class Declaration(NamedTuple):
    """What became of the schedules that a worker's code declares."""

    changed: list[str]
    """Those that were stored otherwise."""
    woken: list[str]
    """Those that no other live worker declares."""


class FoundSchedule(NamedTuple):
    """A schedule that something is asked of; None: there is none of that name."""

    row: ScheduleRow | None
    refused: bool = False
    """Whether live workers declare it, so that nothing was changed."""


def read_row(row: Sequence[Any]) -> ScheduleRow:
    """The columns come in the order of the fields."""
    found = ScheduleRow(*row)
    found.declared, found.paused = bool(found.declared), bool(found.paused)
    return found


def declare(worker: str | None, specs: Sequence[ScheduleSpec]) -> Flow[Declaration]:
    """Store what the code of a worker declares. What it says wins over what was stored before; a schedule that no
    other live worker declares has been asleep until now, and so have those that were made at run time, if there was
    no worker at all. A process that is no worker (None) only makes what is not there."""
    if worker is None:
        yield from _make(specs, declared=True)
        return Declaration([], [])
    others = yield from ask("declaring", worker)
    if not others:
        yield from ask("wake_schedules")
    changed, asleep = yield from _declare(specs, {name for row in others for name in read_json(row[0], list[str], [])})
    return Declaration(changed, asleep)


def _make(specs: Sequence[ScheduleSpec], declared: bool) -> Flow[dict[str, ScheduleRow]]:
    """The schedules of these names, made if they are not there, and locked. One may be deleted in between."""
    for _ in range(_TRIES if specs else 0):
        [(now,)] = yield from ask("schedule_clock")
        yield from put("insert_schedules", [_written(model.made(spec, now, declared)) for spec in specs])
        rows = yield from _lock("lock_schedules", [spec.name for spec in specs])
        if len(rows) == len(specs):
            return rows
    if specs:
        raise DatabaseUnavailable("a schedule was deleted again and again while it was to be stored; try again")
    return {}


def _declare(specs: Sequence[ScheduleSpec], awake: set[str]) -> Flow[tuple[list[str], list[str]]]:
    """What was stored otherwise, and what no other worker declares."""
    rows = yield from _make(specs, declared=True)
    changed = [spec for spec in specs if rows[spec.name].spec != spec or not rows[spec.name].declared]
    new = dict(rows)
    for spec in changed:
        new[spec.name] = model.changed(new[spec.name], spec, new[spec.name].now_ms, declared=True)
    asleep = sorted(rows.keys() - awake)
    for name in asleep:
        new[name] = model.woken(new[name], new[name].now_ms)
    yield from _change(row for row in new.values() if not row.same(rows[row.name]))
    return [spec.name for spec in changed], asleep


def _declared() -> Flow[set[str]]:
    """The schedules that live workers declare."""
    texts = yield from ask("declaring", None)
    return {name for row in texts for name in read_json(row[0], list[str], [])}


def put_schedule(spec: ScheduleSpec) -> Flow[FoundSchedule]:
    """Make a schedule, or change it; not one that live workers declare."""
    row = (yield from _make([spec], declared=False))[spec.name]
    if row.declared and spec.name in (yield from _declared()):
        return FoundSchedule(row, refused=True)
    new = model.changed(row, spec, row.now_ms, declared=False)
    yield from _change([new])
    return FoundSchedule(new)


def delete_schedule(name: str) -> Flow[FoundSchedule]:
    """Delete a schedule; not one that live workers declare."""
    row = (yield from _lock("lock_schedules", [name])).get(name)
    if row is None:
        return FoundSchedule(None)
    if row.declared and name in (yield from _declared()):
        return FoundSchedule(row, refused=True)
    yield from put("delete_schedules", [(name,)])
    return FoundSchedule(row)


def hold_schedule(name: str, hold: bool) -> Flow[FoundSchedule]:
    """Pause a schedule, or resume it with its next tick."""
    row = (yield from _lock("lock_schedules", [name])).get(name)
    if row is None:
        return FoundSchedule(None)
    new = model.paused(row) if hold else model.resumed(row, row.now_ms)
    yield from _change([new])
    return FoundSchedule(new)


def fire(shots: Sequence[DueSchedule], most: int, grace_ms: int) -> Flow[Fired]:
    """Start the runs of ticks that have come, and move the schedules on, in one transaction. Schedules that another
    process has locked, or that were changed since they were read, are left for the next round."""
    rows = yield from _lock("lock_free_schedules", [shot.row.name for shot in shots])
    ours = [shot for shot in shots if shot.row.name in rows and shot.row.same(rows[shot.row.name])]
    open_runs = yield from _open_runs(shot.row for shot in ours)
    rounds = [model.decide(shot.row, shot.times, rows[shot.row.name].now_ms, most, grace_ms) for shot in ours]
    kept = [_not_overlapping(shot.row, done, open_runs) for shot, done in zip(ours, rounds, strict=True)]
    runs = [run for shot, ticks in zip(ours, kept, strict=True) for tick in ticks for run in shot.make(tick)]
    if runs:
        yield from insert_runs(runs)
    last = yield from _last_runs(zip((shot.row for shot in ours), kept, strict=True))
    moved = [model.fired(shot.row, done, last.get(shot.row.name)) for shot, done in zip(ours, rounds, strict=True)]
    yield from _change(moved)
    held = [shot.row.name for shot, done, ticks in zip(ours, rounds, kept, strict=True) if len(ticks) < len(done.ticks)]
    dropped = [shot.row.name for shot, done in zip(ours, rounds, strict=True) if done.dropped]
    return Fired(runs, len(moved), held, dropped)


def _not_overlapping(row: ScheduleRow, done: Round, open_runs: set[str]) -> list[int]:
    """The ticks that are started. Where none may overlap, each after the first would."""
    if row.overlap == "allow":
        return done.ticks
    return [] if row.last_run in open_runs else done.ticks[:1]


def fail_schedule(row: ScheduleRow, error: str) -> Flow[bool]:
    """A schedule cannot be started: it says why, and is looked at again later."""
    found = (yield from _lock("lock_free_schedules", [row.name])).get(row.name)
    if found is None or not found.same(row):
        return False
    yield from _change([model.failed(found, error, found.now_ms)])
    return True


def _lock(name: str, names: Sequence[str]) -> Flow[dict[str, ScheduleRow]]:
    rows = yield from ask(name, sorted(names))
    return {row.name: row for row in map(read_row, rows)}


def _change(rows: Iterable[ScheduleRow]) -> Flow[None]:
    yield from put("change_schedules", [_written(row) for row in rows])


def _written(row: ScheduleRow) -> tuple[Any, ...]:
    return msgspec.structs.astuple(row)[:-1]


def _open_runs(rows: Iterable[ScheduleRow]) -> Flow[set[str]]:
    """The last runs of schedules that have not ended, where that matters."""
    ids = [row.last_run for row in rows if row.overlap != "allow" and row.last_run is not None]
    return {str(row[0]) for row in (yield from ask("open_runs", ids))} if ids else set()


def _last_runs(started: Iterable[tuple[ScheduleRow, list[int]]]) -> Flow[dict[str, tuple[int, str]]]:
    """The newest tick of each schedule that started a run, and that run: the one just started, or one that a backfill
    has started before."""
    newest = {(row.workflow, tick_key(row.name, ticks[-1])): (row.name, ticks[-1]) for row, ticks in started if ticks}
    if not newest:
        return {}
    found = yield from ask("runs_by_key", Rows(newest))
    return {newest[row[0], row[1]][0]: (newest[row[0], row[1]][1], str(row[2])) for row in found}
