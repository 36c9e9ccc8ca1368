"""``@step(at_most_once=True)``: a step that neither an error nor the end of a worker leads to another call of."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from stepfast import ConfigurationError, Context, RetryLater, StepFailed, Stepfast, SyncContext, step
from tests.engine.conftest import ON_BOTH, RELEASED
from tests.support.engine import Calls, Gate, drained, eventually, failure, interrupt, outcome

pytestmark = pytest.mark.enough_on("sqlite")


@ON_BOTH
async def test_a_worker_that_ends_in_its_middle_leaves_it_interrupted(app: Stepfast, calls: Calls) -> None:
    """It is not called again, until an operator retries the run."""
    gate = Gate()

    @step(at_most_once=True)
    async def charge(cents: int) -> str:
        calls.hit("charge")
        await gate.passing()
        return f"charged {cents}"

    @app.workflow(max_attempts=3)
    async def order(ctx: Context) -> str:
        await ctx.step("before", lambda: calls.hit("before"))
        return await ctx.step(charge, 5)

    run = await app.start(order)
    await interrupt(app, gate)
    gate.open()
    await app.drain()
    await failure(run, "StepInterrupted: step 'charge' was called before")
    info = await run.info()
    assert (info.attempt, calls) == (1, {"before": 1, "charge": 1})
    assert [(each.name, each.status) for each in await run.steps()] == [("before", "completed"), ("charge", "failed")]
    await run.retry()
    await app.drain()
    assert await run.result() == "charged 5"
    assert calls == {"before": 1, "charge": 2}


async def test_the_code_can_catch_that_and_replays_the_same(app: Stepfast, calls: Calls) -> None:
    gate = Gate()

    @step(at_most_once=True)
    async def charge() -> str:
        calls.hit("charge")
        await gate.passing()
        return "charged"

    @app.workflow
    async def order(ctx: Context) -> str:
        try:
            return await ctx.step(charge)
        except StepFailed as error:
            known = await ctx.step("ask the bank", lambda: "it was charged")
            await ctx.sleep(0.01)
            return f"{error.error_type}: {known}"

    app.settings = app.settings.with_changes(inline_wait=0)
    run = await app.start(order)
    await interrupt(app, gate)
    gate.open()
    await app.drain()
    assert await run.result() == "StepInterrupted: it was charged"
    assert calls["charge"] == 1


@pytest.mark.parametrize("error", [ValueError("declined"), RetryLater(0)], ids=["an error", "a plea"])
async def test_its_errors_lead_to_no_other_call(app: Stepfast, calls: Calls, error: Exception) -> None:
    async def charge() -> None:
        calls.hit("charge")
        raise error

    @app.workflow(max_attempts=3)
    async def order(ctx: Context) -> None:
        await ctx.options(at_most_once=True).step(charge)

    run = await drained(app, order)
    await failure(run, type(error).__name__)
    assert calls == {"charge": 1}


async def test_given_up_by_a_timeout_of_the_code_it_is_not_called_by_the_next_attempt(
    app: Stepfast, calls: Calls
) -> None:
    @step(at_most_once=True)
    async def charge() -> None:
        calls.hit("charge")
        await asyncio.Event().wait()

    @app.workflow(max_attempts=2)
    async def order(ctx: Context) -> None:
        async with asyncio.timeout(0.01):
            await ctx.step(charge)

    app.settings = app.settings.with_changes(backoff_base=0.001)
    await failure(await drained(app, order), "StepInterrupted")
    assert calls == {"charge": 1}


def before_its_mark(store: Any, monkeypatch: pytest.MonkeyPatch, act: Callable[[], Awaitable[Any]]) -> None:
    """Act once when the database is to hear that a step is called next."""
    flush = store.flush
    acted: list[bool] = []

    async def watched(worker: str, batch: Any) -> Any:
        if batch.values and not acted:
            acted.append(True)
            await act()
        return await flush(worker, batch)

    monkeypatch.setattr(store, "flush", watched)


async def test_paused_just_before_its_call_it_is_called_after_it(
    app: Stepfast, calls: Calls, monkeypatch: pytest.MonkeyPatch
) -> None:
    @app.workflow(max_attempts=1)
    async def order(ctx: Context) -> int:
        await ctx.step("before", lambda: None)
        return await ctx.options(at_most_once=True).step("charge", calls.hit, "charge")

    run = await app.start(order)
    before_its_mark(await app.store(), monkeypatch, run.pause)

    async def is_paused() -> bool:
        return await run.status() == "paused"

    async with app.worker():
        await eventually(is_paused)
        assert calls == {}
        await run.resume()
        assert await run.result(5) == 1


async def test_given_up_just_before_its_call_it_may_be_called_by_the_next_attempt(
    app: Stepfast, calls: Calls, monkeypatch: pytest.MonkeyPatch
) -> None:
    limits: list[asyncio.Timeout] = []

    @app.workflow(max_attempts=2)
    async def order(ctx: Context) -> int:
        async with asyncio.timeout(None) as limit:
            limits.append(limit)
            return await ctx.options(at_most_once=True).step("charge", calls.hit, "charge")

    async def time_is_up() -> None:
        limits[0].reschedule(0)
        while not limits[0].expired():
            await asyncio.sleep(0)

    app.settings = app.settings.with_changes(backoff_base=0.001)
    before_its_mark(await app.store(), monkeypatch, time_is_up)
    assert await outcome(app, order) == 1
    assert len(limits) == 2


@RELEASED
async def test_what_was_recorded_is_answered_from_its_record(app: Stepfast, calls: Calls) -> None:
    @step(at_most_once=True)
    def charge(cents: int) -> int:
        calls.hit("charge")
        return cents

    @app.workflow
    def order(ctx: SyncContext) -> int:
        paid = ctx.step(charge, 5)
        ctx.sleep(0.01)
        return paid + ctx.step(charge, 7)

    assert await outcome(app, order) == 12
    assert calls == {"charge": 2}


async def test_options_that_ask_for_further_calls_are_refused_by_name(app: Stepfast) -> None:
    with pytest.raises(ConfigurationError, match="takes no retries, retry_on"):
        step(at_most_once=True, retries=2, retry_on=OSError)
    with pytest.raises(ConfigurationError, match=r"at_most_once must be True or False, not 1\.5"):
        step(at_most_once=1.5)  # type: ignore[call-overload]

    @step(retries=3)
    async def charge() -> None: ...

    @app.workflow(max_attempts=1)
    async def order(ctx: Context, how: str) -> None:
        if how == "retried":
            await ctx.options(at_most_once=True).step(charge)
        await ctx.options(at_most_once=True).transaction("write", lambda connection: None)

    await failure(await drained(app, order, "retried"), "takes no retries")
    await failure(await drained(app, order, "transaction"), "ctx.transaction takes no at_most_once=")
    with pytest.raises(ConfigurationError, match=r"at_most_once, which only ctx\.step"):
        app.dag("graph").step(step(at_most_once=True)(lambda ctx: None))
