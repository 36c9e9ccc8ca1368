"""The journal's flush on SQLite: fenced entry by entry, in the writer's transaction. The hot path."""

from __future__ import annotations

import sqlite3
from typing import Any, TypeVar

from ...model import status
from ...model.batches import Batch, FlushAnswer
from ...model.records import Entry, StepDone, StepRunning, StepWith, Transition, TryFailed, ValueSet
from ..flows.leaving import let_go, tell
from ..flows.recording import bar, record_beside
from ..flows.requests import Flow
from ..flows.standings import lock_free
from .driving import drive
from .wide import execute_wide, fetch_wide

_FEW = 32
"""Up to this many runs are looked up one by one; beyond, one walk over all that the worker holds is quicker."""

_DURATION = StepDone._fields.index("duration_ms")

E = TypeVar("E", StepDone, TryFailed, StepRunning, Transition, StepWith, ValueSet)


def flush(database: sqlite3.Connection, sql: dict[str, str], worker: str, batch: Batch) -> FlushAnswer:
    """Write what passes the fence; say what did not."""
    (now,) = database.execute(sql["now"]).fetchone()
    answer = FlushAnswer(now)
    claims = _fence(database, sql, worker, batch, answer)
    batch = _passing(batch, claims, answer)
    if batch.joint:
        drive(database, sql, bar(batch, answer))
    if batch.steps or batch.joint:
        _record_steps(database, sql, batch, now, answer)
    if batch.joint or batch.tries or batch.running or batch.values:
        drive(database, sql, record_beside(batch, now))
    if batch.transitions:
        _move(database, sql, worker, batch.transitions, answer)
    return answer


# -- the fence ---------------------------------------------------------------------------------------------


def _fence(
    database: sqlite3.Connection, sql: dict[str, str], worker: str, batch: Batch, answer: FlushAnswer
) -> dict[str, int]:
    """Run → the claim number under which this worker holds it; and what operators ask of the runs in the batch."""
    entries: list[Entry] = [*batch.steps, *batch.tries, *batch.running, *batch.transitions, *batch.joint, *batch.values]
    ids = {entry.run_id for entry in entries}
    if len(ids) <= _FEW:
        held = [(i, *row) for i in ids for row in database.execute(sql["held_run"], (i, worker)).fetchall()]
    else:
        held = [tuple(row) for row in fetch_wide(database, sql["held_all"], (worker,))]
    answer.asked = {run_id: asked for run_id, _, asked in held if asked is not None and run_id in ids}
    return {run_id: claim for run_id, claim, _ in held}


def _passing(batch: Batch, claims: dict[str, int], answer: FlushAnswer) -> Batch:
    """The batch without what this worker may no longer write. An entry of an older claim does not pass beside one of
    the present claim; the run is lost only if it has none of these."""
    refused: set[str] = set()
    passed = Batch(
        _sieve(batch.steps, claims, refused),
        _sieve(batch.tries, claims, refused),
        _sieve(batch.running, claims, refused),
        _sieve(batch.transitions, claims, refused),
        _sieve(batch.joint, claims, refused),
        _sieve(batch.values, claims, refused),
    )
    if refused:
        answer.lost |= refused - {entry.run_id for entry in passed.entries()}
        answer.asked = {run_id: asked for run_id, asked in answer.asked.items() if run_id not in answer.lost}
    return passed


def _sieve(entries: list[E], claims: dict[str, int], refused: set[str]) -> list[E]:
    passed = [entry for entry in entries if claims.get(entry.run_id) == entry.claim]
    if len(passed) < len(entries):
        refused.update(entry.run_id for entry in entries if claims.get(entry.run_id) != entry.claim)
    return passed


# -- steps -------------------------------------------------------------------------------------------------


def _record_steps(
    database: sqlite3.Connection, sql: dict[str, str], batch: Batch, now: int, answer: FlushAnswer
) -> None:
    """A place taken under our own claim is our own record, its reply lost; one that is open is replaced, or left as it
    is. One taken under another claim means that the run's history is not what its owner believes: the run is lost, and
    nothing of it stays."""
    database.execute("SAVEPOINT stepfast_steps")
    steps = _steps(batch)
    if execute_wide(database, sql["record_step"], [step_row(entry, now) for entry in steps]) < len(steps):
        foreign = {entry.run_id for entry in steps if _is_foreign(database, sql, entry)}
        if foreign:
            database.execute("ROLLBACK TO stepfast_steps")
            answer.lost |= foreign
            _leave_out(batch, foreign)
            execute_wide(database, sql["record_step"], [step_row(entry, now) for entry in _steps(batch)])
    database.execute("RELEASE stepfast_steps")
    if batch.joint:
        taken = [(e.takes[0], e.run_id, e.step.branch, e.step.position) for e in batch.joint if e.takes]
        database.executemany(sql["name_mail"], taken)


def _steps(batch: Batch) -> list[StepDone]:
    return [*batch.steps, *(entry.step for entry in batch.joint)] if batch.joint else batch.steps


def _is_foreign(database: sqlite3.Connection, sql: dict[str, str], entry: StepDone) -> bool:
    place = (entry.run_id, entry.branch, entry.position, entry.claim)
    return database.execute(sql["foreign_step"], place).fetchone() is not None


def _leave_out(batch: Batch, runs: set[str]) -> None:
    batch.steps = [entry for entry in batch.steps if entry.run_id not in runs]
    batch.tries = [entry for entry in batch.tries if entry.run_id not in runs]
    batch.running = [entry for entry in batch.running if entry.run_id not in runs]
    batch.transitions = [entry for entry in batch.transitions if entry.run_id not in runs]
    batch.joint = [entry for entry in batch.joint if entry.run_id not in runs]
    batch.values = [entry for entry in batch.values if entry.run_id not in runs]


# -- transitions -------------------------------------------------------------------------------------------


def _move(
    database: sqlite3.Connection, sql: dict[str, str], worker: str, moves: list[Transition], answer: FlushAnswer
) -> None:
    completed = [m for m in moves if m.status == status.COMPLETED and m.successor is None and m.settled is None]
    if completed:
        rows = [(m.run_id, m.output, m.format, answer.now_ms) for m in completed]
        execute_wide(database, sql["complete"], rows)
    if len(completed) < len(moves):
        usual = {m.run_id for m in completed}
        others = [m for m in moves if m.run_id not in usual]
        drive(database, sql, _let_go(worker, others, answer))
    drive(database, sql, tell(moves, answer))


def _let_go(worker: str, moves: list[Transition], answer: FlushAnswer) -> Flow[None]:
    runs = yield from lock_free([m.run_id for m in moves])
    dags = yield from lock_free({m.settled.dag_id for m in moves if m.settled is not None})
    yield from let_go(worker, moves, runs.runs, dags.runs, answer)


# -- rows, in the order of their statements ----------------------------------------------------------------


def step_row(e: StepDone, now: int) -> tuple[Any, ...]:
    """A record, as made at this time: the columns are in the order of the fields, the duration taken out."""
    return (*e[:_DURATION], *e[_DURATION + 1 :], now - e.duration_ms, now)
