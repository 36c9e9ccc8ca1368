"""A database that restarts, crashes and hangs up, and a network that resets, stalls and loses replies.

The lease is long, so that none of it can cost one: every act must be accounted for, as if nothing had happened.
"""

from __future__ import annotations

import asyncio
import random
from pathlib import Path

from tests.faults.storm import TOTALS, Storm, every, meanwhile
from tests.support.postgres import PrivatePostgres
from tests.support.proxy import Proxy

LEASE = 60.0


async def test_postgres_is_restarted_and_crashes_under_load(
    durable_server: PrivatePostgres, durable_url: str, tmp_path: Path
) -> None:
    async with Storm(durable_url, tmp_path / "ledger", lease=LEASE, strict=True) as storm:
        await storm.launch_ready(3)
        storm.launch("start")

        async def restart() -> None:
            if random.random() < 0.6:
                await asyncio.to_thread(durable_server.kill9)
            await asyncio.to_thread(durable_server.restart)
            TOTALS["restarts"] += 1

        async with meanwhile(every(1.5, restart)):
            await storm.keep_starting(7)
        durable_server.start()
        await storm.verdict(runs=50)


async def test_backends_are_terminated_under_load(
    durable_server: PrivatePostgres, durable_url: str, tmp_path: Path
) -> None:
    async with Storm(durable_url, tmp_path / "ledger", lease=LEASE, strict=True) as storm:
        await storm.launch_ready(3)
        database = durable_url.rpartition("/")[2]

        async def terminate() -> None:
            share = random.choice((0.1, 0.5, 1.0))
            victims = (
                "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE backend_type = 'client backend' "
                f"AND datname = '{database}' AND random() < {share}"
            )
            TOTALS["terminated"] += len(await asyncio.to_thread(durable_server.execute, victims))

        async with meanwhile(every(0.2, terminate)):
            await storm.keep_starting(4)
        await storm.verdict(runs=50)


async def test_the_network_resets_stalls_and_loses_replies(
    durable_server: PrivatePostgres, durable_url: str, tmp_path: Path
) -> None:
    async with Proxy("127.0.0.1", durable_server.port) as proxy:
        through = proxy.url(durable_url)
        async with Storm(durable_url, tmp_path / "ledger", lease=LEASE, strict=True, through=through) as storm:
            await storm.launch_ready(3)

            def cut() -> None:
                proxy.cut()
                TOTALS["resets"] += 1

            async def stall() -> None:
                proxy.stall()
                await asyncio.sleep(random.uniform(0.1, 1))
                proxy.resume()
                TOTALS["stalls"] += 1

            async with meanwhile(every(1.2, cut), every(1.5, stall), lose_replies(proxy)):
                await storm.keep_starting(6)
            proxy.resume()
            await storm.verdict(runs=50)


async def lose_replies(proxy: Proxy) -> None:
    """One after the other, of every kind: a commit, a claim, a flush, a start, a heartbeat."""
    while True:
        for kind in (b"COMMIT", b"UPDATE", b"SELECT", b"INSERT"):
            order = proxy.swallow(lambda tag, kind=kind: tag.startswith(kind))  # type: ignore[misc]
            try:
                async with asyncio.timeout(1):
                    await order.happened.wait()
                TOTALS["swallowed commits"] += 1
            except TimeoutError:
                pass
            await asyncio.sleep(0.05)
