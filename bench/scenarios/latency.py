"""From the call that starts a task in one process to the first line of its handler in another, idle one."""

from __future__ import annotations

import asyncio
import random
from time import perf_counter_ns

from bench.scenarios.base import POSTGRES_JOBS, Figure, Figures, Scenario
from bench.subject import Subject, percentile
from bench.workers import WorkerProcess, worker_processes


async def measure(subject: Subject) -> Figures:
    engine = await subject.fresh()
    tries = 50 if subject.quick else 500
    async with worker_processes(subject.engine, subject.urls[0], 1, 100) as (worker,):
        for _ in range(5):
            await engine.start("noop", 0)
        await asyncio.sleep(1)
        await worker.ask("reset")
        for _ in range(tries):
            await engine.start("noop", perf_counter_ns())
            await asyncio.sleep(random.uniform(0.005, 0.035))
        delays = await _delays(worker, tries)
    await engine.close()
    return {"p50": percentile(delays, 0.5) / 1e6, "p99": percentile(delays, 0.99) / 1e6}


async def _delays(worker: WorkerProcess, tries: int) -> list[int]:
    for _ in range(500):
        delays: list[int] = (await worker.ask("delays"))["delays"]
        if len(delays) == tries:
            return delays
        await asyncio.sleep(0.02)
    raise TimeoutError(f"only {len(delays)} of {tries} tasks reached their handler")


SCENARIO = Scenario(
    name="latency",
    title="start → handler, idle worker in another process",
    figures={
        "p50": Figure("p50", "ms", more_is_better=False),
        "p99": Figure("p99", "ms", more_is_better=False),
    },
    engines=POSTGRES_JOBS,
    quick_engines=("stepfast", "pgqueuer"),
    measure=measure,
)
