"""Storms over a Galera cluster of three nodes: workers on each, and nodes that are killed or cut off from the others.

Rows are locked within a node only. Where transactions on two nodes change the same row, one of them fails when it
commits, and is begun again.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import random
import time
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from asyncmy.errors import MySQLError

from stepfast import Context, Stepfast
from stepfast.model.urls import parse_url
from stepfast.settings import Settings
from stepfast.store.mysql.connections import Connector
from stepfast.store.mysql.errors import is_to_be_repeated
from stepfast.store.mysql.transactions import run
from tests.faults.storm import TOTALS, Storm, every, meanwhile
from tests.faults.storms import LEASE
from tests.support.engine import eventually
from tests.support.galera import Galera, Node

LONG = float(os.environ.get("FAULT_SECONDS", "60"))

pytestmark = [pytest.mark.slow, pytest.mark.timeout(LONG * 2 + 400)]


@pytest.fixture(scope="module")
def galera() -> Iterator[Galera]:
    with Galera() as cluster:
        yield cluster


@pytest.fixture
def urls(galera: Galera, request: pytest.FixtureRequest) -> list[str]:
    """A database of its own, by way of each node."""
    galera.wait()
    return galera.create_database(f"storm_{abs(hash(request.node.nodeid)) % 10**9}")


@asynccontextmanager
async def storm_over(urls: list[str], folder: Path, workers: int = 2) -> AsyncIterator[Storm]:
    """A storm with so many workers on each node. Starts and the look at the rows go by way of the first."""
    async with Storm(urls[0], folder, lease=LEASE, cut=True) as storm:
        storm.database.order = "at, n"  # each node has numbers of its own
        for url in urls:
            await storm.launch_ready(workers, url=url)
        await storm.launch_ready(program="start")
        yield storm


async def test_workers_on_different_nodes_are_killed(urls: list[str], tmp_path: Path) -> None:
    async with storm_over(urls, tmp_path / "ledger") as storm:

        def kill_one() -> None:
            storm.kill(random.choice(storm.workers))
            storm.launch(url=random.choice(urls))

        async with meanwhile(every(1.0, kill_one), *storm.bystanders()):
            await storm.keep_starting(LONG / 3)
        await storm.verdict(runs=storm.enough)


async def test_nodes_are_killed(galera: Galera, urls: list[str], tmp_path: Path) -> None:
    """SIGKILL for a node, which comes back. Its workers wait for it; their runs go to others."""

    async def kill_one() -> None:
        node = random.choice(galera.nodes[1:])
        async with storm.outage():
            await asyncio.to_thread(node.kill9)
            await asyncio.sleep(random.uniform(0.5, 4))
            await asyncio.to_thread(node.again)
        TOTALS["restarts"] += 1

    async with storm_over(urls, tmp_path / "ledger") as storm:
        async with meanwhile(*storm.bystanders()):
            await asyncio.gather(again_and_again(kill_one, LONG), storm.keep_starting(LONG))
        await storm.verdict(runs=storm.enough)


async def test_nodes_are_cut_off_from_the_others(galera: Galera, urls: list[str], tmp_path: Path) -> None:
    """A node without a majority refuses statements, and its workers reach it all the same."""

    async def cut_off() -> None:
        node = random.choice(galera.nodes[1:])
        async with storm.outage():
            await asyncio.to_thread(node.isolate)
            await asyncio.sleep(random.uniform(1, 6))
            await asyncio.to_thread(node.isolate, False)
            await asyncio.to_thread(galera.wait)
        TOTALS["stalls"] += 1

    async with storm_over(urls, tmp_path / "ledger") as storm:
        async with meanwhile(*storm.bystanders()):
            await asyncio.gather(again_and_again(cut_off, LONG), storm.keep_starting(LONG))
        await storm.verdict(runs=storm.enough)


async def again_and_again(fault: Callable[[], Awaitable[None]], seconds: float) -> None:
    """Faults one after the other. What is begun is brought to its end, so that all nodes take part again."""
    until = time.monotonic() + seconds
    while time.monotonic() < until:
        await asyncio.sleep(random.uniform(0.5, 2))
        await fault()


# -- what is different from one server


class _Row:
    """A row of the user's own, changed by way of a node."""

    def __init__(self, node: Node, database: str) -> None:
        self._node = node
        self.table = f"{database}.stock"

    def make(self) -> None:
        self._node.execute(
            f"CREATE TABLE {self.table} (id integer PRIMARY KEY, number integer)",
            f"INSERT INTO {self.table} VALUES (1, 0)",
        )

    def change(self) -> None:
        self._node.execute(f"UPDATE {self.table} SET number = number + 100 WHERE id = 1")


async def test_a_transaction_that_lost_against_another_node_ends(galera: Galera, urls: list[str]) -> None:
    """The node says so once, with the next request; that must not be taken for an answer to something else."""
    row = _Row(galera.nodes[0], Path(urls[0]).name)
    await asyncio.to_thread(row.make)
    connector = Connector(parse_url(urls[1]), Settings())
    connection = await connector.connect()
    try:
        for statement in ("SELECT id FROM stock WHERE id = %s", "UPDATE stock SET number = %s"):
            await connection.begin()
            assert await run(connection, "SELECT id FROM stock WHERE id = %s FOR UPDATE", [1]) == [(1,)]
            await asyncio.to_thread(row.change)
            await eventually(lambda: _number(galera.nodes[1], row.table))
            with pytest.raises(MySQLError) as lost:
                await run(connection, f"{statement} -- not prepared before", [1])
            assert is_to_be_repeated(lost.value)
            await connection.rollback()
    finally:
        connection.close()


def _number(node: Node, table: str) -> int:
    [(number,)] = node.execute(f"SELECT number FROM {table}")
    return int(number)


async def test_a_commit_that_the_cluster_refuses_is_tried_again(galera: Galera, urls: list[str]) -> None:
    """``ctx.transaction`` calls the function again, and does not count that as a try of the step."""
    row = _Row(galera.nodes[0], Path(urls[0]).name)
    await asyncio.to_thread(row.make)
    app, calls = Stepfast(urls[1]), Counter[str]()

    async def take(connection: Any) -> int:
        await run(connection, "UPDATE stock SET number = number + 1 WHERE id = 1")
        calls["take"] += 1
        if calls["take"] == 1:
            await asyncio.to_thread(row.change)  # by way of another node: this transaction has lost
            await eventually(lambda: calls["applied"] or _is_changed(galera.nodes[2], row.table, calls))
        return calls["take"]

    @app.workflow
    async def order(ctx: Context) -> int:
        return await ctx.options(retries=0).transaction(take)

    await app.migrate()
    async with app, app.worker():
        assert await (await app.start(order)).result(60) == 2
    assert await asyncio.to_thread(_number, galera.nodes[0], row.table) == 101


def _is_changed(node: Node, table: str, calls: Counter[str]) -> bool:
    calls["applied"] = int(_number(node, table) >= 100)
    return bool(calls["applied"])


async def test_limits_hold_over_all_nodes(urls: list[str]) -> None:
    """What counts in a queue is counted by one node at a time."""
    active, most = Counter[str](), Counter[str]()
    apps = [_limited(url, active, most) for url in urls]
    await apps[0].migrate()
    async with contextlib.AsyncExitStack() as stack:
        for app in apps:
            await stack.enter_async_context(app)
        await apps[0].set_limits("narrow", concurrency=3)
        runs = await apps[0].start_many("narrow", [None] * 60)
        for app in apps:
            await stack.enter_async_context(app.worker(concurrency=20))
        await asyncio.gather(*(run.result(120) for run in runs))
    assert most["runs"] == 3


def _limited(url: str, active: Counter[str], most: Counter[str]) -> Stepfast:
    app = Stepfast(url, settings=Settings(poll_interval=0.05, min_poll_interval=0.02))

    @app.workflow(queue="narrow")
    async def narrow(ctx: Context) -> None:
        active["runs"] += 1
        most["runs"] = max(most["runs"], active["runs"])
        await asyncio.sleep(0.02)
        active["runs"] -= 1

    return app


async def test_a_run_is_known_to_all_nodes_at_once(urls: list[str]) -> None:
    """What was committed by way of one node is seen by way of another."""
    one, other = Stepfast(urls[0]), Stepfast(urls[2])
    for app in (one, other):
        app.workflow(_nothing)
    await one.migrate()
    async with one, other:
        for _ in range(50):
            run_ = await one.start("_nothing")
            assert await other.get(run_.id).status() == "queued"
            await other.get(run_.id).cancel()
            assert await run_.status() == "cancelled"


async def _nothing(ctx: Context) -> None: ...


async def test_the_doctor_knows_the_cluster(galera: Galera, urls: list[str]) -> None:
    app = Stepfast(urls[1])
    await app.migrate()
    async with app:
        checks = {check.name: check for check in await (await app.store()).doctor()}
    assert checks["cluster"].ok
    assert "3 nodes, this one is Synced" in checks["cluster"].found
    assert checks["cluster_size"].ok
