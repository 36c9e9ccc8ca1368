"""What a worker remembers of a run that it released is what is stored: it replays the run from that."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from stepfast import Context, Run, Settings
from stepfast.model.records import StepRecord
from stepfast.worker.attempt import HistoryCache
from tests.engine.conftest import ON_SQLITE, MakeApp
from tests.support.crashing import dying_worker, outcome_of
from tests.support.engine import Calls, eventually

pytestmark = ON_SQLITE


async def test_a_cancelled_call_is_remembered_also_if_the_run_is_released_before_its_commit(
    make_app: MakeApp, calls: Calls
) -> None:
    """Cancelled twice, a call does not wait for its record; and a wait for a signal does not wait for anything."""
    app = make_app(settings=Settings(inline_wait=0))

    async def hang() -> None:
        calls.hit("hang")
        await asyncio.Event().wait()

    @app.workflow
    async def given_up(ctx: Context) -> str:
        step = asyncio.ensure_future(ctx.step(hang))
        for _ in range(50):  # turns of the event loop, in which it begins if it is called
            await asyncio.sleep(0)
        for _ in range(2):
            step.cancel()
            await asyncio.sleep(0)
        await asyncio.wait([step])
        calls.hit("body")
        await ctx.wait_signal("on")
        return "done"

    run = await app.start(given_up)
    async with app.worker():
        await eventually(lambda: has_status(run, "waiting"))
        await run.signal("on")
        assert await run.result(timeout=20) == "done"
    assert calls == {"hang": 1, "body": 2}


async def test_what_lost_a_race_that_was_over_when_the_worker_died_is_not_remembered_as_open(
    make_app: MakeApp, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The next worker records who has won, and that what the others had begun was given up."""
    remembered: list[list[StepRecord]] = []
    monkeypatch.setattr(HistoryCache, "put", lambda self, run_id, claim, records: remembered.append(records))
    app = make_app(settings=Settings(inline_wait=0))

    @app.workflow
    async def raced(ctx: Context) -> str:
        winner, _ = await ctx.first(late=ctx.sleep(3600), quick=ctx.step("quick", lambda: "quick"))
        await ctx.wait_signal("on")
        return winner

    run = await app.start(raced)
    async with dying_worker(app, outcome_of("quick"), written=True) as crash:
        await crash.happened()
    async with app.worker():
        await eventually(lambda: has_status(run, "waiting"))
        stored = {(step.position, step.status) for step in await run.steps()}
        assert all({(each.position, each.status) for each in records} == stored for records in remembered)
        await run.signal("on")
        assert await run.result(timeout=20) == "quick"
    assert (0, "cancelled") in stored


async def has_status(run: Run[Any], status: str) -> bool:
    return await run.status() == status
