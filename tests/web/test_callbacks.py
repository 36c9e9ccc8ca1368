"""Callbacks over HTTP: closed to all but holders of tokens."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import httpx
import pytest
from msgspec import Struct
from starlette.applications import Starlette
from starlette.routing import Mount

from stepfast import CallbackFailed, Context, Stepfast
from stepfast.web import WrongTokens, callbacks
from tests.support.engine import PATIENCE, eventually

pytestmark = pytest.mark.enough_on("sqlite")

Desk = tuple[Stepfast, list[str]]


class Receipt(Struct):
    cents: int


@pytest.fixture
async def desk(url: str) -> AsyncIterator[Desk]:
    """An application whose runs hand out tokens."""
    app, tokens = Stepfast(url), list[str]()

    @app.workflow
    async def pay(ctx: Context) -> Any:
        callback = await ctx.callback("payment", type=Receipt, heartbeat=3600)
        await ctx.step("hand out", lambda: tokens.append(callback.token))
        try:
            return (await callback.result()).cents
        except CallbackFailed as failed:
            return failed.message

    async with app, app.worker():
        yield app, tokens


def client(app: Stepfast, **options: Any) -> httpx.AsyncClient:
    web = Starlette(routes=[Mount("/done", routes=callbacks(app, **options))])
    return httpx.AsyncClient(transport=httpx.ASGITransport(web), base_url="http://test/done")


async def started(desk: Desk) -> tuple[Any, str]:
    desk[1].clear()
    run = await desk[0].start("pay")
    await eventually(lambda: desk[1])
    return run, desk[1][0]


async def test_a_holder_ends_a_callback_once(desk: Desk) -> None:
    async with client(desk[0]) as http:
        run, token = await started(desk)
        for wrong, said in (
            ({"value": {"cents": "x"}}, "$.cents"),
            ({"error": ""}, "says why"),
            ({"error": 5}, "says"),
        ):
            refused = await http.post(f"/{token}", json=wrong)
            assert refused.status_code == 422 and said in refused.json()["error"]
        beat = await http.post(f"/{token}/beat")
        assert (beat.status_code, beat.json(), beat.headers["cache-control"]) == (200, {"state": "open"}, "no-store")
        for _ in range(2):
            done = await http.post(f"/{token}", json={"value": {"cents": 5}})
            assert (done.status_code, done.json()) == (200, {"state": "completed"})
        assert await run.result(timeout=PATIENCE) == 5
        for path, other in (
            (f"/{token}", {"value": {"cents": 6}}),
            (f"/{token}", {"error": "x"}),
            (f"/{token}/beat", None),
        ):
            gone = await http.post(path, json=other)
            assert (gone.status_code, gone.json()["state"]) == (410, "completed")
            assert token not in gone.text
        run, token = await started(desk)
        assert (await http.post(f"/{token}", json={"error": "declined"})).json() == {"state": "failed"}
        assert await run.result(timeout=PATIENCE) == "declined"


async def test_what_is_no_request_is_refused(desk: Desk) -> None:
    async with client(desk[0], max_body=50) as http:
        _, token = await started(desk)
        bodies = [b"", b"{", b"[]", b"{}", b'{"value":1,"error":"x"}', b'{"values":1}', b"\xff", b"[" * 50]
        for body in bodies:
            assert (await http.post(f"/{token}", content=body)).status_code == 400, body
        assert (await http.post(f"/{token}", content=b'{"value":"' + b"x" * 50 + b'"}')).status_code == 413
        assert (await http.get(f"/{token}")).status_code == 405
        assert (await http.post(f"/{token}", json={"value": {"cents": 1}})).status_code == 200


async def test_wrong_tokens_are_limited(desk: Desk) -> None:
    async with client(desk[0], wrong_tokens=3) as http:
        _, token = await started(desk)
        for path in ("/x", f"/{'0' * 32}", f"/{'0' * 32}/beat"):
            wrong = await http.post(path, json={"value": 1})
            assert (wrong.status_code, "no callback has this token" in wrong.text) == (404, True)
        limited = await http.post(f"/{token}", json={"value": {"cents": 1}})
        assert limited.status_code == 429 and 0 < int(limited.headers["retry-after"]) <= 60
    async with client(desk[0], wrong_tokens=None) as http:
        found = await asyncio.gather(*(http.post("/x", json={"value": 1}) for _ in range(30)))
        assert {answer.status_code for answer in found} == {404}


def test_clients_are_told_apart_within_bounds(monkeypatch: pytest.MonkeyPatch) -> None:
    now = 1000.0
    monkeypatch.setattr("stepfast.web.time.monotonic", lambda: now)
    wrong = WrongTokens(2)
    for client in ("10.0.0.1", "::ffff:10.0.0.1", "2001:db8::1", "2001:db8::2"):
        wrong.note(client)
    assert wrong.wait("10.0.0.1") == wrong.wait("2001:db8::3") == 60
    assert wrong.wait("10.0.0.2") == wrong.wait("2001:db8:0:1::1") == wrong.wait("unix") == 0
    now += 60
    assert wrong.wait("10.0.0.1") == 0
    wrong.note("10.0.0.1")
    assert wrong.wait("10.0.0.1") == 0
    for number in range(10_100):
        wrong.note(f"client {number}")
    assert len(wrong._tried) == 10_000
