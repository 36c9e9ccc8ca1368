"""Tasks that do nothing: what one worker process hands out, runs and records in a second."""

from __future__ import annotations

from bench.scenarios.base import POSTGRES_JOBS, Figure, Figures, Scenario
from bench.subject import Subject, amount, drain, warm

CONCURRENCY = 500


async def measure(subject: Subject) -> Figures:
    engine = await subject.fresh()
    await warm(engine, "noop")
    count = amount(engine, "noop", CONCURRENCY, 0.6 if subject.quick else 5)
    rate = await drain(engine, "noop", count, CONCURRENCY)
    await engine.close()
    return {"rate": rate}


SCENARIO = Scenario(
    name="noop",
    title="noop tasks, one worker process, 500 in flight",
    figures={"rate": Figure("tasks")},
    engines=(*POSTGRES_JOBS, "raw_single"),
    quick_engines=("stepfast", "pgqueuer", "raw_coalesced"),
    measure=measure,
)
