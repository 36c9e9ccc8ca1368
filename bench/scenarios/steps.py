"""Workflows of five steps, each step durable before the next begins, at four levels of concurrency."""

from __future__ import annotations

from bench.scenarios.base import POSTGRES_WORKFLOWS, Figure, Figures, Scenario, cpu_figures
from bench.subject import Subject, amount, warm, work_off

LEVELS = (1, 10, 100, 500)


async def measure(subject: Subject) -> Figures:
    engine = await subject.fresh()
    await warm(engine, "steps")
    figures = Figures()
    meter = await subject.cpu_meter()
    for level in LEVELS[::3] if subject.quick else LEVELS:
        count = amount(engine, "steps", level, 0.4 if subject.quick else 5)
        work = await work_off(engine, "steps", count, level, meter)
        figures |= {f"c{level}": work.rate, **work.figures(f"c{level}")}
    await engine.close()
    return figures


SCENARIO = Scenario(
    name="steps",
    title="5-step workflows, one worker process",
    figures={f"c{level}": Figure(f"{level} at once") for level in LEVELS}
    | {key: figure for level in LEVELS for key, figure in cpu_figures(f"c{level}", f"{level} at once").items()},
    engines=POSTGRES_WORKFLOWS,
    quick_engines=("stepfast", "dbos", "absurd", "raw_coalesced"),
    measure=measure,
)
