"""Several event loops of one process: what one of them breaks off takes nothing away from the others."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Coroutine
from typing import Any

import pytest

from stepfast import SchemaError, Stepfast
from tests.support.engine import PATIENCE, eventually
from tests.support.waiting import HARDLY_EVER

MOMENTS = 8
"""Turns of the event loop after which a first use is cancelled: from before it has begun until it is done."""


def in_another_loop(what: Callable[[], Coroutine[Any, Any, None]]) -> Coroutine[Any, Any, None]:
    """A thread with a loop of its own."""
    return asyncio.to_thread(lambda: asyncio.run(what()))


async def cancelled_after(turns: int, call: Coroutine[Any, Any, Any]) -> None:
    """Let it come so far; it may have come to its end by then."""
    task = asyncio.create_task(call)
    for _ in range(turns):
        await asyncio.sleep(0)
    task.cancel()
    await asyncio.wait({task}, timeout=PATIENCE)
    assert task.done()


def threads() -> set[threading.Thread]:
    return {t for t in threading.enumerate() if t.name.startswith("stepfast")}


async def none_left(before: set[threading.Thread]) -> None:
    """What was there before may be of another test, and end meanwhile."""
    await eventually(lambda: threads() <= before)


@pytest.fixture
def app(url: str) -> Stepfast:
    app = Stepfast(url, settings=HARDLY_EVER)

    @app.task
    async def double(n: int) -> int:
        return 2 * n

    return app


async def test_a_first_use_that_is_cancelled_in_another_loop(app: Stepfast) -> None:
    async def breaks_off() -> None:
        for turns in range(MOMENTS):
            await cancelled_after(turns, app.runs())

    async with app, app.worker():
        await in_another_loop(breaks_off)
        assert await (await app.start("double", 4)).result(timeout=PATIENCE) == 8
        await in_another_loop(app.close)
        assert await (await app.start("double", 5)).result(timeout=PATIENCE) == 10


async def test_a_first_use_that_fails_in_another_loop(app: Stepfast, monkeypatch: pytest.MonkeyPatch) -> None:
    async def refused(_store: Any) -> None:
        raise SchemaError("made by newer code")

    async def fails() -> None:
        with pytest.raises(SchemaError):
            await app.runs()

    async with app, app.worker():
        monkeypatch.setattr(app, "_prepare", refused)
        await in_another_loop(fails)
        assert await (await app.start("double", 4)).result(timeout=PATIENCE) == 8


async def test_one_loop_wakes_the_other(app: Stepfast) -> None:
    """The worker asks by itself once a minute, and so does whoever waits for a result."""
    async with app, app.worker():
        run = await asyncio.to_thread(app.sync.start, "double", 4)
        assert await asyncio.to_thread(run.result, PATIENCE) == 8


async def test_a_cancelled_first_use_leaves_the_next_one_to_connect(app: Stepfast) -> None:
    before = threads()
    for turns in range(MOMENTS):
        first, second = asyncio.create_task(app.runs()), asyncio.create_task(app.runs())
        for _ in range(turns):
            await asyncio.sleep(0)
        first.cancel()
        assert await asyncio.wait_for(second, PATIENCE) == []
        await app.close()
    await none_left(before)


async def test_a_cancelled_first_use_or_close_leaves_no_thread_and_no_task(app: Stepfast) -> None:
    before, tasks = threads(), asyncio.all_tasks()
    for turns in range(MOMENTS):
        await cancelled_after(turns, app.start("double", 1))
        await app.close()
        await none_left(before)
    for turns in range(1, MOMENTS):  # one that has not begun does nothing
        await app.start("double", 1)
        await cancelled_after(turns, app.close())
        await none_left(before)
    await app.close()
    await eventually(lambda: asyncio.all_tasks() == tasks)
