"""The sweeper: little to ask when there is nothing to do, and no spinning when there is something it cannot do."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from stepfast.settings import Settings
from stepfast.worker.sweeper import Sweeper
from tests.support.databases import connected
from tests.support.engine import PATIENCE, eventually, worked
from tests.support.workflows import task
from tests.worker.conftest import MakeApp
from tests.worker.spying import Counted, only_postgres, wrap


async def test_a_delayed_start_runs_when_it_is_due_and_not_before(make_app: MakeApp) -> None:
    """By the database's clock."""
    app = make_app(Settings(poll_interval=0.1))
    echo = task(app, "echo")
    async with app.worker():
        run = await app.start(echo, 1, delay=0.3)
        assert await run.result(timeout=PATIENCE) == 1
    info = await run.info()
    assert info.started_at is not None
    assert (info.started_at - info.created_at).total_seconds() >= 0.3


async def test_what_nobody_picked_up_in_time_ends_with_a_sentence(
    make_app: MakeApp, caplog: pytest.LogCaptureFixture
) -> None:
    """Also on a worker that does not know the workflow."""
    app, other = make_app(Settings(poll_interval=0.05)), make_app()
    elsewhere = task(other, "elsewhere", returns=None)
    run = await other.start(elsewhere, expires_in=0.05)
    async with app.worker():
        await eventually(lambda: _ended(run))
    info = await run.info()
    assert (info.status, info.reason) == ("failed", "expired")
    assert info.error is not None and info.error.message
    (told,) = (record for record in caplog.records if "deadline" in record.getMessage())
    assert told.getMessage() == f"run {run.id}: expired, or past the deadline"
    assert getattr(told, "run_id", None) == run.id


async def _ended(run: object) -> bool:
    return bool(await run.status() == "failed")  # type: ignore[attr-defined]


@only_postgres
async def test_a_due_row_that_somebody_holds_is_not_asked_for_without_a_pause(url: str, make_app: MakeApp) -> None:
    """It stays due for as long as its row is locked; that may be hours."""
    app = make_app(Settings(poll_interval=0.05, sweep_interval=60))
    echo = task(app, "echo")
    run = await app.start(echo, 1, delay=0.01)
    ticks = Counted(await app.store(), "tick")
    async with connected(url) as somebody:
        async with somebody.transaction():
            await somebody.fetch("SELECT 1 FROM stepfast.runs WHERE id = $1 FOR UPDATE", run.id)
            async with app.worker():
                await eventually(lambda: len(ticks) >= 3)
                before = len(ticks)
                await asyncio.sleep(0.5)
                assert len(ticks) - before <= 20
        assert await worked(app, run) == 1


async def test_an_idle_worker_asks_one_question_per_tick(make_app: MakeApp) -> None:
    """Rule 39: over some ticks, nothing but ticks, and heartbeats on their own line."""
    app = make_app(Settings(poll_interval=0.2))
    task(app, "echo")
    store = await app.store()
    names = ("claim", "claim_suspects", "promote", "reap", "flush", "give_back", "outcomes", "definitions", "notify")
    others = {name: Counted(store, name) for name in names}
    ticks = Counted(store, "tick")
    async with app.worker():
        await eventually(lambda: len(ticks) >= 5)
        asked = {name: len(counted) for name, counted in others.items() if len(counted)}
    assert sum(asked.values()) <= 1, asked  # a first look for what names no worker at all


async def test_a_look_that_is_asked_for_while_a_slow_one_is_under_way_is_made(make_app: MakeApp) -> None:
    """Slow looks are made less often, but not those that somebody asks for."""
    app = make_app(Settings(poll_interval=0.05))
    task(app, "echo")
    looks, sweepers = list[bool](), list[Sweeper]()

    async def slow(call: Callable[..., Awaitable[Any]], *args: Any) -> Any:
        looks.append(args[2])
        if len(looks) == 2:
            sweepers[0].ask_for_lanes()
        if args[2]:
            await asyncio.sleep(0.15)
        return await call(*args)

    wrap(await app.store(), "tick", slow)
    async with app.worker() as worker:
        sweepers.append(worker.duties.sweeper)
        await eventually(lambda: len(looks) >= 3)
    assert looks[:3] == [True, True, True]
