"""Our engine, and the workers of the published packages: they serve its remote steps."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Callable
from typing import Any

import pytest

from stepfast import Backoff, Context, RemoteStepError, Settings, Stepfast
from stepfast.remote import RemoteWorker, SqlTransport
from tests.interop.test_published import VALUES
from tests.remote.tables import Tables
from tests.support.engine import eventually

MAKERS = [
    pytest.param("worker.mjs", id="node"),
    pytest.param("python_worker.py", id="python", marks=pytest.mark.thorough),
]
RETRYING: dict[str, Any] = {"retries": 2, "backoff": Backoff(base=0.01)}


@pytest.fixture
async def app(postgres_url: str) -> AsyncIterator[Stepfast]:
    """An application whose remote steps go over tables of its own database."""
    async with (
        Stepfast(postgres_url, settings=Settings(sweep_interval=0.2, poll_interval=0.1)) as app,
        SqlTransport(postgres_url),
    ):
        yield app


async def nothing_is_left(url: str) -> None:
    tables = await Tables(url).open()

    async def empty() -> bool:
        return not await tables.tasks() and not await tables.results()

    try:
        await eventually(empty)
    finally:
        await tables.close()


@pytest.mark.parametrize("maker", MAKERS)
async def test_their_worker_serves_our_engine(
    app: Stepfast, postgres_url: str, spawn: Callable[..., Any], maker: str
) -> None:
    @app.workflow
    async def all_of_it(ctx: Context) -> list[Any]:
        echoes = [ctx.remote("echo", value, group="theirs") for value in [*VALUES, *range(100)]]
        return await ctx.gather(*echoes)

    @app.workflow
    async def errors(ctx: Context) -> list[Any]:
        names = ("rain", "fatal", "nobody")
        calls = [ctx.remote(name, group="theirs", **RETRYING) for name in names]
        found: list[Any] = []
        for error in await ctx.gather(*calls, return_errors=True):
            assert isinstance(error, RemoteStepError)
            found.append([error.message, error.code])
        found.append(await ctx.remote("shower", "over", group="theirs", **RETRYING))
        return found

    runs = [await app.start(all_of_it), await app.start(errors)]
    spawn(maker, postgres_url, "theirs")
    async with app.worker():
        values = await runs[0].result(timeout=30)
        told = await runs[1].result(timeout=30)
        await nothing_is_left(postgres_url)
    assert values == [*VALUES, *range(100)]
    rain, fatal, nobody, shower = told
    assert rain[0] == "it rains"
    assert fatal == ["card declined", "declined"]
    assert nobody == ["no handler for nobody", None]
    assert shower == "over"
    tries = Counter(call.name for call in await runs[1].activity())
    assert (tries["rain"], tries["nobody"], tries["shower"]) == (3, 1, 3)
    assert tries["fatal"] == (3 if maker == "worker.mjs" else 1), "in Node nothing tells a fatal error from another"
    assert {step.queue_wait is not None for step in await runs[0].steps()} == {True}


@pytest.mark.thorough
async def test_workers_of_three_makers_serve_our_engine(
    app: Stepfast, postgres_url: str, spawn: Callable[..., Any]
) -> None:
    @app.workflow
    async def crowd(ctx: Context) -> dict[str, int]:
        return dict(Counter(await ctx.gather(*(ctx.remote("who", n) for n in range(300)))))

    worker = RemoteWorker(postgres_url, group="who", poll_interval=0.02, batch=3)

    @worker.handle("who")
    async def who(input: Any) -> str:
        await asyncio.sleep(0.01)
        return "stepfast"

    spawn("worker.mjs", postgres_url, "who")
    spawn("python_worker.py", postgres_url, "who")
    run = await app.start(crowd)
    async with app.worker(), worker:
        makers = await run.result(timeout=40)
        await nothing_is_left(postgres_url)
    assert set(makers) == {"node", "python", "stepfast"}
    assert sum(makers.values()) == 300


@pytest.mark.thorough
@pytest.mark.parametrize(
    "maker", [pytest.param("worker.mjs", id="node"), pytest.param("python_worker.py", id="python")]
)
async def test_what_their_worker_held_when_it_was_killed_is_done_by_another(
    app: Stepfast, postgres_url: str, spawn: Callable[..., Any], maker: str
) -> None:
    @app.workflow
    async def patient(ctx: Context) -> Any:
        return await ctx.remote("hold", group="who")

    run, process = await app.start(patient), spawn(maker, postgres_url, "who")
    tables = await Tables(postgres_url).open()

    async def held() -> bool:
        return [row[0] is not None for row in await tables.fetch("SELECT claimed_by FROM [tasks]")] == [True]

    async with app.worker():
        await eventually(held)
        process.kill()
        worker = RemoteWorker(postgres_url, group="who", poll_interval=0.02, lease=0.5)

        @worker.handle("hold")
        async def hold(input: Any) -> str:
            return "stepfast"

        async with worker:
            assert await run.result(timeout=30) == "stepfast"
            await nothing_is_left(postgres_url)
    await tables.close()


@pytest.mark.thorough
async def test_their_worker_serves_our_engine_over_mariadb(
    sqlite_url: str, mariadb_url: str, spawn: Callable[..., Any]
) -> None:
    transport = SqlTransport(mariadb_url)
    async with (
        SqlTransport(mariadb_url),
        Stepfast(sqlite_url, transport=transport, settings=Settings(sweep_interval=0.2, poll_interval=0.1)) as app,
    ):

        @app.workflow
        async def all_of_it(ctx: Context) -> list[Any]:
            return await ctx.gather(*(ctx.remote("echo", value, group="theirs") for value in VALUES))

        run = await app.start(all_of_it)
        spawn("worker.mjs", mariadb_url, "theirs")
        async with app.worker():
            assert await run.result(timeout=30) == VALUES
            await nothing_is_left(mariadb_url)
