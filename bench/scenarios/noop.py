"""Tasks that do nothing: what one worker process hands out, runs and records in a second."""

from __future__ import annotations

from bench.scenarios.base import POSTGRES_JOBS, Figure, Figures, Scenario, cpu_figures
from bench.subject import Subject, amount, warm, work_off

CONCURRENCY = 500


async def measure(subject: Subject) -> Figures:
    engine = await subject.fresh()
    await warm(engine, "noop")
    count = amount(engine, "noop", CONCURRENCY, 0.6 if subject.quick else 5)
    work = await work_off(engine, "noop", count, CONCURRENCY, await subject.cpu_meter())
    await engine.close()
    return {"rate": work.rate, **work.figures()}


SCENARIO = Scenario(
    name="noop",
    title="noop tasks, one worker process, 500 in flight",
    figures={"rate": Figure("tasks"), **cpu_figures()},
    engines=(*POSTGRES_JOBS, "raw_single"),
    quick_engines=("stepfast", "pgqueuer", "raw_coalesced"),
    measure=measure,
)
