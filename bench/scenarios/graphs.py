"""Declared graphs beside plain tasks: steps per second of a wide graph, a long one, and many small ones at once."""

from __future__ import annotations

import asyncio
from time import perf_counter
from typing import Any

from bench.scenarios.base import Figure, Figures, Scenario
from bench.subject import Subject
from stepfast import Stepfast

CONCURRENCY = 100


async def measure(subject: Subject) -> Figures:
    engine = await subject.fresh()
    size = 200 if subject.quick else 1000
    app = Stepfast(engine.url)
    dags = {"wide": _wide(app, size), "chain": _chain(app, size), "diamonds": _diamond(app)}

    @app.task
    async def task() -> int:
        return 1

    async with app, app.worker(concurrency=CONCURRENCY):
        await (await app.start(dags["diamonds"])).result(timeout=60)
        figures = {"tasks": await _rate(app, task, 6 * size, 1)}
        figures["wide"] = await _rate(app, dags["wide"], 1, size + 2)
        figures["chain"] = await _rate(app, dags["chain"], 1, size)
        figures["diamonds"] = await _rate(app, dags["diamonds"], size, 6)
    await engine.close()
    return figures


async def _rate(app: Stepfast, workflow: Any, runs: int, steps: int) -> float:
    """Steps per second, from the start until all results are there."""
    begin = perf_counter()
    started = await app.start_many(workflow, [None] * runs)
    await asyncio.gather(*(run.result(timeout=600) for run in started))
    return runs * steps / (perf_counter() - begin)


async def _step(ctx: Any) -> int:
    return 1


def _wide(app: Stepfast, size: int) -> Any:
    dag = app.dag("wide")
    dag.declare(_step, name="first")
    for number in range(size):
        dag.declare(_step, name=f"step {number}", after=["first"])
    dag.declare(_step, name="last", after=[f"step {number}" for number in range(size)])
    return dag


def _chain(app: Stepfast, size: int) -> Any:
    dag = app.dag("chain")
    for number in range(size):
        dag.declare(_step, name=f"step {number}", after=[f"step {number - 1}"] if number else [])
    return dag


def _diamond(app: Stepfast) -> Any:
    dag = app.dag("diamond")
    dag.declare(_step, name="begin")
    for name in ("left", "middle", "right"):
        dag.declare(_step, name=name, after=["begin"])
    dag.declare(_step, name="join", after=["left", "middle", "right"])
    dag.declare(_step, name="end", after=["join"])
    return dag


SCENARIO = Scenario(
    name="graphs",
    title="steps of declared graphs, one worker process, 100 at once",
    figures={
        "tasks": Figure("plain tasks"),
        "wide": Figure("1 → 1 000 → 1 (quick: 200)"),
        "chain": Figure("a chain of 1 000 (quick: 200)"),
        "diamonds": Figure("1 000 diamonds of 6 (quick: 200)"),
    },
    engines=("stepfast", "stepfast_sqlite"),
    quick_engines=("stepfast",),
    measure=measure,
)
