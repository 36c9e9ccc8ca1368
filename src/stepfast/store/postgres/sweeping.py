"""What sweepers do on Postgres: the question which duties have work, due runs, and the runs of dead workers."""

from __future__ import annotations

from collections.abc import Sequence

from ...model.records import Beat, Lane, Tick
from ..flows.sweeping import give_back_held, promote, reap
from ..protocol import Promotion, Reaping
from .connections import Line
from .continuity import Continuity
from .driving import Driver


class Sweeps:
    """Sweeps over one connection of its own."""

    def __init__(self, line: Line, statements: dict[str, str], driver: Driver, continuity: Continuity) -> None:
        self._continuity = continuity
        self._line = line
        self._sql = statements
        self._driver = driver

    async def tick(self, workflows: Sequence[str] | None, lanes: bool, queues: Sequence[str] | None) -> Tick:
        """Which duties have work?"""
        served = None if queues is None else list(queues)
        known = None if workflows is None else list(workflows)
        row = (await self._line.fetch(self._sql["tick"], lanes, known, served))[0]
        self._continuity.met(row["server"])
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
            return await self._driver.run(connection, promote(limit))

    async def give_back(self, worker: str, held: Sequence[tuple[str, int]]) -> None:
        """Put runs back in line at once."""
        async with self._line.use() as connection:
            await self._driver.run(connection, give_back_held(worker, held))

    async def beats(self, worker: str) -> list[Beat]:
        """The last beats of all other workers."""
        return [Beat(str(row[0]), *row[1:]) for row in await self._line.fetch(self._sql["beats"], worker)]

    async def reap(self, worker: str, limit: int, max_losses: int, silent: Sequence[str] | None) -> Reaping:
        """Bury dead workers, give back what they held, forget those with nothing left."""
        async with self._line.use() as connection:
            return await self._driver.run(connection, reap(worker, limit, max_losses, silent))
