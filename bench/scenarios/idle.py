"""A worker with nothing to do: transactions a second and CPU.

Opening and closing a worker costs statements of its own. Two workers of different length are measured, and
the difference is what the longer one did while it idled.
"""

from __future__ import annotations

import asyncio

from bench.engines import load
from bench.meter import Meter, Usage, known_figures
from bench.scenarios.base import POSTGRES_JOBS, Figure, Figures, Scenario
from bench.subject import Subject


async def measure(subject: Subject) -> Figures:
    short, long = (1.0, 4.0) if subject.quick else (5.0, 65.0)
    engine = await subject.fresh()
    await engine.close()
    meter = Meter(subject.meter_url)
    first = await _idle(subject, meter, short)
    second = await _idle(subject, meter, long)
    rest = second.since(first)
    seconds = long - short
    return known_figures(
        transactions=max(0.0, rest.transactions / seconds),
        client=max(0.0, rest.client_cpu / seconds * 100),
        server=None if rest.server_cpu is None else max(0.0, rest.server_cpu / seconds * 100),
    )


async def _idle(subject: Subject, meter: Meter, seconds: float) -> Usage:
    engine = load(subject.engine)(subject.urls[0])
    before = await meter.read()
    await engine.open()
    async with engine.worker(100):
        await asyncio.sleep(seconds)
    await engine.close()
    await asyncio.sleep(0.3)
    return (await meter.read()).since(before)


SCENARIO = Scenario(
    name="idle",
    title="an idle worker",
    figures={
        "transactions": Figure("transactions", "/s", more_is_better=False),
        "client": Figure("client CPU", "%", more_is_better=False),
        "server": Figure("server CPU", "%", more_is_better=False),
    },
    engines=POSTGRES_JOBS,
    quick_engines=("stepfast",),
    repeats=False,
    measure=measure,
)
