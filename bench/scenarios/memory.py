"""What a worker process holds in memory: idle, with 1 000 runs running, with 100 000 waiting."""

from __future__ import annotations

import asyncio

from bench.scenarios.base import Figure, Figures, Scenario
from bench.subject import Subject
from bench.waiting import until
from bench.workers import WorkerProcess, worker_processes

RUNNING = 1000
MEGABYTE = 1_000_000


async def measure(subject: Subject) -> Figures:
    running = await subject.fresh(0)
    async with worker_processes(subject.engine, running.url, 1, RUNNING) as (worker,):
        await asyncio.sleep(0.5)
        idle = await _memory(worker)
        await running.start_many("hold", RUNNING)
        await until(lambda: _all_entered(worker), "a thousand runs to run", pause=0.05)
        await asyncio.sleep(1)
        busy = await _memory(worker)
    await running.close()

    waiting = await subject.fresh(1)
    count = 20_000 if subject.quick else 100_000
    async with worker_processes(subject.engine, waiting.url, 1, RUNNING) as (worker,):
        await asyncio.sleep(0.5)
        before = await _memory(worker)
        await waiting.start_later("noop", count, 3600)
        await asyncio.sleep(2)
        after = await _memory(worker)
    await waiting.close()
    return {"idle": idle, "running": busy, "waiting": after - before}


async def _all_entered(worker: WorkerProcess) -> bool:
    entered: int = (await worker.ask("count"))["entered"]
    return entered >= RUNNING


async def _memory(worker: WorkerProcess) -> float:
    memory: int = (await worker.ask("memory"))["memory"]
    return memory / MEGABYTE


SCENARIO = Scenario(
    name="memory",
    title="memory of one worker process",
    figures={
        "idle": Figure("idle", "MB", more_is_better=False),
        "running": Figure("1 000 runs running", "MB", more_is_better=False),
        "waiting": Figure("100 000 waiting runs add (quick: 20 000)", "MB", more_is_better=False),
    },
    engines=("stepfast",),
    databases=2,
    measure=measure,
    in_quick=False,
)
