"""Engines and workers that know no more than the contract: late, careless or foreign rows lose no step."""

from __future__ import annotations

import asyncio
import contextlib
import random
import time
from dataclasses import replace
from typing import Any

import pytest

from stepfast import Backoff, Context, InvalidState, Run, Settings, Stepfast
from stepfast.model.status import TERMINAL
from stepfast.remote import RemoteWorker, SqlTransport
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


# -- operators cancel, retry, pause and resume runs with remote steps at random, while workers come and g


SECONDS = 12
AGAIN: dict[str, Any] = {"retries": 3, "backoff": Backoff(base=0.01), "group": "echo"}


async def shop(ctx: Context, number: int) -> int:
    """Steps in branches, some of them with an undo, and a race."""

    async def twice(ctx: Context, each: int) -> int:
        first = await ctx.remote("echo", each, type=int, **AGAIN)
        second = await ctx.remote("echo", each, type=int, compensate="undo", **AGAIN)
        return int(first + second)

    total = await ctx.map(twice, range(number), limit=3)
    await ctx.first(remote=ctx.remote("echo", 1, **AGAIN), time=ctx.sleep(0.02))
    return sum(total)


def unreliable(home: Home, dice: random.Random) -> RemoteWorker:
    """A worker whose handlers fail now and then."""
    worker = home.worker(concurrency=20, lease=1)

    @worker.handle("echo")
    async def echo(input: int) -> int:
        await asyncio.sleep(dice.random() * 0.02)
        if dice.random() < 0.1:
            raise ValueError("not now")
        return input

    @worker.handle("undo")
    async def undo(input: Any) -> None:
        if dice.random() < 0.3:
            raise ValueError("not now")

    return worker


async def meddle(runs: list[Run[Any]], dice: random.Random, end: float) -> None:
    verbs = ["cancel", "retry", "retry", "pause", "resume", "resume"]
    while time.monotonic() < end:
        with contextlib.suppress(InvalidState):
            await getattr(dice.choice(runs), dice.choice(verbs))()
        await asyncio.sleep(0.02)
    for run in runs:
        with contextlib.suppress(InvalidState):
            await run.resume()


async def come_and_go(app: Stepfast, dice: random.Random, end: float) -> None:
    while time.monotonic() < end:
        async with app.worker(shutdown_grace=0):
            await asyncio.sleep(dice.random())


@pytest.mark.slow
@pytest.mark.timeout(120)
@pytest.mark.parametrize("home", ["joined", "outbox"], indirect=True)
async def test_every_run_ends_and_nothing_is_left(home: Home) -> None:
    dice, end = random.Random(5), time.monotonic() + SECONDS
    app, other = (home.make(settings=replace(QUICK, inline_wait=0.05, lease=3)) for _ in range(2))
    app.workflow(shop)
    other.workflow(shop)
    runs = await app.start_many("shop", [6] * 40)
    async with app.worker(), unreliable(home, dice):
        await asyncio.gather(meddle(runs, dice, end), come_and_go(other, dice, end))
        for run in runs:
            await eventually(lambda: _is_over(run), 40)  # noqa: B023
        results = [await run.result() for run in runs if await run.status() == "completed"]
        assert results == [30] * len(results)
        await home.nothing_is_left(40)  # what was done twice is tidied up after a lease
        await eventually(lambda: _rests(app), 20)


async def _is_over(run: Run[Any]) -> bool:
    return await run.status() in TERMINAL


async def _rests(app: Stepfast) -> bool:
    """Whether nobody has to see to any remote step any more."""
    return not (await (await app.store()).tick("", None, False)).remote
