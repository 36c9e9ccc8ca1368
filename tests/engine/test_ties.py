"""Ties between parents and children, and which ended runs are spared."""

from __future__ import annotations

from datetime import timedelta
from functools import partial
from typing import Any

import pytest

from stepfast import ConfigurationError, Context, Stepfast
from stepfast.run import Run
from tests.engine.conftest import ON_BOTH, ON_SQLITE, RELEASED
from tests.support.engine import PATIENCE, drained, eventually
from tests.support.waiting import reached
from tests.support.workflows import task


def family(app: Stepfast) -> Any:
    @app.workflow
    async def child(ctx: Context) -> str:
        return str(await ctx.wait_signal("go"))

    @app.workflow(deadline=timedelta(hours=1))
    async def parent(ctx: Context) -> Any:
        await ctx.start(child, tags=["tied"], inherit_deadline=True)
        await ctx.start(child, tags=["detached"], detached=True)
        return await ctx.wait_signal("go")

    return parent


async def child_of(app: Stepfast, run: Run[Any], tag: str) -> Run[Any]:
    return app.get((await app.runs(parent=run.id, tag=tag))[0].id)


@RELEASED
@ON_BOTH
async def test_detached_children_outlive_the_cancellation_of_their_parent(app: Stepfast) -> None:
    parent = family(app)
    run, other = await app.start(parent), await app.start(parent)
    async with app.worker():
        for each in (run, other):
            await eventually(partial(_both_wait, app, each))
        await run.cancel()
        await other.cancel(children=False)
        await reached(await child_of(app, run, "tied"), "cancelled")
        for spared in (
            await child_of(app, run, "detached"),
            await child_of(app, other, "tied"),
            await child_of(app, other, "detached"),
        ):
            assert await spared.status() == "waiting"
            await spared.signal("go", "done")
            assert await spared.result(PATIENCE) == "done"
        deadlines = [(await (await child_of(app, run, tag)).info()).deadline for tag in ("tied", "detached")]
        own = (await run.info()).deadline
        assert deadlines[1] is None and deadlines[0] is not None and own is not None
        assert abs(deadlines[0] - own) < timedelta(seconds=5)


async def _both_wait(app: Stepfast, run: Run[Any]) -> bool:
    return await app.count(parent=run.id, status="waiting") == 2


@ON_SQLITE
async def test_the_newest_of_each_workflow_are_spared(app: Stepfast) -> None:
    for name in ("one", "two"):
        task(app, name)
        for number in range(4):
            await drained(app, name, number)
    ready = await app.start("one", 9)
    newest = [info.id for name in ("one", "two") for info in await app.runs(workflow=name, status="completed", limit=2)]
    assert await app.prune(keep=2, dry_run=True) == 4
    assert await app.prune(older_than=3600, keep=2) == 0
    assert await app.prune(keep=2) == 4
    assert {info.id for info in await app.runs()} == {*newest, ready.id}
    with pytest.raises(ConfigurationError, match="older_than, keep, or both"):
        await app.prune()
    with pytest.raises(ConfigurationError, match="keep must be a number of runs"):
        await app.prune(keep=-1)
