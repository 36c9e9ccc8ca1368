"""Cancel: before, between and during steps; what is in flight is recorded, what comes after never runs."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from stepfast import (
    Backoff,
    Context,
    InvalidState,
    RetryLater,
    Run,
    RunCancelled,
    RunNotFound,
    Settings,
    Stepfast,
    cancelled,
)
from stepfast.model.ids import new_id
from tests.engine.conftest import ON_BOTH, ON_SQLITE, MakeApp
from tests.support.both_kinds import KINDS, workflow_of
from tests.support.engine import PATIENCE, Calls, Gate, ThreadGate, bystander, drained, eventually, finished
from tests.support.waiting import HARDLY_EVER, count, deafen, doomed, is_cancelled, let_pass
from tests.support.workflows import calling, listener, sleeper, task
from tests.worker.spying import wrap

pytestmark = ON_SQLITE

AT_ONCE = Backoff(base=0, jitter=False)


# -- while nobody executes it -------------------------------------------------------------------------------------


@pytest.mark.parametrize("when", ["before it is claimed", "before it is due", "between two attempts"])
async def test_a_run_that_is_not_executed_ends_at_once_and_does_not_come_back(
    app: Stepfast, calls: Calls, when: str
) -> None:
    @app.task(backoff=Backoff(base=60))
    async def work() -> None:
        calls.hit("work")
        raise ValueError("again")

    run = await app.start(work, delay=3600 if when == "before it is due" else None)
    if when == "between two attempts":
        await app.drain()
        assert (await run.status(), (await run.info()).attempt) == ("queued", 2)
    await run.cancel()
    await is_cancelled(run)
    await app.drain()
    assert calls["work"] == (when == "between two attempts")


@pytest.mark.parametrize("what", ["a time", "a signal", "a check", "a retry", "a child"])
@ON_BOTH
async def test_a_run_that_waits_is_cancelled_at_once(app: Stepfast, calls: Calls, what: str) -> None:
    """No worker is needed, and none wakes it any more."""

    async def fail() -> None:
        raise RetryLater(3600)

    child = task(app, "child", returns=None)

    @app.workflow
    async def order(ctx: Context) -> None:
        if what == "a time":
            await ctx.sleep(3600)
        elif what == "a signal":
            await ctx.wait_signal("go", timeout=3600)
        elif what == "a check":
            await ctx.wait_until(never, every=3600)
        elif what == "a retry":
            await ctx.options(retries=1).step(fail)
        else:
            await ctx.call(child)
        calls.hit("went on")

    async def never() -> bool:
        return False

    run = await app.start(order)
    await app.drain(queues=["order"])
    assert await run.status() == "waiting"
    await run.cancel()
    await is_cancelled(run)
    await let_pass(app, run, 7200)
    await app.drain()
    assert calls == {}


async def test_a_paused_run_can_be_cancelled(app: Stepfast) -> None:
    order = sleeper(app)
    queued, waiting = await app.start(order), await app.start(order)
    await queued.pause()
    await app.drain()
    await waiting.pause()
    for run in (queued, waiting):
        assert await run.status() == "paused"
        await run.cancel()
        await is_cancelled(run)
        with pytest.raises(InvalidState, match="cancelled"):
            await run.resume()


# -- while it is executed -----------------------------------------------------------------------------------------


async def test_a_run_cancelled_before_its_first_step_runs_none(app: Stepfast, calls: Calls) -> None:
    """The code is under way, its first step is not."""
    begun, go_on = asyncio.Event(), asyncio.Event()

    @app.workflow
    async def order(ctx: Context) -> None:
        begun.set()
        await go_on.wait()
        await ctx.step("first", calls.hit, "first")

    async with app.worker():
        run = await app.start(order)
        await asyncio.wait_for(begun.wait(), PATIENCE)
        await run.cancel()
        await is_cancelled(run)
        go_on.set()
    assert calls == {}
    assert await run.steps() == []


@KINDS
@ON_BOTH
async def test_the_step_in_flight_completes_and_the_next_never_runs(app: Stepfast, calls: Calls, kind: str) -> None:
    """Rule 27: it is recorded before the run ends."""
    gate = ThreadGate()

    def first() -> str:
        calls.hit("first")
        gate.passing()
        return "recorded"

    async def order(ctx: Context) -> None:
        await ctx.step(first)
        await ctx.step("second", calls.hit, "second")

    workflow_of(app, kind, order)
    async with app.worker():
        run = await app.start("order")
        await gate.reached()
        await run.cancel()
        info = await run.info()
        assert (info.status, info.asked) == ("running", "cancel")
        gate.open()
        await is_cancelled(run)
    assert calls == {"first": 1}
    assert [(s.name, s.status, s.output) for s in await run.steps()] == [("first", "completed", "recorded")]


async def test_an_except_around_the_steps_does_not_save_the_run(app: Stepfast, calls: Calls) -> None:
    """Rule 20: ``except Exception`` sees nothing, ``finally`` runs, and what swallows all changes nothing."""
    gate = Gate()

    @app.workflow
    async def order(ctx: Context) -> str:
        try:
            await ctx.step(gate.passing)
        except Exception:
            calls.hit("caught")
        finally:
            calls.hit("finally")
            try:
                await ctx.step("clean up", calls.hit, "clean up")
            except BaseException:
                calls.hit("refused")
        return "saved"

    async with app.worker():
        run = await app.start(order)
        await gate.reached()
        await run.cancel()
        gate.open()
        await is_cancelled(run)
    assert calls == {"finally": 1, "refused": 1}


async def test_parallel_steps_in_flight_are_recorded_before_the_end(app: Stepfast, calls: Calls) -> None:
    quick, slow, another_run = Gate(), Gate(), bystander(app)

    async def line(ctx: Context, name: str, gate: Gate) -> None:
        await ctx.step(name, gate.passing)
        await ctx.step(f"after {name}", calls.hit, name)

    order = calling(app, lambda ctx: ctx.gather(ctx.branch(line, "quick", quick), ctx.branch(line, "slow", slow)))
    async with app.worker():
        run = await app.start(order)
        await quick.reached()
        await slow.reached()
        await run.cancel()
        quick.open()
        await eventually(run.steps)
        await another_run()
        assert await run.status() == "running"
        slow.open()
        await is_cancelled(run)
    assert calls == {}
    assert sorted(s.name for s in await run.steps()) == ["quick", "slow"]


@pytest.mark.parametrize("of_the_code", [False, True], ids=["a step that is given up", "a task of the code"])
async def test_nothing_is_left_of_a_call_that_waits_for_the_last_step(app: Stepfast, of_the_code: bool) -> None:
    """It is recorded when the run is to be cancelled, and must not go on before the step in flight has ended."""
    quick, slow = Gate(), Gate()
    limits: list[asyncio.Timeout] = []
    tasks: list[asyncio.Task[None]] = []

    async def gives_up(ctx: Context) -> None:
        async with asyncio.timeout(None) as limit:
            limits.append(limit)
            await ctx.step("quick", quick.passing)

    async def code(ctx: Context) -> None:
        if of_the_code:
            tasks.append(asyncio.create_task(ctx.step("quick", quick.passing)))
            await ctx.step("slow", slow.passing)
        else:
            await ctx.gather(ctx.branch(gives_up), ctx.step("slow", slow.passing))

    def left() -> list[asyncio.Task[Any]]:
        return [task for task in asyncio.all_tasks() - before if not task.get_name().startswith("stepfast-")]

    order = calling(app, code)
    async with app.worker():
        before = asyncio.all_tasks()
        run = await app.start(order)
        await quick.reached()
        await slow.reached()
        await run.cancel()
        quick.open() if of_the_code else limits[0].reschedule(0)
        await eventually(run.steps)
        slow.open()
        await is_cancelled(run)
        await eventually(lambda: not left())
    await asyncio.gather(*tasks, return_exceptions=True)


@pytest.mark.parametrize("kind", ["step", "task"])
async def test_what_fails_while_its_run_is_cancelled_is_not_tried_again(app: Stepfast, calls: Calls, kind: str) -> None:
    """Neither by a step's own retries nor by another attempt."""
    gate = Gate()

    @app.task(backoff=AT_ONCE)
    async def fail() -> None:
        calls.hit("fail")
        await gate.passing()
        raise ValueError("no")

    order = calling(
        app, lambda ctx: ctx.options(retries=3, backoff=AT_ONCE).step("fail", fail.function), backoff=AT_ONCE
    )
    async with app.worker():
        run = await app.start(fail if kind == "task" else order)
        await gate.reached()
        await run.cancel()
        gate.open()
        await is_cancelled(run)
    assert calls["fail"] == 1


@ON_BOTH
async def test_a_run_in_memory_that_only_waits_is_cancelled_at_once(make_app: MakeApp) -> None:
    """Nothing is in flight that could be waited for."""
    app = make_app(settings=Settings(inline_wait=3600, poll_interval=60, sweep_interval=60, lease=180))
    order = calling(app, lambda ctx: ctx.gather(ctx.sleep(1800), ctx.wait_signal("go")))
    async with app.worker() as worker:
        run = await app.start(order)
        await eventually(run.steps)
        assert await run.status() == "running"
        await run.cancel()
        await is_cancelled(run)
        await eventually(lambda: worker.duties.executor.running == {})


@ON_BOTH
async def test_a_completion_that_meets_the_wish_wins(app: Stepfast) -> None:
    """Rule 27: there was no further step; what was done is told."""
    gate = Gate()
    work = task(app, "work", gate=gate, returns="done")
    async with app.worker():
        run = await app.start(work)
        await gate.reached()
        await run.cancel()
        assert (await run.info()).asked == "cancel"
        gate.open()
        assert await run.result(timeout=PATIENCE) == "done"
    info = await run.info()
    assert (info.status, info.reason, info.asked) == ("completed", None, None)


async def test_blocking_code_can_ask_whether_to_stop(app: Stepfast, calls: Calls) -> None:
    """``stepfast.cancelled()``: a task hears of the wish and may return early."""
    begun = ThreadGate()
    begun.open()

    @app.task
    def work() -> str:
        begun.passing()
        for _ in range(4000):
            if cancelled():
                return "stopped early"
            calls.hit("turn")
            time.sleep(0.005)
        return "never heard of it"

    async with app.worker():
        run = await app.start(work)
        await begun.reached()
        await run.cancel()
        assert await run.result(timeout=PATIENCE) == "stopped early"


@ON_BOTH
async def test_a_wish_survives_the_death_of_the_worker(app: Stepfast, make_app: MakeApp, calls: Calls) -> None:
    """Its next owner ends it, after the record of the step that the worker died in: that may have acted."""
    gate = Gate()
    victim = make_app()
    for each in (app, victim):

        @each.workflow(name="order")
        async def order(ctx: Context) -> None:
            await ctx.step("act", gate.passing)
            await ctx.step("next", lambda: calls.hit("next"))

    run = await app.start("order")
    async with doomed(victim):
        await gate.reached()
        await run.cancel()
    assert (await run.info()).asked == "cancel"
    gate.open()
    await app.drain()
    await is_cancelled(run)
    assert [step.name for step in await run.steps()] == ["act"]
    assert calls["next"] == 0


@ON_BOTH
async def test_a_wish_is_heeded_when_the_worker_stops(app: Stepfast, calls: Calls) -> None:
    """The worker gives the run back in the middle of a step; whoever takes it next ends it."""
    gate = Gate()

    @app.workflow
    async def order(ctx: Context) -> None:
        calls.hit("body")
        await ctx.step(gate.passing)

    async with app.worker(shutdown_grace=0):
        run = await app.start(order)
        await gate.reached()
        await run.cancel()
    await app.drain()
    await is_cancelled(run)
    assert calls["body"] == 1


@ON_BOTH
async def test_a_wish_between_look_and_release_is_not_slept_over(make_app: MakeApp) -> None:
    """Rule 6: the record "now waiting" is on its way when the operator asks."""
    app = make_app(settings=Settings(inline_wait=0, poll_interval=60, sweep_interval=60))
    on_the_way, let_go = asyncio.Event(), asyncio.Event()
    order = listener(app)

    async def flush(call: Callable[..., Awaitable[Any]], worker: str, batch: Any) -> Any:
        if any(move.status == "waiting" for move in batch.transitions):
            on_the_way.set()
            await let_go.wait()
        return await call(worker, batch)

    wrap(await app.store(), "flush", flush)
    async with app.worker():
        run = await app.start(order)
        await asyncio.wait_for(on_the_way.wait(), PATIENCE)
        await run.cancel()
        let_go.set()
        await is_cancelled(run)


@pytest.mark.parametrize("told", ["by a wake-up", "by polling"])
@ON_BOTH
async def test_an_operator_elsewhere_is_heard(make_app: MakeApp, calls: Calls, told: str) -> None:
    """Rule 4: heartbeat and flush bring the wish to the worker, which is inside a long step."""
    settings = HARDLY_EVER if told == "by a wake-up" else Settings(poll_interval=0.1, lease=1)
    app, operator = make_app(settings=settings), make_app()
    if told == "by polling":
        for each in (app, operator):
            await deafen(each)
    gate = Gate()

    async def long_step() -> None:
        await gate.passing()
        await eventually(cancelled)

    @app.workflow
    async def order(ctx: Context) -> None:
        await ctx.step(long_step)
        await ctx.step("second", calls.hit, "second")

    async with app.worker():
        run = await app.start(order)
        await gate.reached()
        gate.open()
        await operator.get(run.id).cancel()
        await is_cancelled(run)
    assert calls == {}


# -- the other verbs ----------------------------------------------------------------------------------------------


async def test_cancelling_twice_is_cancelling_once(app: Stepfast) -> None:
    gate = Gate()
    order = calling(app, lambda ctx: ctx.step(gate.passing))
    queued = await app.start(order, delay=3600)
    await queued.cancel()
    ended = (await queued.info()).completed_at
    await queued.cancel()
    assert (await queued.info()).completed_at == ended
    async with app.worker():
        run = await app.start(order)
        await gate.reached()
        await run.cancel()
        await run.cancel()
        gate.open()
        await is_cancelled(run)
    await run.cancel()


@pytest.mark.parametrize("end", ["completed", "failed"])
async def test_a_run_that_has_ended_otherwise_cannot_be_cancelled(app: Stepfast, end: str) -> None:
    @app.task(max_attempts=1)
    async def work() -> None:
        if end == "failed":
            raise ValueError("no")

    run = await drained(app, work)
    before = await run.info()
    with pytest.raises(InvalidState, match=f"{run.id} is {end}"):
        await run.cancel()
    after = await run.info()
    assert (after.status, after.reason, after.completed_at) == (end, before.reason, before.completed_at)


async def test_an_unknown_run_cannot_be_cancelled(app: Stepfast) -> None:
    with pytest.raises(RunNotFound):
        await app.get(new_id()).cancel()


@ON_BOTH
async def test_a_cancelled_run_can_be_retried(app: Stepfast, calls: Calls) -> None:
    """Terminal states change only by an operator's retry: it goes on where it was."""
    gate = Gate()

    @app.workflow
    async def order(ctx: Context) -> list[int]:
        first = await ctx.step("first", calls.hit, "first")
        await ctx.step(gate.passing)
        return [first, await ctx.step("last", calls.hit, "last")]

    async with app.worker():
        run = await app.start(order)
        await gate.reached()
        await run.cancel()
        gate.open()
        await is_cancelled(run)
        await run.retry()
        assert await run.result(timeout=PATIENCE) == [1, 1]
    assert gate.arrivals == 1
    assert calls == {"first": 1, "last": 1}


async def test_mail_of_a_cancelled_run_is_there_after_a_retry(app: Stepfast) -> None:
    """Nothing wakes the cancelled run by it."""
    order = listener(app)
    run = await app.start(order)
    await run.signal("go", 1)
    await run.cancel()
    await app.drain()
    await is_cancelled(run)
    await run.retry()
    assert await finished(app, run) == 1
    assert await count(app, "mailbox", run) == 0


@ON_BOTH
async def test_many_are_cancelled_while_they_are_executed(app: Stepfast, calls: Calls) -> None:
    """Each ends once, whatever it was doing when the wish came."""

    @app.workflow
    async def order(ctx: Context, number: int) -> int:
        for turn in range(20):
            await ctx.step("work", lambda: asyncio.sleep(0))
            if turn % 5 == number % 5:
                await ctx.sleep(0.001)
        return number

    async with app.worker(concurrency=20):
        runs = await app.start_many(order, list(range(60)))
        outcomes = await asyncio.gather(*(one(run) for run in runs))
    statuses = [await run.status() for run in runs]
    assert statuses == outcomes
    assert set(statuses) <= {"completed", "cancelled"} and "cancelled" in statuses


async def one(run: Run[Any]) -> str:
    try:
        await run.cancel()
    except InvalidState:
        pass
    try:
        await run.result(timeout=PATIENCE)
    except RunCancelled:
        return "cancelled"
    return "completed"


# -- a cancelled run, those who wait for it, and its children


# -- those who wait for it, and its children ----------------------------------------------------------------------


@ON_BOTH
async def test_whoever_waits_for_the_result_hears_of_it(make_app: MakeApp) -> None:
    """RunCancelled, in this process and in another, without a poll."""
    app, elsewhere = make_app(settings=HARDLY_EVER), make_app()
    order = listener(app)
    run = await app.start(order)
    waiters = [asyncio.create_task(each.get(run.id).result(timeout=PATIENCE)) for each in (app, app, elsewhere)]
    await app.drain()
    assert not any(waiter.done() for waiter in waiters)
    await run.cancel()
    outcomes = await asyncio.gather(*waiters, return_exceptions=True)
    assert [type(outcome) for outcome in outcomes] == [RunCancelled] * 3


@ON_BOTH
async def test_a_child_that_is_running_here_is_told_at_once(make_app: MakeApp) -> None:
    """A task is one piece of work, and is told by ``cancelled()``: not only by the next heartbeat, which may be long in
    coming."""
    app = make_app(settings=Settings(lease=600))
    begun, told = asyncio.Event(), asyncio.Event()

    @app.task
    async def child() -> None:
        begun.set()
        while not cancelled():
            await asyncio.sleep(0.01)
        told.set()

    parent = calling(app, lambda ctx: ctx.call(child), name="parent")
    async with app.worker():
        run = await app.start(parent)
        async with asyncio.timeout(PATIENCE):
            await begun.wait()
            await run.cancel()
            await told.wait()
            await is_cancelled(run)


@ON_BOTH
async def test_a_run_that_is_to_be_cancelled_starts_no_child(app: Stepfast, calls: Calls) -> None:
    """Rule 27: a start that is on its way when the wish is written is barred."""
    on_the_way, let_go = asyncio.Event(), asyncio.Event()

    @app.task
    async def child() -> None:
        calls.hit("child")

    @app.workflow
    async def parent(ctx: Context) -> None:
        await ctx.start(child)
        await ctx.step("second", calls.hit, "second")

    async def flush(call: Callable[..., Awaitable[Any]], worker: str, batch: Any) -> Any:
        if any(entry.starts for entry in batch.joint):
            on_the_way.set()
            await let_go.wait()
        return await call(worker, batch)

    wrap(await app.store(), "flush", flush)
    async with app.worker():
        run = await app.start(parent)
        await asyncio.wait_for(on_the_way.wait(), PATIENCE)
        await run.cancel()
        let_go.set()
        await is_cancelled(run)
    await app.drain()
    assert calls == {}
    assert await app.runs(workflow="child") == []
