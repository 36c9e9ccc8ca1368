"""One application with a few runs, and its console, for a whole file of tests: nothing here waits for a server."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import httpx
import pytest

from stepfast import Context, Settings, Stepfast, step
from tests.support.databases import DatabasePool
from tests.support.postgres import PostgresServer

TOKEN = "a token of the tests"
OWN = {"Sec-Fetch-Site": "same-origin"}
JSON = {"Accept": "application/json"}


def browse(
    served: Any, *, token: str | None = TOKEN, base: str = "http://testserver", **options: Any
) -> httpx.AsyncClient:
    """A client of a console, let in unless there is no token."""
    headers = {"Authorization": f"Bearer {token}"} if token else {}
    return httpx.AsyncClient(transport=httpx.ASGITransport(app=served), base_url=base, headers=headers, **options)


@pytest.fixture(scope="module", params=["sqlite", "postgres"])
def shared_url(request: pytest.FixtureRequest) -> Iterator[str]:
    """One database for all tests of a file, once on each kind."""
    if request.param == "sqlite":
        yield "sqlite://"
        return
    server: PostgresServer = request.getfixturevalue("postgres_server")
    pool: DatabasePool = request.getfixturevalue("postgres_databases")
    name = pool.take(True)
    yield server.url(name)
    pool.give_back(name)


def shop(url: str, **options: Any) -> Stepfast:
    """An application whose runs come to every kind of end."""
    app = Stepfast(url, settings=Settings(inline_wait=0), **options)

    def unpack(packed: Any, what: str) -> None:
        pass

    @step(compensate=unpack)
    def pack(what: str) -> dict[str, Any]:
        return {"packed": what, "cents": 12345678901234567890, "price": 0.1}

    @app.task(max_attempts=1)
    async def breaks(what: Any) -> None:
        raise ValueError(f"no {what} today")

    @app.workflow(max_attempts=1)
    async def undone(ctx: Context, what: str) -> None:
        await ctx.step(pack, what)
        raise ValueError("sold out")

    @app.workflow
    async def order(ctx: Context, what: str) -> str:
        await ctx.step(pack, what)
        await ctx.set("progress", {"done": 0.5})
        answer = await ctx.wait_signal("approved", type=bool)
        return f"{what}: {answer}"

    @app.workflow
    async def parent(ctx: Context, what: str) -> str:
        child = await ctx.start(order, what)
        return await child.result()

    @app.workflow(max_attempts=1)
    async def talks(ctx: Context, number: int) -> None:
        tokens = ctx.stream("tokens")
        for each in range(number):
            tokens.send({"token": each})
            ctx.log.info("token %d <b>", each)
        ctx.stream("large").send("x" * 5000)
        ctx.stream("large").close()
        await ctx.step("warn", lambda: ctx.log.warning("it is %s", "late"))
        await ctx.wait_signal("go")

    @app.workflow(name="talks on")
    async def talks_on(ctx: Context, left: int) -> None:
        ctx.stream("tokens").send(left)
        if left:
            ctx.continue_as(left - 1)

    @app.workflow(max_attempts=1)
    async def many(ctx: Context, number: int) -> int:
        for each in range(number):
            await ctx.step(f"count {each}", abs, each)
        return number

    dag = app.dag("graph")

    @dag.step
    async def first(ctx: Any) -> int:
        return 1

    @dag.step(after=["first"])
    async def second(ctx: Any) -> int:
        raise ValueError("the second breaks")

    return app
