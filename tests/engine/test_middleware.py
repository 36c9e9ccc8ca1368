"""``@app.middleware``: functions around every attempt of a run and every try of a step."""

from __future__ import annotations

import asyncio
from contextvars import ContextVar
from typing import Any

import pytest

from stepfast import (
    Backoff,
    ConfigurationError,
    Context,
    DagContext,
    MiddlewareCall,
    Proceed,
    RunFailed,
    Stepfast,
    SyncContext,
    step,
)
from stepfast.testing import Lab, crash_everywhere
from tests.engine.conftest import ON_BOTH, RELEASED
from tests.support.engine import outcome

pytestmark = pytest.mark.enough_on("sqlite")

TENANT: ContextVar[str] = ContextVar("TENANT", default="none")


def watched(app: Stepfast) -> list[str]:
    """What the middleware of an application is called around, outermost first."""
    seen: list[str] = []

    def around(name: str) -> Any:
        async def noting(call: MiddlewareCall, proceed: Proceed) -> Any:
            seen.append(f"{name} {call.kind} {call.name} {call.attempt}{' undoing' if call.undoing else ''}")
            return await proceed()

        return noting

    app.middleware(around("a"))
    app.middleware(around("b"))
    return seen


@ON_BOTH
async def test_it_is_called_around_attempts_and_tries_outermost_first(app: Stepfast) -> None:
    seen = watched(app)
    failed: list[int] = []

    @step(retries=1, backoff=Backoff(base=0, jitter=False))
    async def flaky() -> str:
        if not failed:
            failed.append(1)
            raise ValueError("once")
        return "done"

    @app.workflow
    async def order(ctx: Context) -> list[Any]:
        return [await ctx.step(flaky), await ctx.step("plain", lambda: 5)]

    assert await outcome(app, order) == ["done", 5]
    of = ["run order 1", "step flaky 1", "step flaky 2", "step plain 1"]
    assert seen == [f"{name} {call}" for call in of for name in "ab"]


async def test_what_it_sets_is_seen_by_the_code_and_its_steps(app: Stepfast) -> None:
    @app.middleware
    async def with_tenant(call: MiddlewareCall, proceed: Proceed) -> Any:
        token = TENANT.set(str(call.attributes.get("tenant", "unknown")))
        try:
            return await proceed()
        finally:
            TENANT.reset(token)

    async def branch(ctx: Context) -> str:
        return await ctx.step("inner", TENANT.get)

    @app.workflow
    async def order(ctx: Context) -> list[str]:
        return [TENANT.get(), await ctx.step("threaded", TENANT.get), await ctx.branch(branch)]

    @app.workflow
    def plain(ctx: SyncContext) -> list[str]:
        return [TENANT.get(), ctx.step("threaded", TENANT.get)]

    runs = [
        await app.start(order, attributes={"tenant": "t-7"}),
        await app.start(plain, attributes={"tenant": "t-8"}),
        await app.start(plain),
    ]
    await app.drain()
    assert [await run.result() for run in runs] == [["t-7"] * 3, ["t-8"] * 2, ["unknown"] * 2]


async def test_it_may_answer_in_place_of_a_step_and_change_a_result(app: Stepfast) -> None:
    @app.middleware
    async def changing(call: MiddlewareCall, proceed: Proceed) -> Any:
        if call.name == "cached":
            return 40
        result = await proceed()
        return result + 1 if call.name == "counted" else result

    @app.workflow
    async def order(ctx: Context) -> int:
        return int(await ctx.step("cached", lambda: 1 // 0)) + int(await ctx.step("counted", lambda: 1))

    assert await outcome(app, order) == 42


@RELEASED
async def test_a_run_that_waits_is_wrapped_at_each_claim_and_its_steps_once(app: Stepfast) -> None:
    seen = watched(app)

    @app.workflow
    async def order(ctx: Context) -> str:
        await ctx.step("first", lambda: 1)
        return str(await ctx.wait_signal("go"))

    run = await app.start(order)
    await app.drain()
    await run.signal("go", "on")
    await app.drain()
    assert await run.result() == "on"
    assert [line for line in seen if line.startswith("a")] == ["a run order 1", "a step first 1", "a run order 1"]


async def test_undos_transactions_and_steps_of_dags_are_wrapped_too(app: Stepfast) -> None:
    seen = watched(app)
    undone: list[str] = []

    @app.workflow(max_attempts=1)
    async def order(ctx: Context) -> None:
        await ctx.options(compensate=lambda output: undone.append(output)).step("reserve", lambda: "r-1")
        assert await ctx.transaction("write", lambda connection: 7) == 7
        raise ValueError("no")

    graph = app.dag("graph")

    @graph.step()
    async def first(ctx: DagContext) -> int:
        return int(await ctx.step("inside", lambda: 3))

    @graph.step(after=["first"], when=lambda ctx: False)
    async def skipped(ctx: DagContext) -> int:
        return 1

    run, dag = await app.start(order), await app.start(graph)
    await app.drain()
    with pytest.raises(RunFailed, match="no"):
        await run.result()
    assert undone == ["r-1"]
    assert await dag.result() == {"first": 3}
    assert {line for line in seen if line.startswith("a")} == {
        "a run order 1",
        "a step reserve 1",
        "a step write 1",
        "a run order 1 undoing",
        "a step <lambda> 1 undoing",
        "a step first 1",
        "a step inside 1",
        "a step skipped 1",
    }


async def test_it_may_proceed_once_and_must_around_a_transaction(app: Stepfast) -> None:
    @app.middleware
    async def odd(call: MiddlewareCall, proceed: Proceed) -> Any:
        if call.name == "write":
            return None
        first = await proceed()
        return first if call.kind == "run" else await proceed()

    @app.workflow(max_attempts=1)
    async def twice(ctx: Context) -> None:
        await ctx.step("charge", lambda: 1)

    @app.workflow(max_attempts=1)
    async def never(ctx: Context) -> None:
        await ctx.transaction("write", lambda connection: 7)

    runs = [await app.start(twice), await app.start(never)]
    await app.drain()
    with pytest.raises(RunFailed, match=r"called proceed\(\) twice around step 'charge'"):
        await runs[0].result()
    with pytest.raises(RunFailed, match=r"returned without proceed\(\) around a transaction of 'write'"):
        await runs[1].result()


async def test_an_error_of_it_fails_the_attempt_or_the_try(app: Stepfast) -> None:
    @app.middleware
    async def broken(call: MiddlewareCall, proceed: Proceed) -> Any:
        if call.name == "denied":
            raise PermissionError(f"{call.kind} {call.run_id[:0]}refused")
        return await proceed()

    @app.task(max_attempts=1)
    async def denied() -> None:
        raise AssertionError("is not called")

    @app.workflow
    async def order(ctx: Context) -> str:
        try:
            await ctx.step("denied", lambda: 1)
        except Exception as error:
            return str(error)
        return "allowed"

    run = await app.start(denied)
    await app.drain()
    with pytest.raises(RunFailed, match="run refused"):
        await run.result()
    assert "step refused" in await outcome(app, order)


@RELEASED
async def test_it_swallows_neither_a_release_nor_a_lost_lease(app: Stepfast) -> None:
    """What leaves a run is a BaseException, and what code returns after it is not used."""

    @app.middleware
    async def swallowing(call: MiddlewareCall, proceed: Proceed) -> Any:
        try:
            return await proceed()
        except BaseException:
            return "swallowed"

    @app.workflow
    async def order(ctx: Context) -> str:
        return str(await ctx.wait_signal("go"))

    run = await app.start(order)
    await app.drain()
    assert (await run.info()).waiting_for == "signal:go"
    await run.signal("go", "on")
    await app.drain()
    assert await run.result() == "on"


async def test_it_replays_the_same_after_a_crash_at_any_record(app: Stepfast) -> None:
    seen = watched(app)

    @app.workflow
    async def order(ctx: Context) -> int:
        return int(await ctx.step("one", lambda: 1)) + int(await ctx.step("two", lambda: 2))

    await crash_everywhere(app, order, None)
    assert seen
    async with Lab(app) as lab:
        assert await (await lab.start(order)).result() == 3


async def test_what_is_no_middleware_is_refused_by_name(app: Stepfast) -> None:
    def plain(call: MiddlewareCall, proceed: Proceed) -> Any:
        return proceed()

    for wrong in (plain, 5):
        with pytest.raises(ConfigurationError, match="a middleware is an async def function"):
            app.middleware(wrong)  # type: ignore[type-var]
    await app.migrate()
    with pytest.raises(ConfigurationError, match="cannot be added to an application that is connected"):
        watched(app)


async def test_a_step_with_a_timeout_is_cut_off_within_it(app: Stepfast) -> None:
    seen: list[str] = []

    @app.middleware
    async def noting(call: MiddlewareCall, proceed: Proceed) -> Any:
        try:
            return await proceed()
        except Exception as error:
            seen.append(f"{call.kind} {type(error).__name__}")
            raise

    @step(timeout=0.02)
    async def slow() -> None:
        await asyncio.Event().wait()

    @app.workflow(max_attempts=1)
    async def order(ctx: Context) -> None:
        await ctx.step(slow)

    run = await app.start(order)
    await app.drain()
    with pytest.raises(RunFailed):
        await run.result()
    assert seen == ["step StepTimeout", "run StepFailed"]
