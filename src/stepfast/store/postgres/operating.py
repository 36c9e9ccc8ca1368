"""What operators ask of runs, on Postgres: retry, cancel, pause, resume. Each locks its run first, and then decides."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any, NamedTuple

import msgspec

from ...model.cancelling import goes_on_first, may_have_acted
from ...model.records import Asked, Lane
from ...model.status import ASK_CANCEL, CANCELLED, FAILED, REASON_CANCELLED, TERMINAL
from .forgetting import forget_steps
from .graph_retrying import retry_dag
from .graphs import Dags, Effects, Why
from .transactions import transaction


class Cancelled(NamedTuple):
    """What became of a run that was to be cancelled: marked for its owner, ended, or in line: to be undone, or to come
    to a record first."""

    held: bool
    ended: bool
    lane: Lane | None


class Operators:
    """Works on a connection that it is given for each wish. A step of a dag run is not theirs: it goes with its run."""

    def __init__(self, statements: dict[str, str], dags: Dags) -> None:
        self._sql = statements
        self._dags = dags

    async def retry(self, connection: Any, run_id: str) -> set[Lane] | None:
        """Queue a failed or cancelled run again; of a dag run, its steps that did not complete."""
        async with self._locked(connection, run_id) as run:
            if run is None or run["dag_id"] is not None:
                return None
            if run["status"] not in (FAILED, CANCELLED) or run["undoing"]:
                return None
            if run["dag"]:
                return await retry_dag(connection, self._sql, self._dags, run_id, run)
            row = await connection.fetchrow(self._sql["retry"], run_id)
            forget = msgspec.json.decode(run["forget"] or "[]")
            await forget_steps(connection, self._sql, [(run_id, branch, position) for branch, position in forget])
            await connection.execute(self._sql["tell_again"], run_id)
            return {Lane(*row)}

    async def cancel(self, connection: Any, run_id: str) -> Asked:
        """End it, begin its undoing, or mark it."""
        async with self._locked(connection, run_id) as run:
            asked = _asked(run)
            if run is None or run["dag_id"] is not None:
                return asked
            if run["dag"] and not run["held"] and run["status"] not in TERMINAL:
                await self._cancel_dag(connection, run_id, run, asked)
                return asked
            for what in await cancel_locked(connection, self._sql, [run_id]):
                asked.done, asked.running, asked.ended, asked.lane = True, what.held, what.ended, what.lane
            return asked

    async def _cancel_dag(self, connection: Any, run_id: str, run: Any, asked: Asked) -> None:
        """One that fails already goes on to do so."""
        if run["failing"] or run["undoing"]:
            asked.done = run["reason"] == REASON_CANCELLED and not run["undoing"]
            return
        effects = await cancel_dags(connection, self._dags, [run_id])
        asked.done, asked.running, asked.lanes = True, bool(effects.marked), effects.lanes
        if effects.ready:
            asked.lane = Lane(run["queue"], run["workflow"], run["priority"])

    async def pause(self, connection: Any, run_id: str) -> Asked:
        """Hold it, or mark it. What is to be cancelled, or is being undone, is not held up."""
        async with self._locked(connection, run_id) as run:
            asked = _asked(run)
            if run is None or run["dag_id"] is not None:
                return asked
            if run["status"] in TERMINAL or run["undoing"] or run["failing"] or run["asked"] == ASK_CANCEL:
                return asked
            rows = await connection.fetch(self._sql["pause"], await self._with_steps(connection, run, run_id))
            asked.done, asked.running = True, any(row["worker"] is not None for row in rows)
            return asked

    async def resume(self, connection: Any, run_id: str) -> Asked:
        """Let it go on, or take the mark back."""
        async with self._locked(connection, run_id) as run:
            asked = _asked(run)
            if run is None or run["dag_id"] is not None:
                return asked
            rows = await connection.fetch(self._sql["resume"], await self._with_steps(connection, run, run_id))
            asked.done, asked.running = bool(rows), any(row["worker"] is not None for row in rows)
            for row in rows:
                lane = Lane(row["queue"], row["workflow"], row["priority"])
                if row["ready"] and row["workflow"] == run["workflow"]:
                    asked.lane = lane
                elif row["ready"]:
                    asked.lanes.add(lane)
            return asked

    async def _with_steps(self, connection: Any, run: Any, run_id: str) -> list[Any]:
        """The run, and of a dag run its steps that are not settled, locked like the run itself."""
        return [run_id, *(await self._dags.lock_open(connection, [run_id]) if run["dag"] else ())]

    @asynccontextmanager
    async def _locked(self, connection: Any, run_id: str) -> AsyncIterator[Any]:
        async with transaction(connection):
            yield await connection.fetchrow(self._sql["lock_run"], run_id)


async def cancel_locked(connection: Any, statements: dict[str, str], ids: list[str]) -> list[Cancelled]:
    """Cancel runs that are locked in this transaction, and leave word for their parents and children."""
    about = await connection.fetch(statements["about_to_cancel"], ids)
    first = [row["id"] for row in about if goes_on_first(row["losses"], row["status"], row["waiting_for"])]
    errors = {
        row["id"]: may_have_acted(row["losses"], row["status"], row["running"], row["last"], row["waiting_for"])
        for row in about
    }
    errors = {run_id: error for run_id, error in errors.items() if error is not None}
    rows = await connection.fetch(statements["cancel"], ids, first, list(errors), list(errors.values()))
    found = [(row, _cancelled(row)) for row in rows]
    ended = [row["id"] for row, what in found if what.ended and row["child"]]
    if ended:
        await connection.fetch(statements["tell_parents"], ended)
    parents = [row["id"] for row, what in found if not (what.held or row["first"])]
    if parents:
        await connection.fetch(statements["tell_children"], parents)
    return [what for _, what in found]


async def cancel_dags(connection: Any, dags: Dags, ids: list[str]) -> Effects:
    """Dag runs that nobody holds fail, and are finished like any that does. Locked in this transaction."""
    locked = await dags.lock(connection, ids)
    return await dags.fail(connection, locked, locked.free, Why(REASON_CANCELLED))


def _asked(run: Any) -> Asked:
    return Asked(None) if run is None else Asked(run["status"], run["reason"])


def _cancelled(row: Any) -> Cancelled:
    ready = row["undoes"] or row["first"]
    lane = Lane(row["queue"], row["workflow"], row["priority"]) if ready else None
    return Cancelled(row["held"], not (row["held"] or ready), lane)
