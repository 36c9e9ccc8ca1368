"""Timeouts of steps and attempts, also of the code itself, deadlines, expiry, defaults; what is at work for long."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest

from stepfast import (
    Backoff,
    Context,
    RetryLater,
    RunFailed,
    Settings,
    StepFailed,
    Stepfast,
    StepTimeout,
    SyncContext,
    cancelled,
    step,
)
from stepfast.cli.top import Watch, screen
from stepfast.monitoring.doctor import examine
from stepfast.store.answers import LONG_AT_WORK
from tests.engine.conftest import ON_BOTH, ON_SQLITE, MakeApp
from tests.support.engine import (
    PATIENCE,
    Calls,
    Gate,
    ThreadGate,
    drained,
    eventually,
    failure,
    finished,
    interrupt,
    outcome,
    replayed,
)
from tests.support.waiting import rows_of
from tests.support.workflows import calling, listener

pytestmark = ON_SQLITE

AT_ONCE = Backoff(base=0, jitter=False)


SHORT = 0.05
"""A timeout that has passed when it is looked at; the code under test would wait for ever."""


LONGER = 1.0
"""Where something has to be done within it before it is over, also on a busy machine."""


async def for_ever() -> None:
    await asyncio.Event().wait()


async def deaf(release: asyncio.Event) -> None:
    """Ignores being cancelled until the test releases it."""
    while not release.is_set():
        with contextlib.suppress(asyncio.CancelledError):
            await release.wait()


def hanging(app: Stepfast, calls: Calls, **options: Any) -> Any:
    """A task that does not end by itself."""

    @app.task(name="mail", **options)
    async def mail() -> None:
        calls.hit("mail")
        await for_ever()

    return mail


# -- of a step ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("ignores", [False, True], ids=["plain", "ignores being cancelled"])
async def test_a_step_that_takes_too_long_fails_by_name(app: Stepfast, ignores: bool) -> None:
    """The workflow may catch it; what the step does later is not recorded."""
    release = asyncio.Event()

    @app.workflow(max_attempts=1)
    async def order(ctx: Context) -> list[str]:
        try:
            await ctx.options(timeout=SHORT).step(
                "slow", deaf if ignores else for_ever, *([release] if ignores else [])
            )
        except StepFailed as error:
            return [error.message, error.error_type]
        return []

    run = await app.start(order)
    async with app.worker():
        message, kind = await run.result(timeout=PATIENCE)
        release.set()
    assert message == "step 'slow' took longer than its timeout of 0.05 s"
    assert kind.endswith("StepTimeout")
    assert [s.status for s in await run.steps()] == ["failed"]


async def test_every_try_of_a_step_has_the_whole_timeout(app: Stepfast, calls: Calls) -> None:
    async def slow_once() -> str:
        if calls.hit("slow") < 3:
            await for_ever()
        return "third"

    order = calling(
        app, lambda ctx: ctx.options(timeout=timedelta(seconds=SHORT), retries=2, backoff=AT_ONCE).step(slow_once)
    )
    assert await outcome(app, order) == "third"
    assert calls["slow"] == 3


async def test_a_blocking_step_is_timed_out_and_told_to_stop(app: Stepfast) -> None:
    gate, meanwhile = ThreadGate(), Gate()
    told: list[bool] = []

    def block() -> str:
        told.append(cancelled())
        gate.passing()
        told.append(cancelled())
        return "too late"

    @app.workflow
    async def order(ctx: Context) -> str:
        try:
            return await ctx.options(timeout=LONGER / 2).step(block)
        except StepFailed:
            await ctx.step(meanwhile.passing)
            return await ctx.step("ask", lambda: f"cancelled: {cancelled()}")

    run = await app.start(order)
    async with app.worker():
        await meanwhile.reached()
        gate.open()
        await eventually(lambda: len(told) == 2)
        meanwhile.open()
        assert await run.result(timeout=PATIENCE) == "cancelled: False"
    assert told == [False, True]
    assert [s.status for s in await run.steps()] == ["failed", "completed", "completed"]


# -- of an attempt -------------------------------------------------------------------------------------------------


async def test_a_blocking_step_that_nobody_waits_for_any_more_is_not_begun(app: Stepfast, calls: Calls) -> None:
    in_line: list[Any] = []
    queue_up = calling(
        app,
        lambda ctx: ctx.options(timeout=SHORT).step("act", lambda: calls.hit("act")),
        name="queue_up",
        max_attempts=1,
    )

    def never_called(call: Any) -> asyncio.Future[Any]:
        in_line.append(call)
        return asyncio.get_running_loop().create_future()

    run = await app.start(queue_up)
    async with app.worker() as worker:
        worker.duties.executor._host.run_in_thread = never_called  # type: ignore[method-assign, assignment]
        await failure(run)
    for call in in_line:
        call()
    assert (len(in_line), calls) == (1, {})


@pytest.mark.parametrize("where", ["declared", "at the start"])
async def test_an_attempt_that_takes_too_long_is_ended(app: Stepfast, calls: Calls, where: str) -> None:
    mail = hanging(app, calls, max_attempts=1, timeout=SHORT if where == "declared" else 3600)
    caught = await failure(await drained(app, mail, timeout=None if where == "declared" else SHORT), "timeout")
    assert caught.reason == "timeout"
    assert caught.error_type is not None and caught.error_type.endswith("AttemptTimeout")


async def test_a_timed_out_attempt_is_followed_by_the_next(app: Stepfast, calls: Calls) -> None:
    @app.workflow(max_attempts=2, timeout=LONGER, backoff=AT_ONCE)
    async def order(ctx: Context) -> str:
        await ctx.step("first", lambda: calls.hit("first"))
        if ctx.attempt == 1:
            await for_ever()
        return f"attempt {ctx.attempt}"

    assert await outcome(app, order) == "attempt 2"
    assert calls["first"] == 1


async def test_a_handler_that_ignores_cancellation_loses_its_slot_and_its_run(app: Stepfast, calls: Calls) -> None:
    """The next attempt has the slot; the late one is refused everything, and its result is discarded."""
    release = asyncio.Event()
    refusals: list[str] = []

    @app.workflow(max_attempts=2, timeout=LONGER, backoff=AT_ONCE)
    async def order(ctx: Context) -> str:
        if ctx.attempt == 1:
            await deaf(release)
            for late in (lambda: ctx.step("late", lambda: calls.hit("late")), lambda: ctx.progress("late")):
                try:
                    late()
                except BaseException as error:
                    refusals.append(type(error).__name__)
            return "too late"
        return await ctx.step("in time", lambda: "second attempt")

    run = await app.start(order)
    async with app.worker(concurrency=1):
        assert await run.result(timeout=PATIENCE) == "second attempt"
        release.set()
        await eventually(lambda: len(refusals) == 2)
    assert refusals == ["AttemptEnded", "AttemptEnded"]
    assert [s.name for s in await run.steps()] == ["in time"]
    assert calls["late"] == 0
    assert (await run.info()).output == "second attempt"


@pytest.mark.parametrize("kind", ["task", "workflow"])
async def test_a_blocking_handler_loses_its_slot_and_its_run(app: Stepfast, calls: Calls, kind: str) -> None:
    """Rule 1: a thread cannot be stopped; it is told by stepfast.cancelled(), and refused everything."""
    gate = ThreadGate()
    seen: list[Any] = []

    def first_attempt(ctx: SyncContext | None) -> str:
        gate.passing()
        seen.append(cancelled())
        if ctx is not None:
            try:
                ctx.step("late", lambda: calls.hit("late"))
            except BaseException as error:
                seen.append(type(error).__name__)
        return "too late"

    if kind == "task":

        @app.task(name="job", max_attempts=2, timeout=LONGER, backoff=AT_ONCE)
        def job() -> str:
            return first_attempt(None) if calls.hit("job") == 1 else "second attempt"
    else:

        @app.workflow(name="job", max_attempts=2, timeout=LONGER, backoff=AT_ONCE)
        def durable_job(ctx: SyncContext) -> str:
            return first_attempt(ctx) if ctx.attempt == 1 else "second attempt"

    run = await app.start("job")
    async with app.worker(concurrency=1):
        assert await run.result(timeout=PATIENCE) == "second attempt"
        gate.open()
        await eventually(lambda: len(seen) == (1 if kind == "task" else 2))
    assert seen == ([True] if kind == "task" else [True, "AttemptEnded"])
    assert calls["late"] == 0
    assert await run.steps() == []


async def test_a_thread_that_waits_for_a_step_is_released_by_the_timeout(app: Stepfast, calls: Calls) -> None:
    """Rule 30: the step of a plain def workflow does not run on after its attempt has ended."""
    ended: list[str] = []

    async def long() -> None:
        try:
            await for_ever()
        finally:
            ended.append("step")

    @app.workflow(max_attempts=1, timeout=LONGER)
    def order(ctx: SyncContext) -> None:
        try:
            ctx.step(long)
        except BaseException as error:
            ended.append(type(error).__name__)
            raise

    run = await app.start(order)
    async with app.worker():
        await failure(run, "timeout")
        await eventually(lambda: len(ended) == 2)
    assert ended == ["step", "AttemptEnded"]


async def test_waits_do_not_count_for_the_timeout(app: Stepfast, calls: Calls) -> None:
    async def flaky() -> str:
        if calls.hit("flaky") == 1:
            raise RetryLater(1.2)
        return "done"

    order = calling(app, lambda ctx: ctx.options(retries=1).step(flaky), max_attempts=1, timeout=1)
    assert await outcome(app, order) == "done"


# -- of the whole run --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("where", ["declared", "at the start"])
async def test_a_deadline_ends_the_run_whatever_it_is_doing(app: Stepfast, calls: Calls, where: str) -> None:
    """It is wall-clock for the whole run; no further attempt follows."""
    mail = hanging(app, calls, max_attempts=5, backoff=AT_ONCE, deadline=0.8 if where == "declared" else None)
    async with app.worker():
        run = await app.start(mail, deadline=None if where == "declared" else timedelta(seconds=0.8))
        assert (await failure(run, "deadline")).reason == "deadline"
    assert calls["mail"] == 1
    info = await run.info()
    assert info.deadline is not None
    assert abs((info.deadline - info.created_at).total_seconds() - 0.8) < 0.001


@pytest.mark.parametrize("how", [{"deadline": 0.3}, {"deadline": 0.05, "delay": 3600}], ids=["waiting", "delayed"])
async def test_a_deadline_counts_waits_and_ends_a_run_that_is_not_executed(app: Stepfast, how: dict[str, Any]) -> None:
    order = calling(app, lambda ctx: ctx.options(retries=1).step("later", later))

    def later() -> None:
        raise RetryLater(3600)

    run = await app.start(order, **how)
    async with app.worker():
        await failure(run, "deadline")


async def test_a_run_not_picked_up_in_time_expires_and_says_so(app: Stepfast, calls: Calls) -> None:
    run = await app.start(hanging(app, calls), expires_in=0.01)

    async def past() -> bool:
        info = await run.info()
        return info.expires_at is not None and info.read_at > info.expires_at

    await eventually(past)
    await app.drain()
    assert (await failure(run, "expired")).reason == "expired"
    assert calls["mail"] == 0


async def test_expiry_counts_only_until_the_first_pick_up(app: Stepfast, calls: Calls) -> None:
    @app.task(backoff=Backoff(base=1.1, jitter=False))
    async def mail() -> str:
        if calls.hit("mail") == 1:
            raise ValueError("again")
        return "sent"

    assert await outcome(app, mail, expires_in=1) == "sent"


async def test_expiry_counts_from_the_moment_the_run_is_due(app: Stepfast) -> None:
    run = await app.start(listener(app), delay=0.2, expires_in=0.1)
    info = await run.info()
    assert info.expires_at is not None
    assert abs((info.expires_at - info.created_at).total_seconds() - 0.3) < 0.001


async def test_threads_that_do_not_return_after_a_timeout_are_bounded(
    make_app: MakeApp, caplog: pytest.LogCaptureFixture
) -> None:
    """A plain def cannot be stopped. Of those that hang a worker of two slots bears four, says so, and claims nothing
    more until one returns."""
    app = make_app(settings=Settings(backoff_base=0.001, concurrency=2))
    gate, at_work, most = threading.Event(), [0], [0]

    @app.task(max_attempts=1, timeout=0.05)
    def hang() -> None:
        at_work[0] += 1
        most[0] = max(most[0], at_work[0])
        gate.wait(PATIENCE)
        at_work[0] -= 1

    runs = await app.start_many(hang, [None] * 12)
    async with app.worker():
        await eventually(lambda: at_work[0] >= 4)
        await eventually(lambda: "takes a slot until it returns" in caplog.text)
        await asyncio.sleep(0.3)  # time for more of them, if there were to be any
        assert most[0] == 4
        told = [record for record in caplog.records if "takes a slot until it returns" in record.getMessage()]
        assert {record.run_id for record in told} <= {run.id for run in runs}  # type: ignore[attr-defined]
        gate.set()
        for run in runs:
            with contextlib.suppress(RunFailed):
                await run.result(timeout=PATIENCE)


GIVEN_UP: dict[str, Callable[[Context, Any], Any]] = {
    "slow": lambda ctx, slow: ctx.step(slow),
    "sleep": lambda ctx, slow: ctx.sleep(1.5),
    "check": lambda ctx, slow: ctx.wait_until("check", lambda: False, every=1),
    "busy": lambda ctx, slow: ctx.first(busy=ctx.step("busy", slow), late=ctx.sleep(3600)),
}


@pytest.mark.parametrize(
    ("call", "how"), [("slow", "asyncio.wait_for"), *((name, "asyncio.timeout") for name in GIVEN_UP)]
)
async def test_a_call_given_up_by_the_workflow_replays_as_given_up(
    app: Stepfast, calls: Calls, call: str, how: str
) -> None:
    """Rule 19: it is not made again, and the code takes the same way."""
    gate = Gate()

    async def slow() -> None:
        calls.hit("slow")
        await for_ever()

    @app.workflow
    async def order(ctx: Context) -> list[str]:
        way = "in time"
        try:
            if how == "asyncio.timeout":
                async with asyncio.timeout(0.05):
                    await GIVEN_UP[call](ctx, slow)
            else:
                await asyncio.wait_for(GIVEN_UP[call](ctx, slow), 0.05)
        except TimeoutError:
            way = "given up"
        after = await ctx.step("after", lambda: f"after {calls.hit('after')}")
        await ctx.step(gate.passing)
        return [way, after]

    run = await app.start(order)
    await interrupt(app, gate)
    assert {step.name: step.status for step in await run.steps()}[call] == "cancelled"
    assert await finished(app, run, gate) == ["given up", "after 1"]
    assert calls == {"after": 1, **({"slow": 1} if call in ("slow", "busy") else {})}
    [given_up] = [step for step in await run.steps() if step.name == call]
    assert given_up.completed_at is not None and given_up.started_at is not None
    assert call == "sleep" or (given_up.completed_at - given_up.started_at).total_seconds() >= 0.04


async def test_a_step_cancelled_by_a_task_group_replays_so(app: Stepfast, calls: Calls) -> None:
    """Rule 19: the sibling of a failed step is cancelled; so it is on replay."""
    gate = Gate()

    async def slow() -> None:
        calls.hit("slow")
        await asyncio.Event().wait()

    async def awaiting(call: object) -> None:
        await call  # type: ignore[misc]

    @app.workflow
    async def order(ctx: Context) -> str:
        try:
            async with asyncio.TaskGroup() as group:
                group.create_task(awaiting(ctx.step(slow)))
                group.create_task(awaiting(ctx.step("fail", lambda: 1 / 0)))
        except* Exception:
            pass
        await ctx.step(gate.passing)
        return "done"

    run = await replayed(app, gate, order)
    assert await run.result() == "done"
    assert calls["slow"] == 1
    assert {s.name: s.status for s in await run.steps()} == {
        "slow": "cancelled",
        "fail": "failed",
        "passing": "completed",
    }


@pytest.mark.parametrize(("bound", "error"), [(30, None), (0.02, "TimeoutError")], ids=["in time", "not caught"])
async def test_a_step_within_a_timeout_of_the_code(app: Stepfast, bound: float, error: str | None) -> None:
    """It is in time, or the attempt fails."""

    @app.workflow(max_attempts=1)
    async def order(ctx: Context) -> None:
        async with asyncio.timeout(bound):
            await ctx.step("one", for_ever if error else lambda: None)

    info = await (await drained(app, order)).info()
    assert info.status == ("failed" if error else "completed")
    assert (info.error and info.error.type) == error


def hanging_task(app: Stepfast) -> Any:
    return app.task(for_ever)


def hanging_step(app: Stepfast) -> Any:
    @app.workflow
    async def order(ctx: Context) -> None:
        await ctx.step(for_ever)

    return order


def hanging_undo(app: Stepfast) -> Any:
    async def undo(output: Any) -> None:
        await for_ever()

    @app.workflow
    async def order(ctx: Context) -> None:
        await ctx.options(compensate=undo).step("done", lambda: 1)
        raise ValueError("no")

    return order


def hanging_dag_step(app: Stepfast) -> Any:
    dag = app.dag("graph")
    dag.declare(lambda ctx: for_ever(), name="stuck", retries=0)
    return dag


@pytest.mark.parametrize(
    ("make", "setting", "reason"),
    [
        (hanging_task, "timeout", "timeout"),
        (hanging_step, "timeout", "timeout"),
        (hanging_step, "step_timeout", "code"),
        (hanging_undo, "step_timeout", "undo_failed"),
        (hanging_dag_step, "step_timeout", "timeout"),
    ],
)
async def test_the_settings_bound_what_says_nothing_itself(
    make_app: MakeApp, make: Any, setting: str, reason: str
) -> None:
    limits: dict[str, Any] = {setting: 0.05}
    app = make_app(settings=Settings(max_attempts=1, undo_retries=0, **limits))
    failed = await failure(await drained(app, make(app)))
    assert failed.reason == reason


async def test_what_has_timeouts_of_its_own_is_not_bound_by_the_settings(make_app: MakeApp) -> None:
    app = make_app(settings=Settings(timeout=0.01, step_timeout=0.01))

    @step(timeout=20)
    async def slow() -> str:
        await asyncio.sleep(0.05)
        return "done"

    order = calling(app, lambda ctx: ctx.step(slow), timeout=20)
    run = await drained(app, order)
    assert await run.result() == "done"
    assert StepTimeout.__name__ not in str(await run.activity())


@ON_BOTH
async def test_what_has_been_executing_for_long_is_named(make_app: MakeApp) -> None:
    app, gates = make_app(settings=Settings(running_after=0, heartbeat=0.05)), [Gate(), Gate(), Gate()]
    app.task(name="quick")(gates[0].passing)
    app.task(name="export")(gates[1].passing)
    order = calling(app, lambda ctx: ctx.step("charge", gates[2].passing))
    runs = [await app.start(each) for each in ("quick", "export", order)]
    store = await app.store()
    async with app.worker(), rows_of(app) as rows:
        for gate in gates:
            await gate.reached()
        await eventually(lambda: store.progress(runs[2].id))
        assert await store.long_at_work(LONG_AT_WORK, 100) == []
        await rows.shift(runs[1].id, "started_at", -7_200_000)
        await rows.fetch("UPDATE [progress] SET started_at = started_at - 10800000 WHERE run_id = ?", runs[2].id)
        [charge, whole] = await store.long_at_work(LONG_AT_WORK, 100)
        [check] = [check for check in await examine(app, store) if check.name == "long_running"]
        shown = str(await Watch(app).look()) + str(await screen(Watch(app)))
        for gate in gates:
            gate.open()
        await runs[2].result(timeout=PATIENCE)
    assert (charge.run_id, charge.step, whole.run_id, whole.step) == (runs[2].id, "charge", runs[1].id, None)
    assert 10_800 <= charge.seconds < 10_900 and 7200 <= whole.seconds < 7300
    assert check.ok
    assert f"run {runs[2].id} (order, step 'charge') for 3 h" in check.found
    assert f"run {runs[1].id} (export) for 2 h" in check.found
    assert runs[2].id in shown and runs[0].id not in shown
