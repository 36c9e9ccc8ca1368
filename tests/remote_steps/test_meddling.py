"""Operators cancel, retry, pause and resume runs with remote steps at random, while workers come and go."""

from __future__ import annotations

import asyncio
import contextlib
import random
import time
from dataclasses import replace
from typing import Any

import pytest

from stepfast import Backoff, Context, InvalidState, Run, Stepfast
from stepfast.model.status import TERMINAL
from stepfast.remote import RemoteWorker
from tests.remote_steps.conftest import QUICK, Home
from tests.support.engine import eventually

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
