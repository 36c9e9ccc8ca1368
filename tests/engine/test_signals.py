"""Signals: kept until they are taken, first in first out, with timeouts and types; refused where they do not fit."""

from __future__ import annotations

import asyncio
import sqlite3
from contextlib import closing
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from enum import Enum
from functools import partial
from typing import Any

import asyncpg
import pytest

from stepfast import (
    ConfigurationError,
    Context,
    InvalidInput,
    InvalidState,
    PayloadError,
    RunNotFound,
    Settings,
    SignalTimeout,
    StepFailed,
    Stepfast,
    SyncContext,
)
from stepfast.model.ids import new_id
from stepfast.run import Run
from stepfast.testing import crash_everywhere
from tests.engine.conftest import ON_BOTH, ON_SQLITE, MakeApp
from tests.support.both_kinds import KINDS, workflow_of
from tests.support.databases import in_transaction
from tests.support.engine import PATIENCE, Calls, Gate, drained, eventually, failure, finished, interrupt
from tests.support.waiting import count, let_pass, reached, wake
from tests.support.workflows import listener

pytestmark = ON_SQLITE


@pytest.fixture
def app(make_app: MakeApp) -> Stepfast:
    """A run that waits for a signal stays in memory for a moment; a short one, because most tests wait for its end."""
    return make_app(settings=Settings(inline_wait=0.1))


# -- sent and taken -----------------------------------------------------------------------------------------------


@KINDS
@ON_BOTH
async def test_a_signal_wakes_the_run_that_waits_for_it(app: Stepfast, calls: Calls, kind: str) -> None:
    async def order(ctx: Context) -> Any:
        await ctx.step("before", lambda: calls.hit("before"))
        return await ctx.wait_signal("approved")

    workflow_of(app, kind, order)
    run = await app.start("order")
    async with app.worker(concurrency=1):
        info = await reached(run, "waiting")
        assert (info.waiting_for, info.due_at, info.worker) == ("signal:approved", None, None)
        await run.signal("approved", {"by": "me"})
        assert await run.result(timeout=PATIENCE) == {"by": "me"}
    assert calls == {"before": 1}
    assert (await run.info()).attempt == 1
    [_, signal] = await run.steps()
    assert (signal.name, signal.kind, signal.status) == ("approved", "signal", "completed")
    assert signal.output == {"by": "me"}
    assert await count(app, "mailbox", run) == 0


@pytest.mark.parametrize("moment", [0, 3600])
@pytest.mark.parametrize("first", ["before the wait", pytest.param("before the claim", marks=ON_BOTH)])
async def test_a_signal_sent_while_a_step_is_executed_is_heard_at_once(
    make_app: MakeApp, moment: float, first: str
) -> None:
    """Rule 6: before the first wait, or after the mailbox had been queried for it; however rarely the worker polls."""
    app = make_app(settings=Settings(poll_interval=60, sweep_interval=60, inline_wait=moment))
    gate = Gate()

    @app.workflow
    async def order(ctx: Context) -> list[Any]:
        if first == "before the wait":
            await ctx.step(gate.passing)
        got = await ctx.wait_signal("approved")
        await ctx.step("again", gate.passing)
        return [got, await ctx.wait_signal("approved")]

    run = await app.start(order)
    if first == "before the claim":
        await run.signal("approved", 1)
    async with app.worker():
        await gate.reached()
        if first == "before the wait":
            await run.signal("approved", 1)
        await run.signal("approved", 2)
        gate.open()
        assert await run.result(timeout=PATIENCE) == [1, 2]


@ON_BOTH
async def test_signals_sent_before_the_claim_are_kept_first_in_first_out_per_name(app: Stepfast) -> None:
    run = await app.start(listener(app, *"baabba"))
    for value, name in enumerate("aabbab"):
        await run.signal(name, value)
    assert await finished(app, run) == [2, 0, 1, 3, 5, 4]


async def test_a_signal_of_another_name_is_kept_and_the_run_waits_on(app: Stepfast) -> None:
    run = await drained(app, listener(app, "first", "second"))
    await run.signal("second", 2)
    await app.drain()
    info = await run.info()
    assert (info.status, info.waiting_for) == ("waiting", "signal:first")
    await run.signal("first", 1)
    assert await finished(app, run) == [1, 2]


# -- timeouts -----------------------------------------------------------------------------------------------------


@KINDS
@ON_BOTH
async def test_a_timeout_can_be_handled(app: Stepfast, calls: Calls, kind: str) -> None:
    """SignalTimeout is a TimeoutError, and a replay sees it too, also when the signal came in between."""
    gate = Gate()

    async def order(ctx: Context) -> str:
        try:
            return str(await ctx.wait_signal("approved", timeout=timedelta(days=3)))
        except TimeoutError as error:
            calls.hit("late")
            await ctx.step(gate.passing)
            return f"{type(error).__name__}: {error}"

    run = await drained(app, workflow_of(app, kind, order))
    info = await run.info()
    assert info.waiting_for == "signal:approved"
    assert info.due_at is not None and info.due_at - info.read_at > timedelta(days=2.9)
    await let_pass(app, run, 3 * 86400 + 1)
    await interrupt(app, gate)
    await run.signal("approved", "too late")
    assert await finished(app, run, gate) == "SignalTimeout: no signal 'approved' came within 259200 s"
    assert calls["late"] == 2


@ON_BOTH
async def test_a_timeout_that_is_not_handled_fails_the_run_at_once(app: Stepfast) -> None:
    run = await drained(app, listener(app, "approved", timeout=0.05))
    caught = await failure(run, "approved")
    assert caught.error_type == "SignalTimeout"
    assert (await run.info()).attempt == 1


async def test_the_end_of_a_timeout_is_decided_once(app: Stepfast) -> None:
    run = await drained(app, listener(app, "approved", timeout=3600))
    first = (await run.info()).due_at
    for wakes in (partial(run.signal, "other"), partial(wake, app, run)):
        await wakes()
        await app.drain()
        info = await run.info()
        assert (info.status, info.due_at) == ("waiting", first)


async def test_a_signal_in_time_settles_the_wait_before_its_timeout(app: Stepfast) -> None:
    gate = Gate()

    @app.workflow
    async def order(ctx: Context) -> Any:
        value = await ctx.wait_signal("approved", timeout=3600)
        await ctx.step(gate.passing)
        return value

    run = await drained(app, order)
    await run.signal("approved", 1)
    await interrupt(app, gate)
    await let_pass(app, run, 7200)
    assert await finished(app, run, gate) == 1
    assert await count(app, "steps", run) == 2


@ON_BOTH
async def test_a_signal_that_came_in_time_counts_although_no_worker_was_there(app: Stepfast) -> None:
    """The workers were away when it came, and when the time was up."""
    run = await drained(app, listener(app, "approved", timeout=3600))
    await run.signal("approved", 1)
    await let_pass(app, run, 7200)
    assert await finished(app, run) == 1


async def test_a_signal_that_came_too_late_is_there_for_the_next_wait(app: Stepfast) -> None:
    @app.workflow
    async def order(ctx: Context) -> Any:
        try:
            await ctx.wait_signal("approved", timeout=0.02)
        except SignalTimeout:
            return await ctx.wait_signal("approved")

    run = await drained(app, order)
    assert await run.status() == "waiting"
    await run.signal("approved", "late")
    assert await finished(app, run) == "late"


# -- an own timeout, another task ---------------------------------------------------------------------------------


async def test_a_wait_given_up_by_the_workflow_replays_so_and_takes_nothing(app: Stepfast, calls: Calls) -> None:
    """Rule 19: the signal that comes later is for the next wait."""
    gate = Gate()

    @app.workflow
    async def order(ctx: Context) -> Any:
        try:
            async with asyncio.timeout(0.05):
                await ctx.wait_signal("go")
            calls.hit("in time")
        except TimeoutError:
            calls.hit("given up")
        await ctx.step(gate.passing)
        return await ctx.wait_signal("go")

    run = await app.start(order)
    await interrupt(app, gate)
    [wait, *_] = await run.steps()
    assert (wait.kind, wait.status) == ("signal", "cancelled")
    await run.signal("go", 1)
    assert await finished(app, run, gate) == 1
    assert calls == {"given up": 2}


class Colour(Enum):
    RED = "red"


@dataclass
class Order:
    id: str
    cents: int


# -- types --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("type_", "value"),
    [
        (bool, True), (bool, False), (int, 0), (str, ""), (type(None), None), (Order, Order("o-1", 5)),
        (list[Order], [Order("o-1", 5)]), (tuple[int, str], (1, "x")), (dict[int, str], {1: "x"}),
        (datetime, datetime(2026, 1, 2, tzinfo=UTC)), (Decimal, Decimal("1.10")), (Colour, Colour.RED),
        (bytes, b"\0\xff"), (Any, {"a": [1, None]}),
    ],
)  # fmt: skip
async def test_a_value_has_its_type_live_and_replayed(app: Stepfast, type_: Any, value: Any) -> None:
    """Rule 13."""
    gate = Gate()
    seen: list[Any] = []

    @app.workflow
    async def order(ctx: Context) -> None:
        seen.append(await ctx.wait_signal("go", type=type_))
        await ctx.step(gate.passing)

    run = await app.start(order)
    await run.signal("go", value)
    await interrupt(app, gate)
    await finished(app, run, gate)
    assert seen == [value, value]
    assert [type(each) for each in seen] == [type(value)] * 2


@KINDS
async def test_a_value_of_the_wrong_type_that_was_sent_before_is_left_and_logged(
    app: Stepfast, caplog: pytest.LogCaptureFixture, kind: str
) -> None:
    """The next one that fits is taken, on every replay."""
    gate = Gate()

    async def order(ctx: Context) -> int:
        amount = await ctx.wait_signal("amount", type=int)
        await ctx.step(gate.passing)
        return amount

    run = await app.start(workflow_of(app, kind, order))
    await run.signal("amount", "a secret lot")
    await app.drain()
    info = await run.info()
    assert (info.status, info.waiting_for) == ("waiting", "signal:amount")
    assert "'amount' came whose value does not fit" in caplog.text
    [step] = await run.steps()
    assert step.status == "waiting" and step.detail is not None and "Expected `int`, got `str`" in step.detail
    assert "secret" not in caplog.text + step.detail
    await run.signal("amount", 7)
    await interrupt(app, gate)
    assert await finished(app, run, gate) == 7


@ON_BOTH
async def test_a_value_that_a_waiting_run_would_not_take_is_refused_where_it_is_sent(make_app: MakeApp) -> None:
    app = make_app(settings=Settings(inline_wait=0))

    @app.workflow
    async def order(ctx: Context) -> list[Any]:
        got = [await ctx.wait_signal("one", type=bool)]
        got.append(await ctx.wait_signal("two", type=dict[str, int], timeout=3600))
        winner, value = await ctx.first(number=ctx.wait_signal("any", type=int), text=ctx.wait_signal("any", type=str))
        return [*got, winner, value]

    run = await drained(app, order)
    with pytest.raises(InvalidInput, match=r"signal 'one'.*boolean.*string"):
        await run.signal("one", "true")
    await run.signal("one", True)
    await app.drain()
    with pytest.raises(InvalidInput, match=r"\$\.cents"):
        await run.signal("two", {"cents": "many"})
    await run.signal("another", "of which nobody knows what it is for")
    await run.signal("two", {"cents": 5})
    await app.drain()
    with pytest.raises(InvalidInput):
        await run.signal("any", [1])
    await run.signal("any", "word")  # one of them would take it
    assert await finished(app, run) == [True, {"cents": 5}, "text", "word"]


async def test_a_value_that_one_wait_does_not_take_is_there_for_another(app: Stepfast) -> None:
    @app.workflow
    async def order(ctx: Context) -> list[Any]:
        number = await ctx.wait_signal("value", type=int)
        return [number, await ctx.wait_signal("value", type=str)]

    run = await app.start(order)
    await run.signal("value", "word")
    await run.signal("value", 7)
    assert await finished(app, run) == [7, "word"]
    assert await count(app, "mailbox", run) == 0


# -- refused ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("end", ["completed", "failed", "cancelled"])
async def test_a_run_that_has_ended_takes_no_signals(app: Stepfast, end: str) -> None:
    @app.workflow(max_attempts=1)
    async def order(ctx: Context) -> None:
        if end == "failed":
            raise ValueError("no")

    run = await app.start(order)
    if end == "cancelled":
        await run.cancel()
    await app.drain()
    with pytest.raises(InvalidState, match=f"{run.id} is {end}"):
        await run.signal("go", 1)
    assert await count(app, "mailbox", run) == 0


async def test_an_unknown_run_takes_no_signals(app: Stepfast) -> None:
    unknown = new_id()
    with pytest.raises(RunNotFound, match=unknown):
        await app.signal(unknown, "go", 1)


async def test_a_signal_that_cannot_be_sent_is_refused_by_name(app: Stepfast) -> None:
    run = await app.start(listener(app))
    with pytest.raises(PayloadError, match="signal 'go'"):
        await run.signal("go", object())
    for name in ("", "x" * 1000):
        with pytest.raises(ConfigurationError, match="name of a signal"):
            await run.signal(name)
    assert await count(app, "mailbox", run) == 0


async def test_signals_can_be_sent_without_an_event_loop(app: Stepfast) -> None:
    run = await app.start(listener(app, "go", "go"))
    await asyncio.to_thread(app.sync.get(run.id).signal, "go", 1)
    await asyncio.to_thread(app.sync.signal, run.id, "go", 2)
    assert await finished(app, run) == [1, 2]


# -- what a signal costs its sender -------------------------------------------------------------------------------


@pytest.mark.parametrize(("type_", "statements"), [(Any, 1), (int, 2)], ids=["of any type", "of a type"])
async def test_a_signal_costs_its_sender_one_round_trip_and_one_more_if_its_value_is_checked(
    postgres_url: str, type_: Any, statements: int
) -> None:
    """Statements are counted where the driver sends them, without those by which a given pool resets a session."""
    sent: list[str] = []

    async def spy(connection: Any) -> None:
        connection.add_query_logger(lambda record: sent.append(record.query))

    async with (
        asyncpg.create_pool(postgres_url, min_size=0, init=spy) as pool,
        Stepfast(pool=pool, settings=Settings(inline_wait=0)) as app,
    ):

        @app.workflow
        async def order(ctx: Context) -> Any:
            return await ctx.wait_signal("go", type=type_)

        run = await drained(app, order)
        sent.clear()
        await run.signal("go", 5)
        assert len([query for query in sent if "pg_advisory_unlock_all" not in query]) == statements
        assert await finished(app, run) == 5


# -- sent once ----------------------------------------------------------------------------------------------------


@ON_BOTH
async def test_of_signals_with_one_id_a_run_takes_one(app: Stepfast) -> None:
    """Sent by many at once, again after it was taken, by way of a later run of the chain, and after its end."""

    @app.workflow
    async def chat(ctx: Context, heard: list[str]) -> list[str]:
        heard = [*heard, await ctx.wait_signal("say", type=str)]
        return heard if len(heard) == 3 else ctx.continue_as(heard)

    run = await app.start(chat, [])
    async with app.worker():
        await asyncio.gather(*(run.signal("say", "a", id="1") for _ in range(5)))
        while (next_id := await (await app.store()).continuation(run.id)) == run.id:
            await asyncio.sleep(0.01)
        await app.signal(next_id, "say", "a again", id="1")
        await run.signal("say", "b")
        await run.signal("say", "c", id="2")
        assert await run.result(timeout=PATIENCE) == ["a", "b", "c"]
        await run.signal("say", "late", id="2")
        with pytest.raises(InvalidState):
            await run.signal("say", "late", id="3")
    assert await run.values() == {}


async def taken(run: Run[Any]) -> bool:
    return any(step.status == "completed" for step in await run.steps())


@ON_BOTH
async def test_a_signal_with_an_id_joins_a_transaction_once(app: Stepfast) -> None:
    async def leave(value: str) -> None:
        if app.url.kind == "sqlite":
            assert app.url.path is not None
            with closing(sqlite3.connect(app.url.path, timeout=30)) as connection, connection:
                await run.signal("item", value, id="x", connection=connection)
        else:
            async with in_transaction(app.url.text) as session:
                await run.signal("item", value, id="x", connection=session)

    run = await app.start(listener(app, "item", "item"))
    await leave("first")
    await leave("second")
    async with app.worker():
        await eventually(lambda: taken(run))
        await leave("third")
        await run.signal("item", "fourth", id="x")
        await run.signal("item", "last")
        assert await run.result(timeout=PATIENCE) == ["first", "last"]


@ON_BOTH
async def test_many_runs_are_signalled_by_one_call(app: Stepfast) -> None:
    two, one, ended = await app.start_many(listener(app, "go", "go"), [None] * 3)
    await ended.cancel()
    signals = [(two.id, "go", 1), (ended.id, "go", 0), (one.id, "go", 3), (two.id, "go", 2), (one.id, "go", 4)]
    with pytest.raises(ExceptionGroup, match="1 of 5 signals were refused") as refused:
        await app.signal_many(signals, ids=list("abcde"))
    assert isinstance(refused.value.exceptions[0], InvalidState)
    with pytest.raises(ConfigurationError, match="5 signals and 1 ids"):
        await app.signal_many(signals, ids=["a"])
    await asyncio.to_thread(app.sync.signal_many, [(two.id, "go", 9)], ids=["a"])
    await app.drain()
    assert [await two.result(timeout=PATIENCE), await one.result(timeout=PATIENCE)] == [[1, 2], [3, 4]]


async def test_a_run_signals_another_once_whatever_crashes(app: Stepfast) -> None:
    heard = listener(app, "go", "go", name="heard")

    @app.workflow
    async def teller(ctx: Context) -> list[Any]:
        child = await ctx.start(heard)
        await ctx.signal(child.id, "go", 1)
        refused = []
        for target in (missing, "nobody"):
            try:
                await ctx.signal(target, "go", 2)
            except StepFailed as error:
                refused.append(error.error_type)
        await ctx.signal(child.id, "go", 3)
        return [await child.result(), *refused]

    missing = new_id()
    report = await crash_everywhere(app, teller)
    assert report.result == [[1, 3], "RunNotFound", "RunNotFound"]
    async with app.worker():
        run = await app.start(teller)
        assert await run.result(timeout=PATIENCE) == report.result
    sent = [(step.name, step.status, step.position) for step in await run.steps() if step.kind == "send"]
    assert [each[:2] for each in sent] == [("go", s) for s in ("completed", "failed", "failed", "completed")]
    assert {"run": missing} in [call.parameters for call in await run.activity()]


async def test_a_plain_def_signals_itself(app: Stepfast) -> None:
    @app.workflow
    def order(ctx: SyncContext) -> Any:
        ctx.signal(ctx.run_id, "go", 1)
        return ctx.wait_signal("go")

    assert await (await drained(app, order)).result(timeout=PATIENCE) == 1
