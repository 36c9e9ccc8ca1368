"""Streams as server-sent events: read, resumed, refused, kept open."""

from __future__ import annotations

import asyncio
import json
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import httpx
import pytest
import uvicorn
from starlette.applications import Starlette
from starlette.requests import Request

import stepfast
from stepfast import ConfigurationError, Context, Stepfast
from stepfast.web import streams
from tests.support.engine import PATIENCE, Gate, drained

pytestmark = pytest.mark.enough_on("sqlite")


@pytest.fixture
async def app(url: str) -> AsyncIterator[Stepfast]:
    async with Stepfast(url) as app:
        yield app


async def may_read(request: Request, run_id: str) -> bool:
    return request.headers.get("authorization") == "Bearer reader"


@asynccontextmanager
async def served(app: Stepfast, **options: Any) -> AsyncIterator[httpx.AsyncClient]:
    """A client of a real server: one in memory would be given whole responses."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    web = Starlette(routes=streams(app, authorize=may_read, **options))
    server = uvicorn.Server(uvicorn.Config(web, "127.0.0.1", port, log_level="warning", lifespan="off"))
    task = asyncio.create_task(server.serve())
    try:
        async with asyncio.timeout(PATIENCE):
            while not server.started:
                await asyncio.sleep(0.01)
        headers = {"authorization": "Bearer reader"}
        async with httpx.AsyncClient(base_url=f"http://127.0.0.1:{port}", headers=headers, timeout=PATIENCE) as client:
            yield client
    finally:
        server.should_exit = server.force_exit = True
        await asyncio.wait_for(task, PATIENCE)


async def events(response: httpx.Response, most: int = 1000) -> list[dict[str, Any]]:
    """The events of a response; comments come as events without data."""
    found: list[dict[str, Any]] = []
    event: dict[str, Any] = {}
    async for line in response.aiter_lines():
        if line:
            name, _, value = line.partition(": ")
            event[name] = json.loads(value) if name == "data" else value
            continue
        found.append(event)
        event = {}
        if len(found) >= most:
            break
    return found


async def test_a_page_follows_a_stream_and_reads_on_after_it_was_cut_off(app: Stepfast) -> None:
    gate = Gate()

    @app.task
    async def talk() -> None:
        out = stepfast.stream("tokens")
        out.send("a")
        out.send({"b": 1})
        await gate.passing()
        out.send("c")

    async with served(app) as client, app.worker():
        run = await app.start(talk)
        async with client.stream("GET", f"/{run.id}/tokens") as response:
            assert response.status_code == 200
            assert response.headers["content-type"].startswith("text/event-stream")
            first = await events(response, most=2)
        gate.open()
        assert [event["data"] for event in first] == ["a", {"b": 1}]
        headers = {"last-event-id": first[-1]["id"]}
        async with client.stream("GET", f"/{run.id}/tokens", headers=headers) as response:
            rest = await events(response)
        assert [event["data"] for event in rest] == ["c", None] and rest[-1]["event"] == "end"


async def test_a_call_that_began_again_has_an_event_of_its_own(app: Stepfast) -> None:
    tries: list[int] = []

    @stepfast.step(retries=1, backoff=stepfast.Backoff(base=0.001))
    async def talk() -> None:
        stepfast.stream("tokens").send("a")
        tries.append(1)
        if len(tries) == 1:
            raise OSError("the line broke")

    @app.workflow
    async def chat(ctx: Context) -> None:
        await ctx.step(talk)

    run = await drained(app, chat)
    async with served(app) as client, client.stream("GET", f"/{run.id}/tokens") as response:
        assert [event.get("event") for event in await events(response)] == [None, "restarted", "end"]


async def test_a_quiet_stream_is_kept_open(app: Stepfast) -> None:
    @app.workflow
    async def silent(ctx: Context) -> None:
        await ctx.wait_signal("never")

    run = await app.start(silent)
    async with served(app, keep_alive=0.05) as client, client.stream("GET", f"/{run.id}/tokens") as response:
        assert await events(response, most=2) == [{"": "waiting"}, {"": "waiting"}]


async def test_who_may_not_read_is_told_nothing(app: Stepfast) -> None:
    @app.task
    async def nothing() -> None: ...

    run = await drained(app, nothing)
    async with served(app) as client:
        stranger = await client.get(f"/{run.id}/tokens", headers={"authorization": ""})
        assert (stranger.status_code, stranger.json()) == (403, {"error": "not allowed"})
        assert (await client.get(f"/{run.id}/tokens", params={"after": "x"})).status_code == 400
        assert (await client.get("/00000000-0000-7000-8000-000000000000/tokens")).status_code == 404
        assert (await client.get("/garbage/tokens")).status_code == 404
        beyond = {
            "last-event-id": "00007.0000000001"
        }  # of another conversation: a page that was let in would come again
        assert (await client.get(f"/{run.id}/tokens", headers=beyond)).status_code == 404
    with pytest.raises(ConfigurationError, match="authorize"):
        streams(app, authorize=None)  # type: ignore[arg-type]
