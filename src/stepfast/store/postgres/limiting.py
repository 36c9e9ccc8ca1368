"""Claims from limited queues on Postgres: a transaction of several statements, over a connection of its own, so that no
other claim waits for the lock on a queue."""

from __future__ import annotations

from collections.abc import Mapping

from ...model.rate_limiter import Admission, WantedRuns
from ...settings import Settings
from ..flows.limiting import claim_limited
from .claiming import LastTokens, bring_history, give_seeds
from .connections import KeptConnection
from .driving import Driver


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
