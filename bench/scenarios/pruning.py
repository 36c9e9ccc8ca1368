"""The same work on tables that keep many finished runs, while a worker beside it removes them and while it does not.

Who removes is a worker of another process that serves nothing: its janitor, at the pace that it has in life.
"""

from __future__ import annotations

import asyncio
import contextlib
import sys
from collections.abc import AsyncIterator
from statistics import median
from time import perf_counter

import asyncpg

from bench.engines.base import Engine, Kind
from bench.scenarios.base import Figure, Figures, Scenario
from bench.subject import Subject, amount, drain, warm
from bench.waiting import until

CONCURRENCY = 500
KEPT, KEPT_QUICK = 2_000_000, 50_000
PAIRS, PAIRS_QUICK = 9, 5
KINDS: tuple[Kind, ...] = ("noop", "steps")

REMOVER = """
import asyncio, sys
from bench.option_names import options_of
from stepfast import Settings, Stepfast

options = options_of(Settings, retention=float(sys.argv[2]), retention_failed=None, sweep_interval=1.0)
keep = Settings(**options)
asyncio.run(Stepfast(sys.argv[1], settings=keep).work(queues=["nobody"]))
"""


class Remover:
    """Knows what is kept, and lets it be removed for as long as a block lasts."""

    def __init__(self, url: str, side: asyncpg.Connection) -> None:
        self._url = url
        self._side = side
        self._ended = 0
        self.removed = 0
        self.seconds = 0.0

    async def learn(self) -> None:
        """All kept runs ended at one time: those that end from now on stay."""
        self._ended = await self._side.fetchval("SELECT max(completed_at) FROM stepfast.runs")
        await asyncio.sleep(2)

    async def _kept(self) -> int:
        """How many of those that are kept from the beginning are left."""
        return int(await self._side.fetchval("SELECT count(*) FROM stepfast.runs WHERE completed_at = $1", self._ended))

    @contextlib.asynccontextmanager
    async def at_work(self) -> AsyncIterator[None]:
        """Another process removes them."""
        before = await self._first()
        age = await self._side.fetchval(
            "SELECT extract(epoch FROM clock_timestamp())::float8 - $1::float8 / 1000", self._ended
        )
        process = await asyncio.create_subprocess_exec(sys.executable, "-c", REMOVER, self._url, str(age - 1))
        try:
            await until(lambda: self._differs(before), "the first runs to be removed")
            begin, left = perf_counter(), await self._kept()
            yield
            self.seconds += perf_counter() - begin
            self.removed += left - await self._kept()
        finally:
            process.terminate()
            await process.wait()

    async def _first(self) -> str | None:
        """The oldest run of all, which is the first to go."""
        oldest = await self._side.fetchval("SELECT id::text FROM stepfast.runs ORDER BY id LIMIT 1")
        return None if oldest is None else str(oldest)

    async def _differs(self, before: str | None) -> bool:
        return await self._first() != before


async def measure(subject: Subject) -> Figures:
    engine = await subject.fresh(0)
    await engine.seed(KEPT_QUICK if subject.quick else KEPT)
    side = await asyncpg.connect(engine.url)
    remover = Remover(engine.url, side)
    await remover.learn()
    for kind in KINDS:
        await warm(engine, kind)
    figures: Figures = {}
    for kind in KINDS:
        figures[kind] = await _ratio(subject, engine, kind, remover)
    figures["removed"] = remover.removed / remover.seconds
    await side.close()
    await engine.close()
    return figures


async def _ratio(subject: Subject, engine: Engine, kind: Kind, remover: Remover) -> float:
    """Taken in pairs, of which each is a share by itself: the machine's speed wanders, and many short pairs tell more
    than few long takes. Which of the two comes first takes turns, too."""
    count = amount(engine, kind, CONCURRENCY, 0.4 if subject.quick else 2)
    shares = list[float]()
    for pair in range(PAIRS_QUICK if subject.quick else PAIRS):
        rates = dict[bool, float]()
        for removing in (True, False) if pair % 2 else (False, True):
            async with remover.at_work() if removing else contextlib.nullcontext():
                rates[removing] = await drain(engine, kind, count, CONCURRENCY, recorded=False)
        shares.append(rates[True] / rates[False])
    return median(shares)


SCENARIO = Scenario(
    name="pruning",
    title="speed while old runs are removed, as a share of the speed while they stay (2 000 000; quick: 50 000)",
    figures={
        "noop": Figure("noop", "×"),
        "steps": Figure("5 steps", "×"),
        "removed": Figure("removed meanwhile"),
    },
    engines=("stepfast",),
    timeout=3600,
    quick_timeout=240,
    repeats=False,
    measure=measure,
    in_quick=False,
)
