"""A call that is cancelled while the network breaks or says nothing ends as cancelled, at once, and is not made."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

import pytest

from stepfast import Context, Run, Stepfast
from stepfast.errors import DatabaseUnavailable, InvalidState
from tests.support.databases import connected
from tests.support.engine import eventually
from tests.support.proxy import Proxy

SOON = 5.0
"""Seconds within which a call that was cancelled is over. The driver's own patience is ten and more."""

Call = Callable[[Stepfast, Run[Any]], Awaitable[Any]]

WISHES: dict[str, Call] = {
    "start": lambda app, run: app.start("wait"),
    "keyed start": lambda app, run: app.start("wait", key="k"),
    "start_many": lambda app, run: app.start_many("wait", [None] * 3, keys=["a", "b", "c"]),
    "start of a dag": lambda app, run: app.start("graph"),
    "signal": lambda app, run: run.signal("go", 1),
    "cancel": lambda app, run: run.cancel(),
    "pause": lambda app, run: run.pause(),
    "resume": lambda app, run: run.resume(),
    "retry": lambda app, run: run.retry(),
    "status": lambda app, run: run.status(),
    "activity": lambda app, run: run.activity(),
    "result": lambda app, run: run.result(),
    "runs": lambda app, run: app.runs(),
}


@asynccontextmanager
async def behind_proxy(url: str) -> AsyncIterator[tuple[Stepfast, Proxy]]:
    """An application with a run, all of whose connections go through a proxy."""
    host, port = url.rpartition("@")[2].partition("/")[0].split(":")
    async with Proxy(host, int(port)) as proxy, Stepfast(proxy.url(url)) as app:

        @app.workflow(name="wait")
        async def wait(ctx: Context, _: None) -> None:
            await ctx.wait_signal("go")

        graph = app.dag("graph")
        graph.approval("ok")
        yield app, proxy


async def warm(app: Stepfast, run: Run[Any]) -> None:
    """Everything that the calls use is connected and prepared."""
    for call in WISHES.values():
        try:
            await asyncio.wait_for(call(app, run), 0.2)
        except (InvalidState, TimeoutError, DatabaseUnavailable):
            pass  # a retry of a run that goes on is refused; a result does not come; a connection is dead


async def test_cancelled_in_a_transaction_whose_connection_breaks(postgres_url: str) -> None:
    async with behind_proxy(postgres_url) as (app, proxy), connected(postgres_url) as other:
        run, victim = await app.start("wait"), await app.start("wait")
        await warm(app, victim)
        for what in ("signal", "cancel", "pause", "resume", "retry"):
            async with other.transaction():
                await other.execute("SELECT FROM stepfast.runs WHERE id = $1 FOR UPDATE", run.id)
                call = asyncio.ensure_future(WISHES[what](app, run))
                await eventually(lambda: waits_for_lock(other))
                proxy.stall()
                call.cancel()
                await asyncio.sleep(0.01)  # the driver would begin to roll back
                proxy.cut()
                proxy.resume()
                await asyncio.wait({call}, timeout=SOON)
                assert call.cancelled(), f"{what} went on: {call}"
            await nothing_held(other)
        await eventually(lambda: stands(run, "queued"))


async def test_a_timeout_of_the_callers_in_a_silent_network(postgres_url: str) -> None:
    async with behind_proxy(postgres_url) as (app, proxy), connected(postgres_url) as other:
        run, victim = await app.start("wait"), await app.start("wait")
        await warm(app, victim)
        for call in WISHES.values():
            proxy.stall()
            async with asyncio.timeout(SOON):
                with pytest.raises(TimeoutError):
                    async with asyncio.timeout(0.05):
                        await call(app, run)
            proxy.resume()
        await nothing_held(other)
        await eventually(lambda: stands(run, "queued"))


async def stands(run: Run[Any], status: str) -> bool:
    """A question on a connection that was cut is refused; the next one is answered."""
    try:
        return await run.status() == status
    except DatabaseUnavailable:
        return False


async def waits_for_lock(connection: Any) -> bool:
    return bool(await connection.fetchval("SELECT count(*) FROM pg_locks WHERE NOT granted"))


async def nothing_held(connection: Any) -> None:
    """No connection of the application is in a transaction, or waits for a lock, once the server has noticed."""
    sql = (
        "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND pid <> pg_backend_pid() "
        "AND (state LIKE 'idle in transaction%' OR wait_event_type = 'Lock')"
    )

    async def free() -> bool:
        return bool(await connection.fetchval(sql) == 0)

    await eventually(free)
