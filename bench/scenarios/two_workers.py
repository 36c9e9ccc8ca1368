"""One worker process, then two, on the same kind of backlog: does the second help, or at least not harm?"""

from __future__ import annotations

import asyncio

from bench.engines.base import Kind
from bench.scenarios.base import POSTGRES_JOBS, Figure, Figures, Scenario, cpu_figures
from bench.subject import Subject, Work, amount
from bench.waiting import until
from bench.workers import WorkerProcess, worker_processes

CONCURRENCY = 250


async def measure(subject: Subject) -> Figures:
    one = await _work(subject, 1, 0)
    two = await _work(subject, 2, 1)
    rates = {"one": one.rate, "two": two.rate, "gain": two.rate / one.rate}
    return {**rates, **one.figures("one"), **two.figures("two")}


async def _work(subject: Subject, processes: int, database: int) -> Work:
    engine = await subject.fresh(database)
    kind: Kind = "steps" if "steps" in engine.kinds else "noop"
    count = processes * amount(engine, kind, CONCURRENCY, 1 if subject.quick else 5)
    await engine.start_many(kind, count)
    meter = await subject.cpu_meter()
    async with worker_processes(subject.engine, engine.url, processes, CONCURRENCY, work=False) as workers:
        _, client_before = await _count(workers)
        before = meter.read()
        await asyncio.gather(*(worker.ask("work") for worker in workers))
        await until(engine.idle, "the backlog", pause=0.05)
        used = meter.read().since(before)
        handled, client_after = await _count(workers)
    if handled != count:
        raise RuntimeError(f"{handled} runs were handled, {count} were started")
    await engine.close()
    return Work(
        rate=count / used.seconds,
        client=(client_after - client_before) / count * 1e6,
        server=None if used.server_cpu is None else used.server_cpu / count * 1e6,
    )


async def _count(workers: list[WorkerProcess]) -> tuple[int, float]:
    """Runs handled and CPU seconds used so far, of all workers."""
    answers = await asyncio.gather(*(worker.ask("count") for worker in workers))
    return sum(answer["left"] for answer in answers), sum(answer["cpu"] for answer in answers)


SCENARIO = Scenario(
    name="two_workers",
    title="two worker processes (5-step workflows; jobs where there are no steps)",
    figures={
        "one": Figure("one process"),
        "two": Figure("two processes"),
        "gain": Figure("two ÷ one", "×"),
        **cpu_figures("one", "one process"),
        **cpu_figures("two", "two processes"),
    },
    engines=POSTGRES_JOBS,
    quick_engines=("stepfast",),
    databases=2,
    measure=measure,
)
