"""A flush of the journal: the fence, the records of steps, what goes with them, and where runs go from here.

This is the order on every database. All of it is one transaction, unless a dag run begins to fail. What a journal
carries most of the time each database writes in a shorter way of its own, because that is hot; it must come to the same
as this flow, and a test holds it to that.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from ...model.graph import is_failure
from ...model.records import Batch, FlushAnswer, Transition
from ...model.run_state import Standing
from .leaving import let_go, tell
from .recording import bar, record, steps_of
from .requests import COMMIT, Flow, Rows, ask
from .standings import found, lock_free

Standings = dict[str, Standing]
Claims = set[tuple[str, int]]
"""Runs, and the claims under which they are written to."""
Meet = Callable[[int | None], None]
"""Told when the server was started that answers; None: there is no server."""


class Fenced(NamedTuple):
    """What may be written."""

    batch: Batch
    runs: Standings
    """The runs that passed the fence, locked in this transaction. Of some of them nothing is written all the same."""
    dags: Standings
    """The dag runs whose steps end here."""


def flush(worker: str, batch: Batch, meet: Meet) -> Flow[FlushAnswer]:
    """Write what passes the fence; say what did not. Where a dag run begins to fail all its open steps are locked, and
    waited for: nothing else may be in hand then, so that such ends have a transaction of their own."""
    failing = _failing(batch)
    if not failing:
        return (yield from _flush(worker, batch, meet))
    others = batch.part(lambda entry: entry.run_id not in failing)
    last = batch.part(lambda entry: entry.run_id in failing)
    if not any(others.entries()):
        return (yield from _flush(worker, last, meet))
    first = yield from _flush(worker, others, meet)
    yield COMMIT
    return first.with_that_of((yield from _flush(worker, last, meet)))


def _failing(batch: Batch) -> set[str]:
    """Steps that end here, of dag runs that fail by one of them."""
    settled = [(move.run_id, move.settled) for move in batch.transitions if move.settled is not None]
    dag_ids = {end.dag_id for _, end in settled if is_failure(end.outcome)}
    return {run_id for run_id, end in settled if end.dag_id in dag_ids}


def _flush(worker: str, batch: Batch, meet: Meet) -> Flow[FlushAnswer]:
    """Write a batch, or as much of it as passes, in one transaction."""
    answer = FlushAnswer(0)
    claims = {(entry.run_id, entry.claim) for entry in batch.entries()}
    passed = yield from _pass(worker, batch, claims, meet, answer)
    if passed.runs:
        yield from bar(passed.batch, answer)
        yield from record(passed.batch, answer)
        yield from _move(worker, passed, answer)
    refused = claims - {(run.id, run.claim) for run in passed.runs.values()}
    if refused:
        yield from _explain(worker, refused, answer)
    return answer


# -- the fence -----------------------------------------------------------------------------------------------------


def _pass(worker: str, batch: Batch, claims: Claims, meet: Meet, answer: FlushAnswer) -> Flow[Fenced]:
    """The part of the batch that this worker may write. It may not where somebody else has the run; where less is
    stored of a run than was believed, or something else: then the run is lost, and nothing of it is written."""
    dags, kept_out = yield from _lock_dags(batch.transitions)
    rows = (yield from ask("fence", worker, Rows(claims))) if claims else []
    if rows:
        meet(rows[0][0])
    held, answer.now_ms = found(row[1:] for row in rows)
    answer.asked = {run.id: run.asked for run in held.values() if run.asked}
    runs = {run.id: run for run in held.values() if run.id not in kept_out}
    answer.vanished = yield from _find_vanished(batch, runs)
    answer.lost = answer.vanished | (yield from _find_foreign(batch))
    lost = answer.lost
    kept = batch.part(lambda e: e.run_id in runs and e.claim == runs[e.run_id].claim and e.run_id not in lost)
    return Fenced(kept, runs, dags)


def _lock_dags(moves: list[Transition]) -> Flow[tuple[Standings, set[str]]]:
    """The dag runs whose steps end here; and those of the steps that have to wait for somebody else's commit."""
    dag_ids = {move.settled.dag_id for move in moves if move.settled is not None}
    if not dag_ids:
        return {}, set()
    dags = (yield from lock_free(dag_ids)).runs
    missing = [dag_id for dag_id in dag_ids if dag_id not in dags]
    if not missing:
        return dags, set()
    out = {str(row[0]) for row in (yield from ask("which_exist", missing))}
    return dags, {move.run_id for move in moves if move.settled is not None and move.settled.dag_id in out}


def _find_vanished(batch: Batch, runs: Standings) -> Flow[set[str]]:
    """Of the doubtful: runs of which less is stored than their worker was told."""
    doubtful = {run_id: batch.doubts[run_id] for run_id in runs if run_id in batch.doubts}
    if not doubtful:
        return set()
    stored = {row[0]: row[1] for row in (yield from ask("stored", list(doubtful)))}
    return {run_id for run_id, believer in doubtful.items() if stored[run_id] < believer.believed()}


def _find_foreign(batch: Batch) -> Flow[set[str]]:
    """Runs whose history is not what we believe. A conflicting record of our own claim is our own, written before its
    reply was lost; one of another claim is not."""
    addresses = Rows(step[:4] for step in steps_of(batch))
    return {row[0] for row in (yield from ask("foreign_steps", addresses))} if addresses else set()


def _explain(worker: str, refused: Claims, answer: FlushAnswer) -> Flow[None]:
    """Say why runs did not pass: they are lost, unless they are still ours; then somebody held their rows just now."""
    rows = yield from ask("still_ours", worker, Rows(refused))
    answer.busy = {row[0] for row in rows}
    answer.lost |= {run_id for run_id, _ in refused} - answer.busy


# -- where runs go -------------------------------------------------------------------------------------------------


def _move(worker: str, passed: Fenced, answer: FlushAnswer) -> Flow[None]:
    moves = passed.batch.transitions
    if moves:
        yield from let_go(worker, moves, passed.runs, passed.dags, answer)
        yield from tell(moves, answer)
