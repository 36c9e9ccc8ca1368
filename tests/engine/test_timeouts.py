"""Timeouts of steps and attempts, deadlines and expiry: they hold even for handlers that ignore them."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from datetime import timedelta
from typing import Any

import pytest

from stepfast import Backoff, Context, RetryLater, RunFailed, Settings, StepFailed, Stepfast, SyncContext, cancelled
from tests.engine.conftest import MakeApp
from tests.support.engine import PATIENCE, Calls, Gate, ThreadGate, drained, eventually, failure, outcome

pytestmark = pytest.mark.enough_on("sqlite")

AT_ONCE = Backoff(base=0, jitter=False)
SHORT = 0.05
LONGER = 1.0
"""Where something has to be done within it before it is over, also on a busy machine."""
"""A timeout that has passed by the time anybody looks; the code under test would wait for ever."""


async def for_ever() -> None:
    await asyncio.Event().wait()


async def deaf(release: asyncio.Event) -> None:
    """Ignores being cancelled until the test lets it go."""
    while not release.is_set():
        with contextlib.suppress(asyncio.CancelledError):
            await release.wait()


# -- of a step ---------------------------------------------------------------------------------------------------


async def test_a_step_that_takes_too_long_fails_by_name(app: Stepfast) -> None:
    @app.workflow
    async def order(ctx: Context) -> str:
        try:
            await ctx.options(timeout=SHORT).step(for_ever)
        except StepFailed as error:
            return error.message
        return "no timeout"

    assert await outcome(app, order) == "step 'for_ever' took longer than its timeout of 0.05 s"


async def test_every_try_of_a_step_has_the_whole_timeout(app: Stepfast, calls: Calls) -> None:
    async def slow_once() -> str:
        if calls.hit("slow") < 3:
            await for_ever()
        return "third"

    @app.workflow
    async def order(ctx: Context) -> str:
        return await ctx.options(timeout=timedelta(seconds=SHORT), retries=2, backoff=AT_ONCE).step(slow_once)

    assert await outcome(app, order) == "third"
    assert calls["slow"] == 3


async def test_a_step_that_ignores_cancellation_is_timed_out_all_the_same(app: Stepfast) -> None:
    release = asyncio.Event()

    @app.workflow(max_attempts=1)
    async def order(ctx: Context) -> str:
        try:
            await ctx.options(timeout=SHORT).step(deaf, release)
        except StepFailed as error:
            return error.error_type
        return "no timeout"

    run = await app.start(order)
    async with app.worker():
        assert (await run.result(timeout=PATIENCE)).endswith("StepTimeout")
        release.set()
    assert [s.status for s in await run.steps()] == ["failed"]


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

    @app.workflow(max_attempts=1)
    async def queue_up(ctx: Context) -> None:
        await ctx.options(timeout=SHORT).step("act", lambda: calls.hit("act"))

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
async def test_an_attempt_that_takes_too_long_is_ended(app: Stepfast, where: str) -> None:
    @app.task(max_attempts=1, timeout=SHORT if where == "declared" else 3600)
    async def mail() -> None:
        await for_ever()

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

    @app.workflow(max_attempts=1, timeout=1)
    async def order(ctx: Context) -> str:
        return await ctx.options(retries=1).step(flaky)

    run = await drained(app, order)
    assert await run.result() == "done"


# -- of the whole run --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("where", ["declared", "at the start"])
async def test_a_deadline_ends_the_run_whatever_it_is_doing(app: Stepfast, calls: Calls, where: str) -> None:
    @app.task(max_attempts=5, backoff=AT_ONCE, deadline=0.8 if where == "declared" else None)
    async def mail() -> None:
        calls.hit("mail")
        await for_ever()

    async with app.worker():
        run = await app.start(mail, deadline=None if where == "declared" else timedelta(seconds=0.8))
        caught = await failure(run, "deadline")
    assert caught.reason == "deadline"
    assert calls["mail"] == 1
    info = await run.info()
    assert info.deadline is not None
    assert abs((info.deadline - info.created_at).total_seconds() - 0.8) < 0.001


async def test_a_deadline_counts_waits_and_ends_a_run_that_nobody_executes(app: Stepfast) -> None:
    @app.workflow
    async def order(ctx: Context) -> None:
        await ctx.options(retries=1).step("later", later)

    def later() -> None:
        raise RetryLater(3600)

    run = await app.start(order, deadline=0.3)
    async with app.worker():
        await failure(run, "deadline")
    delayed = await app.start(order, delay=3600, deadline=0.05)
    async with app.worker():
        await failure(delayed, "deadline")


async def test_a_run_not_picked_up_in_time_expires_and_says_so(app: Stepfast, calls: Calls) -> None:

    @app.task
    async def mail() -> None:
        calls.hit("mail")

    run = await app.start(mail, expires_in=0.01)

    async def past() -> bool:
        info = await run.info()
        return info.expires_at is not None and info.read_at > info.expires_at

    await eventually(past)
    await app.drain()
    caught = await failure(run, "expired")
    assert caught.reason == "expired"
    assert calls["mail"] == 0


async def test_expiry_counts_only_until_the_first_pick_up(app: Stepfast, calls: Calls) -> None:
    @app.task(backoff=Backoff(base=1.1, jitter=False))
    async def mail() -> str:
        if calls.hit("mail") == 1:
            raise ValueError("again")
        return "sent"

    run = await drained(app, mail, expires_in=1)
    assert await run.result() == "sent"


async def test_expiry_counts_from_the_moment_the_run_is_due(app: Stepfast) -> None:
    @app.task
    async def mail() -> str:
        return "sent"

    run = await app.start(mail, delay=0.2, expires_in=0.1)
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
