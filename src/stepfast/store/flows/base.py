"""What flows share: the requests that they yield to their driver, and reading and writing the state of runs."""

from __future__ import annotations

from collections.abc import Collection, Generator, Iterable, Mapping, Sequence
from typing import Any, NamedTuple, TypeVar

from ...model.records import NewRun
from ...model.remote_steps import Result, Task
from ...model.run_state import READ_COLUMNS, RunState, written
from ...model.schedules import ScheduleRow
from ...model.stored import read_json
from ...model.transitions.operator import Traces


class Rows(list[tuple[Any, ...]]):
    """An argument that is several columns of many values, given row by row; at least one."""


class Ask(NamedTuple):
    """A question: brings rows. A list among the arguments is a column of many values."""

    name: str
    arguments: tuple[Any, ...]


class Put(NamedTuple):
    """One statement for many rows of values: brings the number of rows that it wrote."""

    name: str
    rows: Sequence[tuple[Any, ...]]


class PutEach(NamedTuple):
    """Several statements for the same rows of values, none of which needs what another wrote: where each would be a
    round trip, one carries them all."""

    names: tuple[str, ...]
    rows: Sequence[tuple[Any, ...]]


class PutAndAsk(NamedTuple):
    """Several statements for the same rows of values, and a question about what they wrote. Where the last of them
    returns that, it is not asked."""

    names: tuple[str, ...]
    rows: Sequence[tuple[Any, ...]]
    then: Ask


class Start(NamedTuple):
    """Start runs in the same transaction."""

    runs: Sequence[NewRun]


class SendTasks(NamedTuple):
    """Send tasks over the transport, which is in the same database, in the same transaction."""

    tasks: Sequence[Task]


class Remove(NamedTuple):
    """Delete results from the transport, which is in the same database, in the same transaction."""

    results: Sequence[Result]


class Commit:
    """What was done so far is to be committed, and its locks to be given up; the rest is another transaction."""


COMMIT = Commit()

Request = Ask | Put | PutEach | PutAndAsk | Start | SendTasks | Remove | Commit
T = TypeVar("T")
Flow = Generator[Request, Any, T]


def ask(name: str, *arguments: Any) -> Flow[list[Any]]:
    """The rows that a question brings."""
    rows: list[Any] = yield Ask(name, arguments)
    return rows


def put(name: str, rows: Sequence[tuple[Any, ...]]) -> Flow[int]:
    """How many rows a statement wrote; without values it is not asked."""
    if not rows:
        return 0
    count: int = yield Put(name, rows)
    return count


def put_each(names: tuple[str, ...], rows: Sequence[tuple[Any, ...]]) -> Flow[None]:
    """Write by each of these statements; without values nothing is asked."""
    if rows:
        yield PutEach(names, rows)


class LockedRuns(NamedTuple):
    """The states of runs, locked in this transaction, and the database's time."""

    runs: dict[str, RunState]
    now: int


def found(rows: Iterable[Any]) -> LockedRuns:
    """Rows of (time, standing)."""
    now, runs = 0, dict[str, RunState]()
    for row in rows:
        now = row[0]
        runs[row[1]] = RunState(*row[1:])
    return LockedRuns(runs, now)


def read(name: str, *arguments: Any) -> Flow[LockedRuns]:
    """The runs that a question names."""
    return found((yield from ask(name, *arguments)))


def lock_run(run_id: str) -> Flow[tuple[RunState | None, int]]:
    """One run, waited for."""
    runs, now = yield from read("lock_runs", [run_id])
    return runs.get(run_id), now


def lock_free(ids: Iterable[str]) -> Flow[LockedRuns]:
    """The runs, of those named, that no other transaction has locked; they are locked then."""
    wanted = sorted(ids)
    return (yield from read("lock_free", wanted)) if wanted else LockedRuns({}, 0)


def change(runs: Sequence[RunState]) -> Flow[None]:
    """Write what was decided."""
    yield from put("change", [written(run) for run in runs])


def traces_of(ids: Collection[str]) -> Flow[dict[str, Traces]]:
    """What other rows tell of runs that are about to be cancelled."""
    if not ids:
        return {}
    rows = yield from ask("traces", list(ids))
    return {row[0]: Traces(bool(row[1]), bool(row[2]), row[3], row[4]) for row in rows}


def forget_steps(addresses: Sequence[tuple[str, str, int]]) -> Flow[None]:
    """Records that the next attempt is to make again; signals that they took go back into the mailbox."""
    yield from put("untake", addresses)
    yield from put("untake_events", addresses)
    yield from put("forget", addresses)


def forgotten(run: RunState) -> list[tuple[str, str, int]]:
    """The records that a retry of the run is to make again."""
    addresses = read_json(run.forget, list[tuple[str, int]], [])
    return [(run.id, branch, position) for branch, position in addresses]


_DERIVED = {"child": "r.reply_to IS NOT NULL"}


def standing_columns(others: Mapping[str, str] | None = None) -> str:
    """The columns of ``{standing}``; ``others`` are columns that a database has to put in other words."""
    words = _DERIVED | dict(others or {})
    return ", ".join(words.get(name, f"r.{name}") for name in READ_COLUMNS)


def schedule_columns(others: Mapping[str, str] | None = None) -> str:
    """The columns of ``{schedule}``: all fields of a schedule but the time at which it is read."""
    return ", ".join((others or {}).get(name, f"s.{name}") for name in ScheduleRow.__struct_fields__[:-1])
