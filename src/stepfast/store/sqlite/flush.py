"""The journal's flush on SQLite, in the writer's transaction.

Runs that stay with their worker, or have their result, are written by a short way of its own, because they are hot: it
needs no more of their rows than the fence does. Runs that go anywhere else have the flow of all databases
(``flows/flushing.py``).
"""

from __future__ import annotations

import sqlite3

from ...model import status
from ...model.records import Batch, FlushAnswer, Transition
from ..flows.base import Rows
from ..flows.flush import bar, find_earlier, record_beside, step_rows, steps_of, tell
from ..flows.flush import flush as flush_moves
from .bulk_rows import execute_wide, fetch, fetch_wide
from .driver import drive

_FEW = 32
"""Up to this many runs are looked up one by one; beyond, one walk over all that the worker holds is quicker."""


def flush(database: sqlite3.Connection, sql: dict[str, str], worker: str, batch: Batch) -> FlushAnswer:
    """Write what passes the fence; say what did not."""
    moving = {move.run_id for move in batch.transitions if not _is_usual(move)}
    if not moving:
        return _flush_short(database, sql, worker, batch)
    moved = drive(database, sql, flush_moves(worker, batch.part(lambda e: e.run_id in moving), _no_server))
    others = batch.part(lambda e: e.run_id not in moving)
    if not others.claims:
        return moved
    return _flush_short(database, sql, worker, others, moved.now_ms).with_that_of(moved)


def _is_usual(move: Transition) -> bool:
    return move.status == status.COMPLETED and move.successor is None and move.settled is None


def _no_server(_: int | None) -> None:
    """A file has no server that could have been started anew."""


# -- the short way -------------------------------------------------------------------------------------------


def _flush_short(
    database: sqlite3.Connection, sql: dict[str, str], worker: str, batch: Batch, now: int = 0
) -> FlushAnswer:
    """Write these at a time, which is looked up if it is not given: one flush has one time."""
    answer = FlushAnswer(now or database.execute(sql["now"]).fetchone()[0])
    batch = _passing(batch, _fence(database, sql, worker, batch, answer), answer)
    if batch.joint:
        drive(database, sql, bar(batch, answer))
    if batch.steps or batch.joint:
        batch = _record_steps(database, sql, batch, answer)
    if batch.joint or batch.tries or batch.running or batch.values or batch.streams:
        drive(database, sql, record_beside(batch, answer))
    if moves := batch.transitions:
        execute_wide(database, sql["complete"], [(m.run_id, m.output, m.format, answer.now_ms) for m in moves])
        drive(database, sql, tell(moves, answer))
    return answer


def _fence(
    database: sqlite3.Connection, sql: dict[str, str], worker: str, batch: Batch, answer: FlushAnswer
) -> dict[str, int]:
    """Run → the claim number under which this worker holds it; and what operators ask of the runs in the batch."""
    ids = {entry.run_id for entry in batch.entries()}
    if len(ids) <= _FEW:
        held = [(i, *row) for i in ids for row in database.execute(sql["held_run"], (i, worker)).fetchall()]
    else:
        held = [tuple(row) for row in fetch_wide(database, sql["held_all"], (worker,))]
    answer.asked = {run_id: asked for run_id, _, asked in held if asked is not None and run_id in ids}
    return {run_id: claim for run_id, claim, _ in held}


def _passing(batch: Batch, claims: dict[str, int], answer: FlushAnswer) -> Batch:
    """The batch without what this worker may no longer write. An entry of an older claim does not pass beside one of
    the present claim; the run is lost only if it has none of these."""
    refused = {entry.run_id for entry in batch.entries() if claims.get(entry.run_id) != entry.claim}
    if not refused:
        return batch
    passed = batch.part(lambda entry: claims.get(entry.run_id) == entry.claim)
    answer.lost = refused - passed.claims.keys()
    answer.asked = {run_id: asked for run_id, asked in answer.asked.items() if run_id not in answer.lost}
    return passed


def _record_steps(database: sqlite3.Connection, sql: dict[str, str], batch: Batch, answer: FlushAnswer) -> Batch:
    """Record the steps of a batch; what is left of it. An address that is taken under our own claim has our own record,
    its reply lost; an open one is replaced, or left as it is. One taken under another claim means that the history is
    not what its owner believes: such a run is lost, and nothing of it stays."""
    database.execute("SAVEPOINT stepfast_steps")
    rows = step_rows(batch, answer.now_ms)
    if execute_wide(database, sql["record_steps"], rows) < len(rows):
        addresses = Rows(step[:4] for step in steps_of(batch))
        foreign = {row[0] for row in fetch(database, sql["foreign_steps"], (addresses,))}
        if foreign:
            database.execute("ROLLBACK TO stepfast_steps")
            answer.lost |= foreign
            batch = batch.part(lambda entry: entry.run_id not in foreign)
            execute_wide(database, sql["record_steps"], step_rows(batch, answer.now_ms))
        drive(database, sql, find_earlier(steps_of(batch), answer))
    database.execute("RELEASE stepfast_steps")
    return batch
