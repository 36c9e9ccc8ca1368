"""Ten open tabs of the console beside a worker, on tables that keep many finished runs: what they ask and take.

Tabs look again as the server tells them to. What they ask is counted by the server, while nobody works: each question
is a transaction, and those of the first look count, too. The worker's speed is taken in pairs, with the tabs open and
closed; open means that their pages are there.
"""

from __future__ import annotations

import asyncio
import json
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from statistics import median
from typing import Any

from bench.engines.base import Engine
from bench.meter import Meter
from bench.runner import ROOT
from bench.scenarios.base import Figure, Figures, Scenario
from bench.subject import Subject, amount, drain, warm

CONCURRENCY = 500
KEPT, KEPT_QUICK = 2_000_000, 100_000
MINUTE = 60.0
OPENING = 3.0
"""Seconds after which ten tabs have loaded their pages."""
LATE = 12.0
"""Seconds after which the server has told all transactions of what came before: it does so ten seconds late at most."""


class Watchers:
    """The other process."""

    def __init__(self, process: asyncio.subprocess.Process) -> None:
        self._process = process

    async def ask(self, word: str) -> Any:
        """One word, and the answer to it."""
        assert self._process.stdin
        assert self._process.stdout
        self._process.stdin.write(word.encode() + b"\n")
        line = await self._process.stdout.readline()
        if not line:
            raise RuntimeError(f"the process with the tabs ended with code {await self._process.wait()}")
        return json.loads(line)


@asynccontextmanager
async def watchers(url: str) -> AsyncIterator[Watchers]:
    """The process with the tabs, while a block lasts."""
    pipe = asyncio.subprocess.PIPE
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "bench.tabs", url, stdin=pipe, stdout=pipe, cwd=ROOT
    )
    try:
        yield Watchers(process)
    finally:
        assert process.stdin
        process.stdin.close()
        await process.wait()


async def measure(subject: Subject) -> Figures:
    engine = await subject.fresh()
    await engine.seed(KEPT_QUICK if subject.quick else KEPT)
    await warm(engine, "noop")
    count = amount(engine, "noop", CONCURRENCY, 0.6 if subject.quick else 3)
    meter = Meter(subject.meter_url)
    async with watchers(engine.url) as tabs:
        await asyncio.sleep(LATE)
        before = await meter.read()
        await tabs.ask("look")
        await asyncio.sleep(MINUTE)
        quiet = await tabs.ask("rest")
        used = (await meter.read()).since(before)
        shares = [await _share(engine, count, tabs, bool(pair % 2)) for pair in range(5 if subject.quick else 9)]
    await engine.close()
    return {
        "queries": used.transactions / used.seconds,
        "slowest": quiet["slowest"] * 1000,
        "pages": quiet["pages"] / quiet["seconds"],
        "noop": median(shares),
    }


async def _share(engine: Engine, count: int, tabs: Watchers, first: bool) -> float:
    """The speed with the tabs open, which comes first or second, as a share of the speed with them closed."""
    rates = dict[bool, float]()
    for opened in (first, not first):
        if opened:
            await tabs.ask("look")
            await asyncio.sleep(OPENING)
        rates[opened] = await drain(engine, "noop", count, CONCURRENCY, recorded=False)
        if opened:
            await tabs.ask("rest")
    return rates[True] / rates[False]


SCENARIO = Scenario(
    name="console",
    title="ten tabs of the console, on 2 000 000 finished runs (quick: 100 000)",
    figures={
        "queries": Figure("queries", more_is_better=False),
        "slowest": Figure("slowest of them", "ms", more_is_better=False),
        "pages": Figure("pages"),
        "noop": Figure("noop beside them ÷ alone", "×"),
    },
    engines=("stepfast",),
    timeout=3600,
    quick_timeout=300,
    repeats=False,
    measure=measure,
    in_quick=False,
)
