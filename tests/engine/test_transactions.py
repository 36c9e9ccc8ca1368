"""``ctx.transaction``: rows of the user and the record of the step in one commit (rule 29), also if it is given up."""

from __future__ import annotations

import asyncio
import sqlite3
import time
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from stepfast import (
    Backoff,
    Context,
    ContextMisuse,
    DatabaseUnavailable,
    InvalidState,
    LeaseLost,
    NonRetryableError,
    RunCancelled,
    RunFailed,
    StepFailed,
    Stepfast,
)
from tests.engine.conftest import MakeApp
from tests.store.scene import Rows
from tests.support.both_kinds import KINDS, workflow_of
from tests.support.crashing import crash_at, outcome_of
from tests.support.databases import execute
from tests.support.engine import (
    PATIENCE,
    Calls,
    Gate,
    ThreadGate,
    drained,
    eventually,
    failure,
    finished,
    make_due,
    outcome,
    replayed,
)
from tests.support.waiting import reached
from tests.support.workflows import calling, listener, task
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

    async def write_async(self, connection: Any, name: str) -> str:
        await execute(connection, "INSERT INTO accounts VALUES ($1)", name)
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


def writing(
    app: Stepfast, accounts: Accounts, *names: str, gate: Gate | None = None, options: Any = None, **declared: Any
) -> Any:
    """A workflow that writes names, each in a transaction, and then stops at a gate."""

    @app.workflow(name="order", **declared)
    async def order(ctx: Context) -> list[Any]:
        transacting = ctx.options(**options or {})
        results = [await transacting.transaction(accounts.write, name) for name in names or "a"]
        if gate is not None:
            await ctx.step("gate", gate.passing)
        return results

    return order


@KINDS
async def test_rows_and_record_are_committed_together(app: Stepfast, accounts: Accounts, kind: str) -> None:
    """Seen from outside, there is never one without the other."""
    gate = Gate()

    async def order(ctx: Context) -> Any:
        result = await ctx.transaction(accounts.write, "a")
        await ctx.step("gate", gate.passing)
        return result

    run = await app.start(workflow_of(app, kind, order))
    async with app.worker():
        await gate.reached()
        assert await accounts.names() == ["a"]
        [step] = [s for s in await run.steps() if s.kind == "transaction"]
        assert (step.status, step.output) == ("completed", "a is written")
        gate.open()
        assert await run.result(timeout=PATIENCE) == "a is written"


async def test_a_recorded_transaction_is_not_called_again(app: Stepfast, accounts: Accounts, calls: Calls) -> None:
    gate = Gate()
    run = await replayed(app, gate, writing(app, accounts, "a", "b", gate=gate))
    assert await run.result() == ["a is written", "b is written"]
    assert calls == {"write a": 1, "write b": 1}
    assert await accounts.names() == ["a", "b"]


async def test_what_the_function_raises_rolls_back_and_is_tried_again(app: Stepfast, accounts: Accounts) -> None:
    accounts.fails = 2
    run = await drained(app, writing(app, accounts, options={"retries": 2, "backoff": QUICK}, max_attempts=1))
    assert await run.result() == ["a is written"]
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

    assert await (await replayed(app, gate, order)).result() == "after the row was written"
    assert calls == {"write a": 2}
    assert await accounts.names() == []


async def test_a_new_attempt_makes_the_failed_transaction_again(app: Stepfast, accounts: Accounts) -> None:
    accounts.fails = 1
    run = await drained(app, writing(app, accounts, backoff=Backoff(base=600, max=600)))
    assert await accounts.names() == []
    await make_due(app, run.id)
    assert await finished(app, run) == ["a is written"]
    assert await accounts.names() == ["a"]


async def test_a_worker_that_dies_between_the_commit_and_the_next_record_leaves_both(
    app: Stepfast, accounts: Accounts, calls: Calls
) -> None:
    gate = Gate()
    gate.open()
    run = await app.start(writing(app, accounts, gate=gate))
    await crash_at(app, outcome_of("gate"), written=False)
    assert await finished(app, run) == ["a is written"]
    assert calls == {"write a": 1}
    assert await accounts.names() == ["a"]


async def test_a_reply_lost_after_the_commit_finds_the_record(app: Stepfast, accounts: Accounts, calls: Calls) -> None:
    """Rule 7: it looks for its record before it calls again."""
    lost: list[Any] = []

    async def lose_the_first(call: Callable[..., Any], *args: Any) -> Any:
        reply = await call(*args)
        if not lost:
            lost.append(reply)
            raise DatabaseUnavailable("the reply was lost")
        return reply

    wrap(await app.store(), "transact", lose_the_first)
    assert await outcome(app, writing(app, accounts)) == ["a is written"]
    assert calls == {"write a": 1}
    assert await accounts.names() == ["a"]


async def test_a_worker_that_has_lost_the_run_commits_nothing(app: Stepfast, accounts: Accounts) -> None:
    """Rule 29: the fence comes after the function, before the commit."""
    answered = asyncio.Event()

    async def lose_it(call: Callable[..., Any], *args: Any) -> Any:
        await accounts.fetch("UPDATE [runs] SET claim = claim + 1")
        try:
            return await call(*args)
        finally:
            answered.set()

    wrap(await app.store(), "transact", lose_it)
    await app.start(writing(app, accounts))
    async with app.worker(shutdown_grace=0):
        await asyncio.wait_for(answered.wait(), PATIENCE)
        assert await accounts.names() == []


async def test_transactions_in_branches_are_each_done_once(app: Stepfast, accounts: Accounts, calls: Calls) -> None:
    async def item(ctx: Context, number: int) -> Any:
        return await ctx.transaction(accounts.write, f"{number:02}")

    @app.workflow
    async def order(ctx: Context) -> int:
        return len(await ctx.map(item, range(30), limit=8))

    assert await outcome(app, order) == 30
    assert await accounts.names() == [f"{n:02}" for n in range(30)]
    assert set(calls.values()) == {1}


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


async def test_a_transaction_takes_no_second_query(app: Stepfast, accounts: Accounts) -> None:
    """Requests of operators come back with the commit."""
    looks = Counted(await app.store(), "run")
    run = await app.start(writing(app, accounts))
    await app.drain()
    assert looks.calls == []
    await run.result()


async def test_the_name_and_the_label_are_as_for_a_step(app: Stepfast, accounts: Accounts) -> None:
    @app.workflow
    async def order(ctx: Context) -> None:
        await ctx.transaction("open account", accounts.write, "a")
        await ctx.options(name="another").transaction(accounts.write, "b")

    run = await drained(app, order)
    assert [s.name for s in await run.steps()] == ["open account", "another"]


# -- what is refused -----------------------------------------------------------------------------------------------


async def refusal(app: Stepfast, function: Callable[..., Any]) -> RunFailed:
    """How a run ends whose transaction calls this function, which may use ``app.ctx``."""

    @app.workflow
    async def order(ctx: Context) -> None:
        app.ctx = ctx  # type: ignore[attr-defined]
        await ctx.transaction(function)

    run = await drained(app, order)
    failed = await failure(run)
    assert (await run.info()).attempt == 1, "another attempt would not help"
    return failed


@pytest.mark.parametrize("end", ["COMMIT", "ROLLBACK"])
async def test_a_function_must_not_end_the_transaction(app: Stepfast, accounts: Accounts, end: str) -> None:
    """Rule 29: detected, and refused."""

    async def function(connection: Any) -> None:
        await execute(connection, "SELECT 1")
        await execute(connection, end)

    def plain(connection: sqlite3.Connection) -> None:
        connection.execute("INSERT INTO accounts VALUES ('a')")
        getattr(connection, end.lower())()

    on_sqlite = app.url.kind == "sqlite"
    error = await refusal(app, plain if on_sqlite else function)
    assert ContextMisuse.__name__ in str(error)
    assert on_sqlite or "commit" in error.message
    assert await accounts.names() == []


@only_sqlite
async def test_a_coroutine_function_is_refused_on_sqlite(app: Stepfast) -> None:
    """Rule 29: it runs in the one thread that writes."""

    async def function(connection: Any) -> None: ...

    error = await refusal(app, function)
    assert "plain def" in error.message


@only_sqlite
async def test_calls_inside_that_would_wait_for_the_one_writer_are_refused(app: Stepfast) -> None:
    """The writer executes the function, and would wait for itself; so would all that the process writes."""
    other = await app.start(listener(app, name="other"))

    def cancelled(connection: Any) -> None:
        app.sync.get(other.id).cancel()

    assert "has one writer" in (await refusal(app, cancelled)).message

    def read(connection: Any) -> str:
        return str(app.sync.get(other.id).info().status)

    @app.workflow
    async def reading(ctx: Context) -> str:
        return await ctx.transaction(read)

    assert await (await drained(app, reading)).result(timeout=PATIENCE) == "waiting"


async def test_calls_of_the_context_inside_are_refused(app: Stepfast) -> None:
    """Rule 29: they would wait for a journal that may wait for this very transaction."""

    async def function(connection: Any) -> None:
        await app.ctx.step("inside", lambda: None)  # type: ignore[attr-defined]

    def plain(connection: Any) -> None:
        app.ctx.step("inside", lambda: None)  # type: ignore[attr-defined]

    error = await refusal(app, plain if app.url.kind == "sqlite" else function)
    assert ContextMisuse.__name__ in str(error)
    assert "from inside" in error.message


async def test_a_permanent_error_is_not_tried_again(app: Stepfast, accounts: Accounts, calls: Calls) -> None:
    def plain(connection: Any) -> None:
        calls.hit("plain")
        raise NonRetryableError("no")

    order = calling(app, lambda ctx: ctx.options(retries=5, backoff=QUICK).transaction(plain))
    await failure(await drained(app, order), "no")
    assert calls == {"plain": 1}


async def test_a_transaction_that_takes_too_long_is_rolled_back(app: Stepfast, accounts: Accounts) -> None:
    def plain(connection: sqlite3.Connection) -> None:
        connection.execute("INSERT INTO accounts VALUES ('late')")
        time.sleep(0.2)
        connection.execute("INSERT INTO accounts VALUES ('later')")

    async def asynchronous(connection: Any) -> None:
        await execute(connection, "INSERT INTO accounts VALUES ('late')")
        await asyncio.Event().wait()

    @app.workflow(max_attempts=1)
    async def order(ctx: Context) -> None:
        function = plain if app.url.kind == "sqlite" else asynchronous
        await ctx.options(timeout=0.1).transaction(function)

    await failure(await drained(app, order), "StepTimeout")
    assert await accounts.names() == []


@only_postgres
async def test_a_transaction_that_waits_does_not_stop_the_engine(app: Stepfast, accounts: Accounts) -> None:
    """Rule 29: a small pool of its own; steps of other runs are recorded meanwhile."""
    gate = Gate()

    async def holds(connection: Any) -> None:
        await execute(connection, "INSERT INTO accounts VALUES ('held')")
        await gate.passing()

    holding = calling(app, lambda ctx: ctx.transaction(holds), name="holding")

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


Meanwhile = Callable[[], Awaitable[object]]


def giving_up(app: Stepfast, gate: Gate, call: Callable[[Context], Awaitable[Any]]) -> Any:
    """A workflow that makes a call within a timeout of its own, and records which way it went, before a gate."""

    @app.workflow(name="order")
    async def order(ctx: Context) -> Any:
        try:
            way = await call(ctx)
        except TimeoutError:
            way = "given up"
        await ctx.step(way, lambda: None)
        await ctx.step(gate.passing)
        return way

    return order


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


async def seen_twice(app: Stepfast, gate: Gate, workflow: Any) -> tuple[Any, list[str]]:
    """The result of a run that is taken away from its worker at the gate and finished by another, and how its
    transactions are recorded."""
    run = await replayed(app, gate, workflow)
    result = await run.result(timeout=PATIENCE)
    return result, [step.status for step in await run.steps() if step.kind == "transaction"]


WRITTEN = ("a is written", ["completed"])


@pytest.mark.parametrize("how", ["timeout", "task group"])
async def test_a_commit_that_came_through_is_what_the_code_sees(
    app: Stepfast, accounts: Accounts, calls: Calls, how: str
) -> None:
    gate, bound, fails = Gate(), Bound(), asyncio.Event()
    await unheard(app, bound.passes if how == "timeout" else lambda: _set(fails))

    async def fail() -> None:
        await fails.wait()
        raise ValueError("ends the group")

    async def call(ctx: Context) -> Any:
        transaction = ctx.transaction(accounts.write, "a")
        if how == "timeout":
            return await bound.around(transaction)
        step = ctx.step(fail)
        try:
            async with asyncio.TaskGroup() as group:
                task = group.create_task(_awaiting(transaction))
                group.create_task(_awaiting(step))
        except* Exception:
            pass
        return "given up" if task.cancelled() else task.result()

    assert await seen_twice(app, gate, giving_up(app, gate, call)) == WRITTEN
    assert await accounts.names() == ["a"]
    assert calls == {"write a": 1}


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

    async def late() -> None:
        await at_work.reached()
        await bound.passes()
        at_work.open()

    saying = asyncio.ensure_future(_say(late))
    order = giving_up(app, gate, lambda ctx: bound.around(ctx.transaction(write)))
    assert await seen_twice(app, gate, order) == WRITTEN
    await saying
    assert calls == {"write a": 1}
    assert await accounts.names() == ["a"]


async def test_a_second_cancellation_while_the_first_is_decided_does_not_hide_the_record(
    app: Stepfast, accounts: Accounts
) -> None:
    gate, inner, outer = Gate(), Bound(), Bound()

    async def passes_once_more(call: Callable[..., Any], worker: str, batch: Any) -> Any:
        if any(step.status == "cancelled" for step in batch.steps):
            await outer.passes()
        return await call(worker, batch)

    await unheard(app, inner.passes)
    wrap(await app.store(), "flush", passes_once_more)
    order = giving_up(app, gate, lambda ctx: outer.around(inner.around(ctx.transaction(accounts.write, "a"))))
    assert await seen_twice(app, gate, order) == WRITTEN
    assert outer.has_passed


async def test_the_next_call_within_the_timeout_is_stopped(app: Stepfast, accounts: Accounts, calls: Calls) -> None:
    """It was too late for the transaction alone."""
    gate, bound = Gate(), Bound()
    await unheard(app, bound.passes)
    seen: list[Any] = []

    async def both(ctx: Context) -> None:
        seen.append(await ctx.transaction(accounts.write, "a"))
        await ctx.step("never", lambda: calls.hit("never"))

    order = giving_up(app, gate, lambda ctx: bound.around(both(ctx)))
    assert await seen_twice(app, gate, order) == ("given up", ["completed"])
    assert seen == ["a is written"] * 2
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

    await failure(await drained(app, order), "no further")
    assert calls == {"write a": 1, "undone: a is written": 1}


async def test_a_run_that_is_cancelled_meanwhile_undoes_what_was_committed(
    app: Stepfast, accounts: Accounts, calls: Calls
) -> None:
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


@pytest.mark.parametrize("request_", ["none", "pause"])
async def test_a_transaction_that_the_database_never_had_is_given_up(
    app: Stepfast, accounts: Accounts, request_: str
) -> None:
    gate, bound = Gate(), Bound()

    async def late() -> None:
        if request_ == "pause":
            await run.pause()
            await eventually(lambda: all(e.asked for e in worker.duties.executor.running.values()))
        await bound.passes()

    async def never(call: Callable[..., Any], *args: Any) -> Any:
        saying.append(asyncio.ensure_future(_say(late)))
        return await asyncio.get_running_loop().create_future()

    saying: list[asyncio.Task[None]] = []
    wrap(await app.store(), "transact", never)
    order = giving_up(app, gate, lambda ctx: bound.around(ctx.transaction(accounts.write, "a")))
    run = await app.start(order)
    async with app.worker(shutdown_grace=0) as worker:
        if request_ == "pause":
            await reached(run, "paused")
            await run.resume()
        await gate.reached()
    assert await finished(app, run, gate) == "given up"
    assert (len(saying), await accounts.names()) == (1, [])
    assert [step.status for step in await run.steps()] == ["cancelled", "completed", "completed"]


@only_postgres
async def test_a_function_that_hangs_is_given_up_and_rolled_back(app: Stepfast, accounts: Accounts) -> None:
    gate, bound, at_work = Gate(), Bound(), Gate()

    async def write(connection: Any) -> None:
        await accounts.write_async(connection, "a")
        await at_work.passing()

    async def late() -> None:
        await at_work.reached()
        await bound.passes()

    saying = asyncio.ensure_future(_say(late))
    order = giving_up(app, gate, lambda ctx: bound.around(ctx.transaction(write)))
    assert await seen_twice(app, gate, order) == ("given up", ["cancelled"])
    await saying
    assert await accounts.names() == []
    assert at_work.arrivals == 1


def receiver_of(app: Stepfast) -> Any:
    return listener(app, name="receiver")


@only_sqlite
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
    await outcome(app, sender, run.id)
    assert await run.result(timeout=20) == 7


@only_sqlite
async def test_a_start_is_too(app: Stepfast) -> None:
    child = task(app, "child")
    started = []

    def start(connection: Any) -> None:
        started.append(app.sync.start(child, 3, connection=connection).id)

    starter = calling(app, lambda ctx: ctx.transaction(start), name="starter", max_attempts=1)
    await (await app.start(child, 0)).status()  # its definition is stored
    await outcome(app, starter)
    assert await app.get(started[0]).result(timeout=20) == 3


@only_sqlite
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
    await failure(first, ContextMisuse.__name__)
    await failure(second, "not now")
    assert await waits.status() == "waiting"
