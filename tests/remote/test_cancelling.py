"""Calls that are cancelled end as cancelled and hold nothing any more; a stop is bounded on a silent network, too."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from stepfast.remote import SqlTransport, Task
from stepfast.remote import worker as remote_worker
from stepfast.remote.mysql import transactions as mysql
from stepfast.settings import Settings
from stepfast.store.postgres import transactions as postgres
from tests.remote.scene import quick_worker, result_of
from tests.remote.tables import Tables
from tests.support.engine import Gate
from tests.support.proxy import Proxy

TASKS = [Task(f"run:{n}", "run", n, "echo", "echo", None, 2) for n in range(3)]


async def test_a_call_can_be_cancelled_at_any_moment(transport: SqlTransport, tables: Tables) -> None:
    """More often than there are connections: one that stayed behind would be missed. A call that was asked to end says
    so, also if the server's answer came at the same moment."""
    cancelled = 0
    for moment in range(240):
        call = asyncio.create_task(transport.dispatch(TASKS))
        for _ in range(moment):
            await asyncio.sleep(0)
        asked = call.cancel()
        await asyncio.wait((call,), timeout=20)
        assert call.cancelled() == asked, f"at moment {moment}"
        cancelled += asked
    assert cancelled
    await asyncio.wait_for(transport.dispatch(TASKS), 20)
    assert await transport.lost([task.step_id for task in TASKS]) == []


def proxy_of(url: str, tables: Tables) -> Proxy:
    host, _, port = url.rpartition("@")[2].partition("/")[0].partition(":")
    return Proxy(host, int(port), protocol="raw" if tables.is_mysql else "postgres")


async def test_a_stop_is_bounded_while_the_network_is_silent(
    url: str, tables: Tables, monkeypatch: pytest.MonkeyPatch
) -> None:
    for module, name in (
        (remote_worker, "_CLAIM_ENDS"),
        (remote_worker, "_LAST_RESULTS"),
        (remote_worker, "_GIVE_BACK"),
    ):
        monkeypatch.setattr(module, name, 0.2)
    for one in (mysql, postgres):
        monkeypatch.setattr(one, "PATIENCE", 0.2)
    gate = Gate()
    async with proxy_of(url, tables) as proxy:
        worker = quick_worker(proxy.url(url), shutdown_grace=0.1)

        @worker.handle("slow")
        async def slow(input: Any) -> None:
            await gate.passing()

        await tables.put_task("run:0", "slow")
        await worker.start()
        await gate.reached()
        proxy.stall()
        await asyncio.wait_for(worker.stop(), 20)
        proxy.resume()
    assert await tables.tasks() == ["run:0"]
    assert not [task for task in asyncio.all_tasks() if task.get_name().startswith("stepfast-remote")]


@pytest.mark.thorough
async def test_a_worker_behind_pgbouncer(postgres_url: str) -> None:
    from tests.support.pgbouncer import pgbouncer

    with pgbouncer(postgres_url) as url:
        async with quick_worker(url, settings=Settings(lease=5)):
            tables = await Tables(postgres_url).open()
            for number in range(30):
                await tables.put_task(f"run:{number}")
            for number in range(30):
                await result_of(tables, f"run:{number}")
            await tables.close()
