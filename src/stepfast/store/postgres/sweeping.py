"""What sweepers do on Postgres: the question which duties have work, due runs, and the runs of dead workers."""

from __future__ import annotations

from collections.abc import Sequence

from ...model.records import Beat, Lane, Tick
from .connections import KeptConnection
from .continuity import Continuity


class Sweeps:
    """Sweeps over one connection of its own."""

    def __init__(self, kept: KeptConnection, statements: dict[str, str], continuity: Continuity) -> None:
        self._continuity = continuity
        self._kept = kept
        self._sql = statements

    async def tick(
        self, workflows: Sequence[str] | None, lanes: bool, queues: Sequence[str] | None, schedules: Sequence[str]
    ) -> Tick:
        """Which duties have work?"""
        served = None if queues is None else list(queues)
        known = None if workflows is None else list(workflows)
        row = (await self._kept.fetch(self._sql["tick"], lanes, known, served, list(schedules)))[0]
        self._continuity.met(row["server"])
        columns = (row[name] or () for name in ("queues", "workflows", "priorities"))
        found = list(zip(map(Lane, *columns), row["limited"] or (), strict=True))
        due, schedule = row["next_due"], row["next_schedule"]
        return Tick(
            now_ms=row["now_ms"],
            due=due is not None and due <= row["now_ms"],
            next_due_ms=None if due is None else due - row["now_ms"],
            suspects=row["suspects"],
            lanes=[lane for lane, limited in found if not limited],
            mail=row["mail"],
            limited=[lane for lane, limited in found if limited],
            gated=frozenset(row["gated"] or ()),
            paused=frozenset(row["paused"] or ()),
            limited_suspects=row["limited_suspects"] or [],
            schedule_ms=None if schedule is None else schedule - row["now_ms"],
            remote=row["remote"],
        )

    async def beats(self, worker: str) -> list[Beat]:
        """The last beats of all other workers."""
        return [Beat(str(row[0]), *row[1:]) for row in await self._kept.fetch(self._sql["beats"], worker)]
