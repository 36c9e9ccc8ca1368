"""`stepfast console`: closed, served under its own names, and stopped."""

from __future__ import annotations

import asyncio
import json
import signal
import socket
import urllib.error
import urllib.request
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any
from urllib.parse import urlsplit

import asyncpg
import pytest

from stepfast import Stepfast
from stepfast.console import Console
from stepfast.console import app as server
from tests.cli.conftest import Shop, Verbs
from tests.cli.processes import Processes

pytestmark = pytest.mark.enough_on("sqlite")


@pytest.fixture(autouse=True)
def no_token(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(server.TOKEN, raising=False)


def ask(address: str, **headers: str) -> tuple[int, Any]:
    """Status and JSON of an answer; redirects are followed with the cookies they set."""
    opener = urllib.request.build_opener(urllib.request.HTTPCookieProcessor())
    request = urllib.request.Request(address, headers={"Accept": "application/json", **headers})
    try:
        with opener.open(request, timeout=30) as answer:
            return answer.status, json.load(answer)
    except urllib.error.HTTPError as error:
        with error:
            return error.code, json.load(error)


def test_the_link_that_it_prints_opens_it(shop: Shop, spawn: Processes) -> None:
    run_id = shop.start("nothing")
    process = spawn("console", "--port", "0")
    said, _, link = process.next_line().partition(": ")
    assert said == "Stepfast console" and link.startswith("http://127.0.0.1:") and "/?token=" in link
    base = link.partition("?")[0]
    assert ask(f"{base}runs")[0] == 401
    assert ask(f"{base}runs?{link.partition('?')[2]}x")[0] == 401
    status, listed = ask(f"{base}runs?{link.partition('?')[2]}")
    assert (status, [run["id"] for run in listed]) == (200, [run_id])
    assert ask(link, Host="evil.example")[0] == 400
    process.send(signal.SIGINT)
    assert process.ended() == 130


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "10.1.2.3", "example.com"])
def test_beyond_loopback_it_wants_a_token_of_yours(stepfast: Verbs, shop: Shop, host: str) -> None:
    said = stepfast.error("console", "--host", host, code=2)
    assert server.TOKEN in said and host in said


def test_blanks_are_no_token(stepfast: Verbs, shop: Shop, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(server.TOKEN, " \n")
    assert server.TOKEN in stepfast.error("console", "--host", "0.0.0.0", code=2)


def test_a_token_of_yours_is_not_printed(stepfast: Verbs, shop: Shop, monkeypatch: pytest.MonkeyPatch) -> None:
    shop.start("nothing")
    given: dict[str, Any] = {}

    async def serve(console: Any, listener: socket.socket, root_path: str) -> None:
        given.update(console=console, root_path=root_path)

    monkeypatch.setattr(server, "serve", serve)
    monkeypatch.setenv(server.TOKEN, "open sesame")
    printed = stepfast("console", "shop:app", "--host", "0.0.0.0", "--port", "0", "--root-path", "/ops/").stdout
    assert "sesame" not in printed and "token" not in printed and printed.endswith("/ops/\n")
    assert given["root_path"] == "/ops/" and isinstance(given["console"], Console)


def test_what_keeps_it_from_being_served_is_said_at_once(
    stepfast: Verbs, shop: Shop, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert "stepfast migrate" in stepfast.error("console", "--port", "0", "--url", "sqlite:///none.db", code=1)
    shop.start("nothing")
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = str(taken.getsockname()[1])
        assert f"127.0.0.1:{port}" in stepfast.error("console", "--port", port, code=2)
    assert "paths" in stepfast.error("console", "--port", "0", "--redact", "", code=2)
    monkeypatch.setenv(server.TOKEN, "open sesame")
    assert "no such host" in stepfast.error("console", "--host", "..", code=2)


# -- stopping while an action is being carried out; it is answered if it ends soon, and not done in parts


HELD = "SELECT FROM stepfast.runs WHERE id = $1 FOR UPDATE"
WAITING = "SELECT count(*) FROM pg_stat_activity WHERE wait_event_type = 'Lock' AND datname = current_database()"


def post(link: str, action: str) -> Any:
    """Send an action to the console behind a link; its JSON, or None if the connection was cut."""
    base, _, token = link.partition("?token=")
    own = {"Authorization": f"Bearer {token}", "Accept": "application/json", "Sec-Fetch-Site": "same-origin"}
    try:
        with urllib.request.urlopen(urllib.request.Request(base + action, data=b"", headers=own), timeout=60) as answer:
            return json.load(answer)
    except urllib.error.HTTPError as error:
        with error:
            return error.code
    except OSError:
        return None


@asynccontextmanager
async def holding(url: str, run_id: str) -> AsyncIterator[asyncpg.Connection]:
    """The row of a run is held by somebody; the connection tells who waits."""
    holder, onlooker = await asyncpg.connect(url), await asyncpg.connect(url)
    try:
        async with holder.transaction():
            await holder.execute(HELD, run_id)
            yield onlooker
    finally:
        await holder.close()
        await onlooker.close()


async def until_waiting(onlooker: asyncpg.Connection) -> None:
    async with asyncio.timeout(30):
        while not await onlooker.fetchval(WAITING):
            await asyncio.sleep(0.02)


async def until_stopping(address: str) -> None:
    """It takes no connections any more."""
    parts = urlsplit(address)
    async with asyncio.timeout(30):
        while True:
            try:
                socket.create_connection((parts.hostname or "", parts.port or 0), 5).close()
            except ConnectionRefusedError:
                return
            await asyncio.sleep(0.02)


async def begun(app: Stepfast, spawn: Processes, url: str) -> tuple[Any, str, Any]:
    """A run, the address of a console, and its process."""
    app.task(name="nothing")(lambda given: None)
    run = await app.start("nothing", 1)
    process = spawn("console", "--port", "0", "--url", url)
    line = await asyncio.to_thread(process.next_line)
    return run, line.partition(": ")[2], process


async def test_an_action_that_ends_soon_is_answered(shop: Shop, spawn: Processes, postgres_url: str) -> None:
    async with Stepfast(postgres_url) as app:
        run, address, process = await begun(app, spawn, postgres_url)
        async with holding(postgres_url, run.id) as onlooker:
            sent = asyncio.create_task(asyncio.to_thread(post, address, f"runs/{run.id}/cancel"))
            await until_waiting(onlooker)
            process.send(signal.SIGINT)
            await until_stopping(address)
        assert await sent == {"run": run.id, "done": "cancel"}
        assert await asyncio.to_thread(process.ended) == 130
        assert (await run.info()).status == "cancelled"


@pytest.mark.slow  # an answer has three seconds
async def test_an_action_that_does_not_end_keeps_nobody(shop: Shop, spawn: Processes, postgres_url: str) -> None:
    async with Stepfast(postgres_url) as app:
        run, address, process = await begun(app, spawn, postgres_url)
        async with holding(postgres_url, run.id) as onlooker:
            sent = asyncio.create_task(asyncio.to_thread(post, address, f"runs/{run.id}/cancel"))
            await until_waiting(onlooker)
            process.send(signal.SIGINT)
            assert await asyncio.to_thread(process.ended) == 130
            assert await sent in (None, 503), "cut off, or told that it was"
        assert (await run.info()).status == "queued"
        [line] = await (await app.store()).audit(run.id)
        assert (line.outcome, line.said) == ("interrupted", "the process was told to stop; it may have been done")
