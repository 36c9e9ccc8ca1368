"""The journal's flush on SQLite: fenced entry by entry, in the writer's transaction. The hot path."""

from __future__ import annotations

import sqlite3
from typing import Any, TypeVar

import msgspec

from ...model import status
from ...model.records import Batch, Entry, FlushAnswer, StepDone, StepRunning, Transition, TryFailed
from .wide import execute_wide, fetch_wide

_FEW = 32
"""Up to this many runs are looked up one by one; beyond, one walk over all that the worker holds is quicker."""

E = TypeVar("E", StepDone, TryFailed, StepRunning, Transition)


def flush(database: sqlite3.Connection, sql: dict[str, str], worker: str, batch: Batch) -> FlushAnswer:
    """Write what passes the fence; say what did not."""
    (now,) = database.execute(sql["now"]).fetchone()
    answer = FlushAnswer(now)
    claims = _fence(database, sql, worker, batch, answer)
    batch = _passing(batch, claims, answer)
    if batch.steps:
        _record_steps(database, sql, batch, now, answer)
    if batch.tries:
        database.executemany(sql["record_try"], [_try_row(entry, now) for entry in batch.tries])
    if batch.running:
        database.executemany(sql["record_progress"], [_running_row(entry, now) for entry in batch.running])
    if batch.transitions:
        _move(database, sql, batch.transitions, now)
    return answer


# -- the fence ---------------------------------------------------------------------------------------------


def _fence(
    database: sqlite3.Connection, sql: dict[str, str], worker: str, batch: Batch, answer: FlushAnswer
) -> dict[str, int]:
    """Run → the claim number under which this worker holds it; and what operators ask of the runs in the batch."""
    entries: list[Entry] = [*batch.steps, *batch.tries, *batch.running, *batch.transitions]
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
    """A place taken under our own claim is our own record, its reply lost. One taken under another claim means that the
    run's history is not what its owner believes: the run is lost, and nothing of it stays."""
    database.execute("SAVEPOINT steps")
    if execute_wide(database, sql["record_step"], [_step_row(entry, now) for entry in batch.steps]) < len(batch.steps):
        foreign = {entry.run_id for entry in batch.steps if _is_foreign(database, sql, entry)}
        if foreign:
            database.execute("ROLLBACK TO steps")
            answer.lost |= foreign
            _leave_out(batch, foreign)
            execute_wide(database, sql["record_step"], [_step_row(entry, now) for entry in batch.steps])
    database.execute("RELEASE steps")


def _is_foreign(database: sqlite3.Connection, sql: dict[str, str], entry: StepDone) -> bool:
    place = (entry.run_id, entry.branch, entry.position, entry.claim)
    return database.execute(sql["foreign_step"], place).fetchone() is not None


def _leave_out(batch: Batch, runs: set[str]) -> None:
    batch.steps = [entry for entry in batch.steps if entry.run_id not in runs]
    batch.tries = [entry for entry in batch.tries if entry.run_id not in runs]
    batch.running = [entry for entry in batch.running if entry.run_id not in runs]
    batch.transitions = [entry for entry in batch.transitions if entry.run_id not in runs]


# -- transitions -------------------------------------------------------------------------------------------


def _move(database: sqlite3.Connection, sql: dict[str, str], moves: list[Transition], now: int) -> None:
    completed = [(m.run_id, m.output, m.format, now) for m in moves if m.status == status.COMPLETED]
    if completed:
        execute_wide(database, sql["complete"], completed)
    others = [m for m in moves if m.status != status.COMPLETED]
    if others:
        forgotten = [(m.run_id, *place) for m in others if m.next_attempt for place in m.forget]
        database.executemany(sql["forget"], forgotten)
        database.executemany(sql["move"], [_move_row(m, n, now) for n, m in enumerate(others, 1)])


# -- rows, in the order of their statements ----------------------------------------------------------------


def _step_row(e: StepDone, now: int) -> tuple[Any, ...]:
    return (
        e.run_id,
        e.claim,
        e.branch,
        e.position,
        e.seq,
        e.name,
        e.kind,
        e.status,
        e.output,
        e.error,
        e.arguments,
        e.attempts,
        e.line,
        e.format,
        now - e.duration_ms,
        now,
    )


def _try_row(e: TryFailed, now: int) -> tuple[Any, ...]:
    return (
        e.run_id,
        e.claim,
        e.branch,
        e.position,
        e.attempt,
        e.number,
        e.name,
        e.error,
        e.arguments,
        e.format,
        now - e.duration_ms,
        now,
    )


def _running_row(e: StepRunning, now: int) -> tuple[Any, ...]:
    return e.run_id, e.branch, e.position, e.name, e.detail, e.data, e.format, now - e.since_ms, now


def _move_row(m: Transition, n: int, now: int) -> tuple[Any, ...]:
    """What the next attempt forgets is gone already; what a retry would have to forget is kept with the run."""
    kept = None if m.next_attempt or not m.forget else msgspec.json.encode(m.forget).decode()
    return (
        m.run_id,
        m.status,
        m.reason,
        m.output,
        m.error,
        m.delay_ms,
        m.waiting_for,
        m.wakes,
        m.next_attempt,
        m.recorded,
        m.version,
        kept,
        m.status in status.TERMINAL,
        m.format,
        n,
        now,
    )
