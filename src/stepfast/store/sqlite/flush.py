"""The journal's flush on SQLite, in the writer's transaction.

Runs that stay with their worker, or have their result, are written by a short way of its own, because they are hot: it
needs no more of their rows than the fence does. Runs that go anywhere else have the flow of all databases
(``flows/flushing.py``).
"""

from __future__ import annotations

import sqlite3
from collections.abc import Sequence
from itertools import chain, repeat
from operator import itemgetter
from typing import Any

import msgspec

from ...model.records import Batch, FlushAnswer, StepDone
from ..flows.base import Rows
from ..flows.flush import (
    are_usual,
    bar,
    columns_of,
    find_earlier,
    is_usual_end,
    record_beside,
    step_rows,
    steps_of,
    tell,
)
from ..flows.flush import flush as flush_moves
from .bulk_rows import execute_flat, execute_wide, fetch, fits_one_statement
from .driver import drive

_FEW = 32
"""Up to this many runs are looked up by their ids; beyond, one walk over all that the worker holds is quicker."""
_decode_asked = msgspec.json.Decoder(list[tuple[str, str]]).decode
_RUN_ID, _CLAIM = itemgetter(0), itemgetter(0, 1)
"""Of a record of a step."""


def flush(database: sqlite3.Connection, sql: dict[str, str], worker: str, batch: Batch) -> FlushAnswer:
    """Write what passes the fence; say what did not."""
    moving = {move.run_id for move in batch.transitions if not is_usual_end(move)}
    if not moving:
        return _flush_short(database, sql, worker, batch)
    moved = drive(database, sql, flush_moves(worker, batch.part(lambda e: e.run_id in moving), _no_server))
    others = batch.part(lambda e: e.run_id not in moving)
    if not others.claims:
        return moved
    return _flush_short(database, sql, worker, others, moved.now_ms).with_that_of(moved)


def _no_server(_: int | None) -> None:
    """A file has no server that could have been restarted."""


# -- the short way -------------------------------------------------------------------------------------------


def _flush_short(
    database: sqlite3.Connection, sql: dict[str, str], worker: str, batch: Batch, now: int = 0
) -> FlushAnswer:
    """Write these at a time, which is looked up if it is not given: one flush has one time."""
    answer = FlushAnswer(now)
    batch = _passing(batch, _fence(database, sql, worker, batch, answer), answer)
    if batch.joint:
        drive(database, sql, bar(batch, answer))
    if batch.steps or batch.joint:
        batch = _record(database, sql, batch, answer)
    if batch.joint or batch.tries or batch.running or batch.values or batch.streams or batch.waits:
        drive(database, sql, record_beside(batch, answer))
    if moves := batch.transitions:
        execute_wide(database, sql["complete"], [(m.run_id, m.output, m.format, answer.now_ms) for m in moves])
        drive(database, sql, tell(moves, answer))
    return answer


def _fence(
    database: sqlite3.Connection, sql: dict[str, str], worker: str, batch: Batch, answer: FlushAnswer
) -> dict[str, int]:
    """Run → the claim number under which this worker holds it; and what operators ask of the runs in the batch. The
    time comes with it, because each statement may have to wait for Python's lock."""
    ids = {*map(_RUN_ID, batch.steps), *[entry.run_id for entry in batch.others()]}
    if len(ids) <= _FEW:
        row = database.execute(sql["held_some"], (msgspec.json.encode(list(ids)).decode(), worker)).fetchone()
    else:
        row = database.execute(sql["held_all"], (worker,)).fetchone()
    answer.now_ms = answer.now_ms or row[0]
    if row[3] != "[]":
        answer.asked = {run_id: asked for run_id, asked in _decode_asked(row[3]) if run_id in ids}
    if row[1] is None:
        return {}
    try:
        return dict(zip(row[1].split(","), map(int, row[2].split(",")), strict=True))
    except ValueError:  # a hand has written an id with a comma
        held = {run_id: database.execute(sql["held_run"], (run_id, worker)).fetchone() for run_id in ids}
        return {run_id: found[0] for run_id, found in held.items() if found is not None}


def _passing(batch: Batch, claims: dict[str, int], answer: FlushAnswer) -> Batch:
    """The batch without what this worker may no longer write. An entry of an older claim does not pass beside one of
    the present claim; the run is lost only if it has none of these."""
    refused = {entry.run_id for entry in batch.others() if claims.get(entry.run_id) != entry.claim}
    if not set(map(_CLAIM, batch.steps)) <= claims.items():
        refused |= {step.run_id for step in batch.steps if claims.get(step.run_id) != step.claim}
    if not refused:
        return batch
    passed = batch.part(lambda entry: claims.get(entry.run_id) == entry.claim)
    answer.lost = refused - passed.claims.keys()
    answer.asked = {run_id: asked for run_id, asked in answer.asked.items() if run_id not in answer.lost}
    return passed


def _record(database: sqlite3.Connection, sql: dict[str, str], batch: Batch, answer: FlushAnswer) -> Batch:
    """Record the steps of a batch; what is left of it."""
    if batch.joint or not (usual := _usual_values(batch.steps, answer.now_ms)):
        return _record_steps(database, sql, batch, answer)
    whole = fits_one_statement(len(batch.steps))  # which undoes itself
    if not whole:
        database.execute("SAVEPOINT stepfast_usual")
    try:
        execute_flat(database, sql["record_usual_steps"], usual, len(batch.steps))
    except sqlite3.IntegrityError:
        if not whole:
            database.execute("ROLLBACK TO stepfast_usual")
        batch = _record_steps(database, sql, batch, answer)
    if not whole:
        database.execute("RELEASE stepfast_usual")
    return batch


def _usual_values(steps: Sequence[StepDone], now: int) -> list[Any]:
    """Their values for the short statement, one row after the other; none, if one of them needs the long one."""
    columns = columns_of(steps)
    if not are_usual(columns):
        return []
    ids, claims, _, positions, seqs, names, _, _, outputs, _, arguments, _, durations, lines, formats, _, _ = columns
    began = [now - duration for duration in durations]
    rows = zip(
        ids, claims, positions, seqs, names, outputs, arguments, lines, formats, began, repeat(now), strict=False
    )
    return list(chain.from_iterable(rows))


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
