"""What sweepers do on Postgres: the question which duties have work, due runs, and the runs of dead workers."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ...model.records import Lane, Tick
from ..engine_errors import DEADLINE_ERROR, EXPIRED_ERROR, LOST_ERROR
from ..protocol import Promotion, Reaping
from .connections import Line


class Sweeps:
    """Sweeps over one connection of its own."""

    def __init__(self, line: Line, statements: dict[str, str]) -> None:
        self._line = line
        self._sql = statements

    async def tick(self, workflows: Sequence[str], lanes: bool, queues: Sequence[str] | None) -> Tick:
        """Which duties have work?"""
        served = None if queues is None else list(queues)
        row = (await self._line.fetch(self._sql["tick"], lanes, list(workflows), served))[0]
        found = zip(row["queues"] or (), row["workflows"] or (), row["priorities"] or (), strict=True)
        due = row["next_due"]
        return Tick(
            now_ms=row["now_ms"],
            due=due is not None and due <= row["now_ms"],
            next_due_ms=None if due is None else due - row["now_ms"],
            suspects=row["suspects"],
            lanes=[Lane(*lane) for lane in found],
            mail=row["mail"],
        )

    async def promote(self, limit: int) -> Promotion:
        """Make due sleepers ready; end what is late."""
        async with self._line.use() as connection:
            rows = await connection.fetch(self._sql["promote"], limit)
            lanes = {_lane(row) for row in rows if not row["late"]}
            late = [row["id"] for row in rows if row["late"]]
            ended: list[str] = []
            moved = len(rows) - len(late)
            if late:
                ends = await self._end_late(connection, late)
                lanes |= {_lane(row) for row in ends if row["undoing"]}
                ended = [str(row["id"]) for row in ends if not row["undoing"]]
                moved += len(ends)
            return Promotion(lanes, ended, moved)

    async def _end_late(self, connection: Any, late: list[Any]) -> list[Any]:
        async with connection.transaction():
            locked = [row["id"] for row in await connection.fetch(self._sql["lock_late"], late)]
            rows: list[Any] = await connection.fetch(self._sql["end_late"], locked, DEADLINE_ERROR, EXPIRED_ERROR)
            await self._tell_parents(connection, [row for row in rows if not row["undoing"]])
            return rows

    async def reap(self, worker: str, limit: int, max_losses: int) -> Reaping:
        """Bury dead workers, give back what they held, forget those with nothing left."""
        async with self._line.use() as connection:
            buried = [str(row["id"]) for row in await connection.fetch(self._sql["bury"], worker)]
            async with connection.transaction():
                rows = await connection.fetch(self._sql["reap"], limit, max_losses, LOST_ERROR)
                await self._tell_parents(connection, [row for row in rows if not row["ready"]])
            if buried or 0 < len(rows) < limit:
                await connection.fetch(self._sql["forget_dead"])
        lanes = {_lane(row) for row in rows if row["ready"]}
        return Reaping(buried, lanes, [str(row["id"]) for row in rows if not row["ready"]], len(rows))

    async def _tell_parents(self, connection: Any, ended: list[Any]) -> None:
        children = [row["id"] for row in ended if row["child"]]
        if children:
            await connection.fetch(self._sql["tell_parents"], children)


def _lane(row: Any) -> Lane:
    return Lane(row["queue"], row["workflow"], row["priority"])
