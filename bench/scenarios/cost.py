"""What one 5-step workflow costs: CPU of client and server, log bytes, transactions. Starting is left out."""

from __future__ import annotations

import asyncio

from bench.meter import Meter, known_figures
from bench.probe import PROBE
from bench.scenarios.base import POSTGRES_WORKFLOWS, Figure, Figures, Scenario
from bench.subject import Subject, amount, warm
from bench.waiting import handled, until

CONCURRENCY = 100


async def measure(subject: Subject) -> Figures:
    engine = await subject.fresh()
    await warm(engine, "steps")
    count = amount(engine, "steps", CONCURRENCY, 0.6 if subject.quick else 5)
    await engine.start_many("steps", count)
    await engine.close()

    meter = Meter(subject.meter_url)
    await asyncio.sleep(0.3)
    before = await meter.read()
    PROBE.reset()
    await engine.open()
    async with engine.worker(CONCURRENCY):
        await handled(count)
        await until(engine.idle, "the last run to be recorded", pause=0.005)
    await engine.close()
    await asyncio.sleep(0.3)
    used = (await meter.read()).since(before)
    return known_figures(
        client=used.client_cpu / count * 1000,
        server=None if used.server_cpu is None else used.server_cpu / count * 1000,
        wal=used.wal_bytes / count,
        transactions=used.transactions / count,
    )


SCENARIO = Scenario(
    name="cost",
    title="cost of 5-step workflows, 100 at once",
    figures={
        "client": Figure("client CPU, 1000 runs", "s", more_is_better=False),
        "server": Figure("server CPU, 1000 runs", "s", more_is_better=False),
        "wal": Figure("log written per run", "B", more_is_better=False),
        "transactions": Figure("transactions per run", "", more_is_better=False),
    },
    engines=POSTGRES_WORKFLOWS,
    quick_engines=("stepfast",),
    measure=measure,
)
