"""What a worker remembers of a run that it released is what is stored: it replays the run from that."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from stepfast import Context, Run, Settings
from stepfast.engine.history import History, Ledger, as_record
from stepfast.model.records import StepDone, StepRecord
from stepfast.worker.attempt import HistoryCache
from tests.engine.conftest import ON_SQLITE, MakeApp
from tests.support.crashing import dying_worker, outcome_of
from tests.support.engine import Calls, eventually

pytestmark = ON_SQLITE


async def test_a_cancelled_call_is_remembered_also_if_the_run_is_released_before_its_commit(
    make_app: MakeApp, calls: Calls
) -> None:
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


def test_what_a_claim_is_asked_with_is_what_is_remembered() -> None:
    """Rule 61: the claims that the database is told of, and the records of these runs, are one structure."""
    cache = HistoryCache(4000)
    for number in range(30):
        cache.put(f"run {number}", number, [a_record(0, "x" * (number * 7 % 300))])
    assert 0 < len(cache) < 30
    cache.drop("run 29")
    for run_id, claim in dict(cache).items():
        assert cache.get(run_id) == claim
        assert cache.take(run_id, claim + 1) is not None
        assert run_id not in cache
    assert not cache and cache.take("run 29", 30) is None
    cache.put("run 1", 1, [])
    cache.clear()
    assert not cache and cache.get("run 1") is None


def test_what_is_committed_after_the_release_is_believed_to_be_stored() -> None:
    """Rule 61: what goes out with the release is remembered apart from what is stored, which alone is counted."""
    ledger = Ledger(History([a_record(0, "1")]), 100)
    ledger.add(an_entry(1, "completed"), 1)
    ledger.leave([(an_entry(2, "waiting"), 2), (an_entry(3, "waiting"), 2)])
    assert ledger.believed() == 4
    ledger.add(an_entry(3, "completed"), 3)
    assert ledger.believed() == 6
    remembered = ledger.whole_history()
    assert remembered is not None
    assert [(each.position, each.status) for each in remembered if each.position] == [
        (1, "completed"), (3, "completed"), (2, "waiting"),
    ]  # fmt: skip
    ledger.keep_only_count()
    assert ledger.believed() == 6


def an_entry(position: int, status: str, output: str | None = None) -> StepDone:
    return StepDone("run", 1, "", position, position, "step", "step", status, output, None, None, 1, 0, None, 1)


def a_record(position: int, output: str) -> StepRecord:
    return as_record(an_entry(position, "completed", output), 1)


async def has_status(run: Run[Any], status: str) -> bool:
    return await run.status() == status
