"""A ``ctx.transaction`` that the code itself gives up, by a timeout of its own or a group of tasks, while its commit
may come through: what is on record is what the code sees, now and at a replay (rules 19 and 29)."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from stepfast import Context, RunCancelled, RunFailed, Stepfast
from tests.engine.test_transactions import Accounts, accounts, only_sqlite
from tests.support.engine import PATIENCE, Calls, Gate, ThreadGate, eventually, interrupt
from tests.worker.spying import only_postgres, wrap

__all__ = ["accounts"]  # a fixture

Meanwhile = Callable[[], Awaitable[object]]


class Bound:
    """A timeout of the code's own that passes when the test says so; at a replay it passes by itself."""

    def __init__(self) -> None:
        self._timeout = asyncio.timeout(None)
        self.has_passed = False

    async def around(self, call: Awaitable[Any]) -> Any:
        """For the code under test."""
        self._timeout = asyncio.timeout(0.01 if self.has_passed else None)
        async with self._timeout:
            return await call

    async def passes(self) -> None:
        """For the test: it has, and what the code waits for is being cancelled."""
        self.has_passed = True
        self._timeout.reschedule(0)
        await eventually(self._timeout.expired)


async def unheard(app: Stepfast, meanwhile: Meanwhile) -> None:
    """The first transaction is committed, but the reply does not come; then the test has its say."""
    begun: list[asyncio.Task[None]] = []

    async def stand_between(call: Callable[..., Any], *args: Any) -> Any:
        reply = await call(*args)
        if begun:
            return reply
        begun.append(asyncio.ensure_future(_say(meanwhile)))
        return await asyncio.get_running_loop().create_future()

    wrap(await app.store(), "transact", stand_between)


async def _say(meanwhile: Meanwhile) -> None:
    async with asyncio.timeout(PATIENCE):
        await meanwhile()


async def seen_twice(app: Stepfast, run: Any, gate: Gate) -> Any:
    """The result of a run that is taken away from its worker at the gate, and goes on at another."""
    await interrupt(app, gate)
    gate.open()
    await app.drain()
    return await run.result(timeout=PATIENCE)


@pytest.mark.parametrize("how", ["timeout", "task group"])
async def test_a_commit_that_came_through_is_what_the_code_sees(
    app: Stepfast, accounts: Accounts, calls: Calls, how: str
) -> None:
    gate, bound, fails = Gate(), Bound(), asyncio.Event()
    await unheard(app, bound.passes if how == "timeout" else lambda: _set(fails))

    async def fail() -> None:
        await fails.wait()
        raise ValueError("ends the group")

    async def in_group(ctx: Context) -> Any:
        transaction, step = ctx.transaction(accounts.write, "a"), ctx.step(fail)
        try:
            async with asyncio.TaskGroup() as group:
                task = group.create_task(_awaiting(transaction))
                group.create_task(_awaiting(step))
        except* Exception:
            pass
        return "given up" if task.cancelled() else task.result()

    @app.workflow
    async def order(ctx: Context) -> Any:
        try:
            way = await (bound.around(ctx.transaction(accounts.write, "a")) if how == "timeout" else in_group(ctx))
        except TimeoutError:
            way = "given up"
        await ctx.step(way, lambda: calls.hit("after"))
        await ctx.step(gate.passing)
        return way

    run = await app.start(order)
    assert await seen_twice(app, run, gate) == "a is written"
    assert await accounts.names() == ["a"]
    assert calls == {"write a": 1, "after": 1}
    assert [step.status for step in await run.steps() if step.kind == "transaction"] == ["completed"]


async def _awaiting(call: Any) -> Any:
    return await call


async def _set(event: asyncio.Event) -> None:
    event.set()


@only_sqlite
async def test_a_function_that_is_at_work_in_the_writers_thread_is_committed_and_seen(
    app: Stepfast, accounts: Accounts, calls: Calls
) -> None:
    """No cancellation can reach it there."""
    at_work, gate, bound = ThreadGate(), Gate(), Bound()

    def write(connection: Any) -> Any:
        written = accounts.write_plain(connection, "a")
        at_work.passing()
        return written

    @app.workflow
    async def order(ctx: Context) -> Any:
        try:
            way = await bound.around(ctx.transaction(write))
        except TimeoutError:
            way = "given up"
        await ctx.step(way, lambda: None)
        await ctx.step(gate.passing)
        return way

    async def late() -> None:
        await at_work.reached()
        await bound.passes()
        at_work.open()

    run = await app.start(order)
    saying = asyncio.ensure_future(_say(late))
    assert await seen_twice(app, run, gate) == "a is written"
    await saying
    assert calls == {"write a": 1}
    assert await accounts.names() == ["a"]


async def test_a_second_cancellation_does_not_hide_the_record(app: Stepfast, accounts: Accounts) -> None:
    """It comes while the first is being decided."""
    gate, inner, outer = Gate(), Bound(), Bound()

    async def passes_once_more(call: Callable[..., Any], worker: str, batch: Any) -> Any:
        if any(step.status == "cancelled" for step in batch.steps):
            await outer.passes()
        return await call(worker, batch)

    await unheard(app, inner.passes)
    wrap(await app.store(), "flush", passes_once_more)

    @app.workflow
    async def order(ctx: Context) -> Any:
        try:
            way = await outer.around(inner.around(ctx.transaction(accounts.write, "a")))
        except TimeoutError:
            way = "given up"
        await ctx.step(way, lambda: None)
        await ctx.step(gate.passing)
        return way

    run = await app.start(order)
    assert await seen_twice(app, run, gate) == "a is written"
    assert outer.has_passed


async def test_the_next_call_within_the_timeout_is_stopped(app: Stepfast, accounts: Accounts, calls: Calls) -> None:
    """The timeout has passed: it was too late for the transaction alone."""
    gate, bound = Gate(), Bound()
    await unheard(app, bound.passes)

    @app.workflow
    async def order(ctx: Context) -> list[str]:
        way = []

        async def both() -> None:
            way.append(await ctx.transaction(accounts.write, "a"))
            way.append(await ctx.step("never", lambda: f"{calls.hit('never')}"))

        try:
            await bound.around(both())
        except TimeoutError:
            way.append("given up")
        await ctx.step(gate.passing)
        return way

    run = await app.start(order)
    assert await seen_twice(app, run, gate) == ["a is written", "given up"]
    assert calls == {"write a": 1}


@pytest.mark.parametrize("how", ["timeout", "race"])
async def test_what_was_committed_after_all_is_undone(
    app: Stepfast, accounts: Accounts, calls: Calls, how: str
) -> None:
    bound, quick = Bound(), asyncio.Event()
    await unheard(app, bound.passes if how == "timeout" else lambda: _set(quick))

    def undo(result: str, name: str) -> None:
        calls.hit(f"undone: {result}")

    @app.workflow(max_attempts=1)
    async def order(ctx: Context) -> None:
        transaction = ctx.options(compensate=undo).transaction(accounts.write, "a")
        if how == "timeout":
            await bound.around(transaction)
        else:
            winner, _ = await ctx.first(late=transaction, quick=ctx.step(quick.wait))
            assert winner == "quick"
        raise ValueError("no further")

    run = await app.start(order)
    await app.drain()
    with pytest.raises(RunFailed, match="no further"):
        await run.result(timeout=PATIENCE)
    assert calls == {"write a": 1, "undone: a is written": 1}


async def test_a_run_that_is_cancelled_meanwhile_undoes_what_was_committed(
    app: Stepfast, accounts: Accounts, calls: Calls
) -> None:
    """An operator's wish waits until it is known what is on record."""
    bound = Bound()

    async def cancelled_and_late() -> None:
        await run.cancel()
        await eventually(lambda: all(e.asked for e in worker.duties.executor.running.values()))
        await bound.passes()

    def undo(result: str, name: str) -> None:
        calls.hit(f"undone: {result}")

    await unheard(app, cancelled_and_late)

    @app.workflow
    async def order(ctx: Context) -> None:
        await bound.around(ctx.options(compensate=undo).transaction(accounts.write, "a"))
        await ctx.step("never", lambda: calls.hit("never"))

    run = await app.start(order)
    async with app.worker() as worker:
        with pytest.raises(RunCancelled):
            await run.result(timeout=PATIENCE)
    assert calls == {"write a": 1, "undone: a is written": 1}


async def test_a_run_that_is_lost_meanwhile_does_nothing_more(app: Stepfast, accounts: Accounts, calls: Calls) -> None:
    bound = Bound()

    async def lost_and_late() -> None:
        await accounts.fetch("UPDATE [runs] SET claim = claim + 1")
        await bound.passes()

    await unheard(app, lost_and_late)

    @app.workflow
    async def order(ctx: Context) -> None:
        try:
            await bound.around(ctx.transaction(accounts.write, "a"))
        except Exception as error:
            calls.hit(f"saw {error!r}")
        await ctx.step("never", lambda: calls.hit("never"))

    run = await app.start(order)
    async with app.worker(shutdown_grace=0) as worker:
        await eventually(lambda: calls["write a"] and not worker.duties.executor.running)
        assert calls == {"write a": 1}
        assert [step.status for step in await run.steps()] == ["completed"]


@pytest.mark.parametrize("wish", ["none", "pause"])
async def test_one_that_the_database_never_had_is_given_up(app: Stepfast, accounts: Accounts, wish: str) -> None:
    gate, bound = Gate(), Bound()

    async def late() -> None:
        if wish == "pause":
            await run.pause()
            await eventually(lambda: all(e.asked for e in worker.duties.executor.running.values()))
        await bound.passes()

    async def never(call: Callable[..., Any], *args: Any) -> Any:
        saying.append(asyncio.ensure_future(_say(late)))
        return await asyncio.get_running_loop().create_future()

    saying: list[asyncio.Task[None]] = []
    wrap(await app.store(), "transact", never)

    @app.workflow
    async def order(ctx: Context) -> str:
        try:
            return str(await bound.around(ctx.transaction(accounts.write, "a")))
        except TimeoutError:
            await ctx.step(gate.passing)
            return "given up"

    run = await app.start(order)
    async with app.worker(shutdown_grace=0) as worker:
        if wish == "pause":
            await eventually(lambda: _is(run, "paused"))
            await run.resume()
        await gate.reached()
    gate.open()
    await app.drain()
    assert await run.result(timeout=PATIENCE) == "given up"
    assert (len(saying), await accounts.names()) == (1, [])
    assert [step.status for step in await run.steps()] == ["cancelled", "completed"]


@only_postgres
async def test_a_function_that_hangs_is_given_up_and_rolled_back(app: Stepfast, accounts: Accounts) -> None:
    gate, bound, at_work = Gate(), Bound(), Gate()

    async def write(connection: Any) -> None:
        await accounts.write_async(connection, "a")
        await at_work.passing()

    @app.workflow
    async def order(ctx: Context) -> str:
        try:
            return str(await bound.around(ctx.transaction(write)))
        except TimeoutError:
            await ctx.step(gate.passing)
            return "given up"

    async def late() -> None:
        await at_work.reached()
        await bound.passes()

    run = await app.start(order)
    saying = asyncio.ensure_future(_say(late))
    assert await seen_twice(app, run, gate) == "given up"
    await saying
    assert await accounts.names() == []
    assert at_work.arrivals == 1
    assert [step.status for step in await run.steps()] == ["cancelled", "completed"]


async def _is(run: Any, status: str) -> bool:
    return bool(await run.status() == status)
