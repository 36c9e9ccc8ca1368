"""Limited queues beside others: what a limit costs its own queue, and that it costs the others nothing.

All figures are shares of the speed of an unlimited queue with nothing beside it, taken in turns.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from statistics import median
from typing import cast

import asyncpg

from bench.engines.stepfast import StepfastEngine
from bench.probe import PROBE
from bench.scenarios.base import Figure, Figures, Scenario
from bench.subject import Subject, amount, warm
from bench.waiting import handled
from stepfast import Rate

CONCURRENCY = 500
BACKLOG, BACKLOG_QUICK = 100_000, 5_000
KEYS = 50

BLOCKED = """
    INSERT INTO stepfast.runs (id, workflow, version, queue, status, place, format, input, seed, created_at,
                               concurrency_key)
    SELECT gen_random_uuid(), 'noop', 'v', 'blocked', 'queued', n, 1, '0', 'x', 0, 'customer-' || n % 1000
    FROM generate_series(1, $1::integer) n
"""


async def measure(subject: Subject) -> Figures:
    engine, beside = cast(StepfastEngine, await subject.fresh(0)), cast(StepfastEngine, await subject.fresh(1))
    for each in (engine, beside):
        await warm(each, "noop")
    await _block(beside, BACKLOG_QUICK if subject.quick else BACKLOG)
    count = amount(engine, "noop", CONCURRENCY, 0.2 if subject.quick else 2)
    ways: dict[str, Callable[[], Awaitable[float]]] = {
        "alone": lambda: _rate(engine, count),
        "limited": lambda: _limited(engine, count),
        "keys": lambda: _by_key(engine, count),
        "beside": lambda: _rate(beside, count),
    }
    rates: dict[str, list[float]] = {name: [] for name in ways}
    for _ in range(3 if subject.quick else 7):
        for name, way in ways.items():
            rates[name].append(await way())
    for each in (engine, beside):
        await each.close()
    alone = median(rates.pop("alone"))
    return {name: median(found) / alone for name, found in rates.items()}


async def _rate(engine: StepfastEngine, count: int, keys: int = 0) -> float:
    """Tasks in a second, from the first that begins until the last has ended."""
    PROBE.reset()
    noop = engine.app.workflows["noop"]
    for key in range(keys):
        await engine.app.start_many(noop, [0] * (count // keys), concurrency_key=f"customer-{key}")
    if not keys:
        await engine.start_many("noop", count)
    expected = count // keys * keys if keys else count
    async with engine.worker(CONCURRENCY):
        await handled(expected)
    return expected / ((PROBE.left[-1] - PROBE.entered[0]) / 1e9)


async def _limited(engine: StepfastEngine, count: int) -> float:
    """As many at once as the worker has slots for, but counted."""
    await engine.app.set_limits("noop", concurrency=CONCURRENCY)
    rate = await _rate(engine, count)
    await engine.app.set_limits("noop", reset=True)
    return rate


async def _by_key(engine: StepfastEngine, count: int) -> float:
    """Ten at once of each of fifty customers."""
    await engine.app.set_limits("noop", key_concurrency=CONCURRENCY // KEYS)
    rate = await _rate(engine, count, KEYS)
    await engine.app.set_limits("noop", reset=True)
    return rate


async def _block(engine: StepfastEngine, count: int) -> None:
    """A backlog in another queue, of which one may begin each day: it has begun."""
    await engine.app.set_limits("blocked", rate=Rate(1, per=86_400), key_concurrency=1)
    side = await asyncpg.connect(engine.url)
    await side.execute(BLOCKED, count)
    await side.execute("ANALYZE stepfast.runs")
    await side.close()
    PROBE.reset()
    async with engine.worker(CONCURRENCY):
        await handled(1)


SCENARIO = Scenario(
    name="limited",
    title="noop tasks, as a share of the speed of an unlimited queue (backlog: 100 000; quick: 5 000)",
    figures={
        "limited": Figure("limited to 500 at once", "×"),
        "keys": Figure("10 at once of 50 keys", "×"),
        "beside": Figure("unlimited, beside a blocked backlog", "×"),
    },
    engines=("stepfast",),
    databases=2,
    timeout=1200,
    quick_timeout=240,
    repeats=False,
    measure=measure,
    in_quick=False,
)
