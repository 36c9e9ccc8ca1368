"""What a worker does to the tables: claim, hold, record, give back. Each is one transaction.

A worker writes only for rows that still name it and the attempt it was given: that is its fence. So a worker that was
taken for dead writes nothing, and a result and the end of its task are seen together or not at all.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from typing import NamedTuple

from .database import Database, Work
from .messages import ClaimedTask, TaskOutcome

Key = tuple[str, int]
"""A step's id and the attempt."""
_READING_MS = 10_000
"""An engine that claimed a result longer ago than this has read it, or is gone."""


class Recorded(NamedTuple):
    """What became of outcomes: those that were written, and those that are put off. Of all others the task is not this
    worker's any more."""

    written: set[Key]
    put_off: set[Key]


class Serving:
    """One worker's view of one group."""

    def __init__(self, database: Database, worker: str, group: str, lease: float) -> None:
        self._database = database
        self._worker = worker
        self._group = group
        self._lease_ms = int(lease * 1000)

    async def claim(self, most: int) -> list[ClaimedTask]:
        """Take up to so many tasks, the oldest first."""
        async with self._database.transaction() as work:
            rows = await work.fetch("due", grp=self._group, lease=self._lease_ms, most=most)
            if not rows:
                return []
            await work.execute("stamp", worker=self._worker, ids=tuple(row[0] for row in rows))
        return sorted((ClaimedTask(*row) for row in rows), key=lambda task: (task.created_at, task.seq))

    async def renew(self, keys: Sequence[Key]) -> set[Key]:
        """Hold tasks for another lease; those that are still held."""
        async with self._database.transaction() as work:
            held = await self._held(work, keys)
            if held:
                await work.execute("stamp", worker=self._worker, ids=_ids(held))
        return set(held)

    async def give_back(self, keys: Sequence[Key]) -> None:
        """Let others have them at once."""
        async with self._database.transaction() as work:
            held = await self._held(work, keys)
            if held:
                await work.execute("let_go", ids=_ids(held))

    async def give_back_strays(self, known: Sequence[Key]) -> None:
        """Let others have what names this worker without its knowledge: the answer to a claim was lost."""
        async with self._database.transaction() as work:
            rows = await work.fetch("named", worker=self._worker, grp=self._group)
            strays = {(row[0], row[1]) for row in rows} - set(known)
            if strays:
                await work.execute("let_go", ids=_ids(strays))

    async def record(self, outcomes: Sequence[TaskOutcome], overdue: Collection[str] = ()) -> Recorded:
        """Write results and end their tasks, as one. A result is put off while an engine is reading the failure of an
        earlier attempt, because the engine then deletes whatever is in that row; unless its step is ``overdue``."""
        async with self._database.transaction() as work:
            held = await self._held(work, [outcome.key for outcome in outcomes])
            busy = await self._make_way(work, held, overdue)
            kept = {outcome.key: outcome for outcome in outcomes if outcome.key in held and outcome.step_id not in busy}
            if kept:
                await work.put("put_results", [_row(outcome, *held[key]) for key, outcome in kept.items()])
                await work.execute("delete_tasks", ids=_ids(kept))
        return Recorded(set(kept), held.keys() - kept.keys())

    async def _make_way(self, work: Work, keys: Iterable[Key], overdue: Collection[str]) -> set[str]:
        """Remove failures that earlier attempts have left; those that somebody reads at this moment stay."""
        retried = [key for key in keys if key[1] > 1]
        rows = await work.fetch("lock_failures", ids=_ids(retried)) if retried else ()
        busy = {row[0] for row in rows if row[1] is not None and row[1] < _READING_MS} - set(overdue)
        failures = tuple(row[0] for row in rows if row[0] not in busy)
        if failures:
            await work.execute("delete_results", ids=failures)
        return busy

    async def _held(self, work: Work, keys: Sequence[Key]) -> dict[Key, tuple[str, int]]:
        """Run and number of those that still name this worker and this attempt; their rows are locked."""
        rows = await work.fetch("held", worker=self._worker, ids=_ids(keys)) if keys else ()
        wanted = set(keys)
        found = {(row[0], row[1]): (row[2], row[3]) for row in rows}
        return {key: row for key, row in found.items() if key in wanted}


def _ids(keys: Iterable[Key]) -> tuple[str, ...]:
    return tuple(sorted(key[0] for key in keys))


def _row(outcome: TaskOutcome, run_id: str, seq: int) -> dict[str, object]:
    return {
        "step_id": outcome.step_id,
        "run_id": run_id,
        "seq": seq,
        "status": outcome.status,
        "output": outcome.output,
        "error": outcome.error,
        "started_at": outcome.started_at,
    }
