"""Engines and workers that know no more than the contract: late, careless or foreign rows lose no step."""

from __future__ import annotations

import time
from dataclasses import replace
from typing import Any

import pytest

from stepfast import Backoff, Context, Run, Settings, Stepfast
from stepfast.remote import SqlTransport
from tests.remote.tables import Tables
from tests.remote_steps.conftest import QUICK, Home, echoing_worker, enough_joined, joined, start_shop
from tests.support.engine import eventually

NOW = Backoff(base=0, jitter=False)
both = pytest.mark.parametrize("home", ["joined", "outbox"], indirect=True)


async def on_attempt(home: Home, run: Run[Any], attempt: int) -> None:
    """Wait until an attempt of the step is out."""

    async def out() -> bool:
        rows = await home.tables.fetch("SELECT attempt FROM [tasks] WHERE step_id = ?", f"{run.id}:0")
        return rows == [(attempt,)]

    await eventually(out)


async def no_results(home: Home) -> None:
    async def none() -> bool:
        return not await home.tables.results()

    await eventually(none)


@both
async def test_a_second_word_on_an_old_attempt_does_not_settle_the_next(home: Home) -> None:
    run = await start_shop(home.app, 1, retries=3, backoff=NOW)
    async with home.app.worker():
        long_ago = await home.tables.now() - 60_000
        await home.answer(run.id, status="failed", error='{"message": "one"}', started_at=long_ago)
        await on_attempt(home, run, 2)
        for _ in range(2):
            await home.answer(run.id, status="failed", error='{"message": "one again"}', started_at=long_ago)
            await no_results(home)
            await on_attempt(home, run, 2)  # as the same attempt, though its task is gone
        await home.answer(run.id, output='"done"', started_at=await home.tables.now())
        assert await run.result(timeout=20) == "done"
    assert [call.attempt for call in await run.activity()] == [1, 2]


@enough_joined
async def test_what_a_late_worker_completed_is_completed(home: Home) -> None:
    """It was the first attempt's, and the second is out: its task is taken back."""
    run = await start_shop(home.app, 1, retries=3, backoff=NOW)
    async with home.app.worker():
        await home.answer(run.id, status="failed", error='{"message": "one"}')
        await on_attempt(home, run, 2)
        await home.tables.put_result(f"{run.id}:0", "completed", output='"late"', started_at=1)
        assert await run.result(timeout=20) == "late"
        await home.nothing_is_left()


@enough_joined
async def test_a_task_that_vanished_is_sent_again(home: Home) -> None:
    """A worker that was late has deleted the row of the next attempt."""
    home.app = home.make(settings=replace(QUICK, lease=3))  # what goes to another database is not missed before that
    run = await start_shop(home.app, 1, retries=3, backoff=NOW)
    async with home.app.worker():
        await home.answer(run.id, status="failed", error='{"message": "one"}')
        await on_attempt(home, run, 2)
        await home.tables.fetch("DELETE FROM [tasks]")
        await on_attempt(home, run, 2)
        await home.answer(run.id, output="3")
        assert await run.result(timeout=20) == 3


@enough_joined
async def test_results_of_others_are_not_touched(home: Home) -> None:
    """Rule 45: neither those of runs that this engine does not know, nor what looks like none of its ids."""
    foreign = ["0197a1b2-0000-7000-8000-000000000000:0", "run:0", "x:-1", "a:b:c:99999999999"]
    for step_id in foreign:
        run_id, _, seq = step_id.rpartition(":")
        await home.tables.fetch(
            "INSERT INTO [results] (step_id, run_id, seq, status, created_at) VALUES (?, ?, ?, 'completed', 1)",
            step_id, run_id, int(seq) % 1000,
        )  # fmt: skip
    run = await start_shop(home.app, 1, retries=3, backoff=NOW)
    async with home.app.worker() as worker:
        await home.answer(run.id, output="3")
        assert await run.result(timeout=20) == 3
        await worker.duties.remote_dispatcher._tidy()
    assert sorted(await home.tables.results()) == sorted(foreign)


@joined
async def test_what_a_step_that_is_over_leaves_behind_is_removed(home: Home) -> None:
    """A worker died between its two commits, and another did the task once more; or it was late."""
    run = await start_shop(home.app, 1, retries=3, backoff=NOW)
    async with home.app.worker() as worker:
        await home.answer(run.id, output="3")
        assert await run.result(timeout=20) == 3
        await home.tables.put_result(f"{run.id}:0", "completed", output="3")
        await home.tables.put_task(f"{run.id}:0")
        await worker.duties.remote_dispatcher._tidy()
        await home.nothing_is_left()


@joined
async def test_only_the_clock_of_the_database_counts(home: Home, monkeypatch: pytest.MonkeyPatch) -> None:
    """A day off, here, changes neither what tasks are stamped with nor which failures are old."""
    real = time.time
    monkeypatch.setattr(time, "time", lambda: real() + 86_400)
    monkeypatch.setattr(time, "time_ns", lambda: int((real() + 86_400) * 1e9))
    monkeypatch.setattr("stepfast.model.ids._last", 0)  # and back again: ids never go back by themselves
    run = await start_shop(home.app, 1, retries=3, backoff=NOW)
    async with home.app.worker():
        await on_attempt(home, run, 1)
        rows = await home.tables.fetch("SELECT created_at FROM [tasks]")
        assert abs(rows[0][0] - await home.tables.now()) < 60_000
        await home.answer(run.id, status="failed", error="{}", started_at=await home.tables.now())
        await on_attempt(home, run, 2)
        await home.answer(run.id, status="failed", error="{}", started_at=await home.tables.now())
        await on_attempt(home, run, 3)
        await home.answer(run.id, output="3", started_at=await home.tables.now())
        assert await run.result(timeout=20) == 3


@joined
async def test_a_step_whose_task_keeps_vanishing_fails_in_the_end(
    home: Home, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Another engine is at work on the same tables."""
    monkeypatch.setattr("stepfast.model.remote_steps.MOST_RESENT", 2)

    @home.app.workflow(max_attempts=1)
    async def shop(ctx: Context) -> Any:
        return await ctx.remote("echo", 1)

    run = await home.app.start(shop)
    async with home.app.worker():

        async def over() -> bool:
            await home.tables.fetch("DELETE FROM [tasks]")
            return bool(await run.status() == "failed")

        await eventually(over)
    error = (await run.info()).error
    assert error is not None
    assert "it was sent out 3 times, because its task vanished from the transport" in error.message
    told = [record for record in caplog.records if "has vanished" in record.getMessage()]
    assert {(getattr(each, "run_id", None), getattr(each, "step", None)) for each in told} == {(run.id, "echo")}


# -- what others write into the transport's tables


async def test_rows_of_others_do_not_keep_our_steps_from_being_settled(postgres_url: str) -> None:
    """Another engine on the same tables names its runs as it likes. What lies there for longer than a lease is looked
    at, whosesoever it is."""
    settings = Settings(sweep_interval=0.1, poll_interval=0.05, lease=0.3)
    app = Stepfast(postgres_url, settings=settings, transport=SqlTransport(settings=settings))
    worker = echoing_worker(postgres_url)

    @app.workflow
    async def shop(ctx: Context, order: int) -> Any:
        return await ctx.remote("echo", order)

    async with SqlTransport(postgres_url):
        tables = await Tables(postgres_url).open()
    await tables.put_task(strange := "z" * 36 + ":0", group="another")
    await tables.put_result(strange, "completed", output="1")
    async with app, app.worker(), worker:
        assert await (await app.start(shop, 1)).result(timeout=20) == 1
        assert await (await app.start(shop, 2)).result(timeout=20) == 2
    assert await tables.tasks() == [strange]
    assert list(await tables.results()) == [strange]
    await tables.close()
