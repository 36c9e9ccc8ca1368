"""Runs that are removed almost as soon as they have ended, while their kin goes on: nobody misses them."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from stepfast import Context, RunNotFound, Stepfast
from stepfast.settings import Settings
from tests.support.engine import PATIENCE, eventually
from tests.support.waiting import rows_of
from tests.support.workflows import task
from tests.worker.conftest import MakeApp

pytestmark = [pytest.mark.thorough, pytest.mark.enough_on("sqlite", "postgres")]

KEPT = 0.2


def declare(app: Stepfast) -> dict[str, Any]:
    child = task(app, "child")

    @app.workflow(max_attempts=2)
    async def parent(ctx: Context, number: int) -> Any:
        """Looks at its children long after they have ended, and once more in a second attempt."""
        children = [await ctx.start(child, each) for each in range(number)]
        await ctx.sleep(3 * KEPT)
        found = [await one.result() for one in children]
        if ctx.attempt == 1:
            raise ValueError("once more")
        await ctx.sleep(2 * KEPT)
        return sum(found) + await ctx.call(child, 100)

    @app.workflow
    async def chain(ctx: Context, left: int) -> Any:
        await ctx.sleep(KEPT / 2)
        if left:
            await ctx.continue_as(left - 1)
        return await ctx.call(child, 7)

    flow = app.dag("flow")

    @flow.step
    async def one(ctx: Any) -> int:
        return int(await ctx.call(child, 1))

    flow.approval("ok", after=["one"])

    @flow.step(after=["ok"])
    async def two(ctx: Any) -> int:
        return int(ctx.outputs["one"]) + 1

    return {"parent": parent, "chain": chain, "flow": flow, "child": child}


async def test_kin_of_removed_runs_come_to_their_ends(make_app: MakeApp) -> None:
    """Two workers, whose janitors look all the time."""
    settings = Settings(
        poll_interval=0.05,
        sweep_interval=0.05,
        inline_wait=0.0,
        backoff_base=0.05,
        backoff_jitter=0.0,
        retention=KEPT,
        retention_failed=KEPT,
    )
    apps = [make_app(settings) for _ in range(2)]
    declared = [declare(app) for app in apps]
    app, flows = apps[0], declared[0]
    async with apps[0].worker(), apps[1].worker():
        parents = [asyncio.create_task(_result(app, flows["parent"], 3)) for _ in range(5)]
        chains = [asyncio.create_task(_result(app, flows["chain"], 6)) for _ in range(5)]
        dags = [await app.start(flows["flow"]) for _ in range(3)]
        await asyncio.sleep(5 * KEPT)
        for dag in dags:
            await dag.signal("ok", True)
        ended = [asyncio.create_task(dag.result(timeout=PATIENCE)) for dag in dags]
        assert await asyncio.gather(*parents) == [103] * 5
        assert await asyncio.gather(*chains) == [7] * 5
        assert await asyncio.gather(*ended) == [{"one": 1, "ok": True, "two": 2}] * 3
        await eventually(lambda: _empty(app))
    with pytest.raises(RunNotFound):
        await dags[0].info()


async def _result(app: Stepfast, workflow: Any, number: int) -> Any:
    return await (await app.start(workflow, number)).result(timeout=PATIENCE)


async def _empty(app: Stepfast) -> bool:
    async with rows_of(app) as rows:
        tables = ("runs", "steps", "tries", "mailbox", "run_values")
        return not any([await rows.fetch(f"SELECT 1 FROM [{table}] LIMIT 1") for table in tables])
