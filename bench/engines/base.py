"""The one small interface that every engine under test is fitted into."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import AsyncIterator
from contextlib import AbstractAsyncContextManager
from typing import ClassVar, Literal

import asyncpg

from bench.waiting import until

Kind = Literal["noop", "steps", "hold", "stream", "trickle"]


class Engine(ABC):
    """One engine on one database.

    `setup` runs once per database. After it, any number of processes `open` the engine, start runs and work.
    A run's input is a whole number: the moment it was started, or 0. Handlers report to `bench.probe.PROBE`.
    """

    kinds: ClassVar[frozenset[Kind]] = frozenset({"noop", "steps"})
    pace: ClassVar[dict[Kind, int]] = {"noop": 1000, "steps": 200}
    """Roughly how many runs a second it does: only to choose how much work makes a fair measurement."""

    def __init__(self, url: str) -> None:
        self.url = url

    @abstractmethod
    async def setup(self) -> None:
        """Create the tables."""

    @abstractmethod
    async def open(self) -> None:
        """Connect and register the handlers, without working yet."""

    @abstractmethod
    async def start(self, kind: Kind, sent: int) -> object:
        """Start one run, as an ordinary caller does."""

    @abstractmethod
    async def start_many(self, kind: Kind, count: int) -> None:
        """Start many runs by the quickest way the engine publishes."""

    @abstractmethod
    def worker(self, concurrency: int) -> AbstractAsyncContextManager[None]:
        """Work in this process while the context is open."""

    @abstractmethod
    async def busy(self) -> bool:
        """Whether any run is not yet recorded as finished."""

    async def idle(self) -> bool:
        """Whether every run is recorded as finished."""
        return not await self.busy()

    @abstractmethod
    async def close(self) -> None:
        """Let go of every connection."""

    async def finish(self, handle: object) -> None:
        """Wait until a run started by `start` is recorded as finished."""
        raise NotImplementedError(f"{type(self).__name__} has no way to wait for one run")

    def follow(self, handle: object) -> AsyncIterator[int]:
        """The items of the stream of a run that was started by `start`, while it works."""
        raise NotImplementedError(f"{type(self).__name__} has no streams")

    async def start_later(self, kind: Kind, count: int, delay: float) -> None:
        """Start runs that wait for their time."""
        raise NotImplementedError(f"{type(self).__name__} is not asked for waiting runs")

    async def seed(self, finished: int) -> None:
        """Fill the tables with this many finished five-step runs (or jobs)."""
        raise NotImplementedError(f"{type(self).__name__} cannot be filled with history")


class PostgresEngine(Engine):
    """What the engines on Postgres share: a connection of the benchmark's own, for looking and seeding."""

    busy_sql: ClassVar[str]
    """One row if anything is unfinished."""
    seed_sql: ClassVar[str]
    """A script that makes finished runs like the one that is there; it names their number `{finished}`."""

    _side: asyncpg.Connection | None = None

    async def side(self) -> asyncpg.Connection:
        """The benchmark's own connection."""
        if self._side is None:
            self._side = await asyncpg.connect(self.url)
        return self._side

    async def busy(self) -> bool:
        connection = await self.side()
        return await connection.fetchval(self.busy_sql) is not None

    async def seed(self, finished: int) -> None:
        await self.start_many("steps" if "steps" in self.kinds else "noop", 1)
        async with self.worker(1):
            await until(self.idle, "the first run")
        connection = await self.side()
        await connection.execute(self.seed_sql.format(finished=finished - 1), timeout=3600)
        await connection.execute("VACUUM ANALYZE", timeout=3600)
        await connection.execute("CHECKPOINT", timeout=3600)

    async def close_side(self) -> None:
        """Close the benchmark's own connection."""
        if self._side is not None:
            await self._side.close()
            self._side = None
