"""The same work on empty tables and on tables that keep many finished runs."""

from __future__ import annotations

from statistics import median

from bench.engines.base import Engine, Kind
from bench.scenarios.base import POSTGRES_JOBS, Figure, Figures, Scenario
from bench.subject import Subject, amount, drain, warm

CONCURRENCY = 500
KEPT = {"200k": 200_000, "2M": 2_000_000}


async def measure(subject: Subject) -> Figures:
    empty = await subject.fresh(0)
    figures: Figures = {}
    sizes = ("200k",) if subject.quick else tuple(KEPT)
    for number, size in enumerate(sizes, start=1):
        full = await subject.fresh(number)
        await full.seed(KEPT[size])
        for kind in sorted(full.kinds & {"noop", "steps"}):
            figures[f"{kind}-{size}"] = await _ratio(subject, empty, full, kind)
        await full.close()
    await empty.close()
    return figures


async def _ratio(subject: Subject, empty: Engine, full: Engine, kind: Kind) -> float:
    """Taken in turns, because the machine's speed wanders."""
    count = amount(full, kind, CONCURRENCY, 0.4 if subject.quick else 1)
    await warm(empty, kind)
    await warm(full, kind)
    rates: dict[Engine, list[float]] = {empty: [], full: []}
    for _ in range(3 if subject.quick else 7):
        for engine in (empty, full):
            rates[engine].append(await drain(engine, kind, count, CONCURRENCY, recorded=False))
    return median(rates[full]) / median(rates[empty])


SCENARIO = Scenario(
    name="history",
    title="speed with finished runs kept, as a share of the speed without",
    figures={
        "noop-200k": Figure("noop, 200 000", "×"),
        "steps-200k": Figure("5 steps, 200 000", "×"),
        "noop-2M": Figure("noop, 2 000 000", "×"),
        "steps-2M": Figure("5 steps, 2 000 000", "×"),
    },
    engines=POSTGRES_JOBS,
    quick_engines=("stepfast",),
    databases=3,
    timeout=3600,
    repeats=False,
    measure=measure,
    in_quick=False,
)
