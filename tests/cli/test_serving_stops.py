"""`stepfast console` that is told to stop while an action is under way: it is answered if it ends soon, and not done in
parts."""

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
from tests.cli.conftest import Shop
from tests.cli.processes import Processes

pytestmark = pytest.mark.enough_on("sqlite")  # the database of the folder is not used here
TOKEN = "a token of the tests"
HELD = "SELECT FROM stepfast.runs WHERE id = $1 FOR UPDATE"
WAITING = "SELECT count(*) FROM pg_stat_activity WHERE wait_event_type = 'Lock' AND datname = current_database()"


@pytest.fixture(autouse=True)
def token(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("STEPFAST_CONSOLE_TOKEN", TOKEN)


def post(address: str) -> Any:
    """Send an action; its JSON, or None if the connection was cut."""
    own = {"Authorization": f"Bearer {TOKEN}", "Accept": "application/json", "Sec-Fetch-Site": "same-origin"}
    try:
        with urllib.request.urlopen(urllib.request.Request(address, data=b"", headers=own), timeout=60) as answer:
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
            sent = asyncio.create_task(asyncio.to_thread(post, f"{address}runs/{run.id}/cancel"))
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
            sent = asyncio.create_task(asyncio.to_thread(post, f"{address}runs/{run.id}/cancel"))
            await until_waiting(onlooker)
            process.send(signal.SIGINT)
            assert await asyncio.to_thread(process.ended) == 130
            assert await sent in (None, 503), "cut off, or told that it was"
        assert (await run.info()).status == "queued"
        [line] = await (await app.store()).audit(run.id)
        assert (line.outcome, line.said) == ("interrupted", "the process was told to stop; it may have been done")
