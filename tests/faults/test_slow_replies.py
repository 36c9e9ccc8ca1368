"""Replies that are slow while heartbeats are not: trouble shorter than the lease, which must cost nothing.

A heartbeat tells a worker what names it. What it does not know of, it gives back: but not what is only on its way.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from typing import Any

import pytest

from stepfast import Backoff, Context, DatabaseUnavailable, Stepfast
from stepfast.settings import Settings
from stepfast.worker.worker import WorkerRuntime
from tests.support.engine import eventually

SETTINGS = Settings(
    lease=10, heartbeat=0.15, poll_interval=0.1, sweep_interval=0.5, inline_wait=0.05, outage_backoff_max=0.2
)
BEATS = 4


@pytest.fixture
def beats(monkeypatch: pytest.MonkeyPatch) -> Callable[[], int]:
    """How many heartbeats have been answered, and the answers heard."""
    count = 0
    heard = WorkerRuntime.beat_answered

    def counting(*arguments: Any) -> None:
        nonlocal count
        heard(*arguments)
        count += 1

    monkeypatch.setattr(WorkerRuntime, "beat_answered", counting)
    return lambda: count


async def test_a_claim_whose_reply_is_slow_is_not_given_back(url: str, beats: Callable[[], int]) -> None:
    app = Stepfast(url, settings=SETTINGS)
    acts: list[int] = []

    @app.task
    async def work() -> None:
        acts.append(1)
        await asyncio.sleep(0.5)  # long enough for the run to be given back under its hands

    async with app:
        store = await app.store()
        claim = store.claim

        async def slow(*arguments: Any) -> Any:
            runs = await claim(*arguments)
            if runs:
                before = beats()
                await eventually(lambda: beats() >= before + BEATS)
            return runs

        store.claim = slow  # type: ignore[assignment, method-assign]
        async with app.worker():
            run = await app.start(work)
            await run.result(timeout=20)
            row = await store.run(run.id)
    assert row is not None
    assert (len(acts), row.claim) == (1, 1)


async def test_a_run_whose_release_is_slow_to_be_written_is_not_given_back(url: str, beats: Callable[[], int]) -> None:
    app = Stepfast(url, settings=SETTINGS)
    acts: list[float] = []

    async def fails_once() -> None:
        acts.append(time.monotonic())
        if len(acts) == 1:
            raise ValueError

    @app.workflow
    async def rests(ctx: Context) -> None:
        await ctx.options(retries=1, backoff=Backoff(base=3, jitter=False)).step(fails_once)

    async with app:
        store = await app.store()
        flush = store.flush
        until: list[int] = []

        async def slow(worker: str, batch: Any) -> Any:
            if any(move.status == "waiting" for move in batch.transitions):
                until.append(beats() + BEATS)
                if beats() < until[0]:
                    raise DatabaseUnavailable("not now")
            return await flush(worker, batch)

        store.flush = slow  # type: ignore[method-assign]
        async with app.worker():
            await (await app.start(rests)).result(timeout=20)
    assert len(acts) == 2
    assert acts[1] - acts[0] > 2.9, "tried again before its time"


async def test_an_attempt_that_has_failed_begins_nothing_more(url: str) -> None:
    """Its other steps wait for their next try; it must not come."""
    app = Stepfast(url, settings=SETTINGS)
    acts: list[tuple[str, int]] = []
    quick = Backoff(base=0.01, factor=1, max=0.01, jitter=False)

    @app.workflow(max_attempts=2, backoff=quick)
    async def torn(ctx: Context) -> None:
        waiting = asyncio.Event()

        async def fails() -> None:
            acts.append(("fails", ctx.attempt))
            await waiting.wait()
            if ctx.attempt == 1:
                raise ValueError

        async def waits() -> None:
            acts.append(("waits", ctx.attempt))
            waiting.set()
            if ctx.attempt == 1:
                raise ValueError

        retried = ctx.options(retries=5, backoff=Backoff(base=0.3, factor=1, jitter=False))
        await asyncio.gather(ctx.step(fails), retried.step(waits))

    async with app, app.worker():
        await (await app.start(torn)).result(timeout=20)
        await asyncio.sleep(0.5)  # longer than the try would have had to wait for
    assert sorted(acts) == [("fails", 1), ("fails", 2), ("waits", 1), ("waits", 2)]
