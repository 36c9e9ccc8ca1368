"""Pause and resume by an operator: held from the next step on, nothing lost, and no sleep made shorter."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from datetime import UTC, datetime, timedelta
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
)
from stepfast.engine.timers import wakes_at
from stepfast.model.ids import new_id
from tests.engine.conftest import ON_BOTH, ON_SQLITE, MakeApp
from tests.support.both_kinds import KINDS, workflow_of
from tests.support.engine import PATIENCE, Calls, Gate, ThreadGate, bystander, drained, eventually, failure, finished
from tests.support.waiting import HARDLY_EVER, deafen, doomed, let_pass, reached
from tests.support.workflows import calling, listener, sleeper, task
from tests.worker.spying import wrap

pytestmark = ON_SQLITE

AT_ONCE = Backoff(base=0, jitter=False)


async def asked(run: Run[Any], what: str) -> None:
    """Wait until the wish is written into the row."""

    async def there() -> bool:
        return (await run.info()).asked == what

    await eventually(there)


# -- before it is executed ----------------------------------------------------------------------------------------


async def test_a_run_paused_before_it_is_claimed_is_not_executed(app: Stepfast, calls: Calls) -> None:
    @app.workflow
    async def order(ctx: Context) -> int:
        return calls.hit("body")

    run = await app.start(order)
    await run.pause()
    await app.drain()
    info = await run.info()
    assert (info.status, info.ready, info.worker) == ("paused", False, None)
    assert calls == {}
    await run.resume()
    assert await finished(app, run) == 1


async def test_a_delayed_run_is_not_early_after_a_pause(app: Stepfast) -> None:
    work = task(app, "work", returns=None)
    run = await app.start(work, delay=3600)
    due_at = (await run.info()).due_at
    await run.pause()
    await app.drain()
    assert await run.status() == "paused"
    await run.resume()
    await app.drain()
    info = await run.info()
    assert (info.status, info.due_at) == ("queued", due_at)


async def test_a_run_paused_between_two_attempts_keeps_its_time(app: Stepfast, calls: Calls) -> None:
    @app.task
    async def work() -> str:
        if calls.hit("work") == 1:
            raise RetryLater(3600)
        return "done"

    run = await drained(app, work)
    due_at = (await run.info()).due_at
    await run.pause()
    await run.resume()
    await app.drain()
    info = await run.info()
    assert (info.status, info.due_at, info.attempt) == ("queued", due_at, 2)
    await run.pause()
    await let_pass(app, run, 3601)
    await app.drain()
    assert (await run.status(), calls["work"]) == ("paused", 1)
    await run.resume()
    assert await finished(app, run) == "done"


# -- while it waits -----------------------------------------------------------------------------------------------


async def test_resume_never_shortens_a_sleep(app: Stepfast) -> None:
    order = sleeper(app)
    run = await drained(app, order)
    due_at = (await run.info()).due_at
    for _ in range(2):
        await run.pause()
        assert (await run.info()).waiting_for == "time"
        await app.drain()
        assert await run.status() == "paused"
        await run.resume()
        await app.drain()
        info = await run.info()
        assert (info.status, info.waiting_for, info.due_at) == ("waiting", "time", due_at)


async def two_signals(ctx: Context) -> list[Any]:
    return [await ctx.wait_signal("go"), await ctx.wait_signal("go")]


async def signal_in_time(ctx: Context) -> str:
    try:
        return str(await ctx.wait_signal("go", timeout=3600))
    except TimeoutError:
        return "late"


WAITING: dict[str, tuple[Callable[[Context], Any], Any]] = {
    "time": (lambda ctx: ctx.sleep(3600), None),
    "signals": (two_signals, [1, 2]),
    "a timeout": (signal_in_time, "late"),
    "a child": (lambda ctx: ctx.call("child"), "grown up"),
}


@pytest.mark.parametrize("what", WAITING)
@ON_BOTH
async def test_what_comes_during_a_pause_is_taken_at_resume(app: Stepfast, calls: Calls, what: str) -> None:
    """Time goes on, mail is collected; and nothing is executed before."""
    task(app, "child", returns="grown up")
    wait, result = WAITING[what]

    @app.workflow
    async def order(ctx: Context) -> Any:
        value = await wait(ctx)
        calls.hit("went on")
        return value

    run = await app.start(order)
    await app.drain(queues=["order"])
    assert await run.status() == "waiting"
    await run.pause()
    if what == "signals":
        await run.signal("go", 1)
        await run.signal("go", 2)
    if what in ("time", "a timeout"):
        await let_pass(app, run, 7200)
    await app.drain()
    assert await run.status() == "paused" and calls == {}
    await run.resume()
    assert await finished(app, run) == result


async def test_a_sleep_in_memory_is_held_and_not_shortened(make_app: MakeApp) -> None:
    app = make_app(settings=Settings(inline_wait=3600, poll_interval=60, sweep_interval=60))
    short = make_app()
    for each in (app, short):
        sleeper(each, 1800)
    async with app.worker():
        run = await app.start("order")
        await eventually(run.steps)
        assert await run.status() == "running"
        [sleep] = await (await app.store()).steps(run.id)
        await run.pause()
        await reached(run, "paused")
    await run.resume()
    await short.drain()
    info = await run.info()
    assert (info.status, info.due_at) == ("waiting", datetime.fromtimestamp(wakes_at(sleep) / 1000, UTC))
    assert wakes_at(sleep) == sleep.completed_at + 1_800_000


async def test_a_signal_to_a_run_that_sleeps_and_is_paused_does_not_end_the_sleep(app: Stepfast) -> None:
    @app.workflow
    async def order(ctx: Context) -> Any:
        await ctx.sleep(3600)
        return await ctx.wait_signal("go")

    run = await drained(app, order)
    due_at = (await run.info()).due_at
    await run.pause()
    await run.signal("go", 1)
    await run.resume()
    await app.drain()
    info = await run.info()
    assert (info.status, info.waiting_for, info.due_at) == ("waiting", "time", due_at)
    await let_pass(app, run, 3601)
    assert await finished(app, run) == 1


@ON_BOTH
async def test_a_deadline_ends_a_paused_run(app: Stepfast) -> None:
    order = listener(app, deadline=3600)
    waiting, queued = await app.start(order), await app.start(order)
    await queued.pause()
    await app.drain()
    await waiting.pause()
    for run in (waiting, queued):
        await let_pass(app, run, 3601)
    await app.drain()
    for run in (waiting, queued):
        assert (await failure(run)).reason == "deadline"
        assert (await run.info()).paused_at is None


# -- while it is executed -----------------------------------------------------------------------------------------


@KINDS
@ON_BOTH
async def test_a_running_run_is_held_at_the_next_step(app: Stepfast, calls: Calls, kind: str) -> None:
    gate = ThreadGate()

    def first() -> int:
        number = calls.hit("first")
        gate.passing()
        return number

    async def order(ctx: Context) -> list[int]:
        return [await ctx.step(first), await ctx.step("second", calls.hit, "second")]

    workflow_of(app, kind, order)
    async with app.worker():
        run = await app.start("order")
        await gate.reached()
        await run.pause()
        info = await run.info()
        assert (info.status, info.asked, info.paused_at) == ("running", "pause", None)
        gate.open()
        assert (await reached(run, "paused")).paused_at is not None
        assert calls == {"first": 1}
        assert [(s.name, s.status, s.output) for s in await run.steps()] == [("first", "completed", 1)]
        await run.resume()
        assert await run.result(timeout=PATIENCE) == [1, 1]
    assert calls == {"first": 1, "second": 1}
    info = await run.info()
    assert (info.attempt, info.losses, info.asked, info.paused_at) == (1, 0, None, None)


async def test_parallel_steps_in_flight_are_all_finished_before_it_is_held(app: Stepfast, calls: Calls) -> None:
    quick, slow, another_run = Gate(), Gate(), bystander(app)

    async def line(ctx: Context, name: str, gate: Gate) -> None:
        await ctx.step(name, gate.passing)
        await ctx.step(f"after {name}", calls.hit, name)

    order = calling(app, lambda ctx: ctx.gather(ctx.branch(line, "quick", quick), ctx.branch(line, "slow", slow)))

    async def recorded() -> bool:
        return [s.name for s in await run.steps() if s.status == "completed"] == ["quick"]

    async with app.worker():
        run = await app.start(order)
        await quick.reached()
        await slow.reached()
        await run.pause()
        quick.open()
        await eventually(recorded)
        await another_run()
        assert (await run.status(), calls) == ("running", {})
        slow.open()
        await reached(run, "paused")
        assert calls == {}
        assert sorted(s.name for s in await run.steps()) == ["quick", "slow"]
        await run.resume()
        await run.result(timeout=PATIENCE)
    assert (quick.arrivals, slow.arrivals) == (1, 1)
    assert calls == {"quick": 1, "slow": 1}


async def test_a_pause_that_was_taken_back_in_time_holds_nobody(app: Stepfast, calls: Calls) -> None:
    gate = Gate()

    @app.workflow
    async def order(ctx: Context) -> int:
        await ctx.step(gate.passing)
        return await ctx.step("second", calls.hit, "second")

    async with app.worker() as worker:
        run = await app.start(order)
        await gate.reached()
        await run.pause()
        await eventually(lambda: worker.duties.executor.running[run.id].asked == "pause")
        await run.resume()
        gate.open()
        assert await run.result(timeout=PATIENCE) == 1
    assert gate.arrivals == 1


async def test_a_pause_that_was_taken_back_holds_nobody_who_looks_into_the_mailbox(app: Stepfast, calls: Calls) -> None:
    gate = Gate()

    async def listener(ctx: Context) -> Any:
        return await ctx.wait_signal("go")

    async def busy(ctx: Context) -> None:
        await ctx.step(gate.passing)
        await ctx.step("second", calls.hit, "second")

    @app.workflow
    async def order(ctx: Context) -> Any:
        value, _ = await ctx.gather(ctx.branch(listener), ctx.branch(busy))
        return value

    async with app.worker() as worker:
        run = await app.start(order)
        await gate.reached()
        execution = worker.duties.executor.running[run.id]
        await run.pause()
        await eventually(lambda: execution.asked == "pause")
        await run.resume()
        await run.signal("other")
        await eventually(lambda: execution.inbox.wakes > 0)
        gate.open()
        await eventually(lambda: calls["second"] == 1)
        await run.signal("go", 7)
        assert await run.result(timeout=PATIENCE) == 7
    assert gate.arrivals == 1


async def test_a_step_that_fails_while_a_pause_is_asked_for_keeps_its_retry(app: Stepfast, calls: Calls) -> None:
    """Rule 16: the failed try is recorded, and the next one is made after resume, not before its time."""
    gate = Gate()

    async def flaky() -> str:
        if calls.hit("flaky") == 1:
            await gate.passing()
            raise RetryLater(3600)
        return "done"

    order = calling(app, lambda ctx: ctx.options(retries=1).step(flaky))
    async with app.worker():
        run = await app.start(order)
        await gate.reached()
        await run.pause()
        gate.open()
        await reached(run, "paused")
    await run.resume()
    await app.drain()
    info = await run.info()
    assert (info.status, info.waiting_for, calls["flaky"]) == ("waiting", "retry", 1)
    await let_pass(app, run, 3601)
    assert await finished(app, run) == "done"
    assert calls["flaky"] == 2


async def test_a_run_whose_attempt_fails_while_a_pause_is_asked_for_is_held(app: Stepfast, calls: Calls) -> None:
    gate = Gate()

    @app.task(backoff=AT_ONCE)
    async def work() -> str:
        if calls.hit("work") == 1:
            await gate.passing()
            raise ValueError("the first attempt fails")
        return "done"

    async with app.worker():
        run = await app.start(work)
        await gate.reached()
        await run.pause()
        gate.open()
        await reached(run, "paused")
        assert calls["work"] == 1
        await run.resume()
        assert await run.result(timeout=PATIENCE) == "done"
    assert (await run.info()).attempt == 2


async def test_a_task_is_one_piece_of_work_and_finishes(app: Stepfast) -> None:
    gate = Gate()
    work = task(app, "work", gate=gate, returns="done")
    async with app.worker():
        run = await app.start(work)
        await gate.reached()
        await run.pause()
        gate.open()
        assert await run.result(timeout=PATIENCE) == "done"
    assert gate.arrivals == 1


@ON_BOTH
async def test_a_pause_survives_the_death_of_the_worker(app: Stepfast, make_app: MakeApp, calls: Calls) -> None:
    gate = Gate()
    victim = make_app()
    for each in (app, victim):

        @each.workflow(name="order")
        async def order(ctx: Context) -> str:
            calls.hit("body")
            await ctx.step(gate.passing)
            return "done"

    run = await app.start("order")
    async with doomed(victim):
        await gate.reached()
        await run.pause()
    await app.drain()
    assert (await run.status(), calls["body"]) == ("paused", 1)
    gate.open()
    await run.resume()
    assert await finished(app, run) == "done"


@ON_BOTH
async def test_a_pause_between_look_and_release_is_not_lost(make_app: MakeApp) -> None:
    app = make_app(settings=Settings(inline_wait=0, poll_interval=60, sweep_interval=60))
    on_the_way, let_go = asyncio.Event(), asyncio.Event()
    order = sleeper(app)

    async def flush(call: Callable[..., Awaitable[Any]], worker: str, batch: Any) -> Any:
        if any(move.status == "waiting" for move in batch.transitions):
            on_the_way.set()
            await let_go.wait()
        return await call(worker, batch)

    wrap(await app.store(), "flush", flush)
    async with app.worker():
        run = await app.start(order)
        await asyncio.wait_for(on_the_way.wait(), PATIENCE)
        await run.pause()
        let_go.set()
        info = await reached(run, "paused")
    assert info.waiting_for == "time"
    [sleep] = await run.steps()
    await run.resume()
    assert sleep.started_at is not None
    due = (await run.info()).due_at
    assert due is not None and abs(due - sleep.started_at - timedelta(hours=1)) < timedelta(seconds=20)


@pytest.mark.parametrize("heard", ["at once", "by polling"])
@ON_BOTH
async def test_an_operator_elsewhere_is_heard(make_app: MakeApp, heard: str) -> None:
    polls: dict[str, Any] = (
        {"poll_interval": 60, "sweep_interval": 60, "lease": 180} if heard == "at once" else {"lease": 1}
    )
    app, operator = make_app(settings=Settings(**({"inline_wait": 3600, "poll_interval": 0.1} | polls))), make_app()
    if heard == "at once" and app.url.kind == "mysql":
        pytest.skip("MariaDB has no notifications")
    if heard == "by polling":
        for each in (app, operator):
            await deafen(each)
    order = listener(app)
    async with app.worker() as worker:
        run = await app.start(order)
        await eventually(lambda: run.id in worker.duties.executor.running)
        await eventually(lambda: worker.duties.executor.running[run.id].busy == 0)
        if heard == "at once":
            for _ in range(3):  # also when one request follows upon the other
                await operator.signal(run.id, "other")
        await operator.get(run.id).pause()
        await reached(run, "paused")


# -- the other verbs ----------------------------------------------------------------------------------------------


async def test_cancel_wins_over_pause(app: Stepfast, calls: Calls) -> None:
    gate = Gate()

    @app.workflow
    async def order(ctx: Context) -> None:
        await ctx.step(gate.passing)
        await ctx.step("second", calls.hit, "second")

    async with app.worker():
        runs = [await app.start(order), await app.start(order)]
        await eventually(lambda: gate.arrivals == 2)
        await runs[0].pause()
        await runs[0].cancel()
        await runs[1].cancel()
        with pytest.raises(InvalidState):
            await runs[1].pause()
        gate.open()
        for run in runs:
            with pytest.raises(RunCancelled):
                await run.result(timeout=PATIENCE)
    assert calls == {}


async def test_what_does_not_fit_is_refused(app: Stepfast) -> None:
    order = listener(app)
    run = await app.start(order)
    with pytest.raises(InvalidState, match="queued; only a paused run"):
        await run.resume()
    await app.drain()
    with pytest.raises(InvalidState, match="waiting; only a paused run"):
        await run.resume()
    await run.signal("go")
    await app.drain()
    assert await run.status() == "completed"
    with pytest.raises(InvalidState, match="completed"):
        await run.pause()
    with pytest.raises(InvalidState, match="completed"):
        await run.resume()
    for verb in (app.get(new_id()).pause, app.get(new_id()).resume):
        with pytest.raises(RunNotFound):
            await verb()


@ON_BOTH
async def test_a_paused_run_holds_no_slot(app: Stepfast) -> None:
    order = sleeper(app)
    other = task(app, "other", returns="meanwhile")
    runs = await app.start_many(order, [None] * 5)
    await app.drain(concurrency=1)
    for run in runs:
        await run.pause()
    async with app.worker(concurrency=1):
        assert await (await app.start(other)).result(timeout=PATIENCE) == "meanwhile"


@ON_BOTH
async def test_resume_wakes_a_worker_at_once(make_app: MakeApp) -> None:
    app = make_app(settings=HARDLY_EVER)

    @app.workflow
    async def order(ctx: Context) -> str:
        return "done"

    run = await app.start(order)
    await run.pause()
    async with app.worker():
        await run.resume()
        assert await run.result(timeout=PATIENCE) == "done"
