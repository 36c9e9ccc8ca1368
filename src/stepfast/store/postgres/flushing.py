"""The journal's flush on Postgres: one transaction, fenced run by run."""

from __future__ import annotations

from typing import Any

import asyncpg

from ...model import status
from ...model.batches import Batch, FlushAnswer
from ...model.graph import is_failure
from ...model.records import StepDone, Transition
from ...model.standing import Standing
from ..flows.leaving import let_go, tell
from ..flows.recording import bar, record_beside
from ..flows.standings import found, lock_free
from .columns import ids, numbers, texts
from .connections import KeptConnection
from .continuity import Continuity
from .driving import Driver
from .transactions import transaction

Standings = dict[str, Standing]

_RUN_ID, _CLAIM, _BRANCH, _POSITION, _SEQ, _NAME, _KIND, _STATUS = range(8)
_OUTPUT, _ERROR, _ARGUMENTS, _ATTEMPTS, _DURATION, _LINE, _FORMAT, _UNDO = range(8, 16)
_NO_COLUMNS: tuple[tuple[Any, ...], ...] = ((),) * 16
"""StepDone as columns, in the order of its fields."""


class Flusher:
    """Writes batches over one connection of its own."""

    def __init__(
        self, kept: KeptConnection, statements: dict[str, str], driver: Driver, continuity: Continuity
    ) -> None:
        self._kept = kept
        self._sql = statements
        self._driver = driver
        self._continuity = continuity

    async def flush(self, worker: str, batch: Batch) -> FlushAnswer:
        """Write what passes the fence; say what did not."""
        columns = tuple(zip(*batch.steps, strict=True)) if batch.steps else _NO_COLUMNS
        if _is_usual(batch, columns):
            answer = await self._flush_usual(worker, batch, columns)
            if answer is not None:
                return answer
        failing = _failing(batch)
        if not failing:
            return await self._flush_mixed(worker, batch)
        # Where a dag run begins to fail all its open steps are locked, and waited for: nothing else may be in hand.
        others, last = batch.part(lambda e: e.run_id not in failing), batch.part(lambda e: e.run_id in failing)
        first = await self._flush_mixed(worker, others) if any(others.entries()) else None
        answer = await self._flush_mixed(worker, last)
        return answer if first is None else first.with_that_of(answer)

    # -- the usual freight: one statement, one round trip ----------------------------------------------------

    async def _flush_usual(self, worker: str, batch: Batch, columns: tuple[tuple[Any, ...], ...]) -> FlushAnswer | None:
        """None: not everything could be written, and so nothing was."""
        ended = batch.transitions
        words = [texts(columns[which]) for which in (_NAME, _OUTPUT, _ARGUMENTS, _LINE)]
        outputs = texts([t.output for t in ended])
        children = any(t.child for t in ended)
        if outputs is None or None in words:
            return None
        async with self._kept.use() as connection:
            if batch.doubts and not batch.doubts.keys().isdisjoint(batch.claims):
                return None
            try:
                row = await connection.fetchrow(
                    self._sql["flush_telling" if children else "flush"],
                    worker,
                    ids(columns[_RUN_ID]),
                    numbers(columns[_CLAIM]),
                    numbers(columns[_POSITION]),
                    numbers(columns[_SEQ]),
                    *words,
                    numbers(columns[_DURATION]),
                    ids([t.run_id for t in ended]),
                    numbers([t.claim for t in ended]),
                    outputs,
                    ended[0].format if ended else columns[_FORMAT][0],
                    self._continuity.started,
                )
            except asyncpg.DivisionByZeroError:
                return None
            answer = FlushAnswer(row["now_ms"], undelivered=children)
            if row["asked_ids"]:
                answer.asked = {str(i): what for i, what in zip(row["asked_ids"], row["asked"], strict=True)}
            return answer

    # -- everything else: a few statements in one transaction -------------------------------------------------

    async def _flush_mixed(self, worker: str, batch: Batch) -> FlushAnswer:
        fences = {(entry.run_id, entry.claim) for entry in batch.entries()}
        async with self._kept.use() as connection:
            async with transaction(connection):
                dags, kept_out = await self._lock_dags(connection, batch.transitions)
                rows = await connection.fetch(
                    self._sql["fence"], worker, [run_id for run_id, _ in fences], [claim for _, claim in fences]
                )
                runs, now = found(row[1:] for row in rows)
                answer = FlushAnswer(now, asked={run.id: run.asked for run in runs.values() if run.asked})
                passed = {(run.id, run.claim) for run in runs.values() if run.id not in kept_out}
                if rows:
                    self._continuity.met(rows[0]["server"])
                answer.vanished = await self._find_vanished(connection, batch, passed)
                foreign = await self._find_foreign(connection, [*batch.steps, *(e.step for e in batch.joint)])
                foreign |= answer.vanished
                if passed:
                    kept = batch.part(lambda e: (e.run_id, e.claim) in passed and e.run_id not in foreign)
                    await self._driver.join(connection, bar(kept, answer))
                    await self._write(connection, kept, answer)
                    await self._let_go(connection, worker, kept.transitions, (runs, dags), answer)
            answer.lost = foreign
            if len(passed) < len(fences):
                await self._explain_refused(connection, worker, fences - passed, answer)
            return answer

    async def _write(self, connection: Any, batch: Batch, answer: FlushAnswer) -> None:
        now = answer.now_ms
        steps = [*batch.steps, *(entry.step for entry in batch.joint)]
        if steps:
            mail = [None] * len(batch.steps) + [entry.takes[0] if entry.takes else None for entry in batch.joint]
            await connection.execute(self._sql["record_steps"], *zip(*steps, strict=True), mail, now)
        await self._driver.join(connection, record_beside(batch, now))

    # -- runs that leave this worker -------------------------------------------------------------------------

    async def _lock_dags(self, connection: Any, moves: list[Transition]) -> tuple[Standings, set[str]]:
        """The dag runs whose steps end here; and those of the steps that have to wait for somebody else's commit."""
        dag_ids = {m.settled.dag_id for m in moves if m.settled is not None}
        if not dag_ids:
            return {}, set()
        dags = (await self._driver.join(connection, lock_free(dag_ids))).runs
        missing = [dag_id for dag_id in dag_ids if dag_id not in dags]
        if not missing:
            return dags, set()
        out = {str(row["id"]) for row in await connection.fetch(self._sql["which_exist"], missing)}
        return dags, {m.run_id for m in moves if m.settled is not None and m.settled.dag_id in out}

    async def _let_go(
        self, connection: Any, worker: str, moves: list[Transition], at: tuple[Standings, Standings],
        answer: FlushAnswer,
    ) -> None:  # fmt: skip
        if moves:
            await self._driver.join(connection, let_go(worker, moves, *at, answer))
            await self._driver.join(connection, tell(moves, answer))

    # -- what was refused, and why -----------------------------------------------------------------------------

    async def _explain_refused(
        self, connection: Any, worker: str, refused: set[tuple[str, int]], answer: FlushAnswer
    ) -> None:
        """A run that did not pass is lost, unless it is still ours: then somebody held its row just now."""
        ids, claims = [run_id for run_id, _ in refused], [claim for _, claim in refused]
        rows = await connection.fetch(self._sql["still_ours"], worker, ids, claims)
        answer.busy = {str(row["id"]) for row in rows}
        answer.lost |= {run_id for run_id, _ in refused} - answer.busy

    async def _find_vanished(self, connection: Any, batch: Batch, passed: set[tuple[str, int]]) -> set[str]:
        """Of the doubtful: runs of which less is stored than their worker was told. Nothing of them is written."""
        doubtful = {run_id: batch.doubts[run_id] for run_id, _ in passed if run_id in batch.doubts}
        if not doubtful:
            return set()
        rows = await connection.fetch(self._sql["stored"], list(doubtful))
        stored = {str(row["id"]): row["number"] for row in rows}
        return {run_id for run_id, believer in doubtful.items() if stored[run_id] < believer.believed()}

    async def _find_foreign(self, connection: Any, steps: list[StepDone]) -> set[str]:
        """Runs whose history is not what we believe. A conflicting record of our own claim is our own, written before
        its reply was lost; one of another claim is not, and then nothing of the run is written."""
        if not steps:
            return set()
        return {str(row["run_id"]) for row in await connection.fetch(self._sql["foreign_steps"], *_places(steps))}


def _places(steps: list[StepDone]) -> tuple[tuple[Any, ...], ...]:
    """Runs, claims, branches and positions as columns."""
    columns = tuple(zip(*steps, strict=True))
    return (columns[_RUN_ID], columns[_CLAIM], columns[_BRANCH], columns[_POSITION])


def _is_usual(batch: Batch, columns: tuple[tuple[Any, ...], ...]) -> bool:
    """Whether everything has the shape that one short statement writes."""
    if batch.tries or batch.running or batch.joint or batch.values:
        return False
    if not all(t.status == status.COMPLETED and t.successor is None and t.settled is None for t in batch.transitions):
        return False
    count = len(batch.steps)
    formats = {*columns[_FORMAT], *(t.format for t in batch.transitions)}
    return (
        columns[_STATUS].count(status.COMPLETED) == count
        and columns[_BRANCH].count("") == count
        and columns[_KIND].count("step") == count
        and columns[_ATTEMPTS].count(1) == count
        and columns[_UNDO].count(None) == count
        and len(formats) == 1
    )


def _failing(batch: Batch) -> set[str]:
    """Steps that end here, of dag runs that fail by one of them."""
    settled = [(m.run_id, m.settled) for m in batch.transitions if m.settled is not None]
    dag_ids = {end.dag_id for _, end in settled if is_failure(end.outcome)}
    return {run_id for run_id, end in settled if end.dag_id in dag_ids}
