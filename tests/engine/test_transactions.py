"""``ctx.transaction``: the user's rows and the record of the step in one commit (rule 29)."""

from __future__ import annotations

import asyncio
import sqlite3
import time
from collections.abc import Callable
from typing import Any

import asyncpg
import pytest

from stepfast import (
    Backoff,
    Context,
    ContextMisuse,
    DatabaseUnavailable,
    LeaseLost,
    NonRetryableError,
    RunCancelled,
    RunFailed,
    StepFailed,
    Stepfast,
    SyncContext,
)
from tests.engine.conftest import MakeApp
from tests.store.scene import Rows
from tests.support.crashing import crash_at, outcome_of
from tests.support.engine import PATIENCE, Calls, Gate, eventually, interrupt, make_due
from tests.worker.spying import Counted, only_postgres, wrap

QUICK = Backoff(base=0.001, jitter=False)
only_sqlite = pytest.mark.parametrize("url", ["sqlite"], indirect=True)


class Accounts:
    """A table of the user's own, and functions that write to it in a transaction."""

    def __init__(self, app: Stepfast, calls: Calls) -> None:
        self.app = app
        self.calls = calls
        self.fails = 0
        """How many calls fail after they have written."""

    async def create(self) -> None:
        await self.fetch("CREATE TABLE accounts (name text NOT NULL)")

    async def fetch(self, sql: str, *values: Any) -> list[tuple[Any, ...]]:
        rows = Rows(await self.app.store(), self.app.namespace, self.app.url.text)
        try:
            return await rows.fetch(sql, *values)
        finally:
            await rows.close()

    async def names(self) -> list[str]:
        return [name for (name,) in await self.fetch("SELECT name FROM accounts ORDER BY name")]

    @property
    def write(self) -> Callable[..., Any]:
        """write(connection, name): as the database wants it, a coroutine or a plain function."""
        return self.write_plain if self.app.url.kind == "sqlite" else self.write_async

    def write_plain(self, connection: sqlite3.Connection, name: str) -> str:
        connection.execute("INSERT INTO accounts VALUES (?)", (name,))
        return self.written(name)

    async def write_async(self, connection: asyncpg.Connection, name: str) -> str:
        await connection.execute("INSERT INTO accounts VALUES ($1)", name)
        return self.written(name)

    def written(self, name: str) -> str:
        if self.calls.hit(f"write {name}") <= self.fails:
            raise ValueError("after the row was written")
        return f"{name} is written"


@pytest.fixture
async def accounts(app: Stepfast, calls: Calls) -> Accounts:
    accounts = Accounts(app, calls)
    await accounts.create()
    return accounts


async def test_rows_and_record_are_committed_together(app: Stepfast, accounts: Accounts) -> None:
    """Seen from outside, there is never one without the other."""
    gate = Gate()

    @app.workflow
    async def order(ctx: Context) -> str:
        result: str = await ctx.transaction(accounts.write, "a")
        await ctx.step("gate", gate.passing)
        return result

    run = await app.start(order)
    async with app.worker(shutdown_grace=0):
        await gate.reached()
        assert await accounts.names() == ["a"]
        [step] = [s for s in await run.steps() if s.kind == "transaction"]
        assert (step.status, step.output) == ("completed", "a is written")


async def test_a_plain_def_workflow_has_transactions_too(app: Stepfast, accounts: Accounts) -> None:
    @app.workflow
    def order(ctx: SyncContext) -> str:
        result: str = ctx.transaction(accounts.write, "a")
        return result

    run = await app.start(order)
    await app.drain()
    assert await run.result() == "a is written"
    assert await accounts.names() == ["a"]


async def test_a_recorded_transaction_is_not_called_again(app: Stepfast, accounts: Accounts, calls: Calls) -> None:
    """Exactly once."""
    gate = Gate()

    @app.workflow
    async def order(ctx: Context) -> list[Any]:
        results = [await ctx.transaction(accounts.write, name) for name in ("a", "b")]
        await ctx.step("gate", gate.passing)
        return results

    run = await app.start(order)
    await interrupt(app, gate)
    gate.open()
    await app.drain()
    assert await run.result() == ["a is written", "b is written"]
    assert calls == {"write a": 1, "write b": 1}
    assert await accounts.names() == ["a", "b"]


async def test_what_the_function_raises_rolls_back_and_is_tried_again(app: Stepfast, accounts: Accounts) -> None:
    """By the retries of the step, as any."""
    accounts.fails = 2

    @app.workflow(max_attempts=1)
    async def order(ctx: Context) -> str:
        result: str = await ctx.options(retries=2, backoff=QUICK).transaction(accounts.write, "a")
        return result

    run = await app.start(order)
    await app.drain()
    assert await run.result() == "a is written"
    assert await accounts.names() == ["a"]
    [step] = await run.steps()
    assert step.attempts == 3


async def test_an_exhausted_transaction_is_a_recorded_failure(app: Stepfast, accounts: Accounts, calls: Calls) -> None:
    """Rule 15: nothing of its rows is left, and the code that caught it replays so."""
    accounts.fails = 99
    gate = Gate()

    @app.workflow
    async def order(ctx: Context) -> str:
        try:
            await ctx.options(retries=1, backoff=QUICK).transaction(accounts.write, "a")
        except StepFailed as error:
            await ctx.step("gate", gate.passing)
            return error.message
        return "?"

    run = await app.start(order)
    await interrupt(app, gate)
    gate.open()
    await app.drain()
    assert await run.result() == "after the row was written"
    assert calls == {"write a": 2}
    assert await accounts.names() == []


async def test_a_new_attempt_makes_the_failed_transaction_anew(app: Stepfast, accounts: Accounts) -> None:
    accounts.fails = 1

    @app.workflow(backoff=Backoff(base=600, max=600))
    async def order(ctx: Context) -> str:
        result: str = await ctx.transaction(accounts.write, "a")
        return result

    run = await app.start(order)
    await app.drain()
    assert await accounts.names() == []
    await make_due(app, run.id)
    await app.drain()
    assert await run.result() == "a is written"
    assert await accounts.names() == ["a"]


async def test_a_worker_that_dies_after_the_commit_leaves_both(app: Stepfast, accounts: Accounts, calls: Calls) -> None:
    """Between the commit of the transaction and the next record."""

    @app.workflow
    async def order(ctx: Context) -> str:
        result: str = await ctx.transaction(accounts.write, "a")
        await ctx.step("next", lambda: None)
        return result

    run = await app.start(order)
    await crash_at(app, outcome_of("next"), written=False)
    await app.drain()
    assert await run.result() == "a is written"
    assert calls == {"write a": 1}
    assert await accounts.names() == ["a"]


async def test_a_reply_lost_after_the_commit_finds_the_record(app: Stepfast, accounts: Accounts, calls: Calls) -> None:
    """Rule 7: it looks for its record before it calls again."""
    lost = False

    async def lose_the_first(call: Callable[..., Any], *args: Any) -> Any:
        nonlocal lost
        reply = await call(*args)
        if not lost:
            lost = True
            raise DatabaseUnavailable("the reply was lost")
        return reply

    wrap(await app.store(), "transact", lose_the_first)

    @app.workflow
    async def order(ctx: Context) -> str:
        result: str = await ctx.transaction(accounts.write, "a")
        return result

    run = await app.start(order)
    await app.drain()
    assert await run.result() == "a is written"
    assert calls == {"write a": 1}
    assert await accounts.names() == ["a"]


async def test_a_worker_that_lost_the_run_meanwhile_commits_nothing(
    make_app: MakeApp, app: Stepfast, accounts: Accounts, calls: Calls
) -> None:
    """Rule 29: the fence comes after the function, before the commit."""
    answered = asyncio.Event()

    async def lose_it(call: Callable[..., Any], *args: Any) -> Any:
        await accounts.fetch("UPDATE [runs] SET claim = claim + 1")
        try:
            return await call(*args)
        finally:
            answered.set()

    wrap(await app.store(), "transact", lose_it)

    @app.workflow
    async def order(ctx: Context) -> str:
        result: str = await ctx.transaction(accounts.write, "a")
        return result

    await app.start(order)
    async with app.worker(shutdown_grace=0):
        await asyncio.wait_for(answered.wait(), PATIENCE)
        assert await accounts.names() == []


async def test_transactions_in_branches_are_each_done_once(app: Stepfast, accounts: Accounts, calls: Calls) -> None:
    async def item(ctx: Context, number: int) -> Any:
        return await ctx.transaction(accounts.write, f"{number:02}")

    @app.workflow
    async def order(ctx: Context) -> int:
        return len(await ctx.map(item, range(30), limit=8))

    run = await app.start(order)
    await app.drain()
    assert await run.result() == 30
    assert await accounts.names() == [f"{n:02}" for n in range(30)]
    assert set(calls.values()) == {1}


@pytest.mark.parametrize("value", [None, False, 0, ""])
@pytest.mark.enough_on("sqlite")
async def test_empty_results_are_recorded_as_themselves(app: Stepfast, value: Any) -> None:
    gate = Gate()

    def plain(connection: Any) -> Any:
        return value

    @app.workflow
    async def order(ctx: Context) -> Any:
        result = await ctx.transaction(plain)
        await ctx.step("gate", gate.passing)
        return [result]

    run = await app.start(order)
    await interrupt(app, gate)
    gate.open()
    await app.drain()
    assert await run.result() == [value]


@pytest.mark.parametrize("heard", [True, False], ids=["heard of before", "learnt from the row"])
async def test_a_cancelled_run_keeps_the_transaction_in_flight(app: Stepfast, accounts: Accounts, heard: bool) -> None:
    """Rule 27: it is recorded, and no step begins after it."""

    async def cancel_first(call: Callable[..., Any], *args: Any) -> Any:
        if heard:
            await run.cancel()
            await eventually(lambda: all(e.asked for e in worker.duties.executor.running.values()))
        else:
            await store.cancel(run.id)  # and nobody is told
        return await call(*args)

    store = await app.store()
    wrap(store, "transact", cancel_first)

    @app.workflow
    async def order(ctx: Context) -> None:
        await ctx.transaction(accounts.write, "a")
        await ctx.step("never", lambda: None)

    run = await app.start(order)
    async with app.worker() as worker:
        with pytest.raises(RunCancelled):
            await run.result(timeout=20)
    assert await run.status() == "cancelled"
    assert await accounts.names() == ["a"]
    assert [s.kind for s in await run.steps()] == ["transaction"]


async def test_a_transaction_takes_no_second_question(app: Stepfast, accounts: Accounts) -> None:
    """What operators ask of the run comes back with the commit."""
    looks = Counted(await app.store(), "run")

    @app.workflow
    async def order(ctx: Context) -> None:
        await ctx.transaction(accounts.write, "a")

    run = await app.start(order)
    await app.drain()
    await run.result()
    assert looks.calls == []


async def test_the_name_and_the_label_are_as_for_a_step(app: Stepfast, accounts: Accounts) -> None:
    @app.workflow
    async def order(ctx: Context) -> None:
        await ctx.transaction("open account", accounts.write, "a")
        await ctx.options(name="another").transaction(accounts.write, "b")

    run = await app.start(order)
    await app.drain()
    assert [s.name for s in await run.steps()] == ["open account", "another"]


# -- what is refused -----------------------------------------------------------------------------------------------


async def refusal(app: Stepfast, function: Callable[..., Any]) -> RunFailed:
    """How a run ends whose transaction calls this function."""

    @app.workflow
    async def order(ctx: Context) -> None:
        app.ctx = ctx  # type: ignore[attr-defined]
        await ctx.transaction(function)

    run = await app.start(order)
    await app.drain()
    with pytest.raises(RunFailed) as failed:
        await run.result()
    assert (await run.info()).attempt == 1, "another attempt would not help"
    return failed.value


@only_postgres
@pytest.mark.parametrize("end", ["COMMIT", "ROLLBACK"])
async def test_a_function_must_not_end_the_transaction(app: Stepfast, accounts: Accounts, end: str) -> None:
    """Rule 29: detected, and refused."""

    async def function(connection: asyncpg.Connection) -> None:
        await connection.execute("SELECT 1")
        await connection.execute(end)

    error = await refusal(app, function)
    assert ContextMisuse.__name__ in str(error)
    assert "commit" in error.message


@only_sqlite
@pytest.mark.parametrize("end", ["commit", "rollback"])
async def test_a_function_must_not_end_the_transaction_on_sqlite(app: Stepfast, accounts: Accounts, end: str) -> None:
    def function(connection: sqlite3.Connection) -> None:
        connection.execute("INSERT INTO accounts VALUES ('a')")
        getattr(connection, end)()

    error = await refusal(app, function)
    assert ContextMisuse.__name__ in str(error)
    assert await accounts.names() == []


@only_sqlite
async def test_a_coroutine_function_is_refused_on_sqlite(app: Stepfast) -> None:
    """Rule 29: it runs in the one thread that writes."""

    async def function(connection: Any) -> None: ...

    error = await refusal(app, function)
    assert "plain def" in error.message


@only_postgres
async def test_calls_of_the_context_inside_are_refused(app: Stepfast) -> None:
    """Rule 29: they would wait for a journal that may wait for this very transaction."""

    async def function(connection: Any) -> None:
        await app.ctx.step("inside", lambda: None)  # type: ignore[attr-defined]

    error = await refusal(app, function)
    assert ContextMisuse.__name__ in str(error)
    assert "from inside" in error.message


@only_sqlite
async def test_calls_of_the_context_inside_are_refused_on_sqlite(app: Stepfast) -> None:
    def function(connection: Any) -> None:
        app.ctx.step("inside", lambda: None)  # type: ignore[attr-defined]

    error = await refusal(app, function)
    assert ContextMisuse.__name__ in str(error)


async def test_a_permanent_error_is_not_tried_again(app: Stepfast, accounts: Accounts, calls: Calls) -> None:
    def plain(connection: Any) -> None:
        calls.hit("plain")
        raise NonRetryableError("no")

    @app.workflow
    async def order(ctx: Context) -> None:
        await ctx.options(retries=5, backoff=QUICK).transaction(plain)

    run = await app.start(order)
    await app.drain()
    with pytest.raises(RunFailed, match="no"):
        await run.result()
    assert calls == {"plain": 1}


async def test_a_transaction_that_takes_too_long_is_rolled_back(app: Stepfast, accounts: Accounts) -> None:
    def plain(connection: sqlite3.Connection) -> None:
        connection.execute("INSERT INTO accounts VALUES ('late')")
        time.sleep(0.2)
        connection.execute("INSERT INTO accounts VALUES ('later')")

    async def asynchronous(connection: asyncpg.Connection) -> None:
        await connection.execute("INSERT INTO accounts VALUES ('late')")
        await asyncio.Event().wait()

    @app.workflow(max_attempts=1)
    async def order(ctx: Context) -> None:
        function = plain if app.url.kind == "sqlite" else asynchronous
        await ctx.options(timeout=0.1).transaction(function)

    run = await app.start(order)
    await app.drain()
    with pytest.raises(RunFailed, match="StepTimeout"):
        await run.result()
    assert await accounts.names() == []


@only_postgres
async def test_a_transaction_that_waits_does_not_stop_the_engine(app: Stepfast, accounts: Accounts) -> None:
    """Rule 29: a small pool of its own; steps of other runs are recorded meanwhile."""
    gate = Gate()

    async def holds(connection: asyncpg.Connection) -> None:
        await connection.execute("INSERT INTO accounts VALUES ('held')")
        await gate.passing()

    @app.workflow
    async def holding(ctx: Context) -> None:
        await ctx.transaction(holds)

    @app.workflow
    async def other(ctx: Context) -> int:
        return sum([await ctx.step("s", lambda n: n, n) for n in range(5)])

    runs = await app.start_many(holding, [None] * 10)
    async with app.worker():
        await gate.reached()
        assert await (await app.start(other)).result(timeout=20) == 10
        gate.open()
        for run in runs:
            await run.result(timeout=20)
    assert await accounts.names() == ["held"] * 10


def test_losing_the_lease_is_no_exception_that_a_function_could_swallow() -> None:
    assert not issubclass(LeaseLost, Exception)
