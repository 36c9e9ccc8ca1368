"""The journal's flush on Postgres: one transaction, fenced run by run."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import msgspec
from msgspec.structs import astuple

from ...model import status
from ...model.records import Batch, FlushAnswer, StepDone, Transition
from .connections import Line

_NO_STEPS: tuple[tuple[Any, ...], ...] = ((),) * 15


class Flusher:
    """Writes batches over one connection of its own."""

    def __init__(self, line: Line, statements: dict[str, str]) -> None:
        self._line = line
        self._sql = statements

    async def flush(self, worker: str, batch: Batch) -> FlushAnswer:
        """Write what passes the fence; say what did not."""
        if _is_usual(batch):
            return await self._flush_usual(worker, batch)
        return await self._flush_mixed(worker, batch)

    # -- the usual freight: one statement, one round trip ----------------------------------------------------

    async def _flush_usual(self, worker: str, batch: Batch) -> FlushAnswer:
        fences = batch.fences()
        ids, claims = list(fences), list(fences.values())
        ended = batch.transitions
        async with self._line.use() as connection:
            row = await connection.fetchrow(
                self._sql["flush"],
                worker,
                ids,
                claims,
                *_columns(batch.steps),
                [t.run_id for t in ended],
                [t.output for t in ended],
            )
            answer = FlushAnswer(row["now_ms"])
            if row["asked_ids"]:
                answer.asked = {str(i): what for i, what in zip(row["asked_ids"], row["asked"], strict=True)}
            if row["passed"] is not None or row["fenced"] < len(ids):
                passed = {str(i) for i in row["passed"] or ()}
                await self._explain_refused(connection, worker, fences, passed, answer)
            if row["recorded"] < len(batch.steps):
                await self._find_foreign(connection, batch.steps, answer)
            return answer

    # -- everything else: a few statements in one transaction -------------------------------------------------

    async def _flush_mixed(self, worker: str, batch: Batch) -> FlushAnswer:
        fences = batch.fences()
        async with self._line.use() as connection:
            async with connection.transaction():
                rows = await connection.fetch(self._sql["fence"], worker, list(fences), list(fences.values()))
                now = rows[0]["now_ms"] if rows else 0
                answer = FlushAnswer(now, asked={str(r["id"]): r["asked"] for r in rows if r["asked"]})
                passed = {str(row["id"]) for row in rows}
                if passed:
                    await self._write(connection, worker, _only(batch, passed), now, answer)
            if len(passed) < len(fences):
                await self._explain_refused(connection, worker, fences, passed, answer)
            return answer

    async def _write(self, connection: Any, worker: str, batch: Batch, now: int, answer: FlushAnswer) -> None:
        if batch.steps:
            done = await connection.execute(self._sql["record_steps"], *_columns(batch.steps), now)
            if int(done.rsplit(" ", 1)[1]) < len(batch.steps):
                await self._find_foreign(connection, batch.steps, answer)
        if batch.tries:
            columns = [list(column) for column in zip(*map(astuple, batch.tries), strict=True)]
            await connection.execute(self._sql["record_tries"], *columns, now)
        if batch.running:
            columns = [list(column) for column in zip(*map(astuple, batch.running), strict=True)]
            await connection.execute(self._sql["record_progress"], columns[0], *columns[2:], now)
        if batch.transitions:
            await self._move(connection, worker, batch.transitions, now)

    async def _move(self, connection: Any, worker: str, moves: list[Transition], now: int) -> None:
        forgotten = [(m.run_id, branch, position) for m in moves if m.next_attempt for branch, position in m.forget]
        if forgotten:
            await connection.execute(self._sql["forget"], *map(list, zip(*forgotten, strict=True)))
        columns = zip(*(_move_row(m) for m in moves), strict=True)
        await connection.fetch(self._sql["move"], *map(list, columns), worker, now)

    # -- what was refused, and why -----------------------------------------------------------------------------

    async def _explain_refused(
        self, connection: Any, worker: str, fences: dict[str, int], passed: set[str], answer: FlushAnswer
    ) -> None:
        """A run that did not pass is lost, unless it is still ours: then somebody held its row just now."""
        refused = {run_id: claim for run_id, claim in fences.items() if run_id not in passed}
        rows = await connection.fetch(self._sql["still_ours"], worker, list(refused), list(refused.values()))
        answer.busy = {str(row["id"]) for row in rows}
        answer.lost |= refused.keys() - answer.busy

    async def _find_foreign(self, connection: Any, steps: list[StepDone], answer: FlushAnswer) -> None:
        """A conflicting record of our own claim is our own, written before its reply was lost. Another is not."""
        rows = await connection.fetch(
            self._sql["foreign_steps"],
            [s.run_id for s in steps],
            [s.claim for s in steps],
            [s.branch for s in steps],
            [s.position for s in steps],
        )
        answer.lost |= {str(row["run_id"]) for row in rows}


def _is_usual(batch: Batch) -> bool:
    return not (batch.tries or batch.running) and all(t.status == status.COMPLETED for t in batch.transitions)


def _columns(steps: list[StepDone]) -> Iterable[tuple[Any, ...]]:
    return zip(*map(astuple, steps), strict=True) if steps else _NO_STEPS


def _only(batch: Batch, passed: set[str]) -> Batch:
    return Batch(
        [e for e in batch.steps if e.run_id in passed],
        [e for e in batch.tries if e.run_id in passed],
        [e for e in batch.running if e.run_id in passed],
        [e for e in batch.transitions if e.run_id in passed],
    )


def _move_row(move: Transition) -> tuple[Any, ...]:
    """In the order of the statement's arrays."""
    kept = None if move.next_attempt or not move.forget else msgspec.json.encode(move.forget).decode()
    return (
        move.run_id,
        move.status,
        move.reason,
        move.output,
        move.error,
        move.delay_ms,
        move.waiting_for,
        move.wakes,
        int(move.next_attempt),
        move.recorded,
        move.version,
        kept,
        move.status in status.TERMINAL,
    )
