"""A worker goes by the clock that it is given, and by no other."""

from __future__ import annotations

import asyncio
from datetime import timedelta
from typing import Any

import pytest

from stepfast import AttemptTimeout, Context, Run, StepFailed, Stepfast
from tests.support.engine import PATIENCE, Gate, eventually, failure
from tests.support.worker_context import StandingClock

pytestmark = pytest.mark.timeout(45)
"""A stop that loses a task waits for ever on a clock that stands."""


def app_with_clock() -> tuple[Stepfast, StandingClock]:
    """An application whose workers, and whose database in memory, go by a clock that stands."""
    app, clock = Stepfast("sqlite://"), StandingClock()
    app._clock = clock
    return app, clock


async def test_the_timeout_of_a_step_is_over_when_the_clock_says_so() -> None:
    (app, clock), gate = app_with_clock(), Gate()

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


async def test_the_timeout_of_an_attempt_is_over_when_the_clock_says_so() -> None:
    (app, clock), gate = app_with_clock(), Gate()

    @app.task(timeout=20, max_attempts=1)
    async def work() -> Any:
        return await gate.passing()

    async with app, app.worker():
        run = await app.start(work)
        await eventually(lambda: gate.arrivals == 1)
        clock.advance(20.1)
        caught = await failure(run)
        assert caught.error_type == AttemptTimeout.__name__


async def has_status(run: Run[Any], status: str) -> bool:
    return await run.status() == status


async def test_a_sleep_of_a_day_is_over_when_the_clock_of_worker_and_database_is_moved() -> None:
    """The run is released, becomes due by the database's time, and is found by the next sweep."""
    app, clock = app_with_clock()

    @app.workflow
    async def order(ctx: Context) -> float:
        before = ctx.now()
        await ctx.sleep(86_400)
        return (ctx.now() - before).total_seconds()

    async with app, app.worker():
        run = await app.start(order)
        await eventually(lambda: has_status(run, "waiting"))
        clock.advance(86_000)
        assert await run.status() == "waiting"
        await eventually(lambda: moved_on(clock, run))
        assert await run.result() >= 86_400
        info = await run.info()
        assert info.completed_at is not None
        assert timedelta(seconds=86_400) <= info.completed_at - info.created_at < timedelta(seconds=172_800)


async def moved_on(clock: StandingClock, run: Run[Any]) -> bool:
    """Move the clock by a minute; whether the run has ended."""
    clock.advance(60)
    return await has_status(run, "completed")
