"""What metrics and traces cost: tasks that do nothing and workflows of five steps with an observer, as shares of the
speed and of the CPU without one.

They are taken in turns by one process, because the machine's speed wanders by more than an observer costs.
"""

from __future__ import annotations

from bench.engines import load
from bench.engines.base import Kind
from bench.scenarios.base import Figures, Scenario
from bench.shares import share_figures, shares
from bench.subject import Subject, amount, warm, work_off

ENGINES = ("stepfast_observed", "stepfast_traced")
CONCURRENCY = 500
ROUNDS, ROUNDS_QUICK = 9, 3
KINDS: dict[Kind, str] = {"noop": "noop tasks", "steps": "5-step workflows"}


async def measure(subject: Subject) -> Figures:
    observed, plain = await subject.fresh(0), load("stepfast")(subject.urls[1])
    await plain.setup()
    await plain.open()
    meter = await subject.cpu_meter()
    figures = Figures()
    for kind in KINDS:
        for engine in (observed, plain):
            await warm(engine, kind)
        count = amount(plain, kind, CONCURRENCY, 0.4 if subject.quick else 1)
        figures |= await shares(
            lambda: work_off(plain, kind, count, CONCURRENCY, meter),  # noqa: B023
            {kind: lambda: work_off(observed, kind, count, CONCURRENCY, meter)},  # noqa: B023
            ROUNDS_QUICK if subject.quick else ROUNDS,
            f"{kind}-control",
        )
    for engine in (observed, plain):
        await engine.close()
    return figures


SCENARIO = Scenario(
    name="observed",
    title="with metrics and with traces, as a share of the speed without, one worker process, 500 at once",
    figures={
        name: figure
        for kind, title in KINDS.items()
        for name, figure in share_figures({kind: title}, f"{kind}-control", f"{title}, ").items()
    },
    engines=ENGINES,
    quick_engines=ENGINES[:1],
    databases=2,
    measure=measure,
)
