"""A remote worker rides out trouble of its database: broken connections, lost replies, a server that restarts."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from stepfast.remote import RemoteWorker, SqlTransport
from stepfast.settings import Settings
from tests.remote.scene import quick_worker, result_of
from tests.remote.tables import Tables
from tests.support.engine import Gate, eventually
from tests.support.mariadb import PrivateMariaDb
from tests.support.postgres import PrivatePostgres
from tests.support.proxy import Proxy

IMPATIENT = Settings(outage_backoff_max=0.1, connect_timeout=5)


def worker_of(url: str, **options: Any) -> RemoteWorker:
    return quick_worker(url, settings=IMPATIENT, **options)


async def test_broken_connections_end_neither_the_worker_nor_its_handlers(url: str, tables: Tables) -> None:
    gate, calls = Gate(), []
    worker = worker_of(url)

    @worker.handle("slow")
    async def slow(input: Any) -> str:
        calls.append(input)
        await gate.passing()
        return "done"

    await tables.put_task("run:0", "slow")
    async with worker:
        await gate.reached()
        await tables.end_connections()
        await tables.put_task("run:1", input="next")
        assert (await result_of(tables, "run:1"))["output"] == "next"
        await tables.end_connections()
        gate.open()
        assert (await result_of(tables, "run:0"))["output"] == "done"
    assert calls == [None]
    assert await tables.tasks() == []


async def test_a_network_that_is_cut_and_refuses_for_a_while(
    url: str, tables: Tables, caplog: pytest.LogCaptureFixture
) -> None:
    parts = url.rpartition("@")[2].partition("/")[0].partition(":")
    protocol = "raw" if tables.is_mysql else "postgres"
    async with Proxy(parts[0], int(parts[2]), protocol=protocol) as proxy:  # type: ignore[arg-type]
        async with worker_of(proxy.url(url)):
            await tables.put_task("run:0")
            await result_of(tables, "run:0")
            proxy.refuse()
            proxy.cut()
            await tables.put_task("run:1")
            await eventually(lambda: "trying again" in caplog.text)
            proxy.refuse(False)
            await result_of(tables, "run:1")


async def test_a_claim_whose_answer_is_lost_is_given_back_before_its_lease_is_over(postgres_url: str) -> None:
    """On Postgres, where the proxy can lose the reply to a commit that was carried out."""
    async with SqlTransport(postgres_url):
        tables = await Tables(postgres_url).open()
    port = int(postgres_url.rpartition(":")[2].partition("/")[0])
    async with Proxy("127.0.0.1", port) as proxy:
        worker = worker_of(proxy.url(postgres_url), lease=600, poll_interval=0.05)
        async with worker:
            lost = proxy.swallow(lambda tag: tag == b"COMMIT")
            await tables.put_task("run:0", input=5)
            await asyncio.wait_for(lost.happened.wait(), 20)
            assert (await result_of(tables, "run:0"))["output"] == 5
    await tables.close()


async def test_a_record_whose_answer_is_lost_is_written_once(postgres_url: str) -> None:
    gate = Gate()
    async with SqlTransport(postgres_url):
        tables = await Tables(postgres_url).open()
    port = int(postgres_url.rpartition(":")[2].partition("/")[0])
    async with Proxy("127.0.0.1", port) as proxy:
        worker = worker_of(proxy.url(postgres_url), concurrency=1)

        @worker.handle("slow")
        async def slow(input: Any) -> str:
            await gate.passing()
            return "done"

        await tables.put_task("run:0", "slow")
        async with worker:
            await gate.reached()
            lost = proxy.swallow(lambda tag: tag == b"COMMIT")
            gate.open()
            await asyncio.wait_for(lost.happened.wait(), 20)
            assert (await result_of(tables, "run:0"))["output"] == "done"
            await tables.put_task("run:1")
            await result_of(tables, "run:1")
    assert len(await tables.results()) == 2
    await tables.close()


@pytest.mark.thorough
async def test_a_postgres_that_crashes_and_comes_back(caplog: pytest.LogCaptureFixture) -> None:
    with PrivatePostgres(fsync=True) as server:
        await survive(server.create_database("remote"), server.kill9, server.restart, caplog)


@pytest.mark.thorough
async def test_a_mariadb_that_restarts(caplog: pytest.LogCaptureFixture) -> None:
    server = PrivateMariaDb()
    try:
        await survive(server.start().create_database(), server.stop, server.start, caplog)
    finally:
        server.close()


async def survive(url: str, down: Any, up: Any, caplog: pytest.LogCaptureFixture) -> None:
    async with worker_of(url) as worker:
        tables = await Tables(url).open()
        await tables.put_task("run:0")
        await result_of(tables, "run:0")
        await tables.close()
        await asyncio.to_thread(down)
        await eventually(lambda: "trying again" in caplog.text)
        await asyncio.to_thread(up)
        tables = await Tables(url).open()
        await tables.put_task("run:1")
        await result_of(tables, "run:1")
        await tables.close()
        assert not worker.broken.is_set()
        await eventually(lambda: worker.running == 0)
