"""The proxy breaks connections exactly where it is told to."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any
from urllib.parse import urlsplit

import asyncpg
import pytest

from tests.support.engine import eventually
from tests.support.proxy import Proxy

BROKEN = (OSError, asyncpg.PostgresConnectionError, asyncpg.InterfaceError)


@pytest.fixture
async def proxy(postgres_url: str) -> AsyncIterator[Proxy]:
    address = urlsplit(postgres_url)
    assert address.hostname and address.port
    async with Proxy(address.hostname, address.port) as proxy:
        yield proxy


@pytest.fixture
async def direct(postgres_url: str) -> AsyncIterator[Any]:
    connection = await asyncpg.connect(postgres_url)
    await connection.execute("CREATE TABLE t (n int)")
    yield connection
    await connection.close()


@pytest.fixture
async def proxied(proxy: Proxy, direct: Any, postgres_url: str) -> AsyncIterator[Any]:
    connection = await asyncpg.connect(proxy.url(postgres_url))
    yield connection
    connection.terminate()


async def count(direct: Any) -> int:
    return int(await direct.fetchval("SELECT count(*) FROM t"))


async def test_it_forwards_whatever_the_size_and_counts(proxy: Proxy, proxied: Any, postgres_url: str) -> None:
    """Of transactions, one that is open does not count, and one that was rolled back does."""
    text = "x" * 3_000_000
    assert await proxied.fetchval("SELECT $1::text || 'y'", text) == text + "y"
    assert [row[0] for row in await proxied.fetch("SELECT generate_series(1, 20000)")] == list(range(1, 20001))
    before = proxy.transactions
    for statement in ("SELECT 1", "BEGIN", "SELECT 1", "ROLLBACK", "BEGIN"):
        await proxied.execute(statement)
    assert proxy.transactions - before == 2
    other = await asyncpg.connect(proxy.url(postgres_url))
    assert proxy.connections == 2
    await other.close()
    await eventually(lambda: proxy.connections == 1)


async def test_cut_resets_who_is_on_the_way_too(proxy: Proxy, monkeypatch: pytest.MonkeyPatch) -> None:
    """Between the proxy's welcome and its own connection to the server."""
    connect, on_the_way, go_on = asyncio.open_connection, asyncio.Event(), asyncio.Event()

    async def slowly(*address: Any) -> Any:
        on_the_way.set()
        await go_on.wait()
        return await connect(*address)

    monkeypatch.setattr(asyncio, "open_connection", slowly)
    async with asyncio.timeout(20):
        reader, writer = await connect("127.0.0.1", proxy.port)
        await on_the_way.wait()
        proxy.cut()
        go_on.set()
        with pytest.raises(ConnectionError):
            await reader.readexactly(1)
    writer.close()


async def test_cut_resets_everyone_and_lets_them_come_back(
    proxy: Proxy, proxied: Any, direct: Any, postgres_url: str
) -> None:
    asleep = asyncio.create_task(proxied.fetch("SELECT pg_sleep(30)"))
    await eventually(lambda: direct.fetchval("SELECT pid FROM pg_stat_activity WHERE query = 'SELECT pg_sleep(30)'"))
    proxy.cut()
    with pytest.raises(BROKEN):
        await asyncio.wait_for(asleep, 5)
    again = await asyncpg.connect(proxy.url(postgres_url))
    assert await again.fetchval("SELECT 1") == 1
    await again.close()


async def test_stall_holds_until_resume_or_a_cut(proxy: Proxy, proxied: Any, direct: Any) -> None:
    proxy.stall()
    waiting = asyncio.create_task(proxied.execute("INSERT INTO t VALUES (1)"))
    done, _ = await asyncio.wait([waiting], timeout=0.1)
    assert not done
    assert await count(direct) == 0
    proxy.resume()
    assert await asyncio.wait_for(waiting, 5) == "INSERT 0 1"
    proxy.stall()
    waiting = asyncio.create_task(proxied.execute("SELECT 1"))
    await asyncio.sleep(0.05)
    proxy.cut()
    with pytest.raises(BROKEN):
        await asyncio.wait_for(waiting, 5)


async def test_refuse_turns_away_new_connections_only(proxy: Proxy, proxied: Any, postgres_url: str) -> None:
    proxy.refuse()
    with pytest.raises(BROKEN):
        await asyncpg.connect(proxy.url(postgres_url))
    assert await proxied.fetchval("SELECT 1") == 1
    proxy.refuse(False)
    again = await asyncpg.connect(proxy.url(postgres_url))
    await again.close()


async def test_a_target_that_is_down_looks_like_a_reset(unused_port: int) -> None:
    async with Proxy("127.0.0.1", unused_port) as proxy:
        with pytest.raises(BROKEN):
            await asyncpg.connect(f"postgresql://postgres@127.0.0.1:{proxy.port}/postgres")


@pytest.fixture
async def unused_port() -> int:
    listener = await asyncio.start_server(lambda reader, writer: None, "127.0.0.1", 0)
    port = int(listener.sockets[0].getsockname()[1])
    listener.close()
    await listener.wait_closed()
    return port


async def test_the_reply_to_a_commit_is_lost_and_the_work_is_done(proxy: Proxy, proxied: Any, direct: Any) -> None:
    order = proxy.swallow_next_commit_reply()
    transaction = proxied.transaction()
    await transaction.start()
    await proxied.execute("INSERT INTO t VALUES (1)")  # its reply passes: nothing is committed yet
    assert not order.happened.is_set()
    with pytest.raises(BROKEN):
        await asyncio.wait_for(transaction.commit(), 5)
    assert order.tag == b"COMMIT"
    assert await count(direct) == 1


async def test_the_reply_to_a_statement_on_its_own_is_lost(proxy: Proxy, proxied: Any, direct: Any) -> None:
    order = proxy.swallow_next_commit_reply()
    with pytest.raises(BROKEN):
        await asyncio.wait_for(proxied.fetch("INSERT INTO t SELECT generate_series($1::int, 3) RETURNING n", 1), 5)
    assert (order.tag, await count(direct)) == (b"INSERT 0 3", 3)


async def test_a_chosen_reply_is_lost_once(proxy: Proxy, proxied: Any, direct: Any, postgres_url: str) -> None:
    order = proxy.swallow(lambda tag: tag.startswith(b"UPDATE"))
    await proxied.execute("INSERT INTO t VALUES (1)")
    with pytest.raises(BROKEN):
        await asyncio.wait_for(proxied.execute("UPDATE t SET n = n + 1"), 5)
    assert order.happened.is_set()
    again = await asyncpg.connect(proxy.url(postgres_url))
    assert await again.execute("UPDATE t SET n = n + 1") == "UPDATE 1"
    await again.close()
    assert await direct.fetchval("SELECT n FROM t") == 3


async def test_a_reply_to_work_that_was_rolled_back_is_not_lost(proxy: Proxy, proxied: Any, direct: Any) -> None:
    order = proxy.swallow(lambda tag: tag.startswith(b"INSERT"))
    with pytest.raises(asyncpg.DivisionByZeroError):
        await proxied.execute("INSERT INTO t VALUES (1); SELECT 1 / 0")
    assert not order.happened.is_set()
    assert await count(direct) == 0


async def test_a_raw_proxy_leaves_the_bytes_alone() -> None:
    async def shout(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write((await reader.readline()).upper())
        writer.close()

    listener = await asyncio.start_server(shout, "127.0.0.1", 0)
    port = listener.sockets[0].getsockname()[1]
    async with listener, Proxy("127.0.0.1", port, protocol="raw") as proxy:
        reader, writer = await asyncio.open_connection("127.0.0.1", proxy.port)
        writer.write(b"hello\n")
        assert await reader.read() == b"HELLO\n"
        writer.close()
