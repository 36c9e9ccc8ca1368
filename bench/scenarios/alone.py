"""One run alone: started, worked and waited for before the next one is. Batching must cost it nothing."""

from __future__ import annotations

import asyncio
from statistics import median
from time import perf_counter_ns

from bench.probe import PROBE
from bench.scenarios.base import Figure, Figures, Scenario
from bench.subject import Subject, warm


async def measure(subject: Subject) -> Figures:
    engine = await subject.fresh()
    await warm(engine, "steps")
    whole: list[int] = []
    async with engine.worker(100):
        await asyncio.sleep(0.3)
        PROBE.reset()
        for _ in range(40 if subject.quick else 300):
            begin = perf_counter_ns()
            await engine.finish(await engine.start("steps", 0))
            whole.append(perf_counter_ns() - begin)
    await engine.close()
    return {"steps": median(PROBE.spans) / 1e6, "whole": median(whole) / 1e6}


SCENARIO = Scenario(
    name="alone",
    title="one 5-step run alone on an idle worker, median",
    figures={
        "steps": Figure("first step to last", "ms", more_is_better=False),
        "whole": Figure("start to result", "ms", more_is_better=False),
    },
    engines=("stepfast", "dbos", "absurd", "raw_single", "raw_coalesced"),
    quick_engines=("stepfast", "raw_single"),
    measure=measure,
)
