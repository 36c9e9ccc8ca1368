"""Outages: the database goes away under load and comes back; nothing exits, is lost, or is recorded twice."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager
from typing import Any

import pytest

from stepfast import Context, Stepfast
from stepfast.settings import Settings
from tests.support.databases import connected
from tests.support.engine import PATIENCE, Calls, eventually, worked
from tests.support.postgres import PrivatePostgres
from tests.support.processes import Ledger
from tests.support.proxy import Proxy
from tests.worker.conftest import MakeProcess

LONG = 40.0
"""Seconds for a server to crash, come back and catch up on a slow machine."""
SETTINGS = Settings(
    lease=3, sweep_interval=0.2, poll_interval=0.2, outage_backoff_max=0.3, command_timeout=3, connect_timeout=3
)
STEPS = 4


@pytest.fixture(scope="module")
def own_server() -> Iterator[PrivatePostgres]:
    """A server that may be killed: nothing acknowledged is lost with it."""
    with PrivatePostgres(fsync=True, in_memory=True) as server:
        yield server


@pytest.fixture
def own_url(own_server: PrivatePostgres, request: pytest.FixtureRequest) -> str:
    name = f"outage_{abs(hash(request.node.name))}"
    if not own_server.running:
        own_server.restart()
    own_server.drop_database(name)
    return own_server.create_database(name)


Fault = Callable[[PrivatePostgres, Proxy], Awaitable[None]]


async def restart(server: PrivatePostgres, _proxy: Proxy) -> None:
    await asyncio.to_thread(server.restart)


async def crash(server: PrivatePostgres, _proxy: Proxy) -> None:
    await asyncio.to_thread(server.kill9)
    await asyncio.to_thread(server.restart)


async def terminate(server: PrivatePostgres, _proxy: Proxy) -> None:
    sql = "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname LIKE 'outage%'"
    for _ in range(3):
        await asyncio.to_thread(server.execute, sql)


async def reset(_server: PrivatePostgres, proxy: Proxy) -> None:
    for _ in range(5):
        proxy.cut()
        await asyncio.sleep(0.05)


async def unplug(_server: PrivatePostgres, proxy: Proxy) -> None:
    proxy.refuse()
    proxy.cut()
    await asyncio.sleep(0.5)
    proxy.refuse(False)


async def stall(_server: PrivatePostgres, proxy: Proxy) -> None:
    proxy.stall()
    await asyncio.sleep(0.7)
    proxy.resume()


async def silence(_server: PrivatePostgres, proxy: Proxy) -> None:
    """Longer than the lease and than any statement may take; what was under way never arrives."""
    proxy.stall()
    await asyncio.sleep(4)
    proxy.cut()
    proxy.resume()


def make_app(url: str, calls: Calls) -> Stepfast:
    app = Stepfast(url, settings=SETTINGS)

    @app.workflow(max_attempts=1)
    async def work(ctx: Context, name: int) -> list[int]:
        async def step(number: int) -> int:
            calls.hit(f"{name} {number}")
            await asyncio.sleep(0.001)
            return number

        return [await ctx.step(step, number) for number in range(STEPS)]

    return app


class Load:
    """Keeps starting runs and waiting for their results."""

    def __init__(self, app: Stepfast) -> None:
        self.app = app
        self.runs: list[Any] = []
        self.results: list[asyncio.Task[Any]] = []
        self.stopped = False

    async def go(self) -> None:
        while not self.stopped:
            run = await self.app.start(self.app.workflows["work"], len(self.runs))
            self.runs.append(run)
            self.results.append(asyncio.create_task(run.result()))
            await asyncio.sleep(0.002)


@asynccontextmanager
async def loaded(app: Stepfast) -> AsyncIterator[Load]:
    """A worker and somebody who keeps it busy."""
    load = Load(app)
    async with app.worker(concurrency=20) as worker:
        starting = asyncio.create_task(load.go())
        await eventually(lambda: sum(task.done() for task in load.results) > 20)
        yield load
        done = sum(task.done() for task in load.results)
        await eventually(lambda: sum(task.done() for task in load.results) > done + 20, LONG)
        load.stopped = True
        await asyncio.wait_for(starting, LONG)
        await asyncio.wait_for(asyncio.gather(*load.results), LONG)
        assert not worker.broken.is_set()


@pytest.mark.parametrize("fault", [restart, crash, terminate, reset, unplug, stall, silence], ids=lambda f: f.__name__)
async def test_a_worker_rides_it_out(
    own_server: PrivatePostgres, own_url: str, calls: Calls, fault: Fault, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Promises 1–5: starts, results and steps under way all survive. A start gives up after some seconds, and on a busy
    machine a server takes longer to recover: here starts have the patience that workers have."""
    monkeypatch.setattr("stepfast.starts._PATIENCE", LONG)
    async with Proxy("127.0.0.1", own_server.port) as proxy:
        app = make_app(proxy.url(own_url), calls)
        async with app, loaded(app) as load:
            await fault(own_server, proxy)
    assert [task.result() for task in load.results] == [list(range(STEPS))] * len(load.runs)
    async with connected(own_url) as connection:
        rows = await connection.fetch("SELECT run_id, count(*) FROM stepfast.steps GROUP BY run_id")
        assert {count for _, count in rows} == {STEPS}
        runs = await connection.fetch("SELECT status, attempt, count(*) FROM stepfast.runs GROUP BY 1, 2")
        assert [tuple(row) for row in runs] == [("completed", 1, len(load.runs))]
        assert await connection.fetchval("SELECT count(*) FROM stepfast.workers WHERE state <> 'dead'") == 0


async def test_a_start_waits_for_a_short_outage(own_server: PrivatePostgres, own_url: str, calls: Calls) -> None:
    """Rule 7: one call, one run, however often it had to be sent."""
    async with Proxy("127.0.0.1", own_server.port) as proxy:
        app = make_app(proxy.url(own_url), calls)
        async with app:
            work = app.workflows["work"]
            await app.start(work, 0)
            proxy.refuse()
            proxy.cut()
            starting = [asyncio.create_task(app.start(work, n)) for n in range(1, 11)]
            keyed = asyncio.create_task(app.start(work, 11, key="k"))
            await asyncio.sleep(0.3)  # the length of the outage
            assert not any(task.done() for task in (*starting, keyed))
            proxy.refuse(False)
            runs = await asyncio.wait_for(asyncio.gather(*starting, keyed), PATIENCE)
            async with app.worker():
                for run in runs:
                    assert await run.result(timeout=PATIENCE) == list(range(STEPS))
            assert len(await app.runs(limit=100)) == 12


@pytest.mark.parametrize("key", [None, "k"])
async def test_a_start_whose_reply_was_lost_starts_once(
    own_server: PrivatePostgres, own_url: str, calls: Calls, key: str | None
) -> None:
    """Rule 7."""
    async with Proxy("127.0.0.1", own_server.port) as proxy:
        app = make_app(proxy.url(own_url), calls)
        async with app:
            work = app.workflows["work"]
            await app.start(work, 0)
            lost = proxy.swallow_next_commit_reply()
            run = await app.start(work, 1, key=key)
            assert lost.happened.is_set()
            assert len(await app.runs(limit=100)) == 2
            assert await worked(app, run) == list(range(STEPS))
    assert calls["1 0"] == 1


async def test_a_process_does_not_exit(
    own_server: PrivatePostgres, own_url: str, make_process: MakeProcess, ledger: Ledger
) -> None:
    """The server crashes under a worker process; the process goes on when it is back."""
    from tests.support.worker_program import make_app as make_program

    settings = {"lease": 3, "sweep_interval": 0.2, "poll_interval": 0.2, "outage_backoff_max": 0.3}
    app = make_program(own_url, ledger, Settings(outage_backoff_max=0.3))
    async with app, make_process(settings, at=own_url) as process:
        run = await app.start(app.workflows["chain"], {"name": "a", "n": 6, "hold": 2, "gate": "gate"})
        await ledger.seen("step a 2")
        await asyncio.to_thread(own_server.kill9)
        ledger.open("gate")
        await asyncio.to_thread(own_server.restart)
        assert await run.result(timeout=LONG) == list(range(6))
        assert process.running
    assert [len(ledger.lines(f"step a {n} ")) for n in range(6)] == [1] * 6


@pytest.fixture
def url(own_url: str) -> str:
    """Processes of this file work on its own server."""
    return own_url
