"""Undos that are served elsewhere: ``ctx.remote(…, compensate="payments.refund")``."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from stepfast import Context, NonRetryableError, RunFailed, SyncContext
from stepfast.remote import RemoteTask, RemoteWorker
from tests.remote_steps.conftest import QUICK, Home, enough_joined, joined
from tests.support.engine import eventually


def paying(home: Home, seen: list[Any], *, failing: int = 0) -> RemoteWorker:
    """A worker that charges, and refunds after so many failures."""
    worker = home.worker("payments")

    @worker.handle("charge")
    async def charge(input: Any) -> str:
        return f"receipt {input}"

    @worker.handle("refund")
    async def refund(input: Any, task: RemoteTask) -> None:
        seen.append((task.step_id.rpartition(":")[2], task.attempt, input))
        if task.attempt <= failing:
            raise ValueError("not now")

    return worker


@enough_joined
async def test_completed_steps_are_undone_elsewhere_in_reverse(home: Home) -> None:
    seen: list[Any] = []

    @home.app.workflow
    async def shop(ctx: Context) -> None:
        for number in (1, 2):
            await ctx.remote("charge", number, group="payments", compensate="refund")
        raise NonRetryableError("no stock")

    run = await home.app.start(shop)
    async with home.app.worker(), paying(home, seen, failing=1):
        with pytest.raises(RunFailed, match="no stock"):
            await run.result(timeout=20)
        await home.nothing_is_left()
    two, one = {"input": 2, "output": "receipt 2"}, {"input": 1, "output": "receipt 1"}
    assert seen == [("-1", 1, two), ("-1", 2, two), ("-2", 1, one), ("-2", 2, one)]
    assert await run.status() == "compensated"
    told = [(step.name, step.kind, step.status, step.undo, step.attempts) for step in await run.steps()]
    assert told == [
        ("charge", "remote", "completed", "refund", 1), ("charge", "remote", "completed", "refund", 1),
        ("refund", "undo", "compensated", None, 2), ("refund", "undo", "compensated", None, 2),
    ]  # fmt: skip


@joined
async def test_a_cancelled_run_waits_for_its_undo_without_a_slot(home: Home) -> None:
    seen: list[Any] = []
    app = home.make(settings=replace(QUICK, inline_wait=0.0))

    @app.workflow
    def shop(ctx: SyncContext) -> None:
        ctx.remote("charge", 1, group="payments", compensate="refund")
        ctx.wait_signal("never")

    run = await app.start(shop)
    async with app.worker(concurrency=1) as worker:
        async with paying(home, seen):
            await eventually(lambda: _waits_for(run, "signal:never"))
        await run.cancel()
        await eventually(lambda: home.count_tasks(1))
        await eventually(lambda: _waits_for(run, "remote:refund"))
        assert (await run.info()).status == "compensating"
        assert worker.running == 0
        async with paying(home, seen):
            await eventually(lambda: _has_status(run, "compensated"))
    assert seen == [("-1", 1, {"input": 1, "output": "receipt 1"})]


async def _waits_for(run: Any, what: str) -> bool:
    return bool((await run.info()).waiting_for == what)


async def _has_status(run: Any, status: str) -> bool:
    return bool(await run.status() == status)


@joined
async def test_an_undo_that_fails_for_good_is_named(home: Home) -> None:
    seen: list[Any] = []
    app = home.make(settings=replace(QUICK, undo_retries=0))

    @app.workflow
    async def shop(ctx: Context) -> None:
        await ctx.remote("charge", 1, group="payments", compensate="refund")
        raise NonRetryableError("no stock")

    run = await app.start(shop)
    async with app.worker(), paying(home, seen, failing=9):
        with pytest.raises(RunFailed, match="undo 'refund' of step 'charge': RemoteStepError: not now"):
            await run.result(timeout=20)


@joined
async def test_a_function_may_undo_a_remote_step(home: Home) -> None:
    seen: list[Any] = []

    async def refund(output: str, input: int) -> None:
        seen.append((output, input))

    @home.app.workflow
    async def shop(ctx: Context) -> None:
        await ctx.remote("charge", 1, group="payments", compensate=refund)
        raise NonRetryableError("no stock")

    run = await home.app.start(shop)
    async with home.app.worker(), paying(home, []):
        with pytest.raises(RunFailed, match="no stock"):
            await run.result(timeout=20)
    assert seen == [("receipt 1", 1)]
