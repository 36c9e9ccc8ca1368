"""What metrics and traces cost: tasks that do nothing and workflows of five steps, with an observer and without."""

from __future__ import annotations

from bench.scenarios.base import Figure, Figures, Scenario
from bench.subject import Subject, amount, drain, warm

ENGINES = ("stepfast", "stepfast_observed", "stepfast_traced")
CONCURRENCY = 500


async def measure(subject: Subject) -> Figures:
    engine = await subject.fresh()
    figures = {}
    for kind in ("noop", "steps"):
        await warm(engine, kind)
        count = amount(engine, kind, CONCURRENCY, 0.4 if subject.quick else 5)
        figures[kind] = await drain(engine, kind, count, CONCURRENCY)
    await engine.close()
    return figures


SCENARIO = Scenario(
    name="observed",
    title="with metrics, with traces and without, one worker process, 500 at once",
    figures={"noop": Figure("noop tasks"), "steps": Figure("5-step workflows")},
    engines=ENGINES,
    quick_engines=ENGINES,
    measure=measure,
)
