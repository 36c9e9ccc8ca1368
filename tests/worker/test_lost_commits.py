"""Commits that vanish: a failover to a server that lagged behind, or one that does not wait for its disk and
crashed (rule 51).

Imitated: while the worker's connections are cut, rows that were committed are deleted. The row of the run still names
the worker and its claim, as it does after such a failover. A real one is in tests/faults/test_failover.py.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from typing import Any
from urllib.parse import urlsplit

import pytest

from stepfast import Context, Stepfast
from stepfast.settings import Settings
from stepfast.store.postgres.store import PostgresStore
from tests.support.engine import PATIENCE, Calls, Gate, eventually
from tests.support.proxy import Proxy
from tests.support.waiting import reached
from tests.support.workflows import task
from tests.worker.conftest import MakeApp
from tests.worker.spying import only_postgres
from tests.worker.tables import Tables

pytestmark = only_postgres

SETTINGS = Settings(lease=5, poll_interval=0.1, sweep_interval=60, inline_wait=0.05)


class Server:
    """The database, and the network before it."""

    def __init__(self, proxy: Proxy, tables: Tables) -> None:
        self._proxy = proxy
        self._tables = tables

    async def lose(self, *statements: str) -> None:
        """Cut all connections, and let these commits be gone when they are made again."""
        self._proxy.refuse()
        self._proxy.cut()
        for statement in statements:
            await self._tables.fetch(statement)
        self._proxy.refuse(False)

    async def history(self) -> list[tuple[Any, ...]]:
        return await self._tables.fetch("SELECT branch, position, name, claim FROM [steps] ORDER BY branch, position")


@pytest.fixture
async def proxy(url: str) -> AsyncIterator[Proxy]:
    parts = urlsplit(url)
    async with Proxy(parts.hostname or "", parts.port or 0) as proxy:
        yield proxy


@pytest.fixture
def server(proxy: Proxy, tables: Tables) -> Server:
    return Server(proxy, tables)


@pytest.fixture
def app(make_app: MakeApp, proxy: Proxy, url: str) -> Stepfast:
    return make_app(SETTINGS, at=proxy.url(url))


def three_steps(app: Stepfast, calls: Calls, gate: Gate) -> Any:
    @app.workflow
    async def order(ctx: Context) -> list[int]:
        async def last() -> int:
            call = calls.hit("last")
            if call == 1:
                await gate.passing()
            return call

        return [await ctx.step(name, lambda name=name: calls.hit(name)) for name in ("one", "two")] + [
            await ctx.step(last)
        ]

    return order


async def test_a_run_goes_on_from_what_is_left(app: Stepfast, server: Server, calls: Calls) -> None:
    """From memory it would have recorded its third step after none, and ended so."""
    gate = Gate()
    order = three_steps(app, calls, gate)
    async with app.worker():
        run = await app.start(order)
        await gate.reached()
        await server.lose("DELETE FROM [steps] WHERE position >= 1")
        gate.open()
        assert await run.result(timeout=PATIENCE) == [1, 2, 2]
        assert (await run.info()).losses == 0
    assert calls == {"one": 1, "two": 2, "last": 2}
    assert [row[1:] for row in await server.history()] == [(0, "one", 1), (1, "two", 2), (2, "last", 2)]


async def test_where_nothing_was_lost_nothing_is_repeated(app: Stepfast, server: Server, calls: Calls) -> None:
    gate = Gate()
    order = three_steps(app, calls, gate)
    async with app.worker():
        run = await app.start(order)
        await gate.reached()
        await server.lose()
        gate.open()
        assert await run.result(timeout=PATIENCE) == [1, 1, 1]
    assert {row[3] for row in await server.history()} == {1}


async def test_behind_a_pooler_another_server_is_known_by_its_start(
    app: Stepfast, server: Server, calls: Calls
) -> None:
    """No connection of ours breaks there. Imitated: we remember another start than that of the server."""
    gate = Gate()
    order = three_steps(app, calls, gate)
    async with app.worker() as worker:
        run = await app.start(order)
        await gate.reached()
        store: Any = await app.store()
        assert isinstance(store, PostgresStore)
        await eventually(lambda: store._flusher._continuity.started is not None)
        worker.duties.sweeper.stopped = True  # the flush itself is to find out
        await eventually(lambda: not any(duty.get_name() == "stepfast-sweeper" for duty in asyncio.all_tasks()))
        store._flusher._continuity.started = 1
        tables = server._tables
        await tables.fetch("DELETE FROM [steps] WHERE position >= 1")
        worker.duties.sweeper.stopped = False
        gate.open()
        sweeper = asyncio.create_task(worker.duties.sweeper.run())
        assert await run.result(timeout=PATIENCE) == [1, 2, 2]
        worker.duties.sweeper.stopped = True
        worker.duties.sweeper.tick_now()
        await sweeper


async def test_a_transaction_compares_before_it_commits(
    app: Stepfast, server: Server, tables: Tables, calls: Calls
) -> None:
    gate = Gate()
    await tables.fetch("CREATE TABLE bookings (amount integer)")

    async def book(connection: Any, amount: int) -> None:
        calls.hit("book")
        await connection.execute("INSERT INTO bookings VALUES ($1)", amount)

    @app.workflow
    async def order(ctx: Context) -> None:
        await ctx.transaction(book, 1)
        if calls.hit("between") == 1:
            await gate.passing()
        await ctx.transaction(book, 2)

    async with app.worker():
        run = await app.start(order)
        await gate.reached()
        await server.lose("DELETE FROM [steps]", "DELETE FROM bookings")
        gate.open()
        await run.result(timeout=PATIENCE)
    assert await tables.fetch("SELECT amount FROM bookings ORDER BY amount") == [(1,), (2,)]
    assert calls["book"] >= 3
    assert [row[1] for row in await server.history()] == [0, 1]


async def test_remembered_histories_are_forgotten(app: Stepfast, server: Server, calls: Calls) -> None:
    """A run that waits is not in memory, but its records are. They are read anew when it comes back."""

    @app.workflow
    async def order(ctx: Context) -> int:
        made = await ctx.step("one", lambda: calls.hit("one"))
        await ctx.wait_signal("go")
        return made

    async with app.worker() as worker:
        run = await app.start(order)
        await eventually(lambda: run.id in worker.duties.executor.cache)
        await eventually(lambda: not worker.duties.executor.running)
        await reached(run, "waiting")
        await server.lose("DELETE FROM [steps]")  # also that it waits: what is lost is always the last of it
        await eventually(lambda: not worker.duties.executor.cache)
        await run.signal("go")
        assert await run.result(timeout=PATIENCE) == 2


async def test_a_run_whose_handler_ends_after_the_break_is_read_anew(
    app: Stepfast, server: Server, calls: Calls
) -> None:
    """It had gone to wait, and the word of it was committed, when the connection broke: nothing more is written of it
    that would be compared. It is read anew when it comes back."""
    gate, store = Gate(), await app.store()

    @app.workflow
    async def order(ctx: Context) -> int:
        made = await ctx.step("one", lambda: calls.hit("one"))
        try:
            await ctx.wait_signal("go")
        finally:
            await gate.passing()
        return made

    async with app.worker() as worker:
        run = await app.start(order)
        await gate.reached()
        await reached(run, "waiting")
        await server.lose("DELETE FROM [steps]")
        await eventually(lambda: run.id in worker.duties.unverified.open)
        # As if all of them had been noticed to be broken by now: one that is noticed later would be heeded then.
        store.breaks.unsubscribe(worker.duties._connection_broke)
        gate.open()
        await eventually(lambda: not worker.duties.executor.running)
        await run.signal("go")
        assert await run.result(timeout=PATIENCE) == 2


async def _recorded(server: Server, count: int) -> bool:
    return len(await server.history()) == count


async def test_an_outcome_that_fell_back_to_its_beginning_is_noticed(
    app: Stepfast, server: Server, tables: Tables, calls: Calls
) -> None:
    """A wait that is over is one record, as it was when it began: the number of records alone tells nothing."""
    gate = Gate()

    @app.workflow
    async def order(ctx: Context) -> int:
        await ctx.wait_signal("go", timeout=60)
        call = calls.hit("after")
        if call == 1:
            await gate.passing()
        return await ctx.step("last", lambda: call)

    async with app.worker():
        run = await app.start(order)
        await eventually(lambda: _recorded(server, 1))
        await tables.fetch("CREATE TABLE kept AS SELECT * FROM [steps]")
        await run.signal("go")
        await gate.reached()
        await server.lose("DELETE FROM [steps]", "INSERT INTO [steps] SELECT * FROM kept")
        await run.signal("go")  # the one that was taken by the record has come back in truth; here it is sent again
        gate.open()
        assert await run.result(timeout=PATIENCE) == 2


async def test_a_run_that_has_just_left_is_compared_too(app: Stepfast, server: Server, calls: Calls) -> None:
    """It had gone to wait, and the word of it was under way when the connection broke. It is given back, and comes to
    wait once more."""
    store = await app.store()
    held, let_go, broken = asyncio.Event(), asyncio.Event(), asyncio.Event()
    store.breaks.subscribe(broken.set)
    flush: Callable[..., Any] = store.flush

    async def hold_the_release(worker: str, batch: Any) -> Any:
        if batch.transitions and not held.is_set():
            held.set()
            await let_go.wait()
        return await flush(worker, batch)

    store.flush = hold_the_release  # type: ignore[method-assign]

    @app.workflow
    async def order(ctx: Context) -> int:
        made = await ctx.step("one", lambda: calls.hit("one"))
        await ctx.wait_signal("go")
        return made

    async with app.worker():
        run = await app.start(order)
        await asyncio.wait_for(held.wait(), PATIENCE)
        await server.lose("DELETE FROM [steps] WHERE name = 'one'")
        await asyncio.wait_for(broken.wait(), PATIENCE)
        let_go.set()
        await run.signal("go")
        assert await run.result(timeout=PATIENCE) == 2
    assert [row[2] for row in await server.history()] == ["one", "go"]


async def test_a_long_history_is_counted_though_it_is_not_kept(app: Stepfast, server: Server, calls: Calls) -> None:
    gate = Gate()

    @app.workflow
    async def order(ctx: Context) -> int:
        for number in range(100):
            await ctx.step("pace", lambda number: calls.hit(str(number)), number)
        if calls.hit("end") == 1:
            await gate.passing()
        return await ctx.step("last", lambda: calls["99"])

    async with app.worker():
        run = await app.start(order)
        await gate.reached()
        await server.lose("DELETE FROM [steps] WHERE position = 99")
        gate.open()
        assert await run.result(timeout=PATIENCE) == 2
    assert calls["98"] == 1


async def test_a_cancelled_call_is_no_break(url: str) -> None:
    """Its connection is dropped by us. A process whose callers are often cancelled must not doubt all it remembers."""
    async with Stepfast(url) as app:
        store = await app.store()
        told: list[None] = []
        store.breaks.subscribe(lambda: told.append(None))
        quick = task(app, "quick", returns=None)
        await app.start(quick)
        async with store._kept["start"].use() as connection:  # type: ignore[attr-defined]
            call = asyncio.create_task(store._kept["start"].fetch("SELECT pg_catalog.pg_sleep(60)"))  # type: ignore[attr-defined]
            await asyncio.sleep(0)
            assert not connection.is_closed()
        await eventually(lambda: store._kept["start"]._lock.locked())  # type: ignore[attr-defined]
        call.cancel()
        await asyncio.wait((call,), timeout=PATIENCE)
        await app.start(quick)
        assert call.cancelled()
        assert not told
