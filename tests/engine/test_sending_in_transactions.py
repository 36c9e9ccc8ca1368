"""A start or a signal by ``connection=`` within ``ctx.transaction`` is committed with the step, or not at all."""

from __future__ import annotations

from typing import Any

import pytest

from stepfast import Context, ContextMisuse, InvalidState, NonRetryableError, RunFailed, Stepfast
from tests.engine.conftest import MakeApp

pytestmark = pytest.mark.parametrize("url", ["sqlite"], indirect=True)


def receiver_of(app: Stepfast) -> Any:
    @app.workflow
    async def receiver(ctx: Context) -> Any:
        return await ctx.wait_signal("go")

    return receiver


async def test_a_signal_is_committed_with_the_step(app: Stepfast) -> None:
    receiver = receiver_of(app)

    @app.workflow(max_attempts=1)
    async def sender(ctx: Context, run_id: str) -> None:
        await ctx.transaction(send, run_id)

    def send(connection: Any, run_id: str) -> None:
        connection.execute("CREATE TABLE IF NOT EXISTS sent (id text)")
        app.sync.signal(run_id, "go", 7, connection=connection)
        connection.execute("INSERT INTO sent VALUES (?)", (run_id,))

    run = await app.start(receiver)
    sending = await app.start(sender, run.id)
    await app.drain()
    await sending.result(timeout=20)
    assert await run.result(timeout=20) == 7


async def test_a_start_is_too(app: Stepfast) -> None:
    @app.task
    async def child(n: int) -> int:
        return n

    started = []

    def start(connection: Any) -> None:
        started.append(app.sync.start(child, 3, connection=connection).id)

    @app.workflow(max_attempts=1)
    async def starter(ctx: Context) -> None:
        await ctx.transaction(start)

    await (await app.start(child, 0)).status()  # its definition is stored
    run = await app.start(starter)
    await app.drain()
    await run.result(timeout=20)
    assert await app.get(started[0]).result(timeout=20) == 3


async def test_one_that_is_refused_leaves_the_transaction_as_it_was(make_app: MakeApp) -> None:
    app = make_app()
    receiver = receiver_of(app)

    def send(connection: Any, ended: str) -> str:
        with pytest.raises(InvalidState):
            app.sync.signal(ended, "go", connection=connection)
        try:
            connection.execute("SAVEPOINT mine")
        except Exception:
            return "refused"
        raise AssertionError

    def give_up(connection: Any, waits: str) -> None:
        app.sync.signal(waits, "go", connection=connection)
        raise NonRetryableError("not now")

    @app.workflow(max_attempts=1)
    async def misuser(ctx: Context, ended: str) -> str:
        return await ctx.transaction(send, ended)

    @app.workflow(max_attempts=1)
    async def quitter(ctx: Context, waits: str) -> None:
        await ctx.transaction(give_up, waits)

    ended, waits = await app.start(receiver), await app.start(receiver)
    await ended.signal("go")
    await app.drain()
    first, second = await app.start(misuser, ended.id), await app.start(quitter, waits.id)
    await app.drain()
    with pytest.raises(RunFailed, match=ContextMisuse.__name__):
        await first.result(timeout=20)
    with pytest.raises(RunFailed, match="not now"):
        await second.result(timeout=20)
    assert await waits.status() == "waiting"
