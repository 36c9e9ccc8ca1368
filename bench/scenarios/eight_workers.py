"""Eight worker processes woken by notifications, and a hundred callers who start one task at a time."""

from __future__ import annotations

import asyncio
from time import perf_counter

from bench.scenarios.base import POSTGRES_JOBS, Figure, Figures, Scenario
from bench.subject import Subject
from bench.waiting import until
from bench.workers import WorkerProcess, worker_processes

CALLERS = 100


async def measure(subject: Subject) -> Figures:
    one = await _rate(subject, 1, 0)
    eight = await _rate(subject, 8, 1)
    return {"one": one, "eight": eight, "gain": eight / one}


async def _rate(subject: Subject, processes: int, database: int) -> float:
    engine = await subject.fresh(database)
    async with worker_processes(subject.engine, engine.url, processes, 50) as workers:
        await engine.start("noop", 0)
        await asyncio.sleep(1)
        seconds = 1.0 if subject.quick else 10.0
        begin = perf_counter()
        end = begin + seconds

        async def caller() -> int:
            started = 0
            while perf_counter() < end:
                await engine.start("noop", 0)
                started += 1
            return started

        count = sum(await asyncio.gather(*(caller() for _ in range(CALLERS))))
        await until(lambda: _have_done(workers, count + 1), "every task to be done")
        took = perf_counter() - begin
    await engine.close()
    return count / took


async def _have_done(workers: list[WorkerProcess], count: int) -> bool:
    answers = await asyncio.gather(*(worker.ask("count") for worker in workers))
    return sum(int(answer["left"]) for answer in answers) >= count


SCENARIO = Scenario(
    name="eight_workers",
    title="100 single callers and eight listening worker processes: tasks started and done",
    figures={
        "one": Figure("one process"),
        "eight": Figure("eight processes"),
        "gain": Figure("eight ÷ one", "×"),
    },
    engines=POSTGRES_JOBS,
    quick_engines=("stepfast",),
    databases=2,
    measure=measure,
    in_quick=False,
)
