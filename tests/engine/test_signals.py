"""Signals: kept until they are taken, taken once, first in first out, and never slept over."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from enum import Enum
from typing import Any

import pytest

from stepfast import (
    Backoff,
    ConfigurationError,
    Context,
    DatabaseUnavailable,
    InvalidInput,
    InvalidState,
    PayloadError,
    RunFailed,
    RunNotFound,
    Settings,
    SignalTimeout,
    Stepfast,
    SyncContext,
)
from stepfast.engine.inbox import Inbox
from stepfast.model.ids import new_id
from stepfast.model.records import Mailbox
from tests.engine.conftest import MakeApp
from tests.support.engine import PATIENCE, Calls, Gate, eventually, interrupt
from tests.support.waiting import HARDLY_EVER, count, deafen, doomed, let_pass, reached, wake
from tests.worker.spying import wrap


class Colour(Enum):
    RED = "red"


@dataclass
class Order:
    id: str
    cents: int


@pytest.fixture
def app(make_app: MakeApp) -> Stepfast:
    """A run that waits for a signal stays in memory for a moment; a short one, because most tests wait for its end."""
    return make_app(settings=Settings(moment=0.1))


# -- sent and taken -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["async", "def"])
async def test_a_signal_wakes_the_run_that_waits_for_it(app: Stepfast, calls: Calls, kind: str) -> None:
    """The slot is free meanwhile; the value is recorded, and what came before is not done again."""
    if kind == "async":

        @app.workflow(name="order")
        async def order(ctx: Context) -> Any:
            await ctx.step("before", lambda: calls.hit("before"))
            return await ctx.wait_signal("approved")
    else:

        @app.workflow(name="order")
        def order_in_a_thread(ctx: SyncContext) -> Any:
            ctx.step("before", lambda: calls.hit("before"))
            return ctx.wait_signal("approved")

    run = await app.start("order")
    async with app.worker(concurrency=1):
        info = await reached(run, "waiting")
        assert (info.waiting_for, info.due_at, info.worker) == ("signal:approved", None, None)
        await run.signal("approved", {"by": "me"})
        assert await run.result(timeout=PATIENCE) == {"by": "me"}
    assert calls == {"before": 1}
    assert (await run.info()).attempt == 1
    [_, signal] = await run.steps()
    assert (signal.name, signal.kind, signal.status, signal.output) == (
        "approved",
        "signal",
        "completed",
        {"by": "me"},
    )
    assert await count(app, "mailbox", run) == 0


async def test_a_signal_sent_before_the_run_is_claimed_is_kept(app: Stepfast) -> None:

    @app.workflow
    async def order(ctx: Context) -> Any:
        return await ctx.wait_signal("approved")

    run = await app.start(order)
    await run.signal("approved", 1)
    await app.drain()
    assert await run.result(timeout=PATIENCE) == 1


@pytest.mark.parametrize("moment", [0, 3600])
async def test_a_signal_sent_before_the_wait_is_kept(make_app: MakeApp, moment: float) -> None:
    """The run was already executed when it came, and nobody waited for it yet. It is heard at once, however
    rarely the worker looks by itself."""
    app = make_app(settings=Settings(poll=60, sweep=60, moment=moment))
    gate = Gate()

    @app.workflow
    async def order(ctx: Context) -> list[Any]:
        await ctx.step(gate.passing)
        first = await ctx.wait_signal("approved")
        await ctx.step("again", gate.passing)
        return [first, await ctx.wait_signal("approved")]

    run = await app.start(order)
    async with app.worker():
        await gate.reached()
        await run.signal("approved", 1)
        await run.signal("approved", 2)
        gate.open()
        assert await run.result(timeout=PATIENCE) == [1, 2]


@pytest.mark.parametrize("moment", [0, 3600])
async def test_a_signal_sent_between_two_waits_is_heard_at_once(make_app: MakeApp, moment: float) -> None:
    """Rule 6: it came while a step was executed, after the mailbox had been looked into."""
    app = make_app(settings=Settings(poll=60, sweep=60, moment=moment))
    gate = Gate()

    @app.workflow
    async def order(ctx: Context) -> list[Any]:
        first = await ctx.wait_signal("approved")
        await ctx.step(gate.passing)
        return [first, await ctx.wait_signal("approved")]

    run = await app.start(order)
    async with app.worker():
        await run.signal("approved", 1)
        await gate.reached()
        await run.signal("approved", 2)
        gate.open()
        assert await run.result(timeout=PATIENCE) == [1, 2]


async def test_signals_are_first_in_first_out_per_name(app: Stepfast) -> None:
    """Those of other names neither help nor hinder."""

    @app.workflow
    async def order(ctx: Context) -> list[Any]:
        return [await ctx.wait_signal(name) for name in ("b", "a", "a", "b", "b", "a")]

    run = await app.start(order)
    for value, name in enumerate("aabbab"):
        await run.signal(name, value)
    await app.drain()
    assert await run.result(timeout=PATIENCE) == [2, 0, 1, 3, 5, 4]


async def test_two_branches_that_wait_for_one_name_get_one_each(make_app: MakeApp) -> None:
    app = make_app(settings=Settings(moment=0))

    async def wait(ctx: Context) -> Any:
        return await ctx.wait_signal("go")

    @app.workflow
    async def order(ctx: Context) -> Any:
        return await ctx.gather(ctx.branch(wait), ctx.branch(wait))

    run = await app.start(order)
    async with app.worker():
        await reached(run, "waiting")
        await run.signal("go", 1)
        await run.signal("go", 2)
        assert sorted(await run.result(timeout=PATIENCE)) == [1, 2]


async def test_a_signal_of_another_name_wakes_nobody_for_good(app: Stepfast, calls: Calls) -> None:
    """It is kept for whoever will wait for it; the run goes back to its wait."""

    @app.workflow
    async def order(ctx: Context) -> list[Any]:
        calls.hit("body")
        return [await ctx.wait_signal("first"), await ctx.wait_signal("second")]

    run = await app.start(order)
    await app.drain()
    await run.signal("second", 2)
    await app.drain()
    info = await run.info()
    assert (info.status, info.waiting_for) == ("waiting", "signal:first")
    await run.signal("first", 1)
    await app.drain()
    assert await run.result(timeout=PATIENCE) == [1, 2]


# -- types --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("type_", "value"),
    [
        (bool, True),
        (bool, False),
        (int, 0),
        (str, ""),
        (type(None), None),
        (Order, Order("o-1", 5)),
        (list[Order], [Order("o-1", 5)]),
        (tuple[int, str], (1, "x")),
        (dict[int, str], {1: "x"}),
        (datetime, datetime(2026, 1, 2, tzinfo=UTC)),
        (Decimal, Decimal("1.10")),
        (Colour, Colour.RED),
        (bytes, b"\0\xff"),
        (Any, {"a": [1, None]}),
    ],
)
@pytest.mark.enough_on("sqlite")
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
    gate.open()
    await app.drain()
    await run.result(timeout=PATIENCE)
    assert seen == [value, value]
    assert [type(each) for each in seen] == [type(value)] * 2


@pytest.mark.parametrize("kind", ["async", "def"])
async def test_a_value_of_the_wrong_type_that_was_sent_before_is_left_and_waited_past(
    app: Stepfast, caplog: pytest.LogCaptureFixture, kind: str
) -> None:
    """It ends nobody; it is told, and the next one that fits is taken, on every replay."""
    gate = Gate()
    if kind == "async":

        @app.workflow(name="order")
        async def order(ctx: Context) -> int:
            amount = await ctx.wait_signal("amount", type=int)
            await ctx.step(gate.passing)
            return amount
    else:

        @app.workflow(name="order")
        def order_in_a_thread(ctx: SyncContext) -> int:
            amount = ctx.wait_signal("amount", type=int)
            ctx.step(gate.passing)
            return amount

    run = await app.start("order")
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
    gate.open()
    await app.drain()
    assert await run.result(timeout=PATIENCE) == 7


async def test_a_value_that_a_waiting_run_would_not_take_is_refused_where_it_is_sent(make_app: MakeApp) -> None:
    app = make_app(settings=Settings(moment=0))

    @app.workflow
    async def order(ctx: Context) -> list[Any]:
        got = [await ctx.wait_signal("one", type=bool)]
        got.append(await ctx.wait_signal("two", type=dict[str, int], timeout=3600))
        winner, value = await ctx.first(number=ctx.wait_signal("any", type=int), text=ctx.wait_signal("any", type=str))
        return [*got, winner, value]

    run = await app.start(order)
    await app.drain()
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
    await app.drain()
    assert await run.result(timeout=PATIENCE) == [True, {"cents": 5}, "text", "word"]


async def test_a_value_that_one_wait_does_not_take_is_there_for_another(app: Stepfast) -> None:
    @app.workflow
    async def order(ctx: Context) -> list[Any]:
        number = await ctx.wait_signal("value", type=int)
        return [number, await ctx.wait_signal("value", type=str)]

    run = await app.start(order)
    await run.signal("value", "word")
    await run.signal("value", 7)
    await app.drain()
    assert await run.result(timeout=PATIENCE) == [7, "word"]
    assert await count(app, "mailbox", run) == 0


# -- timeouts -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["async", "def"])
async def test_a_timeout_can_be_handled(app: Stepfast, calls: Calls, kind: str) -> None:
    """SignalTimeout is a TimeoutError, and a replay sees it too, also when the signal came meanwhile."""
    gate = Gate()

    if kind == "async":

        @app.workflow(name="order")
        async def order(ctx: Context) -> str:
            try:
                return str(await ctx.wait_signal("approved", timeout=timedelta(days=3)))
            except TimeoutError as error:
                calls.hit("late")
                await ctx.step(gate.passing)
                return f"{type(error).__name__}: {error}"
    else:

        @app.workflow(name="order")
        def order_in_a_thread(ctx: SyncContext) -> str:
            try:
                return str(ctx.wait_signal("approved", timeout=timedelta(days=3)))
            except TimeoutError as error:
                calls.hit("late")
                ctx.step(gate.passing)
                return f"{type(error).__name__}: {error}"

    run = await app.start("order")
    await app.drain()
    info = await run.info()
    assert info.waiting_for == "signal:approved"
    assert info.due_at is not None and info.due_at - info.read_at > timedelta(days=2.9)
    await let_pass(app, run, 3 * 86400 + 1)
    await interrupt(app, gate)
    await run.signal("approved", "too late")
    gate.open()
    await app.drain()
    assert await run.result(timeout=PATIENCE) == "SignalTimeout: no signal 'approved' came within 259200 s"
    assert calls["late"] == 2


async def test_a_timeout_that_nobody_handles_fails_the_run_at_once(app: Stepfast) -> None:
    """No attempts are burnt on it."""

    @app.workflow
    async def order(ctx: Context) -> None:
        await ctx.wait_signal("approved", timeout=0.05)

    run = await app.start(order)
    await app.drain()
    with pytest.raises(RunFailed) as caught:
        await run.result(timeout=PATIENCE)
    assert caught.value.error_type == "SignalTimeout"
    assert "approved" in caught.value.message
    assert (await run.info()).attempt == 1


async def test_the_end_of_a_timeout_is_decided_once(app: Stepfast) -> None:
    """Whoever wakes it in between, with a signal of another name for instance, does not begin it anew."""

    @app.workflow
    async def order(ctx: Context) -> None:
        await ctx.wait_signal("approved", timeout=3600)

    run = await app.start(order)
    await app.drain()
    first = (await run.info()).due_at
    await run.signal("other")
    await app.drain()
    await wake(app, run)
    await app.drain()
    info = await run.info()
    assert (info.status, info.due_at) == ("waiting", first)


async def test_a_signal_in_time_settles_the_wait_before_its_timeout(app: Stepfast) -> None:
    """One record in the end, and the time that was decided plays no role any more."""
    gate = Gate()

    @app.workflow
    async def order(ctx: Context) -> Any:
        value = await ctx.wait_signal("approved", timeout=3600)
        await ctx.step(gate.passing)
        return value

    run = await app.start(order)
    await app.drain()
    await run.signal("approved", 1)
    await interrupt(app, gate)
    await let_pass(app, run, 7200)
    gate.open()
    await app.drain()
    assert await run.result(timeout=PATIENCE) == 1
    assert await count(app, "steps", run) == 2


async def test_a_signal_that_came_in_time_counts_although_nobody_was_there_to_take_it(app: Stepfast) -> None:
    """The workers were away when it came, and when the time was up."""

    @app.workflow
    async def order(ctx: Context) -> Any:
        return await ctx.wait_signal("approved", timeout=3600)

    run = await app.start(order)
    await app.drain()
    await run.signal("approved", 1)
    await let_pass(app, run, 7200)
    await app.drain()
    assert await run.result(timeout=PATIENCE) == 1


async def test_a_signal_that_came_too_late_is_there_for_the_next_wait(app: Stepfast) -> None:
    @app.workflow
    async def order(ctx: Context) -> Any:
        try:
            await ctx.wait_signal("approved", timeout=0.02)
        except SignalTimeout:
            return await ctx.wait_signal("approved")

    run = await app.start(order)
    await app.drain()
    assert await run.status() == "waiting"
    await run.signal("approved", "late")
    await app.drain()
    assert await run.result(timeout=PATIENCE) == "late"


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
    gate.open()
    await app.drain()
    assert await run.result(timeout=PATIENCE) == 1
    assert calls == {"given up": 2}


async def test_a_wait_in_another_task_is_refused(app: Stepfast) -> None:
    """Rule 18."""

    @app.workflow
    async def order(ctx: Context) -> None:
        async def elsewhere() -> None:
            await ctx.wait_signal("go")

        await asyncio.create_task(elsewhere())

    run = await app.start(order)
    await app.drain()
    with pytest.raises(RunFailed, match=r"ctx\.branch"):
        await run.result(timeout=PATIENCE)


async def test_a_wait_inside_a_step_is_refused(app: Stepfast) -> None:
    @app.workflow(max_attempts=1)
    async def order(ctx: Context) -> None:
        async def inside() -> None:
            await ctx.wait_signal("go")

        await ctx.step(inside)

    run = await app.start(order)
    await app.drain()
    with pytest.raises(RunFailed, match="from inside"):
        await run.result(timeout=PATIENCE)


# -- refused ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("end", ["completed", "failed", "cancelled"])
async def test_a_run_that_has_ended_takes_no_signals(app: Stepfast, end: str) -> None:
    """A clear error, and nothing is left behind."""

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
    @app.workflow
    async def order(ctx: Context) -> None:
        await ctx.wait_signal("go")

    run = await app.start(order)
    with pytest.raises(PayloadError, match="signal 'go'"):
        await run.signal("go", object())
    for name in ("", "x" * 1000):
        with pytest.raises(ConfigurationError, match="name of a signal"):
            await run.signal(name)
    assert await count(app, "mailbox", run) == 0


async def test_a_wait_that_makes_no_sense_is_refused(app: Stepfast) -> None:
    refused: list[str] = []

    @app.workflow
    async def order(ctx: Context) -> None:
        waits: list[Callable[[], Any]] = [
            lambda: ctx.wait_signal(""),
            lambda: ctx.wait_signal("go", timeout=-1),
        ]
        for wait in waits:
            try:
                await wait()
            except Exception as error:
                refused.append(type(error).__name__)

    run = await app.start(order)
    await app.drain()
    await run.result(timeout=PATIENCE)
    assert refused == ["ConfigurationError"] * 2
    assert await run.steps() == []


async def test_signals_can_be_sent_without_an_event_loop(app: Stepfast) -> None:
    @app.workflow
    async def order(ctx: Context) -> list[Any]:
        return [await ctx.wait_signal("go"), await ctx.wait_signal("go")]

    run = await app.start(order)
    await asyncio.to_thread(app.sync.get(run.id).signal, "go", 1)
    await asyncio.to_thread(app.sync.signal, run.id, "go", 2)
    await app.drain()
    assert await run.result(timeout=PATIENCE) == [1, 2]


# -- taken once ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("where", ["before the commit", "after the commit"])
async def test_a_signal_is_taken_once_although_the_worker_dies_taking_it(
    make_app: MakeApp, calls: Calls, where: str
) -> None:
    """Taking it and recording it is one transaction. The worker dies on either side of its commit."""
    victim, heir = make_app(), make_app()
    for each in (victim, heir):

        @each.workflow(name="order")
        async def order(ctx: Context) -> list[Any]:
            return [await ctx.wait_signal("go"), await ctx.wait_signal("go")]

    dying = asyncio.Event()

    async def flush(call: Callable[..., Awaitable[Any]], worker: str, batch: Any) -> Any:
        answer = None if batch.joint and where == "before the commit" else await call(worker, batch)
        if batch.joint:
            dying.set()
            await asyncio.Event().wait()
        return answer

    run = await victim.start("order")
    await run.signal("go", "first")
    wrap(await victim.store(), "flush", flush)
    async with doomed(victim):
        await asyncio.wait_for(dying.wait(), PATIENCE)
    taken = where == "after the commit"
    assert await count(heir, "mailbox", run) == (0 if taken else 1)
    assert await count(heir, "steps", run) == (1 if taken else 0)
    await heir.drain()
    assert await run.status() == "waiting"
    await run.signal("go", "second")
    await heir.drain()
    assert await heir.get(run.id).result(timeout=PATIENCE) == ["first", "second"]


async def test_a_signal_is_taken_once_although_the_reply_of_its_commit_is_lost(app: Stepfast) -> None:
    """Rule 7: the entry is written again, and matches what it wrote before."""

    @app.workflow
    async def order(ctx: Context) -> list[Any]:
        return [await ctx.wait_signal("go") for _ in range(5)]

    lost: list[int] = []

    async def flush(call: Callable[..., Awaitable[Any]], worker: str, batch: Any) -> Any:
        answer = await call(worker, batch)
        if batch.joint and len(lost) < 20 and (not lost or lost[-1] != id(batch)):
            lost.append(id(batch))
            raise DatabaseUnavailable("the reply was lost")
        return answer

    wrap(await app.store(), "flush", flush)
    run = await app.start(order)
    for value in range(5):
        await run.signal("go", value)
    await app.drain()
    assert await run.result(timeout=PATIENCE) == [0, 1, 2, 3, 4]
    assert lost


async def test_a_signal_whose_sender_heard_no_reply_is_there_once(app: Stepfast) -> None:
    """Rule 7: the sender asks again with the same id."""
    tries: list[int] = []

    async def send(call: Callable[..., Awaitable[Any]], *args: Any) -> Any:
        answer = await call(*args)
        tries.append(1)
        if len(tries) == 1:
            raise DatabaseUnavailable("the reply was lost")
        return answer

    @app.workflow
    async def order(ctx: Context) -> list[Any]:
        return [await ctx.wait_signal("go"), await ctx.wait_signal("go")]

    run = await app.start(order)
    wrap(await app.store(), "send", send)
    await run.signal("go", 1)
    assert len(tries) == 2
    assert await count(app, "mailbox", run) == 1


# -- never slept over ---------------------------------------------------------------------------------------------


async def test_many_senders_at_once_lose_nothing_and_are_not_slept_over(make_app: MakeApp) -> None:
    """Rule 6: the run goes to sleep after each signal, while others are just being sent; there is no time limit on its
    waits that could save it, and no tick that looks for what was missed."""
    number, senders = 300, 10
    app = make_app(settings=Settings(moment=0, poll=60, sweep=60))

    @app.workflow
    async def collect(ctx: Context) -> list[int]:
        return [await ctx.wait_signal("item", type=int) for _ in range(number)]

    async def send(first: int) -> None:
        for value in range(first, number, senders):
            await run.signal("item", value)

    async with app.worker():
        run = await app.start(collect)
        await asyncio.gather(*(send(first) for first in range(senders)))
        taken = await run.result(timeout=40)
    assert Counter(taken) == Counter(range(number))
    for first in range(senders):
        mine = [value for value in taken if value % senders == first]
        assert mine == sorted(mine)


async def test_a_dialogue_goes_on_whatever_the_moment_it_speaks(make_app: MakeApp) -> None:
    """Rule 6: each signal is sent as soon as the last one was taken, which is when the run lies down again."""
    app = make_app(settings=Settings(moment=0, poll=60, sweep=60))
    said = asyncio.Queue[int]()

    @app.workflow
    async def talk(ctx: Context) -> int:
        for turn in range(100):
            assert await ctx.wait_signal("word", type=int) == turn
            said.put_nowait(turn)
        return 100

    async with app.worker():
        run = await app.start(talk)
        for turn in range(100):
            await run.signal("word", turn)
            while await asyncio.wait_for(said.get(), PATIENCE) != turn:
                pass  # a replay says it again
        assert await run.result(timeout=PATIENCE) == 100


async def test_a_signal_between_look_and_release_is_not_slept_over(make_app: MakeApp) -> None:
    """Rule 6, the very moment: the record "now waiting" is on its way when the signal comes."""
    app = make_app(settings=Settings(moment=0, poll=60, sweep=60))
    on_the_way, let_go = asyncio.Event(), asyncio.Event()

    @app.workflow
    async def order(ctx: Context) -> Any:
        return await ctx.wait_signal("go")

    async def flush(call: Callable[..., Awaitable[Any]], worker: str, batch: Any) -> Any:
        if any(move.status == "waiting" for move in batch.transitions) and not let_go.is_set():
            on_the_way.set()
            await let_go.wait()
        return await call(worker, batch)

    wrap(await app.store(), "flush", flush)
    run = await app.start(order)
    async with app.worker():
        await asyncio.wait_for(on_the_way.wait(), PATIENCE)
        await run.signal("go", "heard")
        let_go.set()
        assert await run.result(timeout=PATIENCE) == "heard"


async def test_a_run_in_memory_hears_a_signal_while_a_branch_is_busy(make_app: MakeApp) -> None:
    """It cannot be released, and so not be woken by a claim; the worker looks when it is told to."""
    app = make_app(settings=HARDLY_EVER)
    gate = Gate()

    async def listener(ctx: Context) -> Any:
        value = await ctx.wait_signal("go")
        await ctx.step("open", gate.open)
        return value

    async def busy(ctx: Context) -> None:
        await ctx.step(gate.passing)

    @app.workflow
    async def order(ctx: Context) -> Any:
        value, _ = await ctx.gather(ctx.branch(listener), ctx.branch(busy))
        return value

    async with app.worker() as worker:
        run = await app.start(order)
        await gate.reached()
        await eventually(lambda: worker.duties.mailman._watched)  # the other branch waits
        await run.signal("go", 7)
        assert await run.result(timeout=PATIENCE) == 7


async def test_a_run_in_memory_hears_a_signal_by_polling_alone(make_app: MakeApp) -> None:
    """The same without wake-ups: the sender is another process, and the worker only polls."""
    app, sender = make_app(settings=Settings(poll=0.1)), make_app()
    for each in (app, sender):
        await deafen(each)
    gate = Gate()

    async def listener(ctx: Context) -> Any:
        value = await ctx.wait_signal("go")
        await ctx.step("open", gate.open)
        return value

    async def busy(ctx: Context) -> None:
        await ctx.step(gate.passing)

    @app.workflow
    async def order(ctx: Context) -> Any:
        value, _ = await ctx.gather(ctx.branch(listener), ctx.branch(busy))
        return value

    async with app.worker():
        run = await app.start(order)
        await gate.reached()
        await sender.signal(run.id, "go", 7)
        assert await run.result(timeout=PATIENCE) == 7


async def test_every_branch_begins_before_the_run_is_released(make_app: MakeApp, calls: Calls) -> None:
    """Rule 24: one that waits at once must not lay the run to rest before the others have begun."""
    app = make_app(settings=Settings(moment=0))

    async def listener(ctx: Context) -> Any:
        return await ctx.wait_signal("go")

    async def worker(ctx: Context) -> None:
        await ctx.step("work", calls.hit, "work")

    async def nested(ctx: Context) -> None:
        await ctx.gather(ctx.branch(listener), ctx.branch(worker), ctx.step("nested", calls.hit, "nested"))

    @app.workflow
    async def order(ctx: Context) -> None:
        await ctx.gather(ctx.branch(listener), ctx.branch(nested), ctx.branch(worker))

    run = await app.start(order)
    await app.drain()
    assert await run.status() == "waiting"
    assert calls == {"work": 2, "nested": 1}
    await run.signal("go")
    await run.signal("go")
    await app.drain()
    await run.result(timeout=PATIENCE)
    assert calls == {"work": 2, "nested": 1}


async def test_calls_gathered_by_asyncio_all_begin_before_the_run_is_released(make_app: MakeApp, calls: Calls) -> None:
    """Rule 24, for ``asyncio.gather``, of whose tasks the engine knows nothing."""
    app = make_app(settings=Settings(moment=0))

    @app.workflow
    async def order(ctx: Context) -> Any:
        return await asyncio.gather(ctx.wait_signal("go"), ctx.step("work", calls.hit, "work"))

    run = await app.start(order)
    await app.drain()
    assert await run.status() == "waiting"
    assert calls == {"work": 1}
    await run.signal("go", "x")
    await app.drain()
    assert await run.result(timeout=PATIENCE) == ["x", 1]


# -- what follows from them ---------------------------------------------------------------------------------------


async def test_a_signal_taken_in_one_attempt_is_known_to_the_next(app: Stepfast, calls: Calls) -> None:
    """It is a record like any other."""

    @app.workflow(backoff=Backoff(base=0, jitter=False))
    async def order(ctx: Context) -> Any:
        value = await ctx.wait_signal("go")
        return await ctx.step("fail once", fail_once, value)

    def fail_once(value: Any) -> Any:
        if calls.hit("fail") == 1:
            raise ValueError("not yet")
        return value

    run = await app.start(order)
    await run.signal("go", 5)
    await app.drain()
    assert await run.result(timeout=PATIENCE) == 5
    assert (await run.info()).attempt == 2


@pytest.mark.parametrize("approved", [True, False])
async def test_what_a_signal_says_decides_which_steps_are_run(app: Stepfast, calls: Calls, approved: bool) -> None:
    """The same way is taken on every replay."""
    gate = Gate()

    @app.workflow
    async def order(ctx: Context) -> str:
        if await ctx.wait_signal("approved", type=bool):
            await ctx.step("ship", calls.hit, "ship")
        else:
            await ctx.step("refuse", calls.hit, "refuse")
            await ctx.step("tell", calls.hit, "tell")
        await ctx.step(gate.passing)
        return "done"

    run = await app.start(order)
    await run.signal("approved", approved)
    await interrupt(app, gate)
    gate.open()
    await app.drain()
    assert await run.result(timeout=PATIENCE) == "done"
    assert calls == ({"ship": 1} if approved else {"refuse": 1, "tell": 1})


@dataclass
class Verdict:
    ok: bool
    note: str = ""


async def test_a_signal_with_a_field_that_its_type_does_not_know_is_not_taken_for_one_without(
    app: Stepfast, calls: Calls
) -> None:
    """A misspelt field would be lost; it does not fit, as any other value that does not."""

    @app.workflow
    async def order(ctx: Context) -> None:
        await ctx.wait_signal("verdict", type=Verdict)
        await ctx.step("ship", calls.hit, "ship")

    run = await app.start(order)
    await run.signal("verdict", {"ok": True, "nte": "only if it rains"})
    await app.drain()
    assert await run.status() in ("failed", "waiting")
    assert not calls


async def test_signals_that_nobody_waits_for_are_not_read(app: Stepfast, monkeypatch: pytest.MonkeyPatch) -> None:
    """A mailbox may be full of them, and is looked into about once a second. Those that are waited for come in order,
    some at a time."""
    brought: list[str] = []
    put = Inbox.put

    def noted(inbox: Inbox, box: Mailbox, *more: Any) -> None:
        brought.extend(mail.name for mail in box.mail)
        put(inbox, box, *more)

    monkeypatch.setattr(Inbox, "put", noted)

    @app.workflow
    async def collect(ctx: Context) -> list[list[int]]:
        words = [await ctx.wait_signal("word", type=int) for _ in range(40)]
        late = await ctx.gather(*(ctx.wait_signal("late", type=int) for _ in range(20)))
        return [words, sorted(late)]

    run = await app.start(collect)
    for n in range(50):
        await run.signal("other", n)
        if n < 40:
            await run.signal("word", n)
        if n < 20:
            await run.signal("late", n)
    await app.drain()
    assert await run.result(timeout=20) == [list(range(40)), list(range(20))]
    assert "other" not in brought
    assert (brought.count("word"), brought.count("late")) == (40, 20), "each is brought once"
