"""A timeout of the workflow's own around a step: recorded as cancelled, and replayed so."""

from __future__ import annotations

import asyncio

import pytest

from stepfast import Context, Stepfast
from tests.support.engine import Calls, Gate, drained, finished, interrupt, outcome, replayed

pytestmark = pytest.mark.enough_on("sqlite")


@pytest.mark.parametrize("how", ["asyncio.timeout", "asyncio.wait_for"])
async def test_a_step_given_up_by_the_workflow_replays_as_given_up(app: Stepfast, calls: Calls, how: str) -> None:
    """Rule 19: the step is not called again, and the code takes the same way."""
    gate = Gate()

    async def slow() -> None:
        calls.hit("slow")
        await asyncio.Event().wait()

    @app.workflow
    async def order(ctx: Context) -> list[str]:
        way = []
        try:
            if how == "asyncio.timeout":
                async with asyncio.timeout(0.05):
                    await ctx.step(slow)
            else:
                await asyncio.wait_for(ctx.step(slow), 0.05)
            way.append("in time")
        except TimeoutError:
            way.append("given up")
        way.append(await ctx.step("after", lambda: f"after {calls.hit('after')}"))
        await ctx.step(gate.passing)
        return way

    run = await app.start(order)
    await interrupt(app, gate)
    assert [(s.name, s.status) for s in await run.steps()] == [("slow", "cancelled"), ("after", "completed")]
    assert await finished(app, run, gate) == ["given up", "after 1"]
    assert calls == {"slow": 1, "after": 1}
    [slow_step, *_] = await run.steps()
    assert slow_step.completed_at is not None and slow_step.started_at is not None
    assert (slow_step.completed_at - slow_step.started_at).total_seconds() >= 0.04


async def test_a_step_cancelled_by_a_task_group_replays_so(app: Stepfast, calls: Calls) -> None:
    """Rule 19: the sibling of a failed step is cancelled; so it is on replay."""
    gate = Gate()

    async def slow() -> None:
        calls.hit("slow")
        await asyncio.Event().wait()

    async def awaiting(call: object) -> None:
        await call  # type: ignore[misc]

    @app.workflow
    async def order(ctx: Context) -> str:
        try:
            async with asyncio.TaskGroup() as group:
                group.create_task(awaiting(ctx.step(slow)))
                group.create_task(awaiting(ctx.step("fail", lambda: 1 / 0)))
        except* Exception:
            pass
        await ctx.step(gate.passing)
        return "done"

    run = await replayed(app, gate, order)
    assert await run.result() == "done"
    assert calls["slow"] == 1
    assert {s.name: s.status for s in await run.steps()} == {
        "slow": "cancelled",
        "fail": "failed",
        "passing": "completed",
    }


async def test_a_step_in_time_is_not_bothered_by_the_timeout_around_it(app: Stepfast, calls: Calls) -> None:
    @app.workflow
    async def order(ctx: Context) -> str:
        async with asyncio.timeout(30):
            return await ctx.step("quick", lambda: "in time")

    assert await outcome(app, order) == "in time"


async def test_an_own_timeout_that_nobody_catches_fails_the_attempt(app: Stepfast) -> None:
    @app.workflow(max_attempts=1)
    async def order(ctx: Context) -> None:
        async with asyncio.timeout(0.02):
            await ctx.step("slow", asyncio.Event().wait)

    run = await drained(app, order)
    info = await run.info()
    assert info.status == "failed"
    assert info.error is not None and info.error.type == "TimeoutError"
