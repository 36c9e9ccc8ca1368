"""A wait longer than a moment frees the slot; a shorter one stays in memory while slots are free."""

from __future__ import annotations

import asyncio

import pytest

from stepfast import Backoff, Context, RetryLater, Settings, Stepfast, SyncContext
from tests.engine.conftest import MakeApp
from tests.support.engine import Calls, eventually, make_due


@pytest.mark.parametrize("kind", ["async", "def"])
async def test_a_long_wait_frees_the_slot(app: Stepfast, calls: Calls, kind: str) -> None:
    """A worker with one slot runs another run meanwhile; the waiting one goes on when it is due."""

    async def flaky() -> str:
        if calls.hit("flaky") == 1:
            raise RetryLater(3600)
        return "second try"

    if kind == "async":

        @app.workflow(name="order")
        async def order(ctx: Context) -> str:
            calls.hit("body")
            return await ctx.options(retries=1).step(flaky)
    else:

        @app.workflow(name="order")
        def order_in_a_thread(ctx: SyncContext) -> str:
            calls.hit("body")
            return ctx.options(retries=1).step(flaky)

    @app.task
    async def other() -> str:
        return "meanwhile"

    async with app.worker(concurrency=1):
        run = await app.start("order")
        await eventually(lambda: is_waiting(app, run.id))
        assert await (await app.start(other)).result(timeout=20) == "meanwhile"
        assert await run.status() == "waiting"
        await make_due(app, run.id)
        assert await run.result(timeout=20) == "second try"
    assert calls == {"flaky": 2, "body": 2}
    assert (await run.info()).attempt == 1


async def is_waiting(app: Stepfast, run_id: str) -> bool:
    return await app.get(run_id).status() == "waiting"


async def test_a_wait_within_a_moment_stays_in_memory(app: Stepfast, calls: Calls) -> None:
    """Semantics, defaults: no replay, no new claim."""

    async def flaky() -> str:
        if calls.hit("flaky") < 3:
            raise RetryLater(0.02)
        return "done"

    @app.workflow
    async def order(ctx: Context) -> str:
        calls.hit("body")
        return await ctx.options(retries=5).step(flaky)

    run = await app.start(order)
    await app.drain()
    assert await run.result() == "done"
    assert calls == {"flaky": 3, "body": 1}


async def test_without_free_slots_even_a_short_wait_is_released(app: Stepfast, calls: Calls) -> None:
    """Semantics, defaults: a wait is kept in memory while slots are free."""

    async def flaky() -> str:
        if calls.hit("flaky") < 2:
            raise RetryLater(1.0)  # longer than a busy machine takes to give the run back
        return "done"

    @app.workflow
    async def order(ctx: Context) -> str:
        calls.hit("body")
        return await ctx.options(retries=1).step(flaky)

    run = await app.start(order)
    await app.drain(concurrency=1)
    assert await run.result() == "done"
    assert calls == {"flaky": 2, "body": 2}


async def test_a_run_is_released_only_when_everything_in_it_waits(make_app: MakeApp, calls: Calls) -> None:
    """Rule 24: with a parallel step still busy it stays in memory."""
    app = make_app(settings=Settings(inline_wait=0))
    hold = asyncio.Event()

    async def flaky() -> str:
        if calls.hit("flaky") == 1:
            raise RetryLater(3600)
        return "flaky"

    async def busy() -> str:
        calls.hit("busy")
        await hold.wait()
        return "busy"

    @app.workflow
    async def order(ctx: Context) -> list[str]:
        calls.hit("body")
        return list(await asyncio.gather(ctx.options(retries=1).step(flaky), ctx.step(busy)))

    run = await app.start(order)

    async def try_recorded() -> bool:
        return len(await run.activity()) == 1

    async with app.worker():
        await eventually(try_recorded)
        assert await run.status() == "running"
        hold.set()
        await eventually(lambda: is_waiting(app, run.id))
        assert [(s.name, s.status) for s in await run.steps()] == [("busy", "completed"), ("flaky", "waiting")]
        await make_due(app, run.id)
        assert await run.result(timeout=20) == ["flaky", "busy"]
    assert calls == {"body": 2, "flaky": 2, "busy": 1}


async def test_a_run_stays_in_memory_while_its_own_code_goes_on(make_app: MakeApp, calls: Calls) -> None:
    """Rule 24: a step waits in the background; the steps after it are not held up until its time has come."""
    app = make_app(settings=Settings(inline_wait=0))

    async def flaky() -> str:
        if calls.hit("flaky") == 1:
            raise RetryLater(3600)
        return "flaky"

    @app.workflow
    async def order(ctx: Context) -> list[str]:
        background = asyncio.ensure_future(ctx.options(retries=1).step(flaky))
        results = [await ctx.step("first", first_after, ctx.run_id)]
        results += [await ctx.step(name, lambda n: n, name) for name in ("second", "third")]
        results += await asyncio.gather(ctx.step("fourth", lambda: "fourth"), ctx.step("fifth", lambda: "fifth"))
        results.append(await ctx.step("sixth", lambda: "sixth"))
        return [*results, await background]

    async def first_after(run_id: str) -> str:
        await eventually(lambda: tried(run_id))
        return "first"

    async def tried(run_id: str) -> int:
        return len(await app.get(run_id).activity())

    run = await app.start(order)
    await app.drain()
    done = [s.name for s in await run.steps() if s.status == "completed"]
    assert sorted(done) == ["fifth", "first", "fourth", "second", "sixth", "third"]
    assert await run.status() == "waiting"


async def test_the_earliest_of_several_waits_wakes_the_run(make_app: MakeApp, calls: Calls) -> None:
    """Rule 24: visible_at is the earliest wake."""
    app = make_app(settings=Settings(inline_wait=0))

    async def later(name: str, delay: float) -> str:
        if calls.hit(name) == 1:
            raise RetryLater(delay)
        return name

    @app.workflow
    async def order(ctx: Context) -> list[str]:
        patient = ctx.options(retries=1)
        return list(await asyncio.gather(patient.step(later, "long", 3600), patient.step(later, "short", 600)))

    run = await app.start(order)
    await app.drain()
    info = await run.info()
    assert info.status == "waiting" and info.due_at is not None
    assert 595 < (info.due_at - info.read_at).total_seconds() <= 600


async def test_finally_blocks_run_when_a_run_is_released(app: Stepfast, calls: Calls) -> None:
    """Rule 20: and an ``except Exception`` around the wait sees nothing."""

    async def flaky() -> None:
        raise RetryLater(3600)

    @app.workflow
    async def order(ctx: Context) -> str:
        try:
            await ctx.options(retries=1).step(flaky)
        except Exception:
            calls.hit("swallowed")
        finally:
            calls.hit("finally")
        return "wrong"

    run = await app.start(order)
    await app.drain()
    assert await run.status() == "waiting"
    assert calls == {"finally": 1}


async def test_many_runs_wait_at_once_without_slots(app: Stepfast, calls: Calls) -> None:
    """Waits are rows, not sleeping workers."""

    @app.workflow
    async def order(ctx: Context, number: int) -> int:
        return await ctx.options(retries=1, backoff=Backoff(base=60)).step("fail", lambda: fail(number))

    def fail(number: int) -> int:
        calls.hit(str(number))
        raise ValueError("later")

    await app.start_many(order, range(20))
    await app.drain(concurrency=2)
    assert len(await app.runs(status="waiting")) == 20
    assert calls == {str(n): 1 for n in range(20)}


@pytest.mark.parametrize("what", ["retry", "attempt", "sleep"])
async def test_drain_stays_for_what_is_due_soon_though_no_wait_is_kept_in_memory(
    make_app: MakeApp, calls: Calls, what: str
) -> None:
    app = make_app(settings=Settings(inline_wait=0))
    soon = Backoff(base=0.1, jitter=False)

    def fails_once() -> str:
        if what != "sleep" and calls.hit("call") == 1:
            raise ValueError("once")
        return "done"

    @app.workflow(backoff=soon)
    async def order(ctx: Context) -> str:
        if what == "sleep":
            await ctx.sleep(0.1)
        return await ctx.options(retries=1 if what == "retry" else 0, backoff=soon).step(fails_once)

    run = await app.start(order)
    await app.drain()
    assert (await run.info()).status == "completed"
