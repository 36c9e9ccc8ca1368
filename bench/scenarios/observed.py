"""What metrics and traces cost: tasks that do nothing and workflows of five steps with an observer, as shares of the
speed without one.

Both are taken in turns by one process, because the machine's speed wanders by more than an observer costs.
"""

from __future__ import annotations

from statistics import median

from bench.engines import load
from bench.engines.base import Engine, Kind
from bench.scenarios.base import Figure, Figures, Scenario
from bench.subject import Subject, amount, drain, warm

ENGINES = ("stepfast_observed", "stepfast_traced")
CONCURRENCY = 500
PAIRS, PAIRS_QUICK = 9, 3
KINDS: tuple[Kind, ...] = ("noop", "steps")


async def measure(subject: Subject) -> Figures:
    observed, plain = await subject.fresh(0), load("stepfast")(subject.urls[1])
    await plain.setup()
    await plain.open()
    figures: Figures = {}
    for kind in KINDS:
        for engine in (observed, plain):
            await warm(engine, kind)
        figures[kind] = await _share(subject, observed, plain, kind)
    for engine in (observed, plain):
        await engine.close()
    return figures


async def _share(subject: Subject, observed: Engine, plain: Engine, kind: Kind) -> float:
    """The share of each pair; which of the two comes first takes turns."""
    count = amount(plain, kind, CONCURRENCY, 0.4 if subject.quick else 1)
    shares = list[float]()
    for pair in range(PAIRS_QUICK if subject.quick else PAIRS):
        rates = dict[Engine, float]()
        for engine in (observed, plain) if pair % 2 else (plain, observed):
            rates[engine] = await drain(engine, kind, count, CONCURRENCY)
        shares.append(rates[observed] / rates[plain])
    return median(shares)


SCENARIO = Scenario(
    name="observed",
    title="with metrics and with traces, as a share of the speed without, one worker process, 500 at once",
    figures={"noop": Figure("noop tasks", "×"), "steps": Figure("5-step workflows", "×")},
    engines=ENGINES,
    quick_engines=ENGINES[:1],
    databases=2,
    measure=measure,
)
