"""A worker goes by the clock that it is given, and by no other."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from stepfast import AttemptTimeout, Context, RunFailed, StepFailed, Stepfast
from tests.support.engine import PATIENCE, Gate, eventually
from tests.support.kit import StandingClock


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> StandingClock:
    """Of every worker that is made."""
    clock = StandingClock()
    monkeypatch.setattr("stepfast.app.Clockwork", lambda: clock)
    return clock


async def test_the_timeout_of_a_step_is_over_when_the_clock_says_so(clock: StandingClock) -> None:
    app, gate = Stepfast("sqlite://"), Gate()

    @app.workflow
    async def order(ctx: Context) -> str:
        try:
            await ctx.options(timeout=5).step(gate.passing)
        except StepFailed as error:
            return error.error_type
        return "?"

    async with app, app.worker():
        run = await app.start(order)
        await eventually(lambda: gate.arrivals == 1)
        clock.advance(4.9)
        await asyncio.sleep(0.05)
        assert await run.status() == "running"
        clock.advance(0.2)
        assert await run.result(timeout=PATIENCE) == "StepTimeout"


async def test_the_timeout_of_an_attempt_is_over_when_the_clock_says_so(clock: StandingClock) -> None:
    app, gate = Stepfast("sqlite://"), Gate()

    @app.task(timeout=20, max_attempts=1)
    async def work() -> Any:
        return await gate.passing()

    async with app, app.worker():
        run = await app.start(work)
        await eventually(lambda: gate.arrivals == 1)
        clock.advance(20.1)
        with pytest.raises(RunFailed) as caught:
            await run.result(timeout=PATIENCE)
        assert caught.value.error_type == AttemptTimeout.__name__
