"""A cancelled run, those who wait for it, and its children."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from stepfast import Context, RunCancelled, Settings, Stepfast, cancelled
from tests.engine.conftest import MakeApp
from tests.support.engine import PATIENCE, Calls, Gate, drained, eventually, finished
from tests.support.waiting import HARDLY_EVER, is_cancelled, reached
from tests.support.workflows import listener, task
from tests.worker.spying import wrap

# -- those who wait for it, and its children ----------------------------------------------------------------------


async def test_whoever_waits_for_the_result_hears_of_it(make_app: MakeApp) -> None:
    """RunCancelled, in this process and in another, without a poll."""
    app, elsewhere = make_app(settings=HARDLY_EVER), make_app()
    order = listener(app)
    run = await app.start(order)
    waiters = [asyncio.create_task(each.get(run.id).result(timeout=PATIENCE)) for each in (app, app, elsewhere)]
    await app.drain()
    assert not any(waiter.done() for waiter in waiters)
    await run.cancel()
    outcomes = await asyncio.gather(*waiters, return_exceptions=True)
    assert [type(outcome) for outcome in outcomes] == [RunCancelled] * 3


@pytest.mark.parametrize("parent_is", ["waiting", "running"])
async def test_children_are_cancelled_with_their_parent(app: Stepfast, calls: Calls, parent_is: str) -> None:
    """Rule 26: and theirs, whatever they are doing; those that have ended stay as they are."""
    gate = Gate()
    done = task(app, "done", returns="done")

    @app.workflow
    async def grandchild(ctx: Context) -> None:
        await ctx.sleep(3600)
        calls.hit("grandchild")

    @app.workflow
    async def child(ctx: Context) -> None:
        await ctx.call(grandchild)
        calls.hit("child")

    @app.workflow
    async def parent(ctx: Context) -> None:
        await ctx.call(done)
        await ctx.start(child)
        if parent_is == "running":
            await ctx.step(gate.passing)
        else:
            await ctx.wait_signal("go")
        calls.hit("parent")

    async def family() -> dict[str, str]:
        return {info.workflow: info.status for info in await app.runs()}

    async def settled() -> bool:
        return (await family()).get("grandchild") == "waiting" and (await family())["child"] == "waiting"

    async with app.worker():
        run = await app.start(parent)
        await eventually(settled)
        if parent_is == "waiting":
            await reached(run, "waiting")
        await run.cancel()
        gate.open()
        await is_cancelled(run)

        async def all_ended() -> bool:
            return set((await family()).values()) == {"completed", "cancelled"}

        await eventually(all_ended)
    assert await family() == {
        "parent": "cancelled",
        "child": "cancelled",
        "grandchild": "cancelled",
        "done": "completed",
    }
    assert calls == {}


async def test_a_child_that_is_running_here_is_told_at_once(make_app: MakeApp) -> None:
    """A task is one piece of work, and is told by ``cancelled()``: not only by the next heartbeat, which may be long in
    coming."""
    app = make_app(settings=Settings(lease=600))
    begun, told = asyncio.Event(), asyncio.Event()

    @app.task
    async def child() -> None:
        begun.set()
        while not cancelled():
            await asyncio.sleep(0.01)
        told.set()

    @app.workflow
    async def parent(ctx: Context) -> None:
        await ctx.call(child)

    async with app.worker():
        run = await app.start(parent)
        async with asyncio.timeout(PATIENCE):
            await begun.wait()
            await run.cancel()
            await told.wait()
            await is_cancelled(run)


async def test_children_are_left_alone_when_the_parent_ends_by_itself(app: Stepfast) -> None:
    """Rule 26."""

    @app.workflow
    async def child(ctx: Context) -> str:
        await ctx.wait_signal("go")
        return "on its own"

    @app.workflow(max_attempts=1)
    async def parent(ctx: Context, fail: bool) -> str:
        handle = await ctx.start(child)
        if fail:
            raise ValueError(handle.id)
        return handle.id

    for fail in (False, True):
        run = await drained(app, parent, fail)
        info = await run.info()
        child_id = info.error.message if fail and info.error else info.output
        orphan = app.get(child_id)
        assert await orphan.status() == "waiting"
        await orphan.signal("go")
        assert await finished(app, orphan) == "on its own"


async def test_a_run_that_is_to_be_cancelled_starts_no_child(app: Stepfast, calls: Calls) -> None:
    """Rule 27: a start that is on its way when the wish is written is barred."""
    on_the_way, let_go = asyncio.Event(), asyncio.Event()

    @app.task
    async def child() -> None:
        calls.hit("child")

    @app.workflow
    async def parent(ctx: Context) -> None:
        await ctx.start(child)
        await ctx.step("second", calls.hit, "second")

    async def flush(call: Callable[..., Awaitable[Any]], worker: str, batch: Any) -> Any:
        if any(entry.starts for entry in batch.joint):
            on_the_way.set()
            await let_go.wait()
        return await call(worker, batch)

    wrap(await app.store(), "flush", flush)
    async with app.worker():
        run = await app.start(parent)
        await asyncio.wait_for(on_the_way.wait(), PATIENCE)
        await run.cancel()
        let_go.set()
        await is_cancelled(run)
    await app.drain()
    assert calls == {}
    assert await app.runs(workflow="child") == []


async def test_a_cancelled_child_is_an_error_in_its_parent(app: Stepfast) -> None:
    """It names the child; the parent may go on."""
    child = listener(app, name="child")

    @app.workflow
    async def parent(ctx: Context) -> str:
        try:
            await ctx.call(child)
        except Exception as error:
            return f"{type(error).__name__}: {error}"
        return "no error"

    run = await drained(app, parent)
    [info] = await app.runs(workflow="child")
    await app.get(info.id).cancel()
    await app.drain()
    said = await run.result(timeout=PATIENCE)
    assert said.startswith("ChildFailed") and info.id in said and "cancelled" in said
