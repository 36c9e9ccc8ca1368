"""The same work on empty tables and on tables that keep many finished runs."""

from __future__ import annotations

from bench.engines.base import Kind
from bench.scenarios.base import POSTGRES_JOBS, Figures, Scenario
from bench.shares import share_figures, shares
from bench.subject import Subject, amount, at_once, warm, work_off

CONCURRENCY = 500
KEPT = {"200k": 200_000, "2M": 2_000_000}
KINDS: dict[Kind, str] = {"noop": "noop", "steps": "5 steps"}


async def measure(subject: Subject) -> Figures:
    empty = await subject.fresh(0)
    meter = await subject.cpu_meter()
    figures = Figures()
    sizes = ("200k",) if subject.quick else tuple(KEPT)
    for number, size in enumerate(sizes, start=1):
        full = await subject.fresh(number)
        await full.seed(KEPT[size])
        for kind in sorted(full.kinds & KINDS.keys()):
            for engine in (empty, full):
                await warm(engine, kind)
            count = amount(full, kind, CONCURRENCY, 0.4 if subject.quick else 1)
            figures |= await shares(
                lambda: work_off(empty, kind, count, CONCURRENCY, meter, at_once),  # noqa: B023
                {f"{kind}-{size}": lambda: work_off(full, kind, count, CONCURRENCY, meter, at_once)},  # noqa: B023
                3 if subject.quick else 7,
                f"{kind}-{size}-control",
            )
        await full.close()
    await empty.close()
    return figures


SCENARIO = Scenario(
    name="history",
    title="with finished runs kept, as a share of empty tables",
    figures={
        name: figure
        for size, kept in KEPT.items()
        for kind, title in KINDS.items()
        for name, figure in share_figures(
            {f"{kind}-{size}": f"{title}, {kept // 1000} 000"}, f"{kind}-{size}-control", f"{title}, "
        ).items()
    },
    engines=POSTGRES_JOBS,
    quick_engines=("stepfast",),
    databases=3,
    timeout=3600,
    repeats=False,
    measure=measure,
    in_quick=False,
)
