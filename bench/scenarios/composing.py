"""Fan-out inside one run: a map over many items, and a parent of many children, from its start to its result."""

from __future__ import annotations

from time import perf_counter
from typing import Any

from bench.scenarios.base import Figure, Figures, Scenario
from bench.subject import Subject
from stepfast import Context, Stepfast

CONCURRENCY = 100


async def measure(subject: Subject) -> Figures:
    engine = await subject.fresh()
    size = 1000 if subject.quick else 10_000
    app = Stepfast(engine.url)
    claims: list[str] = []

    @app.task
    async def child(number: int) -> int:
        return number

    async def item(ctx: Context, number: int) -> int:
        return await ctx.step("work", lambda: _work(number))

    @app.workflow
    async def mapper(ctx: Context, count: int) -> int:
        return sum(await ctx.map(item, range(count)))

    @app.workflow
    async def parent(ctx: Context, count: int) -> int:
        claims.append(ctx.run_id)
        children = await ctx.gather(*(ctx.start(child, number) for number in range(count)))
        return sum(await ctx.gather(*(one.result() for one in children)))

    async with app, app.worker(concurrency=CONCURRENCY):
        await (await app.start(parent, 5)).result(timeout=60)
        claims.clear()
        figures = {"map": await _rate(app, mapper, size), "children": await _rate(app, parent, size)}
    figures["claims"] = float(len(claims))
    await engine.close()
    return figures


async def _work(number: int) -> int:
    return number


async def _rate(app: Stepfast, workflow: Any, size: int) -> float:
    begin = perf_counter()
    await (await app.start(workflow, size)).result(timeout=600)
    return size / (perf_counter() - begin)


SCENARIO = Scenario(
    name="composing",
    title="one run that fans out, 10 000 wide (quick: 1 000)",
    figures={
        "map": Figure("items of a map"),
        "children": Figure("children of a parent"),
        "claims": Figure("claims of the parent", "", more_is_better=False),
    },
    engines=("stepfast", "stepfast_sqlite"),
    quick_engines=("stepfast",),
    measure=measure,
)
