"""What sweepers do on Postgres: the question which duties have work, due runs, and the runs of dead workers."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any

from ...model.records import Beat, Lane, Tick
from ...model.status import REASON_DEADLINE
from ..engine_errors import DEADLINE_ERROR, EXPIRED_ERROR, LOST_ERROR
from ..protocol import Promotion, Reaping
from .connections import Line
from .continuity import Continuity
from .graphs import Dags, Effects, Locked, Why
from .transactions import transaction


class Sweeps:
    """Sweeps over one connection of its own."""

    def __init__(self, line: Line, statements: dict[str, str], dags: Dags, continuity: Continuity) -> None:
        self._continuity = continuity
        self._line = line
        self._sql = statements
        self._dags = dags

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
            rows = await connection.fetch(self._sql["promote"], limit)
            late = [row for row in rows if row["late"]]
            done = Promotion({_lane(row) for row in rows if not row["late"]}, [], len(rows) - len(late))
            # Each kind in a transaction of its own: where a dag run begins to fail its steps are waited for.
            if runs := [row["id"] for row in late if row["dag_id"] is None and not row["dag"]]:
                done = _both(done, await self._end_late(connection, runs))
            if steps := [row for row in late if row["dag_id"] is not None]:
                done = _both(done, await self._end_late_steps(connection, steps))
            if dags := [str(row["id"]) for row in late if row["dag"]]:
                done = _both(done, await self._fail_late(connection, dags))
            return done

    async def _end_late(self, connection: Any, late: list[Any]) -> Promotion:
        async with transaction(connection):
            rows = await self._end(connection, late)
            await self._tell_parents(connection, [row for row in rows if not row["undoing"]])
        return _promotion(rows)

    async def _end_late_steps(self, connection: Any, late: list[Any]) -> Promotion:
        """Steps of dag runs: with them the run fails, unless another step of it was picked up in time. If somebody
        holds the run they stay late, and are found again."""
        async with transaction(connection):
            locked = await self._dags.lock(connection, {str(row["dag_id"]) for row in late})
            await self._dags.lock_open(connection, list(locked.failing))
            ids = [row["id"] for row in late if str(row["dag_id"]) in locked.failing]
            spared = await connection.fetch(self._sql["let_begin"], ids)
            rows = await self._end(connection, ids)
            effects = await self._lose(connection, [row for row in rows if not row["undoing"]], locked)
        lanes = {_lane(row) for row in spared} | effects.lanes
        return _both(_promotion(rows), Promotion(lanes, [], len(spared), bool(effects.marked)))

    async def _fail_late(self, connection: Any, dag_ids: list[str]) -> Promotion:
        """Dag runs past their deadline fail; whoever finishes them undoes what is to be undone."""
        async with transaction(connection):
            locked = await self._dags.lock(connection, dag_ids)
            late = locked.free & locked.late
            effects = await self._dags.fail(connection, locked, late, Why(REASON_DEADLINE, DEADLINE_ERROR))
        return Promotion(effects.lanes, [], len(late), bool(effects.marked))

    async def _end(self, connection: Any, late: list[Any]) -> list[Any]:
        locked = [row["id"] for row in await connection.fetch(self._sql["lock_late"], late)]
        rows: list[Any] = await connection.fetch(self._sql["end_late"], locked, DEADLINE_ERROR, EXPIRED_ERROR)
        return rows

    async def _lose(self, connection: Any, steps: list[Any], locked: Locked) -> Effects:
        """Steps that have failed without a word of their own: so do their dag runs."""
        ended, effects = Counter(str(row["dag_id"]) for row in steps), Effects()
        await self._dags.close(connection, dict.fromkeys(ended, Why()), ended, locked, effects)
        return effects

    async def give_back(self, worker: str, held: Sequence[tuple[str, int]]) -> None:
        """Put runs back in line at once; those whose rows somebody holds, one by one."""
        ids, claims = [run_id for run_id, _ in held], [claim for _, claim in held]
        async with self._line.use() as connection:
            given = await connection.fetch(self._sql["give_back"], worker, ids, claims)
            if len(given) == len(held):
                return
            numbers = dict(held)
            for row in await connection.fetch(self._sql["still_ours"], worker, ids, claims):
                async with transaction(connection):
                    await connection.fetchrow(self._sql["lock_run"], row["id"])
                    await connection.fetch(self._sql["give_back"], worker, [row["id"]], [numbers[str(row["id"])]])

    async def beats(self, worker: str) -> list[Beat]:
        """The last beats of all other workers."""
        return [Beat(str(row[0]), *row[1:]) for row in await self._line.fetch(self._sql["beats"], worker)]

    async def reap(self, worker: str, limit: int, max_losses: int, silent: Sequence[str] | None) -> Reaping:
        """Bury dead workers, give back what they held, forget those with nothing left."""
        names = None if silent is None else list(silent)
        async with self._line.use() as connection:
            buried = [str(row["id"]) for row in await connection.fetch(self._sql["bury"], worker, names)]
            async with transaction(connection):
                locked = [row["id"] for row in await connection.fetch(self._sql["lock_lost"], limit)]
                # Locked first, and looked at again: only now are row and workers seen as they are at one time.
                found = await connection.fetch(self._sql["reap"], locked, max_losses, LOST_ERROR) if locked else []
                rows = [row for row in found if row["dag_id"] is None]
                await self._tell_parents(connection, [row for row in rows if not row["ready"]])
            lanes = {_lane(row) for row in rows if row["ready"]}
            dead = [str(row["id"]) for row in rows if not row["ready"]]
            moved, asked = len(rows), False
            if fatal := [row for row in found if row["dag_id"] is not None]:
                letters, effects = await self._bury_steps(connection, fatal, max_losses)
                dead, lanes, moved = dead + letters, lanes | effects.lanes, moved + len(letters)
                asked = bool(effects.marked)
            if buried or 0 < len(locked) < limit:
                await connection.fetch(self._sql["forget_dead"])
        return Reaping(buried, lanes, dead, moved, asked)

    async def _bury_steps(self, connection: Any, fatal: list[Any], max_losses: int) -> tuple[list[str], Effects]:
        """Dead letters among steps of dag runs: with them the run fails. If somebody holds the run they still name a
        dead worker, and are found again."""
        async with transaction(connection):
            locked = await self._dags.lock(connection, {str(row["dag_id"]) for row in fatal})
            ids = [row["id"] for row in fatal if str(row["dag_id"]) in locked.failing]
            ids = [row["id"] for row in await connection.fetch(self._sql["lock_lost_steps"], ids)]
            rows = await connection.fetch(self._sql["bury_steps"], ids, max_losses, LOST_ERROR, locked.now)
            effects = await self._lose(connection, rows, locked)
        return [str(row["id"]) for row in rows], effects

    async def _tell_parents(self, connection: Any, ended: list[Any]) -> None:
        children = [row["id"] for row in ended if row["child"]]
        if children:
            await connection.fetch(self._sql["tell_parents"], children)


def _promotion(ends: list[Any]) -> Promotion:
    """What became of late runs."""
    ended = [str(row["id"]) for row in ends if not row["undoing"]]
    return Promotion({_lane(row) for row in ends if row["undoing"]}, ended, len(ends))


def _both(one: Promotion, other: Promotion) -> Promotion:
    return Promotion(
        one.lanes | other.lanes, one.ended + other.ended, one.moved + other.moved, one.asked or other.asked
    )


def _lane(row: Any) -> Lane:
    return Lane(row["queue"], row["workflow"], row["priority"])
