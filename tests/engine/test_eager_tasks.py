"""An event loop with an eager task factory: a task begins while it is made. Workers execute runs all the same."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Coroutine
from contextvars import Context as Variables
from contextvars import copy_context
from typing import Any

import pytest

from stepfast import Context, Stepfast, SyncContext
from tests.support.engine import PATIENCE

pytestmark = pytest.mark.enough_on("sqlite")


def begins_at_once(
    loop: asyncio.AbstractEventLoop, work: Coroutine[Any, Any, Any], *, context: Variables | None = None
) -> asyncio.Task[Any]:
    """What ``asyncio.eager_task_factory`` does from Python 3.12 on, for Python 3.11."""
    tasks: Any = asyncio.tasks
    if not loop.is_running():
        return asyncio.Task(work, loop=loop, context=context)
    around, variables = asyncio.current_task(loop), copy_context() if context is None else context
    with pytest.MonkeyPatch.context() as patch:
        begin: list[Callable[[], None]] = []
        patch.setattr(loop, "call_soon", lambda step, **_: begin.append(step))
        task: asyncio.Task[Any] = tasks._PyTask(work, loop=loop, context=variables)
    if around is not None:
        tasks._leave_task(loop, around)
    try:
        variables.run(begin[0])
    finally:
        if around is not None:
            tasks._enter_task(loop, around)
    return task


FACTORIES: list[Any] = [begins_at_once]
if hasattr(asyncio, "eager_task_factory"):
    FACTORIES.append(asyncio.eager_task_factory)


@pytest.fixture(params=FACTORIES, ids=lambda factory: factory.__name__)
async def eager(request: pytest.FixtureRequest) -> AsyncIterator[None]:
    """The loop of the test has such a factory."""
    loop = asyncio.get_running_loop()
    loop.set_task_factory(request.param)
    yield
    loop.set_task_factory(None)


@pytest.mark.usefixtures("eager")
async def test_runs_are_executed_whatever_the_task_factory(app: Stepfast) -> None:
    """Tasks, steps, branches, races, children, tasks of the code's own, and plain functions."""
    begun: list[bool] = []

    @app.task
    async def double(number: int) -> int:
        return number * 2

    @app.workflow
    def plain(ctx: SyncContext) -> int:
        return ctx.step("one", lambda: 1)

    @app.workflow
    async def order(ctx: Context) -> list[Any]:
        async def each(ctx: Context, item: int) -> int:
            return await ctx.step("item", lambda: item)

        mapped = await ctx.map(each, [1, 2])
        gathered = await ctx.gather(ctx.step("a", lambda: "a"), ctx.call(double, 2), ctx.sleep(0.001))
        winner, _ = await ctx.first(quick=ctx.sleep(0.001), slow=ctx.sleep(600))
        async with asyncio.TaskGroup() as group:
            own = group.create_task(ctx.options(timeout=60).step("own", double.function, 4))
            begun.append(True)
        return [mapped, gathered, winner, own.result(), await ctx.call(plain)]

    runs = [await app.start(double, 1), await app.start(order), await app.start(double, 2)]
    async with app.worker():
        results = [await run.result(timeout=PATIENCE) for run in runs]
    assert results == [2, [[1, 2], ["a", 4, None], "quick", 8, 1], 4]
