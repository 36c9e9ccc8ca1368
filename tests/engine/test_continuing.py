"""``ctx.continue_as``: a run ends and goes on as another, with an empty history (rule 23)."""

from __future__ import annotations

import asyncio
from datetime import timedelta
from typing import Any

import pytest

from stepfast import (
    Context,
    InvalidState,
    NonRetryableError,
    RunCancelled,
    Settings,
    SignalTimeout,
    Stepfast,
    SyncContext,
)
from stepfast.errors import DatabaseUnavailable
from tests.engine.conftest import MakeApp
from tests.support.crashing import crash_at
from tests.support.engine import (
    Calls,
    Gate,
    ThreadGate,
    drained,
    eventually,
    failure,
    finished,
    outcome,
    worked,
)
from tests.support.waiting import deafen, reached, rows_of
from tests.worker.spying import wrap

pytestmark = pytest.mark.enough_on("sqlite")


def add_counter(app: Stepfast, calls: Calls, last: int) -> None:
    @app.workflow
    async def counter(ctx: Context, number: int) -> str:
        await ctx.step("count", lambda: calls.hit(f"count {number}"))
        if number < last:
            ctx.continue_as(number + 1)
        return f"ended at {number}"


async def chain_of(app: Stepfast, first: str) -> list[Any]:
    """The runs of a chain, oldest first."""
    infos = {info.origin: info for info in await app.runs(limit=1000)}
    chain = [await app.get(first).this.info()]
    while chain[-1].id in infos:
        chain.append(infos[chain[-1].id])
    return chain


async def test_the_result_is_that_of_the_last(app: Stepfast, calls: Calls) -> None:
    """Whoever waits for the first waits for the whole chain."""
    add_counter(app, calls, 3)
    assert await worked(app, await app.start("counter", 0)) == "ended at 3"
    assert calls == {f"count {n}": 1 for n in range(4)}


async def test_each_of_a_chain_has_a_history_of_its_own_and_names_the_one_before(app: Stepfast, calls: Calls) -> None:
    add_counter(app, calls, 2)
    run = await drained(app, "counter", 0)
    chain = await chain_of(app, run.id)
    assert [(info.input, info.status, info.reason) for info in chain] == [
        (0, "completed", "continued"), (1, "completed", "continued"), (2, "completed", None),
    ]  # fmt: skip
    assert [info.origin for info in chain] == [None, chain[0].id, chain[1].id]
    for info in chain:
        assert [s.name for s in await app.get(info.id).this.steps()] == ["count"]


async def test_a_plain_def_goes_on_as_another_too(app: Stepfast) -> None:
    @app.workflow
    def counter(ctx: SyncContext, number: int) -> int:
        if number < 2:
            ctx.continue_as(number + 1)
        return number

    assert await outcome(app, counter, 0) == 2


async def test_the_next_keeps_queue_priority_and_tags(app: Stepfast, calls: Calls) -> None:
    add_counter(app, calls, 1)
    run = await drained(app, "counter", 0, queue="vip", priority=5, tags=["a"])
    _, successor = await chain_of(app, run.id)
    assert (successor.queue, successor.priority, successor.tags) == ("vip", 5, ["a"])


async def test_a_chain_has_one_deadline(app: Stepfast, calls: Calls) -> None:
    """The next has what is left of it: here an hour of a day."""
    add_counter(app, calls, 1)
    run = await app.start("counter", 0, deadline=timedelta(days=1))
    async with rows_of(app) as rows:
        await rows.shift(run.id, "deadline_at", -23 * 3_600_000)
    await app.drain()
    first, successor = await chain_of(app, run.id)
    assert first.deadline <= successor.deadline < first.deadline + timedelta(hours=1)


async def test_a_chain_that_had_no_deadline_has_none(app: Stepfast, calls: Calls) -> None:
    add_counter(app, calls, 1)
    run = await drained(app, "counter", 0)
    assert [info.deadline for info in await chain_of(app, run.id)] == [None, None]


async def test_an_input_that_does_not_fit_is_refused(app: Stepfast) -> None:
    @app.workflow(max_attempts=1)
    async def counter(ctx: Context, number: int) -> None:
        ctx.continue_as("many")

    failed = await failure(await drained(app, counter, 0))
    assert failed.error_type == "InvalidInput"
    assert len(await app.runs()) == 1


@pytest.mark.enough_on("postgres", "sqlite")
async def test_signals_that_were_not_taken_go_along(app: Stepfast) -> None:
    """In their order; also those sent to the first of the chain before it ended."""

    @app.workflow
    async def inbox(ctx: Context, seen: list[str]) -> list[str]:
        seen = [*seen, await ctx.wait_signal("word", type=str)]
        if len(seen) < 3:
            ctx.continue_as(seen)
        return seen

    run = await app.start(inbox, [])
    for word in "abc":
        await run.signal("word", word)
    assert await finished(app, run) == ["a", "b", "c"]


@pytest.mark.parametrize("written", [False, True], ids=["before the commit", "after the commit"])
@pytest.mark.enough_on("postgres", "sqlite")
async def test_a_crash_when_it_goes_on_makes_one_successor(app: Stepfast, calls: Calls, written: bool) -> None:
    """End and start are one transaction."""
    add_counter(app, calls, 1)
    run = await app.start("counter", 0)
    await crash_at(app, lambda batch: any(m.successor for m in batch.transitions), written=written)
    assert len(await app.runs()) == (2 if written else 1)
    assert await finished(app, run) == "ended at 1"
    assert len(await app.runs()) == 2
    assert calls == {"count 0": 1, "count 1": 1}


async def test_catching_it_changes_nothing(app: Stepfast, calls: Calls) -> None:
    """Rule 20: the run has decided to go on as another."""

    @app.workflow
    async def counter(ctx: Context, number: int) -> str:
        if number == 0:
            try:
                ctx.continue_as(1)
            except BaseException:
                calls.hit("caught")
            return "wrong"
        return "right"

    run = await drained(app, counter, 0)
    assert await run.result() == "right"
    assert calls == {"caught": 1}


async def test_a_branch_may_let_the_run_go_on_as_another(app: Stepfast) -> None:
    """The other branches are given up, whatever they wait for."""

    async def waits(ctx: Context) -> None:
        await ctx.wait_signal("never")

    async def busy(ctx: Context) -> None:
        await ctx.step("hang", asyncio.Event().wait)

    async def decides(ctx: Context) -> None:
        await ctx.step("decide", lambda: None)
        ctx.continue_as(1)

    @app.workflow
    async def order(ctx: Context, number: int) -> int:
        if number == 0:
            await ctx.gather(ctx.branch(waits), ctx.branch(busy), ctx.branch(decides))
        return number

    assert await worked(app, await app.start(order, 0)) == 1


async def test_going_on_inside_a_step_is_refused(app: Stepfast) -> None:
    @app.workflow(max_attempts=1)
    async def order(ctx: Context, number: int) -> None:
        def inside() -> None:
            ctx.continue_as(1)

        await ctx.step(inside)

    await failure(await drained(app, order, 0), r"ctx\.continue_as from inside")


async def test_a_key_stays_with_the_first_of_a_chain(app: Stepfast, calls: Calls) -> None:
    """Rule 35: the same key is the same run, whose result is that of the last."""
    add_counter(app, calls, 2)
    run = await drained(app, "counter", 0, key="k")
    again = await app.start("counter", 0, key="k")
    assert again.id == run.id
    assert await again.result() == "ended at 2"
    assert len(await app.runs()) == 3


@pytest.mark.enough_on("postgres", "sqlite")
async def test_a_chain_that_fails_or_is_cancelled_tells_whoever_waits_for_the_first(app: Stepfast) -> None:
    @app.workflow(max_attempts=1)
    async def order(ctx: Context, number: int) -> None:
        if number == 0:
            ctx.continue_as(1)
        await ctx.wait_signal("never")

    run = await app.start(order, 0)
    async with app.worker():
        await reached(run.this, "completed")
        [_, last] = await chain_of(app, run.id)
        await app.get(last.id).cancel()
        with pytest.raises(RunCancelled):
            await run.result(timeout=20)


async def test_a_run_that_is_paused_in_its_last_moment_goes_on_as_a_paused_one(
    app: Stepfast, make_app: MakeApp, calls: Calls
) -> None:
    """The code does not stop at a step any more, so it is the next of the chain that is held. The worker does not hear
    of the pause before the run ends: it would pause the run itself."""
    gate, operator = ThreadGate(), make_app()
    for each in (app, operator):
        await deafen(each)

    @app.workflow
    def counter(ctx: SyncContext, number: int) -> str:
        calls.hit(f"run {number}")
        if number == 0:
            gate.passing()
            ctx.continue_as(1)
        return f"ended at {number}"

    run = await app.start(counter, 0)
    async with app.worker():
        await gate.reached()
        await operator.get(run.id).pause()
        gate.open()
        await reached(run.this, "completed")
        [_, successor] = await chain_of(app, run.id)
        assert successor.status == "paused" and successor.paused_at is not None
        await run.resume()
        assert await run.result(timeout=20) == "ended at 1"
    assert calls == {"run 0": 1, "run 1": 1}


async def test_what_is_asked_of_the_first_of_a_chain_is_asked_of_the_one_that_goes_on(
    app: Stepfast, calls: Calls
) -> None:
    def fail_once() -> None:
        if calls.hit("try") == 1:
            raise NonRetryableError("not now")

    @app.workflow
    async def waiter(ctx: Context, number: int) -> None:
        if number < 2:
            ctx.continue_as(number + 1)
        await ctx.wait_signal("go")
        await ctx.step("try", fail_once)
        await ctx.wait_signal("stop")

    run = await app.start(waiter, 0)
    async with app.worker():
        await eventually(lambda: has_waiting(app))
        await run.pause()
        [held] = await app.runs(status="paused")
        await run.resume()
        assert await app.get(held.id).status() != "paused"
        await run.signal("go")
        await failure(run)
        retried = await run.retry()
        assert retried.id == held.id
        await eventually(lambda: has_waiting(app))
        await run.cancel()
        with pytest.raises(RunCancelled):
            await run.result(timeout=20)


@pytest.mark.parametrize("taken", [True, False], ids=["taken before", "left to the next"])
@pytest.mark.enough_on("postgres", "sqlite")
async def test_a_signal_whose_reply_was_lost_comes_once_though_the_run_went_on(app: Stepfast, taken: bool) -> None:
    """Rule 10: the sender asks again, and finds that the run has gone on as another."""
    gate = Gate()

    @app.workflow
    async def relay(ctx: Context, words: list[str]) -> list[str]:
        if not words:
            await ctx.step(gate.passing)
            ctx.continue_as([await ctx.wait_signal("word", type=str) if taken else "none"])
        while True:
            try:
                words.append(await ctx.wait_signal("word", type=str, timeout=0.3))
            except SignalTimeout:
                return words

    run = await app.start(relay, [])
    lost = 0

    async def lose_the_reply(send: Any, *args: Any) -> Any:
        nonlocal lost
        asked = await send(*args)
        lost += 1
        if lost == 1:
            gate.open()
            await reached(run.this, "completed")
            raise DatabaseUnavailable("the reply was lost")
        return asked

    wrap(await app.store(), "send", lose_the_reply)
    async with app.worker():
        await gate.reached()
        await run.signal("word", "hello")
        assert await run.result(timeout=20) == (["hello"] if taken else ["none", "hello"])
    assert lost > 1


async def test_a_signal_whose_reply_was_lost_comes_once_though_one_in_the_middle_of_a_chain_took_it(
    app: Stepfast,
) -> None:
    """Rule 10: neither the run that the sender knows has taken it, nor the last of the chain."""
    gate = Gate()

    @app.workflow
    async def relay(ctx: Context, words: list[str] | None) -> list[str]:
        if words is None:
            await ctx.step(gate.passing)
            ctx.continue_as([])
        if not words:
            ctx.continue_as([await ctx.wait_signal("word", type=str)])
        try:
            return [*words, await ctx.wait_signal("word", type=str, timeout=0.3)]
        except SignalTimeout:
            return words

    run = await app.start(relay, None)
    lost = 0

    async def lose_the_reply(send: Any, *args: Any) -> Any:
        nonlocal lost
        answer = await send(*args)
        lost += 1
        if lost == 1:
            gate.open()
            await eventually(lambda: third_of_chain(app))
            raise DatabaseUnavailable("the reply was lost")
        return answer

    wrap(await app.store(), "send", lose_the_reply)
    async with app.worker():
        await gate.reached()
        await run.signal("word", "hello")
        assert await run.result(timeout=20) == ["hello"]
    assert lost > 1


async def third_of_chain(app: Stepfast) -> bool:
    return len(await app.runs()) == 3


async def has_waiting(app: Stepfast) -> bool:
    return bool(await app.runs(status="waiting"))


async def test_a_long_chain_comes_to_its_end(make_app: MakeApp, calls: Calls) -> None:
    """For work without an end: a hundred runs, each with its few records."""
    app = make_app(settings=Settings(max_records=5))

    @app.workflow
    async def counter(ctx: Context, number: int) -> int:
        for _ in range(3):
            await ctx.step("count", lambda: calls.hit("count"))
        if number < 100:
            ctx.continue_as(number + 1)
        return number

    assert await worked(app, await app.start(counter, 0), 40) == 100
    assert calls == {"count": 303}


async def test_the_limit_on_records_names_the_way_out(make_app: MakeApp) -> None:
    """Rule 23: nothing grows without a bound, and no other attempt can help."""
    app = make_app(settings=Settings(max_records=5))

    @app.workflow
    async def order(ctx: Context) -> None:
        while True:
            await ctx.step("one more", lambda: None)

    run = await drained(app, order)
    failed = await failure(run, r"ctx\.continue_as")
    assert "max_records" in failed.message and "5" in failed.message
    assert (await run.info()).attempt == 1


async def test_a_chain_of_any_length_is_followed_from_its_first(app: Stepfast) -> None:
    """Written by hand: what matters is how many there are."""

    @app.workflow
    async def loop(ctx: Context, n: int) -> str:
        return str(await ctx.wait_signal("go"))

    runs = sorted(await app.start_many(loop, list(range(1201))), key=lambda run: run.id)
    text = "char" if app.url.kind == "mysql" else "text"
    async with rows_of(app) as rows:
        await rows.fetch(
            "UPDATE [runs] AS r SET status = 'completed', reason = 'continued', place = NULL, output = "
            f"(SELECT '\"' || CAST(n.id AS {text}) || '\"' FROM [runs] n WHERE n.id > r.id ORDER BY n.id LIMIT 1) "
            "WHERE id <> ?",
            runs[-1].id,
        )
    first, last = runs[0], runs[-1]
    await first.pause()
    assert await last.status() == "paused"
    await first.resume()
    assert await last.status() == "queued"
    await first.signal("go", "on")
    assert await finished(app, first) == "on"
    with pytest.raises(InvalidState, match=last.id):
        await first.cancel()
    with pytest.raises(InvalidState, match=last.id):
        await first.retry()
