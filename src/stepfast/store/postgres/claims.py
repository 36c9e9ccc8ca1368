"""Claims on Postgres: usually one statement, which chooses, locks and takes runs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from ...model.records import Claimed, Lane
from ...settings import Settings
from ..flows.claims import in_order, with_history
from .connections import KeptConnection
from .driver import Driver


class Claims:
    """Takes runs over one connection of its own."""

    def __init__(self, kept: KeptConnection, statements: dict[str, str], settings: Settings, driver: Driver) -> None:
        self._kept = kept
        self._sql = statements
        self._settings = settings
        self._driver = driver

    async def claim(
        self,
        worker: str,
        token: int,
        lanes: Sequence[tuple[Lane, int]],
        versions: dict[str, str],
        limit: int,
        again: bool,
        remembered: Mapping[str, int],
    ) -> list[Claimed]:
        """Ready runs of these lanes. After a lost reply (``again``), first what that call took."""
        most = self._settings.claim_bytes
        if len(lanes) == 1:
            (queue, workflow, priority), mark = lanes[0]
            args: tuple[Any, ...] = (versions[workflow], queue, workflow, priority, mark, limit, most)
            return await self._take(worker, token, "claim_lane", args, again, remembered)
        columns = (
            [lane.queue for lane, _ in lanes],
            [lane.workflow for lane, _ in lanes],
            [lane.priority for lane, _ in lanes],
            [mark for _, mark in lanes],
            [versions[lane.workflow] for lane, _ in lanes],
        )
        return await self._take(worker, token, "claim_lanes", (*columns, limit, most), again, remembered)

    async def _take(
        self, worker: str, token: int, name: str, args: tuple[Any, ...], again: bool, remembered: Mapping[str, int]
    ) -> list[Claimed]:
        async with self._kept.use() as connection:
            rows = []
            if again:
                rows = await connection.fetch(self._sql["claimed"], worker, token)
            if not rows:
                rows = await connection.fetch(self._sql[name], worker, token, *args)
            claimed = [Claimed(*row) for row in rows]
            if any(run.claim > 1 or not run.seed for run in claimed):
                await self._driver.join(connection, with_history(worker, claimed, remembered, self._settings))
        return in_order(claimed)
