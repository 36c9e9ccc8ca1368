"""Claims on Postgres, the histories that they bring along, and claims from limited queues."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import groupby
from operator import attrgetter, itemgetter
from typing import Any

from ...model.ids import new_seed
from ...model.rate_limiter import Admission, WantedRuns
from ...model.records import Claimed, Lane, StepRecord, Tries
from ...model.transitions.claim import first_records
from ...settings import Settings
from ..answers import NOTHING
from ..flows.limits import claim_limited
from .connections import KeptConnection
from .driver import Driver

_SEED = attrgetter("seed")
_MOST_WORKERS = 100
"""Workers of one application whose last claims are remembered."""


class LastTokens:
    """The token of each worker's last claim; the same again means that its reply may have been lost."""

    def __init__(self) -> None:
        self._tokens: dict[str, int] = {}

    def is_repeated(self, worker: str, token: int) -> bool:
        """Whether it is the last one, asked again; from now on it is. Of workers that were heard of long ago nothing is
        kept: an application may have had thousands of them, one after the other."""
        repeated = self._tokens.pop(worker, None) == token
        self._tokens[worker] = token
        if len(self._tokens) > _MOST_WORKERS:
            del self._tokens[next(iter(self._tokens))]
        return repeated


class Claims:
    """Takes runs over one connection of its own."""

    def __init__(self, kept: KeptConnection, statements: dict[str, str], settings: Settings) -> None:
        self._kept = kept
        self._sql = statements
        self._settings = settings
        self._last = LastTokens()

    async def claim(
        self,
        worker: str,
        token: int,
        lanes: Sequence[tuple[Lane, int]],
        versions: dict[str, str],
        limit: int,
        remembered: Mapping[str, int],
    ) -> list[Claimed]:
        """Ready runs of these lanes. After a lost reply, first what that call took."""
        most = self._settings.claim_bytes
        if len(lanes) == 1:
            (queue, workflow, priority), mark = lanes[0]
            args: tuple[Any, ...] = (versions[workflow], queue, workflow, priority, mark, limit, most)
            return await self._take(worker, token, "claim_lane", args, remembered)
        columns = (
            [lane.queue for lane, _ in lanes],
            [lane.workflow for lane, _ in lanes],
            [lane.priority for lane, _ in lanes],
            [mark for _, mark in lanes],
            [versions[lane.workflow] for lane, _ in lanes],
        )
        return await self._take(worker, token, "claim_lanes", (*columns, limit, most), remembered)

    async def claim_suspects(
        self, worker: str, token: int, versions: dict[str, str], queues: Sequence[str] | None, room: Sequence[int]
    ) -> list[Claimed]:
        """A group of runs that workers have died with."""
        served = None if queues is None else list(queues)
        args = (list(versions), list(versions.values()), served, list(room), self._settings.claim_bytes)
        return await self._take(worker, token, "claim_suspects", args, NOTHING)

    async def _take(
        self, worker: str, token: int, name: str, args: tuple[Any, ...], remembered: Mapping[str, int]
    ) -> list[Claimed]:
        async with self._kept.use() as connection:
            rows = []
            if self._last.is_repeated(worker, token):
                rows = await connection.fetch(self._sql["claimed"], worker, token)
            if not rows:
                rows = await connection.fetch(self._sql[name], worker, token, *args)
            claimed = [Claimed(*row) for row in rows]
            if not all(map(_SEED, claimed)):
                await give_seeds(connection, self._sql, worker, claimed)
            replayed = [run for run in claimed if run.claim > 1]
            if replayed:
                await bring_history(connection, self._sql, self._settings, replayed, remembered)
        claimed.sort(key=lambda run: (-run.priority, run.place))
        return claimed


async def give_seeds(connection: Any, sql: dict[str, str], worker: str, claimed: list[Claimed]) -> None:
    """Runs that were started by SQL on a server without a strong source of chance have no secret yet."""
    bare = {run.id: run for run in claimed if not run.seed}
    if bare:
        for run_id, seed in await connection.fetch(sql["give_seeds"], list(bare), [new_seed() for _ in bare], worker):
            bare[run_id].seed = seed


async def bring_history(
    connection: Any, sql: dict[str, str], settings: Settings, runs: list[Claimed], remembered: Mapping[str, int]
) -> None:
    """The first records of runs that were claimed before, and the failed tries of their present attempts. Which runs
    the worker remembers is asked once: it may forget them while this waits, and nothing else tells an unread history
    from an empty one."""
    by_id = {run.id: run for run in runs}
    wanted = {run.id for run in runs if remembered.get(run.id) != run.claim - 1}
    if wanted:
        most, most_bytes = settings.history_records, settings.history_bytes
        rows = await connection.fetch(sql["history"], list(wanted), most, most_bytes)
        for run_id, its in groupby(rows, itemgetter(0)):
            run = by_id[str(run_id)]
            run.records, run.complete = first_records((StepRecord(*row[1:]) for row in its), most, most_bytes)
    for run in runs:
        run.complete = run.complete and run.id in wanted
    attempts = [run.attempt for run in runs]
    for row in await connection.fetch(sql["history_tries"], list(by_id), attempts):
        tries = Tries(row["failures"], row["due_at"] or 0)
        by_id[str(row["run_id"])].tries[row["branch"], row["position"]] = tries


class LimitedClaims:
    """Takes runs of limited queues."""

    def __init__(self, kept: KeptConnection, statements: dict[str, str], settings: Settings, driver: Driver) -> None:
        self._kept = kept
        self._sql = statements
        self._settings = settings
        self._driver = driver
        self._last = LastTokens()

    async def claim(self, worker: str, token: int, want: WantedRuns, remembered: Mapping[str, int]) -> Admission:
        """What the limits of a queue allow. After a lost reply, first what that call took."""
        async with self._kept.use() as connection:
            again = self._last.is_repeated(worker, token)
            flow = claim_limited(worker, token, want, again, self._settings.claim_bytes)
            done = await self._driver.run(connection, flow)
            await give_seeds(connection, self._sql, worker, done.runs)
            replayed = [run for run in done.runs if run.claim > 1]
            if replayed:
                await bring_history(connection, self._sql, self._settings, replayed, remembered)
        return done
