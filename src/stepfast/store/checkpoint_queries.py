"""What a store does with checkpoints of graphs and with conversations of agents."""

from __future__ import annotations

from collections.abc import Collection, Sequence

from .flows import checkpoints
from .flows.checkpoints import CheckpointRow, ItemRow, Values, WriteRow
from .store_requests import StoreRequests

_LAST = "\U0010ffff"
"""Behind all that a checkpoint is called."""
_FIRST_ID = "00000000-0000-0000-0000-000000000000"


class CheckpointQueries(StoreRequests):
    """The part of a store that keeps checkpoints and conversations, the same on every database."""

    # -- checkpoints -------------------------------------------------------------------------------------------------

    async def put_checkpoint(self, row: CheckpointRow, values: Values) -> None:
        """Store a checkpoint and new values of channels, in one transaction. Safe to repeat."""
        await self._drive(checkpoints.put_checkpoint, row, list(values))

    async def put_checkpoint_writes(self, thread: str, rows: Sequence[WriteRow], replace: bool) -> None:
        """Store what a task has written for a checkpoint. Safe to repeat."""
        await self._drive(checkpoints.put_writes, thread, rows, replace)

    async def checkpoint(self, id_: str) -> CheckpointRow | None:
        """A checkpoint by the id of its row."""
        for row in await self._fetch("checkpoints_named", [id_]):
            return CheckpointRow(*row)
        return None

    async def checkpoints(
        self, thread: str | None, ns: str | None, before: str | None, behind: CheckpointRow | None, most: int
    ) -> list[CheckpointRow]:
        """A page of checkpoints, the newest first: of all threads, of one, or of one with an ns; those before a
        checkpoint, and those behind the last of another page."""
        place = (before or _LAST, _FIRST_ID) if behind is None else (behind.checkpoint, behind.id)
        if thread is None:
            rows = await self._fetch("checkpoints_of_all", *place, most)
        elif ns is None:
            rows = await self._fetch("checkpoints_of", thread, *place, most)
        else:
            rows = await self._fetch("checkpoints_in", checkpoints.scope_id(thread, ns), *place, most)
        return [CheckpointRow(*row) for row in rows]

    async def checkpoint_values(self, ids: Collection[str]) -> dict[str, tuple[str, int]]:
        """Values of channels, and their formats, by the ids of their rows; those that are there."""
        if not ids:
            return {}
        return {row[0]: (row[1], row[2]) for row in await self._fetch("checkpoint_values", sorted(ids))}

    async def checkpoint_writes(self, owners: Collection[str]) -> list[WriteRow]:
        """What tasks have written for checkpoints, in the order in which it counts."""
        found = [WriteRow(*row) for row in await self._fetch("checkpoint_writes", sorted(owners))] if owners else []
        return sorted(found, key=lambda row: (row.owner, row.path, row.task, row.number))

    async def delete_checkpoints(self, thread: str, ids: Collection[str]) -> None:
        """Delete checkpoints of a thread, with what only they need."""
        await self._drive(checkpoints.delete_checkpoints, {thread}, set(ids))

    async def delete_checkpoints_of_runs(self, runs: Collection[str]) -> None:
        """Delete the checkpoints that runs of graphs have made."""
        if runs:
            await self._drive(checkpoints.delete_of_runs, runs)

    async def delete_threads(self, threads: Collection[str]) -> None:
        """Delete all checkpoints of threads."""
        await self._drive(checkpoints.delete_threads, threads)

    async def delete_old_threads(self, age_ms: int, most: int) -> int:
        """Delete threads that got no checkpoint for longer; how many, of at most so many."""
        return await self._drive(checkpoints.delete_old_threads, age_ms, most)

    async def copy_thread(self, source: str, target: str, rows: Sequence[CheckpointRow]) -> None:
        """Copy all of a thread, whose checkpoints are given, into another."""
        await self._drive(checkpoints.copy_thread, source, target, rows)

    # -- conversations -----------------------------------------------------------------------------------------------

    async def add_session_items(self, session: str, batch: str, values: Sequence[str], format_: int) -> None:
        """Add items to the end of a session; those of a batch that was added already are there."""
        await self._drive(checkpoints.add_items, session, batch, values, format_)

    async def take_session_item(self, session: str, taker: str, format_: int) -> ItemRow | None:
        """Take the last item off a session, for a taker that gets the same one again."""
        return await self._drive(checkpoints.take_item, session, taker, format_)

    async def forget_session_item(self, session: str, taker: str) -> None:
        """Delete an item that was taken, and will not be asked for again."""
        await self._drive(checkpoints.forget_item, session, taker)

    async def session_items(self, session: str, most: int) -> list[ItemRow]:
        """The last items of a session, the newest first."""
        return [ItemRow(*row) for row in await self._fetch("session_items", session, most)]

    async def delete_sessions(self, sessions: Collection[str]) -> None:
        """Delete all items of sessions."""
        await self._drive(checkpoints.delete_sessions, sessions)

    async def delete_old_sessions(self, age_ms: int, most: int) -> int:
        """Delete sessions to which nothing was added for longer; how many, of at most so many."""
        return await self._drive(checkpoints.delete_old_sessions, age_ms, most)
