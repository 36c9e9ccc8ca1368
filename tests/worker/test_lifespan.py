"""``Stepfast(lifespan=…)``: what each worker enters before it takes work, and leaves after its last run."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest

from stepfast import ConfigurationError, Context, ContextMisuse, Stepfast, WorkerBroken
from stepfast.testing import Lab, crash_everywhere

pytestmark = pytest.mark.enough_on("sqlite")


class Watched:
    """A lifespan that notes what becomes of it."""

    def __init__(self) -> None:
        self.seen: list[str] = []
        self.cut_off = asyncio.Event()

    @asynccontextmanager
    async def __call__(self, app: Stepfast) -> AsyncIterator[dict[str, str]]:
        self.seen.append("entered")
        waiting = asyncio.ensure_future(self.cut_off.wait())
        try:
            async with asyncio.timeout(None) as limit:  # must be entered and left by one task
                waiting.add_done_callback(lambda _: None if waiting.cancelled() else limit.reschedule(0))
                yield {"client": f"client {self.seen.count('entered')}"}
        finally:
            waiting.cancel()
            self.seen.append("left")


@pytest.fixture
async def watched() -> Watched:
    return Watched()


@pytest.fixture
async def app(url: str, watched: Watched) -> AsyncIterator[Stepfast]:
    app = Stepfast(url, lifespan=watched)
    yield app
    await app.close()


def client(app: Stepfast) -> str:
    """What code of the application finds."""
    return str(app.state["client"])


async def test_each_worker_enters_it_before_it_takes_work_and_leaves_it_after_its_last_run(
    app: Stepfast, watched: Watched
) -> None:
    @app.workflow
    async def order(ctx: Context) -> list[str]:
        return [client(app), await ctx.step("in a thread", lambda: client(app))]

    @app.task
    async def last() -> None:
        await asyncio.sleep(0)
        watched.seen.append(client(app))

    async with app.worker() as worker:
        assert watched.seen == ["entered"]
        assert client(app) == "client 1"
        assert await (await app.start(order)).result() == ["client 1"] * 2
        await app.start(last)
        while not worker.running and "client 1" not in watched.seen:
            await asyncio.sleep(0)
    assert watched.seen == ["entered", "client 1", "left"]
    with pytest.raises(ContextMisuse, match="none is"):
        _ = app.state
    await app.start(order)
    await app.drain()
    assert watched.seen[3:] == ["entered", "left"]


async def test_the_code_of_a_run_finds_that_of_its_own_worker(app: Stepfast) -> None:
    @app.task(queue="left")
    async def left() -> str:
        return client(app)

    @app.task(queue="right")
    async def right() -> str:
        return client(app)

    async with app.worker(queues=["left"]), app.worker(queues=["right"]):
        runs = [await app.start(left), await app.start(right)]
        assert [await run.result() for run in runs] == ["client 1", "client 2"]
        assert client(app) == "client 2"


async def test_an_error_on_entering_it_is_that_of_the_start_and_nothing_is_registered(url: str) -> None:
    @asynccontextmanager
    async def failing(app: Stepfast) -> AsyncIterator[str]:
        yield dict[str, str]()["no such key"]

    async with Stepfast(url, lifespan=failing) as app:
        with pytest.raises(KeyError, match="no such key"):
            async with app.worker():
                raise AssertionError("is not reached")
        assert await (await app._connect()).store.workers() == []


async def test_a_worker_that_cannot_begin_leaves_it(
    app: Stepfast, watched: Watched, monkeypatch: pytest.MonkeyPatch
) -> None:
    worker = app.worker()

    async def broken(*_: Any) -> None:
        raise RuntimeError("cannot register")

    connected = await app._connect()
    monkeypatch.setattr(connected.store, "register", broken)
    with pytest.raises(RuntimeError, match="cannot register"):
        async with worker:
            raise AssertionError("is not reached")
    assert watched.seen == ["entered", "left"]


async def test_a_lifespan_that_ends_by_itself_ends_its_worker(app: Stepfast, watched: Watched) -> None:
    with pytest.raises(WorkerBroken, match="the lifespan of the application"):
        async with app.worker():
            watched.cut_off.set()
            await asyncio.Event().wait()
    assert watched.seen == ["entered", "left"]


async def test_a_cancelled_start_leaves_nothing_behind(url: str) -> None:
    seen: list[str] = []

    @asynccontextmanager
    async def slow(app: Stepfast) -> AsyncIterator[None]:
        seen.append("entering")
        try:
            await asyncio.Event().wait()
            yield
        finally:
            seen.append("left")

    async with Stepfast(url, lifespan=slow) as app:
        starting = asyncio.ensure_future(app.work())
        while not seen:
            await asyncio.sleep(0.001)
        starting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await starting
        assert seen == ["entering", "left"]
        assert await (await app._connect()).store.workers() == []


async def test_a_lab_has_it_too(app: Stepfast, watched: Watched) -> None:
    @app.workflow
    async def order(ctx: Context) -> str:
        return await ctx.step("charge", lambda: client(app).partition(" ")[0])

    async with Lab(app) as lab:
        assert await (await lab.start(order)).result() == "client"
    await crash_everywhere(app, order, None)
    assert watched.seen.count("entered") == watched.seen.count("left") > 1


def test_what_makes_no_context_manager_is_refused_by_name() -> None:
    async def generator(app: Stepfast) -> AsyncIterator[None]:
        yield

    for wrong in (generator, 5):
        with pytest.raises(ConfigurationError, match=r"@contextlib\.asynccontextmanager"):
            Stepfast("sqlite://", lifespan=wrong)  # type: ignore[arg-type]
