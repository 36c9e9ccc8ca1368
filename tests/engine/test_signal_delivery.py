"""A signal is taken once, wakes whoever waits for it, and is never slept over."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any

import pytest

from stepfast import Backoff, Context, DatabaseUnavailable, Run, Settings, Stepfast
from stepfast.engine.host import current_execution
from stepfast.engine.host import wake as time_is_up
from stepfast.engine.waits import RunMailbox
from stepfast.model.records import Mailbox
from tests.engine.conftest import MakeApp
from tests.support.engine import PATIENCE, Calls, Gate, eventually, interrupt
from tests.support.waiting import HARDLY_EVER, count, deafen, doomed, reached
from tests.worker.spying import Counted, HeldReply, wrap


@pytest.fixture
def app(make_app: MakeApp) -> Stepfast:
    """A run that waits for a signal stays in memory for a moment; a short one, because most tests wait for its end."""
    return make_app(settings=Settings(inline_wait=0.1))


# -- taken once ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("where", ["before the commit", "after the commit"])
async def test_a_signal_is_taken_once_although_the_worker_dies_taking_it(
    make_app: MakeApp, calls: Calls, where: str
) -> None:
    """Taking it and recording it is one transaction. The worker dies on either side of its commit."""
    victim, continuation = make_app(), make_app()
    for each in (victim, continuation):

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
    assert await count(continuation, "mailbox", run) == (0 if taken else 1)
    assert await count(continuation, "steps", run) == (1 if taken else 0)
    await continuation.drain()
    assert await run.status() == "waiting"
    await run.signal("go", "second")
    await continuation.drain()
    assert await continuation.get(run.id).result(timeout=PATIENCE) == ["first", "second"]


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
    app = make_app(settings=Settings(inline_wait=0, poll_interval=60, sweep_interval=60))

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
    app = make_app(settings=Settings(inline_wait=0, poll_interval=60, sweep_interval=60))
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
    app = make_app(settings=Settings(inline_wait=0, poll_interval=60, sweep_interval=60))
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
        await eventually(lambda: worker.duties.mailbox_poller._watched)  # the other branch waits
        await run.signal("go", 7)
        assert await run.result(timeout=PATIENCE) == 7


async def test_a_run_in_memory_hears_a_signal_by_polling_alone(make_app: MakeApp) -> None:
    """The same without wake-ups: the sender is another process, and the worker only polls."""
    app, sender = make_app(settings=Settings(poll_interval=0.1)), make_app()
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
    app = make_app(settings=Settings(inline_wait=0))

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
    app = make_app(settings=Settings(inline_wait=0))

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
    put = RunMailbox.put

    def noted(inbox: RunMailbox, box: Mailbox, *more: Any) -> None:
        brought.extend(mail.name for mail in box.mail)
        put(inbox, box, *more)

    monkeypatch.setattr(RunMailbox, "put", noted)

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


# -- many names at once -------------------------------------------------------------------------------------------

MANY = 30
"""More names than are remembered of those that nobody wants any more."""


@pytest.mark.parametrize("sent", ["while it waits", "before it is claimed"])
async def test_a_run_that_waits_for_many_names_at_once_is_woken_by_each(make_app: MakeApp, sent: str) -> None:
    """Of the names that it had begun to look for, the first were forgotten when it came to the last: it looked for them
    without end, kept its slot, and heard of no signal any more."""
    app = make_app(settings=Settings(inline_wait=0, poll_interval=60, sweep_interval=60))

    @app.workflow
    async def order(ctx: Context) -> list[int]:
        return list(await ctx.gather(*(ctx.wait_signal(f"part {n}", type=int) for n in range(MANY))))

    run = await app.start(order)
    if sent == "before it is claimed":
        await run.signal(f"part {MANY - 1}", MANY - 1)
    async with app.worker():
        if sent == "while it waits":
            await reached(run, "waiting")
            await run.signal(f"part {MANY - 1}", MANY - 1)
        looks = Counted(await app.store(), "mail")
        await eventually(lambda: _taken_and_waiting(app, run))
        assert len(looks) <= 5, "looking does not go on when all there is is known"
        for n in range(MANY - 1):
            await run.signal(f"part {n}", n)
        assert await run.result(timeout=PATIENCE) == list(range(MANY))


async def _taken_and_waiting(app: Stepfast, run: Run[Any]) -> bool:
    return await count(app, "mailbox", run) == 0 and await run.status() == "waiting"


async def test_a_signal_in_time_counts_although_many_names_are_waited_for_when_time_is_up(make_app: MakeApp) -> None:
    """When time is up the mailbox is looked into once more. Before that question went out other waits began, for so
    many names that this one was forgotten, and not asked for."""
    app = make_app(settings=Settings(inline_wait=3600, poll_interval=60, sweep_interval=60))
    await deafen(app)
    gate = Gate()
    executions: list[Any] = []

    async def others(ctx: Context) -> list[int]:
        await ctx.step(gate.passing)
        return list(await ctx.gather(*(ctx.wait_signal(f"part {n}", type=int) for n in range(MANY))))

    @app.workflow
    async def order(ctx: Context) -> list[Any]:
        executions.append(current_execution.get())
        return list(await ctx.gather(ctx.wait_signal("approved", timeout=3600), ctx.branch(others)))

    async with app.worker() as worker:
        run = await app.start(order)
        await gate.reached()
        [execution] = executions
        [waiting] = await eventually(lambda: list(execution.waits._open))
        earlier = HeldReply(await app.store(), "mail")
        worker.duties.mailbox_poller.look_again()
        await earlier.done()  # a look is under way: the next question goes out after it
        await run.signal("approved", "in time")
        time_is_up(waiting)
        await eventually(lambda: execution.waits.reader._looking is not None)
        gate.open()
        await eventually(lambda: len(execution.waits._open) == MANY)
        earlier.release()
        for n in range(MANY):
            await run.signal(f"part {n}", n)
        assert await run.result(timeout=PATIENCE) == ["in time", list(range(MANY))]
