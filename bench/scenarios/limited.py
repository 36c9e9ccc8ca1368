"""Limited queues beside others: what a limit costs its own queue, and that it costs the others nothing.

All figures are shares of an unlimited queue with nothing beside it.
"""

from __future__ import annotations

from typing import cast

import asyncpg

from bench.engines.stepfast import StepfastEngine
from bench.meter import CpuMeter
from bench.probe import PROBE
from bench.scenarios.base import Figures, Scenario
from bench.shares import share_figures, shares
from bench.subject import Subject, Work, amount, warm
from bench.waiting import handled
from stepfast import Rate

CONCURRENCY = 500
BACKLOG, BACKLOG_QUICK = 100_000, 5_000
KEYS = 50
LIMITED, KEYED, RATED = "limited", "keys", "rate"
"""Queues with limits that hold all the time and never bind: a change of limits costs something for five seconds."""

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
    await engine.app.set_limits(LIMITED, concurrency=CONCURRENCY)
    await engine.app.set_limits(KEYED, key_concurrency=CONCURRENCY // KEYS)
    await engine.app.set_limits(RATED, rate=Rate(100_000_000, per=60))
    await _block(beside, BACKLOG_QUICK if subject.quick else BACKLOG)
    count = amount(engine, "noop", CONCURRENCY, 0.2 if subject.quick else 2)
    meter = await subject.cpu_meter()
    figures = await shares(
        lambda: _take(engine, count, meter, None),
        {
            LIMITED: lambda: _take(engine, count, meter, LIMITED),
            KEYED: lambda: _take(engine, count, meter, KEYED, KEYS),
            RATED: lambda: _take(engine, count, meter, RATED),
            "beside": lambda: _take(beside, count, meter, None),
        },
        3 if subject.quick else 7,
    )
    for each in (engine, beside):
        await each.close()
    return figures


async def _take(engine: StepfastEngine, count: int, meter: CpuMeter, queue: str | None, keys: int = 1) -> Work:
    """Work tasks off: their rate from the first that begins until the last has ended, and their CPU."""
    PROBE.reset()
    expected = count // keys * keys
    for key in range(keys):
        name = f"customer-{key}" if keys > 1 else None
        await engine.app.start_many("noop", [0] * (expected // keys), concurrency_key=name, queue=queue)
    before = meter.read()
    async with engine.worker(CONCURRENCY):
        await handled(expected)
    used = meter.read().since(before)
    return Work(
        rate=expected / ((PROBE.left[-1] - PROBE.entered[0]) / 1e9),
        client=used.client_cpu / expected * 1e6,
        server=None if used.server_cpu is None else used.server_cpu / expected * 1e6,
    )


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
    title="noop tasks, as a share of an unlimited queue (backlog: 100 000; quick: 5 000)",
    figures=share_figures(
        {
            LIMITED: "limited to 500 at once",
            KEYED: "10 at once of 50 keys",
            RATED: "a rate that does not bind",
            "beside": "unlimited, beside a blocked backlog",
        }
    ),
    engines=("stepfast",),
    databases=2,
    timeout=1200,
    quick_timeout=240,
    repeats=False,
    measure=measure,
    in_quick=False,
)
