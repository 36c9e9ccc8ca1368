"""Starting while nobody works: a hundred callers, one run each at a time; and many runs in one call."""

from __future__ import annotations

import asyncio
from time import perf_counter

from bench.engines.base import Engine
from bench.scenarios.base import POSTGRES_JOBS, Figure, Figures, Scenario
from bench.subject import Subject

CALLERS = 100


async def measure(subject: Subject) -> Figures:
    engine = await subject.fresh()
    await _single(engine, 0.1)
    single = await _single(engine, 0.7 if subject.quick else 5)
    slow = engine.pace["noop"] <= 500
    bulk = (300 if slow else 10_000) if subject.quick else (3_000 if slow else 100_000)
    begin = perf_counter()
    await engine.start_many("noop", bulk)
    seconds = perf_counter() - begin
    await engine.close()
    return {"single": single, "bulk": bulk / seconds}


async def _single(engine: Engine, seconds: float) -> float:
    begin = perf_counter()
    end = begin + seconds
    started = 0

    async def caller() -> None:
        nonlocal started
        while perf_counter() < end:
            await engine.start("noop", 0)
            started += 1

    await asyncio.gather(*(caller() for _ in range(CALLERS)))
    return started / (perf_counter() - begin)


SCENARIO = Scenario(
    name="starts",
    title="starting, no worker",
    figures={"single": Figure("100 callers, one run per call"), "bulk": Figure("bulk")},
    engines=POSTGRES_JOBS,
    quick_engines=("stepfast", "dbos"),
    measure=measure,
)
