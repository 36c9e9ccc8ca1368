"""Observers: they get what happens, once, without payloads, cannot harm a run, and may send data along."""

from __future__ import annotations

import asyncio
import contextlib
import contextvars
import logging
import sqlite3
from datetime import timedelta
from typing import Any

import pytest

from stepfast import Backoff, ConfigurationError, Context, DagContext, InvalidState, Settings, Stepfast, SyncContext
from stepfast.engine.observers import MOST, decoded, encoded
from stepfast.model.remote_steps import Result, Task
from stepfast.telemetry import Observer, RunClaimed, RunReleasing, Sending, SendingEnded, SignalTaken, StepCalled
from tests.remote_steps.memory import MemoryTransport, echo
from tests.support.engine import Gate
from tests.support.worker_context import StandingClock
from tests.telemetry.conftest import Diary, MakeApp, drained

AT_ONCE = Backoff(base=0, jitter=False)


async def one() -> int:
    return 1


async def fail() -> None:
    raise ValueError("always")


# -- what is told ------------------------------------------------------------------------------------------------------


async def test_a_run_is_told_from_its_start_to_its_end(app: Stepfast, diary: Diary) -> None:
    @app.workflow(queue="fast")
    async def order(ctx: Context) -> int:
        return await ctx.step("first", one)

    run = await drained(app, order)
    assert diary.hooks() == ["started", "claimed", "step_called", "step_ended", "ended"]
    (started,), (claimed,), (ended,) = diary.of("started"), diary.of("claimed"), diary.of("ended")
    assert (started.run_id, started.workflow, started.queue, started.joined) == (run.id, "order", "fast", False)
    assert (claimed.run_id, claimed.kind, claimed.attempt, claimed.claim) == (run.id, "workflow", 1, 1)
    assert 0 <= claimed.ready_for < 60
    assert (ended.status, ended.reason, ended.error_type, ended.replayed) == ("completed", None, None, 0)
    assert 0 <= ended.busy < 60 and 0 <= ended.lasted < 60
    (step,) = diary.of("step_ended")
    assert (step.step, step.kind, step.number, step.outcome, step.error_type) == ("first", "step", 1, "completed", None)
    assert (step.workflow, step.position, step.branch, step.attempt) == ("order", 0, "", 1)


async def test_the_worker_tells_of_its_claims_and_flushes(app: Stepfast, diary: Diary) -> None:
    @app.task
    async def job() -> None: ...

    await app.start_many(job, [None] * 3)
    await app.drain()
    assert sum(claim.runs for claim in diary.of("claim_answered")) == 3
    assert sum(flush.records for flush in diary.of("flushed")) == 3
    assert all(flush.refused == 0 and flush.seconds >= 0 for flush in diary.of("flushed"))


async def test_a_replay_tells_nothing_of_its_steps(make_app: MakeApp, diary: Diary) -> None:
    """Rule 56: the step is called before the wait; after it, its record answers."""
    app = make_app(observers=[diary], settings=Settings(inline_wait=0))

    @app.workflow
    async def order(ctx: Context) -> int:
        first = await ctx.step(one)
        await ctx.sleep(1)  # a short one may be over before the run has left its worker
        return first + await ctx.step(one)

    await drained(app, order)
    assert diary.hooks("started") == [
        "claimed", "step_called", "step_ended", "suspended",
        "claimed", "step_called", "step_ended", "ended",
    ]  # fmt: skip
    (released,), (ended,) = diary.of("suspended"), diary.of("ended")
    assert (released.status, released.waiting_for, released.replayed) == ("waiting", "time", 0)
    assert ended.replayed == 2
    assert [called.position for called in diary.of("step_called")] == [0, 2]


async def test_each_try_is_told_with_its_number_and_error(app: Stepfast, diary: Diary) -> None:
    @app.workflow(max_attempts=2, backoff=AT_ONCE)
    async def order(ctx: Context) -> None:
        await ctx.options(retries=1, backoff=AT_ONCE).step(fail)

    await drained(app, order)
    tries = [(e.attempt, e.number, e.outcome, e.error_type) for e in diary.of("step_ended")]
    assert tries == [(attempt, number, "failed", "ValueError") for attempt in (1, 2) for number in (1, 2)]
    (between,), (ended,) = diary.of("suspended"), diary.of("ended")
    assert (between.status, between.error_type) == ("queued", "StepFailed")
    assert (ended.status, ended.reason, ended.error_type, ended.attempt) == ("failed", "code", "StepFailed", 2)


async def test_a_result_that_cannot_be_recorded_is_told_as_refused(app: Stepfast, diary: Diary) -> None:
    @app.workflow(max_attempts=1)
    async def order(ctx: Context) -> None:
        await ctx.step("odd", lambda: object())

    await drained(app, order)
    assert [e.outcome for e in diary.of("step_ended")] == ["completed"]
    assert [(e.step, e.number, e.error_type) for e in diary.of("step_refused")] == [("odd", 1, "PayloadError")]


async def test_a_step_given_up_by_the_code_is_cancelled(app: Stepfast, diary: Diary) -> None:
    @app.workflow
    async def order(ctx: Context) -> str:
        try:
            async with asyncio.timeout(0.01):
                await ctx.step(asyncio.Event().wait)
        except TimeoutError:
            return "gave up"
        return "never"

    await drained(app, order)
    assert [e.outcome for e in diary.of("step_ended")] == ["cancelled"]
    assert [e.status for e in diary.of("ended")] == ["completed"]


async def test_kinds_of_steps_are_told(app: Stepfast, diary: Diary) -> None:
    looks = iter([False, True])

    async def seen() -> bool:
        return next(looks)

    async def undo(output: int) -> None: ...

    def write(connection: Any) -> int:
        return 1

    @app.workflow(max_attempts=1)
    async def order(ctx: Context) -> None:
        await ctx.options(compensate=undo).step(one)
        await ctx.transaction(write)
        await ctx.wait_until(seen, every=0.01)
        await ctx.step(fail)

    await drained(app, order)
    kinds = [(e.kind, e.step) for e in diary.of("step_ended")]
    assert kinds == [
        ("step", "one"), ("transaction", "write"), ("wait_until", "seen"), ("wait_until", "seen"), ("step", "fail"),
        ("undo", "undo"),
    ]  # fmt: skip
    assert [e.status for e in diary.of("suspended")] == ["compensating"]
    assert [e.undoing for e in diary.of("claimed")] == [False, True]
    assert [e.status for e in diary.of("ended")] == ["compensated"]


async def test_steps_of_a_dag_go_by_its_name(app: Stepfast, diary: Diary) -> None:
    graph = app.dag("fulfil")

    @graph.step
    async def pick(ctx: Any) -> int:
        return 1

    run = await drained(app, graph)
    ends = [(e.workflow, e.kind, e.dag_step, e.status) for e in diary.of("ended")]
    assert ends == [("fulfil", "dag_step", "pick", "completed"), ("fulfil", "dag", None, "completed")]
    assert [e.run_id for e in diary.of("started")] == [run.id]
    assert [e.dag_id for e in diary.of("claimed")] == [run.id, None]


async def test_children_and_continued_runs_are_told_as_started(app: Stepfast, diary: Diary) -> None:
    @app.task
    async def small(number: int) -> int:
        return number

    @app.workflow
    async def large(ctx: Context, number: int) -> int:
        await ctx.call(small, number)
        if number < 2:
            await ctx.continue_as(number + 1)
        return number

    run = await drained(app, large, 1)
    assert await run.result() == 2
    starts = [(e.workflow, e.parent_id is not None, e.origin_id) for e in diary.of("started")]
    assert starts == [("large", False, None), ("small", True, None), ("large", False, run.id), ("small", True, None)]
    assert [e.reason for e in diary.of("ended") if e.workflow == "large"] == ["continued", None]


async def test_waits_and_branches_are_told_at_each_claim(make_app: MakeApp, diary: Diary) -> None:
    app = make_app(observers=[diary], settings=Settings(inline_wait=0))

    async def item(ctx: Context, number: int) -> None:
        if number == 2:
            raise ValueError(number)
        await ctx.wait_signal("go")

    @app.workflow(max_attempts=1)
    async def order(ctx: Context) -> None:
        try:
            async with asyncio.timeout(0.01):
                await ctx.branch(item, 0)
        except TimeoutError:
            await ctx.map(item, [1, 2])

    run = await drained(app, order)
    await run.signal("go")
    await app.drain()
    waits = [(wait.what, wait.branch, wait.claim, wait.outcome) for wait in diary.of("wait_ended")]
    assert waits == [("signal:go", "0", 1, "cancelled"), ("signal:go", "1.0", 1, "released")]
    assert [(wait.what, wait.branch, wait.claim) for wait in diary.of("wait_began")] == [each[:3] for each in waits]
    ends = {(end.branch, end.claim, end.outcome, end.error_type) for end in diary.of("branch_ended")}
    assert ends == {
        ("0", 1, "cancelled", None), ("0", 2, "cancelled", None), ("1.0", 1, "released", None),
        ("1.1", 1, "failed", "ValueError"), ("1.0", 2, "completed", None), ("1.1", 2, "failed", "ValueError"),
    }  # fmt: skip
    assert sorted((b.branch, b.claim) for b in diary.of("branch_began")) == sorted(each[:2] for each in ends)
    assert all(end.seconds >= 0 for end in diary.of("branch_ended") + diary.of("wait_ended"))


async def test_a_key_that_is_taken_starts_nothing(app: Stepfast, diary: Diary) -> None:
    @app.task
    async def job() -> None: ...

    first = await app.start(job, key="k")
    again = await app.start(job, key="k")
    await app.start_many(job, [None, None], keys=["k", "other"])
    assert first.id == again.id
    assert len(diary.of("started")) == 2


async def test_signals_are_told(app: Stepfast, diary: Diary) -> None:
    @app.workflow
    async def order(ctx: Context) -> bool:
        return await ctx.wait_signal("approved", type=bool)

    run = await app.start(order)
    await run.signal("approved", True)
    await app.drain()
    assert [(e.run_id, e.name, e.joined) for e in diary.of("signalled")] == [(run.id, "approved", False)]
    assert await run.status() == "completed"


async def test_a_lost_run_is_told_once_and_its_step_is_abandoned(app: Stepfast, diary: Diary) -> None:
    gate = Gate()

    @app.workflow
    async def order(ctx: Context) -> None:
        await ctx.step(gate.passing)

    await app.start(order)
    async with app.worker() as worker:
        await gate.reached()
        worker.duties.executor.lose_all()
        await worker.duties.executor.idle.wait()
        await asyncio.sleep(0)
        assert sorted(diary.hooks("started")) == ["claimed", "lost", "step_called", "step_ended"]
        assert [e.outcome for e in diary.of("step_ended")] == ["abandoned"]
        gate.open()


async def test_a_stop_gives_runs_back_and_that_is_told(app: Stepfast, diary: Diary) -> None:
    gate = Gate()

    @app.workflow
    async def order(ctx: Context) -> None:
        await ctx.step(gate.passing)

    await app.start(order)
    async with app.worker(shutdown_grace=0):
        await gate.reached()
    assert [e.status for e in diary.of("suspended")] == ["queued"]
    assert not diary.of("lost")


async def test_a_start_in_a_callers_transaction_says_so(tmp_path: Any, diary: Diary) -> None:
    import sqlite3

    path = tmp_path / "own.db"
    async with Stepfast(f"sqlite:///{path}", observers=[diary]) as app:

        @app.task
        async def job() -> None: ...

        with sqlite3.connect(path) as connection:
            await app.start(job, connection=connection)
        connection.close()
    assert [e.joined for e in diary.of("started")] == [True]


# -- what is not told --------------------------------------------------------------------------------------------------


async def test_payloads_keys_tags_and_messages_are_never_told(app: Stepfast, diary: Diary) -> None:
    """Rule 56: names, ids and durations are enough; but for two hooks that bring the error itself."""
    secret = "s3cr3t"

    async def leak(text: str) -> str:
        raise ValueError(text)

    @app.workflow(max_attempts=1)
    async def order(ctx: Context, text: str) -> str:
        await ctx.wait_signal("go")
        await ctx.set("value", text)
        await ctx.step("tell", lambda: text)
        await ctx.step(leak, text)
        return text

    run = await app.start(order, secret, key=secret, tags=[secret])
    await run.signal("go", secret)
    await app.drain()
    assert await run.status() == "failed"
    assert len(diary.pages) > 8
    errors = {"try_failed": "ValueError", "attempt_failed": "StepFailed"}
    assert secret not in repr([(hook, event) for hook, event in diary.pages if hook not in errors])
    for hook, name in errors.items():
        assert type(diary.of(hook)[-1].error).__name__ == name


async def test_what_is_not_overridden_is_not_called(make_app: MakeApp) -> None:
    heard: list[str] = []

    class OnlyEnds(Observer):
        def ended(self, event: Any) -> None:
            heard.append(event.status)

    app = make_app(observers=[OnlyEnds()])

    @app.task
    async def job() -> None: ...

    await drained(app, job)
    assert heard == ["completed"]
    connected = await app._connect()
    assert connected.observers is not None
    assert not connected.observers.started and len(connected.observers.ended) == 1


async def test_without_observers_nobody_is_there_to_be_told(make_app: MakeApp) -> None:
    app = make_app()
    assert (await app._connect()).observers is None


# -- what an observer can do -------------------------------------------------------------------------------------------


async def test_what_an_observer_puts_into_a_context_variable_is_seen_by_the_step(make_app: MakeApp) -> None:
    span: contextvars.ContextVar[str] = contextvars.ContextVar("span", default="none")

    class Tracing(Observer):
        def step_called(self, event: StepCalled) -> None:
            span.set(f"{event.step} {event.number}")

    async def asynchronous() -> str:
        return span.get()

    def blocking() -> str:
        return span.get()

    app = make_app(observers=[Tracing()])

    @app.workflow
    async def order(ctx: Context) -> list[str]:
        bounded = await ctx.options(timeout=5).step("bounded", asynchronous)
        return [await ctx.step(asynchronous), await ctx.step(blocking), bounded]

    @app.workflow
    def plain(ctx: SyncContext) -> str:
        return ctx.step(blocking)

    runs = [await app.start(order), await app.start(plain)]
    await app.drain()
    assert await runs[0].result() == ["asynchronous 1", "blocking 1", "bounded 1"]
    assert await runs[1].result() == "blocking 1"


async def test_an_observer_that_raises_hurts_nobody_and_is_logged_once(
    make_app: MakeApp, diary: Diary, caplog: pytest.LogCaptureFixture
) -> None:
    """Rule 56: also by what is no ordinary error."""

    class Broken(Observer):
        def step_called(self, event: Any) -> None:
            raise ValueError("observer")

        def step_ended(self, event: Any) -> None:
            raise SystemExit(3)

        def ended(self, event: Any) -> None:
            raise asyncio.CancelledError

    app = make_app(observers=[Broken(), diary])

    @app.workflow
    async def order(ctx: Context) -> int:
        return sum([await ctx.step(one) for _ in range(20)])

    run = await app.start(order)
    with caplog.at_level(logging.ERROR, "stepfast"):
        await app.drain()
    assert await run.result() == 20
    assert len(diary.of("step_ended")) == 20 and len(diary.of("ended")) == 1
    said = [record.getMessage() for record in caplog.records if "observer" in record.getMessage()]
    assert len(said) == 3
    assert "Broken.step_called raised ValueError; the run goes on" in said[0]
    told = next(record for record in caplog.records if "step_called" in record.getMessage())
    found = tuple(getattr(told, name, None) for name in ("run_id", "workflow", "attempt", "step"))
    assert found == (run.id, "order", 1, "one")


async def test_an_observer_that_goes_on_raising_is_logged_once_a_minute_by_the_clock_of_the_application(
    caplog: pytest.LogCaptureFixture,
) -> None:
    class Broken(Observer):
        def started(self, event: Any) -> None:
            raise ValueError

    app, clock = Stepfast("sqlite://", observers=[Broken()]), StandingClock()
    app._clock = clock

    @app.task
    async def job() -> None: ...

    async with app:
        with caplog.at_level(logging.ERROR, "stepfast"):
            for seconds in (0, 59, 2):
                clock.advance(seconds)
                await app.start(job)
    said = [record.getMessage() for record in caplog.records]
    assert len(said) == 2 and "(1 more times in the last minute)" in said[1]


async def test_a_run_that_was_put_off_is_ready_when_it_is_due(app: Stepfast, diary: Diary) -> None:
    @app.task
    async def job() -> None: ...

    await drained(app, job, delay=timedelta(seconds=0.3))
    (claimed,), (ended,) = diary.of("claimed"), diary.of("ended")
    assert claimed.ready_for < ended.lasted


# -- what is refused ---------------------------------------------------------------------------------------------------


def test_what_is_no_observer_is_refused_by_name() -> None:
    with pytest.raises(ConfigurationError, match=r"derived from stepfast\.telemetry\.Observer, not object"):
        Stepfast("sqlite://", observers=[object()])  # type: ignore[list-item]
    with pytest.raises(ConfigurationError, match="not the class Observer"):
        Stepfast("sqlite://", observers=[Observer])  # type: ignore[list-item]


async def test_an_observer_is_added_before_the_first_use_or_refused(make_app: MakeApp, diary: Diary) -> None:
    app = make_app()

    @app.task
    async def job() -> None: ...

    app.observe(diary)
    await app.start(job)
    assert diary.hooks() == ["started"]
    with pytest.raises(ConfigurationError, match=r"before the first use, or pass it as Stepfast\(observers="):
        app.observe(Diary())
    with pytest.raises(ConfigurationError, match="not object"):
        make_app().observe(object())  # type: ignore[arg-type]


def test_an_async_hook_is_refused_because_nobody_would_await_it() -> None:
    class Slow(Observer):
        async def ended(self, event: Any) -> None:  # type: ignore[override]
            await asyncio.sleep(1)

    with pytest.raises(ConfigurationError, match=r"Slow\.ended is an async def, and observers are not awaited"):
        Stepfast("sqlite://", observers=[Slow()])


# -- what observers send along is stored with a run, a signal or a remote step, and delivered


class Postmark(Observer):
    """Stamps whatever is sent with a number of its own, and notes what arrives."""

    def __init__(self) -> None:
        self.sent: list[tuple[str, str, int]] = []
        self.outcomes: list[tuple[str, str | None]] = []
        self.claimed_with: list[tuple[str, dict[str, str]]] = []
        self.taken_with: list[dict[str, str]] = []

    def sending(self, event: Sending) -> None:
        self.sent.append((event.kind, event.name, event.number))
        event.trace["stamp"] = f"{event.kind}-{len(self.sent)}"

    def sending_ended(self, event: SendingEnded) -> None:
        self.outcomes.append((event.sending.kind, event.error_type))

    def claimed(self, event: RunClaimed) -> None:
        self.claimed_with.append((event.dag_step or event.workflow, event.trace))

    def releasing(self, event: RunReleasing) -> None:
        event.trace["claims"] = str(event.claim)

    def signal_taken(self, event: SignalTaken) -> None:
        self.taken_with.append(event.trace)


@pytest.fixture
def postmark() -> Postmark:
    return Postmark()


async def test_it_goes_with_starts_children_signals_and_over_suspensions(url: str, postmark: Postmark) -> None:
    async with Stepfast(url, observers=[postmark], settings=Settings(inline_wait=0)) as app:

        @app.task
        async def wrap(name: str) -> str:
            return name

        @app.workflow
        async def order(ctx: Context, name: str) -> Any:
            await ctx.call(wrap, name)
            return await ctx.wait_signal("approved")

        run = await drained(app, order, "ada")
        await run.signal("approved", True)
        await app.drain()
        assert await run.result()
        assert postmark.sent == [("start", "order", 1), ("child", "wrap", 1), ("signal", "approved", 1)]
        assert postmark.outcomes == [("start", None), ("signal", None)]
        assert postmark.claimed_with[:2] == [("order", {"stamp": "start-1"}), ("wrap", {"stamp": "child-2"})]
        assert all(seen["stamp"] == "start-1" for name, seen in postmark.claimed_with if name == "order")
        assert int(postmark.claimed_with[-1][1]["claims"]) >= 1
        assert postmark.taken_with == [{"stamp": "signal-3"}]


async def test_it_goes_with_many_starts_dags_and_what_a_run_goes_on_as(url: str, postmark: Postmark) -> None:
    async with Stepfast(url, observers=[postmark]) as app:
        fulfil = app.dag("fulfil")

        @fulfil.step
        async def pack(ctx: DagContext) -> int:
            return 1

        @fulfil.step(after=["pack"])
        async def ship(ctx: DagContext) -> int:
            return 2

        @app.task
        async def job(n: int) -> int:
            return n

        @app.workflow
        async def again(ctx: Context, n: int) -> int:
            return n or ctx.continue_as(1)

        await app.start(fulfil)
        await app.start_many(job, [1, 2, 3])
        await drained(app, again, 0)
        starts = [("start", "fulfil", 1), ("start", "job", 3), ("start", "again", 1), ("next", "again", 1)]
        assert postmark.sent == starts
        stamps = {(name, seen.get("stamp")) for name, seen in postmark.claimed_with}
        assert stamps == {
            ("pack", "start-1"), ("ship", "start-1"), ("fulfil", "start-1"), ("job", "start-2"),
            ("again", "start-3"), ("again", "next-4"),
        }  # fmt: skip


async def test_it_goes_with_a_debounced_start_and_with_one_in_the_callers_transaction(
    sqlite_url: str, postmark: Postmark
) -> None:
    async with Stepfast(sqlite_url, observers=[postmark]) as app:

        @app.task
        async def job(n: int) -> int:
            return n

        await app.start(job, 1, key="k", debounce=0.01)
        with contextlib.closing(sqlite3.connect(sqlite_url.removeprefix("sqlite:///"))) as connection:
            await app.start(job, 2, connection=connection)
            connection.commit()
        await app.drain()
        assert {seen["stamp"] for _, seen in postmark.claimed_with} == {"start-1", "start-2"}


async def test_a_transport_that_has_room_for_it_is_given_it_with_tasks(sqlite_url: str, postmark: Postmark) -> None:
    seen: list[str | None] = []

    def serve(task: Task) -> Result:
        seen.append(task.trace)
        return echo(task)

    quick = Settings(sweep_interval=0.05, poll_interval=0.05)
    async with Stepfast(sqlite_url, observers=[postmark], transport=MemoryTransport(serve), settings=quick) as app:

        @app.workflow
        async def order(ctx: Context) -> Any:
            return await ctx.remote("print", "label")

        run = await app.start(order)
        async with app.worker():
            await run.result(timeout=30)
        assert seen == ['{"stamp":"remote-2"}']


async def test_what_could_not_be_sent_is_told_with_its_error(postmark: Postmark) -> None:
    async with Stepfast("sqlite://", observers=[postmark]) as app:

        @app.task
        async def job() -> None: ...

        run = await drained(app, job)
        with pytest.raises(InvalidState):
            await run.signal("late")
        assert postmark.outcomes == [("start", None), ("signal", "InvalidState")]


@pytest.mark.parametrize("text", ["", "{", "[]", '{"a": 1}', "null", '"x"', "{" + " " * MOST + "}"])
def test_what_no_observer_could_have_sent_is_nothing(text: str) -> None:
    assert decoded(text) == {}


def test_what_is_too_long_is_not_sent() -> None:
    assert encoded({"a": "x" * MOST}) is None
    assert encoded({}) is None
    assert decoded(encoded({"a": "x" * 1000})) == {"a": "x" * 1000}
