"""One worker process, then two, on the same kind of backlog: does the second help, or at least not harm?"""

from __future__ import annotations

import asyncio
from time import perf_counter

from bench.engines.base import Kind
from bench.scenarios.base import POSTGRES_JOBS, Figure, Figures, Scenario
from bench.subject import Subject, amount
from bench.waiting import until
from bench.workers import worker_processes

CONCURRENCY = 250


async def measure(subject: Subject) -> Figures:
    one = await _rate(subject, 1, 0)
    two = await _rate(subject, 2, 1)
    return {"one": one, "two": two, "gain": two / one}


async def _rate(subject: Subject, processes: int, database: int) -> float:
    engine = await subject.fresh(database)
    kind: Kind = "steps" if "steps" in engine.kinds else "noop"
    count = processes * amount(engine, kind, CONCURRENCY, 1 if subject.quick else 5)
    await engine.start_many(kind, count)
    async with worker_processes(subject.engine, engine.url, processes, CONCURRENCY, work=False) as workers:
        begin = perf_counter()
        await asyncio.gather(*(worker.ask("work") for worker in workers))
        await until(engine.idle, "the backlog", pause=0.05)
        seconds = perf_counter() - begin
        answers = await asyncio.gather(*(worker.ask("count") for worker in workers))
    handled = sum(answer["left"] for answer in answers)
    if handled != count:
        raise RuntimeError(f"{handled} runs were handled, {count} were started")
    await engine.close()
    return count / seconds


SCENARIO = Scenario(
    name="two_workers",
    title="two worker processes (5-step workflows; jobs where there are no steps)",
    figures={
        "one": Figure("one process"),
        "two": Figure("two processes"),
        "gain": Figure("two ÷ one", "×"),
    },
    engines=POSTGRES_JOBS,
    quick_engines=("stepfast",),
    databases=2,
    measure=measure,
)
