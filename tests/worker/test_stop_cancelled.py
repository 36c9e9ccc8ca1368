"""A stop that is cancelled, or hangs, or comes with the end of the event loop: nothing is left behind all the
same (rule 47)."""

from __future__ import annotations

import asyncio
import random
import threading
from typing import Any

import pytest

from stepfast import Stepfast
from stepfast.settings import Settings
from tests.support.engine import PATIENCE, Gate
from tests.support.proxy import Proxy
from tests.support.workflows import task
from tests.worker.conftest import MakeApp
from tests.worker.heartbeats import beating
from tests.worker.spying import HeldReply, only_postgres
from tests.worker.tables import Tables

SETTINGS = Settings(poll_interval=0.05, sweep_interval=0.1, lease=30)


def waiting(app: Stepfast, gate: Gate) -> Any:
    return task(app, "wait", gate=gate, max_attempts=1)


async def nothing_left(tables: Tables) -> None:
    assert await tables.fetch("SELECT * FROM [workers]") == []
    assert await tables.fetch("SELECT * FROM [runs] WHERE status = 'running' OR worker IS NOT NULL") == []
    assert not beating()


@pytest.mark.parametrize("times", [1, 2, 3])
async def test_a_cancelled_stop_leaves_nothing_behind(make_app: MakeApp, tables: Tables, times: int) -> None:
    """In the grace time, and again while it cleans up."""
    app = make_app(SETTINGS)
    gate = Gate()
    wait = waiting(app, gate)
    await app.start_many(wait, [1, 2, 3])
    async with app.worker(shutdown_grace=60) as worker:
        await gate.reached()
        stopping = asyncio.create_task(worker.stop())
        for _ in range(times):
            await asyncio.sleep(0.001)
            stopping.cancel()
        with pytest.raises(asyncio.CancelledError):
            await asyncio.wait_for(stopping, PATIENCE)
        await nothing_left(tables)
    async with app.worker():
        gate.open()
        await app.drain()
    await nothing_left(tables)


async def test_a_storm_of_cancellations_leaves_nothing_behind(make_app: MakeApp, tables: Tables) -> None:
    """At random moments of the entry, the body and the exit of the block."""
    app = make_app(SETTINGS)
    gate = Gate()
    wait = waiting(app, gate)
    await app.start_many(wait, list(range(5)))
    chance = random.Random(7)

    async def use() -> None:
        async with app.worker(shutdown_grace=0.01):
            await asyncio.sleep(0.01)

    for _ in range(12):
        task = asyncio.create_task(use())
        while not task.done():
            await asyncio.sleep(chance.random() * 0.03)
            task.cancel()
            if chance.random() < 0.5:
                await asyncio.wait((task,))
        await asyncio.gather(task, return_exceptions=True)
        await nothing_left(tables)


async def test_a_second_stop_waits_for_the_first(make_app: MakeApp, tables: Tables) -> None:
    app = make_app(SETTINGS)
    gate = Gate()
    wait = waiting(app, gate)
    await app.start(wait, 1)
    async with app.worker(shutdown_grace=60) as worker:
        await gate.reached()
        first = asyncio.create_task(worker.stop())
        await asyncio.sleep(0)
        second = asyncio.create_task(worker.stop())
        await asyncio.sleep(0.01)
        assert not second.done()
        gate.open()
        await asyncio.wait_for(second, PATIENCE)
        assert first.done()
        await nothing_left(tables)


async def test_a_cancelled_entry_leaves_no_row(make_app: MakeApp, tables: Tables) -> None:
    """The database has registered the worker, and its answer is not waited for."""
    app = make_app(SETTINGS)
    waiting(app, Gate())
    held = HeldReply(await app.store(), "register")

    async def use() -> None:
        async with app.worker():
            pass

    task = asyncio.create_task(use())
    await held.done()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await asyncio.wait_for(task, PATIENCE)
    await nothing_left(tables)


@pytest.mark.slow
@only_postgres
async def test_a_stop_in_a_silent_network_is_bounded(
    url: str, postgres_server: Any, make_app: MakeApp, tables: Tables
) -> None:
    """Nothing answers, nothing is refused either: some seconds beyond the grace time, whatever statements may take."""
    async with Proxy("127.0.0.1", postgres_server.port) as proxy:
        app = make_app(SETTINGS, at=proxy.url(url))
        gate = Gate()
        wait = waiting(app, gate)
        await app.start(wait, 1)
        worker = app.worker(shutdown_grace=0.2)
        inside = await worker.__aenter__()
        await gate.reached()
        proxy.stall()
        await asyncio.wait_for(inside.stop(), 25)  # its bounds add up to less; statements may take 60
        assert not any(task.get_name().startswith("stepfast-sweeper") for task in asyncio.all_tasks())
        proxy.cut()
        proxy.resume()
        await worker.__aexit__(None, None, None)


# -- the end of an event loop ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("turned", ["into another error", "into a result", "not at all"])
def test_the_end_of_the_loop_ends_a_worker_in_the_background(url: str, turned: str) -> None:
    """The program returns while a worker works: asyncio cancels everything at once, and a handler objects."""

    async def program() -> None:
        app = Stepfast(url, settings=SETTINGS)
        begun = asyncio.Event()

        @app.task(max_attempts=1)
        async def stubborn(number: int) -> int:
            begun.set()
            try:
                await asyncio.Event().wait()
            except asyncio.CancelledError:
                if turned == "into another error":
                    raise ValueError("I was not asked") from None
                if turned == "not at all":
                    raise
            return number

        async def serve() -> None:
            async with app, app.worker(shutdown_grace=5):
                await asyncio.Event().wait()

        await app.start_many(stubborn, [1, 2, 3])
        background.add(asyncio.create_task(serve()))
        await asyncio.wait_for(begun.wait(), PATIENCE)

    background: set[asyncio.Task[None]] = set()
    ended = threading.Event()

    def run() -> None:
        asyncio.run(program())
        ended.set()

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    assert ended.wait(PATIENCE), "asyncio.run does not end"
    asyncio.run(nothing_left_at(url))


async def nothing_left_at(url: str) -> None:
    tables = Tables(url)
    try:
        await nothing_left(tables)
        assert await tables.fetch("SELECT * FROM [runs] WHERE attempt <> 1 OR losses <> 0") == []
    finally:
        await tables.close()
