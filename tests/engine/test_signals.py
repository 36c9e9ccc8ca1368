"""Signals: kept until they are taken, taken once, first in first out, and never slept over."""

from __future__ import annotations

import asyncio
from datetime import timedelta
from typing import Any

import pytest

from stepfast import Context, RunFailed, Settings, SignalTimeout, Stepfast, SyncContext
from tests.engine.conftest import ON_BOTH, ON_SQLITE, MakeApp
from tests.support.engine import PATIENCE, Calls, Gate, interrupt
from tests.support.waiting import count, let_pass, reached, wake

pytestmark = ON_SQLITE


@pytest.fixture
def app(make_app: MakeApp) -> Stepfast:
    """A run that waits for a signal stays in memory for a moment; a short one, because most tests wait for its end."""
    return make_app(settings=Settings(inline_wait=0.1))


# -- sent and taken -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["async", "def"])
@ON_BOTH
async def test_a_signal_wakes_the_run_that_waits_for_it(app: Stepfast, calls: Calls, kind: str) -> None:
    """The slot is free meanwhile; the value is recorded, and what came before is not done again."""
    if kind == "async":

        @app.workflow(name="order")
        async def order(ctx: Context) -> Any:
            await ctx.step("before", lambda: calls.hit("before"))
            return await ctx.wait_signal("approved")
    else:

        @app.workflow(name="order")
        def order_in_a_thread(ctx: SyncContext) -> Any:
            ctx.step("before", lambda: calls.hit("before"))
            return ctx.wait_signal("approved")

    run = await app.start("order")
    async with app.worker(concurrency=1):
        info = await reached(run, "waiting")
        assert (info.waiting_for, info.due_at, info.worker) == ("signal:approved", None, None)
        await run.signal("approved", {"by": "me"})
        assert await run.result(timeout=PATIENCE) == {"by": "me"}
    assert calls == {"before": 1}
    assert (await run.info()).attempt == 1
    [_, signal] = await run.steps()
    assert (signal.name, signal.kind, signal.status, signal.output) == (
        "approved",
        "signal",
        "completed",
        {"by": "me"},
    )
    assert await count(app, "mailbox", run) == 0


async def test_a_signal_sent_before_the_run_is_claimed_is_kept(app: Stepfast) -> None:

    @app.workflow
    async def order(ctx: Context) -> Any:
        return await ctx.wait_signal("approved")

    run = await app.start(order)
    await run.signal("approved", 1)
    await app.drain()
    assert await run.result(timeout=PATIENCE) == 1


@pytest.mark.parametrize("moment", [0, 3600])
async def test_a_signal_sent_before_the_wait_is_kept(make_app: MakeApp, moment: float) -> None:
    """The run was already executed when it came, and nobody waited for it yet. It is heard at once, however
    rarely the worker looks by itself."""
    app = make_app(settings=Settings(poll_interval=60, sweep_interval=60, inline_wait=moment))
    gate = Gate()

    @app.workflow
    async def order(ctx: Context) -> list[Any]:
        await ctx.step(gate.passing)
        first = await ctx.wait_signal("approved")
        await ctx.step("again", gate.passing)
        return [first, await ctx.wait_signal("approved")]

    run = await app.start(order)
    async with app.worker():
        await gate.reached()
        await run.signal("approved", 1)
        await run.signal("approved", 2)
        gate.open()
        assert await run.result(timeout=PATIENCE) == [1, 2]


@pytest.mark.parametrize("moment", [0, 3600])
@ON_BOTH
async def test_a_signal_sent_between_two_waits_is_heard_at_once(make_app: MakeApp, moment: float) -> None:
    """Rule 6: it came while a step was executed, after the mailbox had been looked into."""
    app = make_app(settings=Settings(poll_interval=60, sweep_interval=60, inline_wait=moment))
    gate = Gate()

    @app.workflow
    async def order(ctx: Context) -> list[Any]:
        first = await ctx.wait_signal("approved")
        await ctx.step(gate.passing)
        return [first, await ctx.wait_signal("approved")]

    run = await app.start(order)
    async with app.worker():
        await run.signal("approved", 1)
        await gate.reached()
        await run.signal("approved", 2)
        gate.open()
        assert await run.result(timeout=PATIENCE) == [1, 2]


@ON_BOTH
async def test_signals_are_first_in_first_out_per_name(app: Stepfast) -> None:
    """Those of other names neither help nor hinder."""

    @app.workflow
    async def order(ctx: Context) -> list[Any]:
        return [await ctx.wait_signal(name) for name in ("b", "a", "a", "b", "b", "a")]

    run = await app.start(order)
    for value, name in enumerate("aabbab"):
        await run.signal(name, value)
    await app.drain()
    assert await run.result(timeout=PATIENCE) == [2, 0, 1, 3, 5, 4]


async def test_two_branches_that_wait_for_one_name_get_one_each(make_app: MakeApp) -> None:
    app = make_app(settings=Settings(inline_wait=0))

    async def wait(ctx: Context) -> Any:
        return await ctx.wait_signal("go")

    @app.workflow
    async def order(ctx: Context) -> Any:
        return await ctx.gather(ctx.branch(wait), ctx.branch(wait))

    run = await app.start(order)
    async with app.worker():
        await reached(run, "waiting")
        await run.signal("go", 1)
        await run.signal("go", 2)
        assert sorted(await run.result(timeout=PATIENCE)) == [1, 2]


async def test_a_signal_of_another_name_wakes_nobody_for_good(app: Stepfast, calls: Calls) -> None:
    """It is kept for whoever will wait for it; the run goes back to its wait."""

    @app.workflow
    async def order(ctx: Context) -> list[Any]:
        calls.hit("body")
        return [await ctx.wait_signal("first"), await ctx.wait_signal("second")]

    run = await app.start(order)
    await app.drain()
    await run.signal("second", 2)
    await app.drain()
    info = await run.info()
    assert (info.status, info.waiting_for) == ("waiting", "signal:first")
    await run.signal("first", 1)
    await app.drain()
    assert await run.result(timeout=PATIENCE) == [1, 2]


# -- timeouts -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["async", "def"])
@ON_BOTH
async def test_a_timeout_can_be_handled(app: Stepfast, calls: Calls, kind: str) -> None:
    """SignalTimeout is a TimeoutError, and a replay sees it too, also when the signal came meanwhile."""
    gate = Gate()

    if kind == "async":

        @app.workflow(name="order")
        async def order(ctx: Context) -> str:
            try:
                return str(await ctx.wait_signal("approved", timeout=timedelta(days=3)))
            except TimeoutError as error:
                calls.hit("late")
                await ctx.step(gate.passing)
                return f"{type(error).__name__}: {error}"
    else:

        @app.workflow(name="order")
        def order_in_a_thread(ctx: SyncContext) -> str:
            try:
                return str(ctx.wait_signal("approved", timeout=timedelta(days=3)))
            except TimeoutError as error:
                calls.hit("late")
                ctx.step(gate.passing)
                return f"{type(error).__name__}: {error}"

    run = await app.start("order")
    await app.drain()
    info = await run.info()
    assert info.waiting_for == "signal:approved"
    assert info.due_at is not None and info.due_at - info.read_at > timedelta(days=2.9)
    await let_pass(app, run, 3 * 86400 + 1)
    await interrupt(app, gate)
    await run.signal("approved", "too late")
    gate.open()
    await app.drain()
    assert await run.result(timeout=PATIENCE) == "SignalTimeout: no signal 'approved' came within 259200 s"
    assert calls["late"] == 2


@ON_BOTH
async def test_a_timeout_that_nobody_handles_fails_the_run_at_once(app: Stepfast) -> None:
    """No attempts are burnt on it."""

    @app.workflow
    async def order(ctx: Context) -> None:
        await ctx.wait_signal("approved", timeout=0.05)

    run = await app.start(order)
    await app.drain()
    with pytest.raises(RunFailed) as caught:
        await run.result(timeout=PATIENCE)
    assert caught.value.error_type == "SignalTimeout"
    assert "approved" in caught.value.message
    assert (await run.info()).attempt == 1


async def test_the_end_of_a_timeout_is_decided_once(app: Stepfast) -> None:
    """Whoever wakes it in between, with a signal of another name for instance, does not begin it anew."""

    @app.workflow
    async def order(ctx: Context) -> None:
        await ctx.wait_signal("approved", timeout=3600)

    run = await app.start(order)
    await app.drain()
    first = (await run.info()).due_at
    await run.signal("other")
    await app.drain()
    await wake(app, run)
    await app.drain()
    info = await run.info()
    assert (info.status, info.due_at) == ("waiting", first)


async def test_a_signal_in_time_settles_the_wait_before_its_timeout(app: Stepfast) -> None:
    """One record in the end, and the time that was decided plays no role any more."""
    gate = Gate()

    @app.workflow
    async def order(ctx: Context) -> Any:
        value = await ctx.wait_signal("approved", timeout=3600)
        await ctx.step(gate.passing)
        return value

    run = await app.start(order)
    await app.drain()
    await run.signal("approved", 1)
    await interrupt(app, gate)
    await let_pass(app, run, 7200)
    gate.open()
    await app.drain()
    assert await run.result(timeout=PATIENCE) == 1
    assert await count(app, "steps", run) == 2


@ON_BOTH
async def test_a_signal_that_came_in_time_counts_although_nobody_was_there_to_take_it(app: Stepfast) -> None:
    """The workers were away when it came, and when the time was up."""

    @app.workflow
    async def order(ctx: Context) -> Any:
        return await ctx.wait_signal("approved", timeout=3600)

    run = await app.start(order)
    await app.drain()
    await run.signal("approved", 1)
    await let_pass(app, run, 7200)
    await app.drain()
    assert await run.result(timeout=PATIENCE) == 1


async def test_a_signal_that_came_too_late_is_there_for_the_next_wait(app: Stepfast) -> None:
    @app.workflow
    async def order(ctx: Context) -> Any:
        try:
            await ctx.wait_signal("approved", timeout=0.02)
        except SignalTimeout:
            return await ctx.wait_signal("approved")

    run = await app.start(order)
    await app.drain()
    assert await run.status() == "waiting"
    await run.signal("approved", "late")
    await app.drain()
    assert await run.result(timeout=PATIENCE) == "late"


# -- an own timeout, another task ---------------------------------------------------------------------------------


async def test_a_wait_given_up_by_the_workflow_replays_so_and_takes_nothing(app: Stepfast, calls: Calls) -> None:
    """Rule 19: the signal that comes later is for the next wait."""
    gate = Gate()

    @app.workflow
    async def order(ctx: Context) -> Any:
        try:
            async with asyncio.timeout(0.05):
                await ctx.wait_signal("go")
            calls.hit("in time")
        except TimeoutError:
            calls.hit("given up")
        await ctx.step(gate.passing)
        return await ctx.wait_signal("go")

    run = await app.start(order)
    await interrupt(app, gate)
    [wait, *_] = await run.steps()
    assert (wait.kind, wait.status) == ("signal", "cancelled")
    await run.signal("go", 1)
    gate.open()
    await app.drain()
    assert await run.result(timeout=PATIENCE) == 1
    assert calls == {"given up": 2}


async def test_a_wait_in_another_task_is_refused(app: Stepfast) -> None:
    """Rule 18."""

    @app.workflow
    async def order(ctx: Context) -> None:
        async def elsewhere() -> None:
            await ctx.wait_signal("go")

        await asyncio.create_task(elsewhere())

    run = await app.start(order)
    await app.drain()
    with pytest.raises(RunFailed, match=r"ctx\.branch"):
        await run.result(timeout=PATIENCE)


async def test_a_wait_inside_a_step_is_refused(app: Stepfast) -> None:
    @app.workflow(max_attempts=1)
    async def order(ctx: Context) -> None:
        async def inside() -> None:
            await ctx.wait_signal("go")

        await ctx.step(inside)

    run = await app.start(order)
    await app.drain()
    with pytest.raises(RunFailed, match="from inside"):
        await run.result(timeout=PATIENCE)
