"""The journal's flush on SQLite, in the writer's transaction.

What runs bring most of the time, records of steps and their result, is written by a short way of its own, because it is
hot. For runs that bring anything else there is the flow of all databases (``flows/flushing.py``).
"""

from __future__ import annotations

import sqlite3
from typing import TypeVar

from ...model import status
from ...model.batches import Batch, FlushAnswer
from ...model.records import StepDone, Transition
from ..flows.flushing import flush as flush_mixed
from ..flows.leaving import tell
from ..flows.recording import step_row
from ..flows.requests import Rows
from .driving import drive
from .wide import execute_wide, fetch, fetch_wide

_FEW = 32
"""Up to this many runs are looked up one by one; beyond, one walk over all that the worker holds is quicker."""

E = TypeVar("E", StepDone, Transition)


def flush(database: sqlite3.Connection, sql: dict[str, str], worker: str, batch: Batch) -> FlushAnswer:
    """Write what passes the fence; say what did not."""
    mixed = _mixed(batch)
    if not mixed:
        return _flush_usual(database, sql, worker, batch)
    others = drive(database, sql, flush_mixed(worker, batch.part(lambda e: e.run_id in mixed), _no_server))
    usual = batch.part(lambda e: e.run_id not in mixed)
    if not any(usual.entries()):
        return others
    return _flush_usual(database, sql, worker, usual, others.now_ms).with_that_of(others)


def _mixed(batch: Batch) -> set[str]:
    """Runs of which the batch holds more than records of steps and their result."""
    others = {move.run_id for move in batch.transitions if not _is_usual(move)}
    if batch.joint or batch.tries or batch.running or batch.values:
        for entries in (batch.joint, batch.tries, batch.running, batch.values):
            others.update(entry.run_id for entry in entries)
    return others


def _is_usual(move: Transition) -> bool:
    return move.status == status.COMPLETED and move.successor is None and move.settled is None


def _no_server(_: int | None) -> None:
    """A file has no server that could have been started anew."""


# -- the usual freight: records of steps, and results ------------------------------------------------------


def _flush_usual(
    database: sqlite3.Connection, sql: dict[str, str], worker: str, batch: Batch, now: int = 0
) -> FlushAnswer:
    """Write these at a time, which is looked up if it is not given: one flush has one time."""
    now = now or database.execute(sql["now"]).fetchone()[0]
    answer = FlushAnswer(now)
    claims = _fence(database, sql, worker, batch, answer)
    steps, moves = _passing(batch, claims, answer)
    if steps and (foreign := _record_steps(database, sql, steps, now)):
        answer.lost |= foreign
        moves = [move for move in moves if move.run_id not in foreign]
    if moves:
        execute_wide(database, sql["complete"], [(m.run_id, m.output, m.format, now) for m in moves])
        drive(database, sql, tell(moves, answer))
    return answer


def _fence(
    database: sqlite3.Connection, sql: dict[str, str], worker: str, batch: Batch, answer: FlushAnswer
) -> dict[str, int]:
    """Run → the claim number under which this worker holds it; and what operators ask of the runs in the batch."""
    ids = {entry.run_id for entry in batch.steps} | {move.run_id for move in batch.transitions}
    if len(ids) <= _FEW:
        held = [(i, *row) for i in ids for row in database.execute(sql["held_run"], (i, worker)).fetchall()]
    else:
        held = [tuple(row) for row in fetch_wide(database, sql["held_all"], (worker,))]
    answer.asked = {run_id: asked for run_id, _, asked in held if asked is not None and run_id in ids}
    return {run_id: claim for run_id, claim, _ in held}


def _passing(batch: Batch, claims: dict[str, int], answer: FlushAnswer) -> tuple[list[StepDone], list[Transition]]:
    """The batch without what this worker may no longer write."""
    steps, moves = _sieve(batch.steps, claims, answer.lost), _sieve(batch.transitions, claims, answer.lost)
    if answer.lost:
        answer.asked = {run_id: asked for run_id, asked in answer.asked.items() if run_id not in answer.lost}
    return steps, moves


def _sieve(entries: list[E], claims: dict[str, int], refused: set[str]) -> list[E]:
    passed = [entry for entry in entries if claims.get(entry.run_id) == entry.claim]
    if len(passed) < len(entries):
        refused.update(entry.run_id for entry in entries if claims.get(entry.run_id) != entry.claim)
    return passed


def _record_steps(database: sqlite3.Connection, sql: dict[str, str], steps: list[StepDone], now: int) -> set[str]:
    """Record them. An address that is taken under our own claim has our own record, its reply lost; an open one is
    replaced, or left as it is. One taken under another claim means that the run's history is not what its owner
    believes: nothing of such runs stays, and they are returned."""
    database.execute("SAVEPOINT stepfast_steps")
    foreign = set[str]()
    if execute_wide(database, sql["record_steps"], [step_row(step, now) for step in steps]) < len(steps):
        addresses = Rows(step[:4] for step in steps)
        foreign = {row[0] for row in fetch(database, sql["foreign_steps"], (addresses,))}
        if foreign:
            database.execute("ROLLBACK TO stepfast_steps")
            rows = [step_row(step, now) for step in steps if step.run_id not in foreign]
            execute_wide(database, sql["record_steps"], rows)
    database.execute("RELEASE stepfast_steps")
    return foreign
