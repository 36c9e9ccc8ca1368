"""`ctx.remote`: a step that a worker elsewhere serves; its undos, and remote steps of dags."""

from __future__ import annotations

import asyncio
import contextlib
from dataclasses import dataclass, replace
from datetime import timedelta
from typing import Any

import pytest

from stepfast import (
    Backoff,
    ConfigurationError,
    Context,
    InvalidInput,
    NonRetryableError,
    RemoteStepError,
    Settings,
    Stepfast,
    SyncContext,
    UnknownOption,
)
from stepfast.engine.remote_step import remote_order
from stepfast.remote import FatalError, RemoteTask, RemoteWorker, SqlTransport
from stepfast.telemetry import Metrics, Observer, RemoteEnded, RemoteSent, metrics_text
from tests.remote_steps.conftest import QUICK, Home, enough_joined, everywhere, joined, start_shop
from tests.support.engine import PATIENCE, Calls, eventually, failure, stopped_at_once
from tests.worker.spying import Counted

NOW = Backoff(base=0, jitter=False)


# -- values and errors -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("home", ["joined", "outbox", "mariadb"], indirect=True)
async def test_values_and_errors_come_through(home: Home) -> None:
    values = [None, False, 0, "", "Grüße, 世界 🌍", {"a": [1, 2.5, {"b": None}]}, "x" * 200_000, 2**70]

    @home.app.workflow
    async def shop(ctx: Context) -> list[Any]:
        return await ctx.gather(*(ctx.remote("echo", value) for value in values))

    @home.app.workflow
    async def unlucky(ctx: Context) -> tuple[Any, ...]:
        try:
            await ctx.remote("fatal", group="echo", retries=5)
        except RemoteStepError as error:
            return error.step, error.message, error.code, error.retryable, str(error)
        raise AssertionError

    worker = home.echoing()

    @worker.handle("fatal")
    async def fatal(input: Any) -> None:
        raise FatalError("never", code="E1")

    run, other = await home.app.start(shop), await home.app.start(unlucky)
    async with home.app.worker(), worker:
        assert await run.result(timeout=20) == values
        assert await other.result(timeout=20) == (
            "fatal",
            "never",
            "E1",
            False,
            "remote step 'fatal' failed: never (E1)",
        )
        await home.nothing_is_left()


@joined
async def test_an_error_is_raised_alike_live_and_replayed(home: Home) -> None:
    seen: list[tuple[Any, ...]] = []

    @home.app.workflow
    async def shop(ctx: Context) -> None:
        try:
            await ctx.remote("echo", 1)
        except RemoteStepError as error:
            seen.append((str(error), error.code, error.retryable, error.address, error.traceback is not None))
        await ctx.wait_signal("go")

    worker = home.worker()

    @worker.handle("echo")
    async def echo(input: Any) -> None:
        raise ValueError("not today")

    run = await home.app.start(shop)
    async with worker, home.app.worker():
        await eventually(lambda: seen)
    await run.signal("go")
    async with home.app.worker():
        await run.result(timeout=20)
    assert seen[0] == ("remote step 'echo' failed: not today", None, True, ("", 0), True)
    assert len(seen) >= 2
    assert set(seen) == {seen[0]}


@joined
async def test_an_uncaught_failure_is_sent_anew_by_the_next_attempt(home: Home) -> None:
    tasks: list[RemoteTask] = []

    @home.app.workflow(backoff=NOW)
    async def shop(ctx: Context) -> Any:
        return await ctx.remote("echo", 1)

    worker = home.worker()

    @worker.handle("echo")
    async def echo(input: Any, task: RemoteTask) -> Any:
        tasks.append(task)
        if len(tasks) == 1:
            raise ValueError("not today")
        return "done"

    run = await home.app.start(shop)
    async with worker, home.app.worker():
        assert await run.result(timeout=20) == "done"
    assert [(task.step_id, task.attempt) for task in tasks] == [(f"{run.id}:0", 1), (f"{run.id}:1", 1)]


@joined
async def test_a_run_that_cannot_be_helped_by_a_retry_ends_at_once(home: Home) -> None:
    @home.app.workflow(max_attempts=5)
    async def shop(ctx: Context) -> Any:
        return await ctx.remote("unknown", group="echo", retries=5)

    run = await home.app.start(shop)
    async with home.echoing(), home.app.worker():
        await failure(run, "no handler for unknown")
    assert (await run.info()).attempt == 1


@dataclass
class Page:
    text: str


@joined
async def test_the_output_has_its_type_and_one_that_does_not_fit_is_a_failure(home: Home) -> None:
    @home.app.workflow
    async def shop(ctx: Context) -> str:
        page = await ctx.remote("echo", {"text": "all of it"}, type=Page)
        try:
            await ctx.remote("echo", {"words": 1}, type=Page)
        except RemoteStepError as error:
            return f"{page.text}; {error.message}; {error.retryable}"
        return "?"

    run = await home.app.start(shop)
    async with home.echoing(), home.app.worker():
        said = await run.result(timeout=20)
    assert said.startswith("all of it; the output of 'echo' does not fit its annotation: ")
    assert said.endswith("False")


@joined
async def test_an_output_that_is_no_json_is_a_failure(home: Home) -> None:
    """Workers of others write bare NaN, and whatever they like."""

    @home.app.workflow
    async def shop(ctx: Context) -> str:
        try:
            return str(await ctx.remote("echo", 1))
        except RemoteStepError as error:
            return f"{error.retryable} {error.message}"

    run = await home.app.start(shop)
    async with home.app.worker():
        await home.answer(run.id, output="NaN")
        assert (await run.result(timeout=20)).startswith("False the worker's output is not usable: it is not JSON (")


# -- retries ---------------------------------------------------------------------------------------------------------


@everywhere
async def test_retries_go_on_under_the_same_id_and_without_the_run(home: Home) -> None:
    tasks: list[RemoteTask] = []

    @home.app.workflow
    async def shop(ctx: Context) -> Any:
        return await ctx.remote("echo", 7, retries=2, backoff=Backoff(base=0.02, jitter=False))

    worker = home.worker()

    @worker.handle("echo")
    async def echo(input: Any, task: RemoteTask) -> Any:
        tasks.append(task)
        if task.attempt < 3:
            raise ValueError(f"attempt {task.attempt}")
        return input

    run = await home.app.start(shop)
    async with worker, home.app.worker():
        assert await run.result(timeout=20) == 7
        await home.nothing_is_left()
    assert [(task.step_id, task.attempt) for task in tasks] == [(f"{run.id}:0", n) for n in (1, 2, 3)]
    (step,) = await run.steps()
    assert (step.name, step.kind, step.status, step.attempts) == ("echo", "remote", "completed", 3)
    told = [(call.attempt, call.status, call.error and call.error.message) for call in await run.activity()]
    assert told == [(1, "failed", "attempt 1"), (2, "failed", "attempt 2"), (3, "completed", None)]
    assert step.queue_wait is not None
    assert [call.queue_wait for call in await run.activity()] == [None, None, step.queue_wait]
    assert (await run.info()).attempt == 1


@joined
async def test_when_the_retries_are_used_up_the_last_error_comes(home: Home) -> None:
    @home.app.workflow
    async def shop(ctx: Context) -> str:
        try:
            return str(await ctx.remote("echo", retries=1, backoff=NOW))
        except RemoteStepError as error:
            return error.message

    worker = home.worker()

    @worker.handle("echo")
    async def echo(input: Any, task: RemoteTask) -> None:
        raise ValueError(f"attempt {task.attempt}")

    run = await home.app.start(shop)
    async with worker, home.app.worker():
        assert await run.result(timeout=20) == "attempt 2"
    assert [call.attempt for call in await run.activity()] == [1, 2]


# -- in every kind of code -------------------------------------------------------------------------------------------


@joined
async def test_a_plain_def_has_it_too(home: Home) -> None:
    @home.app.workflow
    def shop(ctx: SyncContext, number: int) -> int:
        return ctx.remote("echo", number, type=int) + ctx.remote("echo", 1, type=int)

    run = await home.app.start(shop, 41)
    async with home.echoing(), home.app.worker():
        assert await run.result(timeout=20) == 42


@joined
async def test_branches_maps_and_races(home: Home) -> None:
    async def twice(ctx: Context, number: int) -> int:
        first = await ctx.remote("echo", number, type=int)
        return first + await ctx.remote("echo", number, type=int)

    @home.app.workflow
    async def shop(ctx: Context) -> list[Any]:
        branch = await ctx.branch(twice, 5)
        mapped = await ctx.map(twice, range(20), limit=4)
        winner, value = await ctx.first(remote=ctx.remote("echo", "quick"), late=ctx.sleep(3600))
        other, _ = await ctx.first(remote=ctx.remote("nobody", group="nobody"), soon=ctx.sleep(0.05))
        return [branch, mapped, winner, value, other]

    run = await home.app.start(shop)
    async with home.echoing(), home.app.worker():
        expected = [10, [2 * n for n in range(20)], "remote", "quick", "soon"]
        assert await run.result(timeout=90) == expected  # a dozen rounds of several processes, on whatever machine
        await home.nothing_is_left()  # who lost the race is taken back


@joined
async def test_a_thousand_steps_of_one_gather_are_one_insert_and_few_resumes(home: Home) -> None:
    app = home.make(settings=replace(QUICK, inline_wait=0.0))

    @app.workflow
    async def shop(ctx: Context) -> int:
        return sum(await ctx.gather(*(ctx.remote("echo", n, type=int) for n in range(1000))))

    run = await app.start(shop)
    worker = home.worker(concurrency=200, batch=200)

    @worker.handle("echo")
    async def echo(input: int) -> int:
        return input

    async with app.worker():
        await eventually(lambda: home.count_tasks(1000))
        assert await home.inserts() == 1
        async with worker:
            assert await run.result(timeout=40) == 499_500
    row = await home.fetch("SELECT claim FROM stepfast.runs WHERE id = $1::uuid", run.id)
    assert row[0][0] <= 4, "the run was claimed too often"


# -- waiting ---------------------------------------------------------------------------------------------------------


@enough_joined
async def test_a_run_that_waits_holds_no_slot_and_says_what_for(home: Home) -> None:
    app = home.make(settings=replace(QUICK, inline_wait=0.0))

    run = await start_shop(app, {"a": 1})
    async with app.worker(concurrency=1):
        await eventually(lambda: _waits_for(run, "remote:echo"))
        (step,) = await run.steps()
        assert (step.name, step.kind, step.status) == ("echo", "remote", "waiting")
        assert step.detail is not None
        assert "sent to group 'echo' at 20" in step.detail
        await eventually(lambda: home.count_tasks(1))
    async with home.echoing(), app.worker(concurrency=1):
        assert await run.result(timeout=20) == {"a": 1}


async def _waits_for(run: Any, what: str) -> bool:
    return bool((await run.info()).waiting_for == what)


@pytest.mark.parametrize("home", ["joined", "outbox"], indirect=True)
async def test_a_result_that_comes_while_no_engine_lives_is_found(home: Home, calls: Calls) -> None:
    run = await start_shop(home.app, 5)
    async with home.app.worker():
        await eventually(lambda: home.count_tasks(1))
    async with home.echoing(calls):
        await eventually(lambda: calls["echo"])
    async with home.app.worker():
        assert await run.result(timeout=20) == 5
    assert calls == {"echo": 1}


@joined
async def test_what_nobody_serves_in_time_is_taken_back(home: Home) -> None:
    @home.app.workflow
    async def shop(ctx: Context) -> str:
        try:
            await ctx.remote("echo", timeout=timedelta(milliseconds=50))
        except TimeoutError as error:
            return f"{type(error).__name__}: {error}"
        return "?"

    run = await home.app.start(shop)
    async with home.app.worker():
        assert await run.result(timeout=20) == "RemoteTimeout: remote step 'echo' failed: no result came within 0.05 s"
        await home.nothing_is_left()


@joined
async def test_the_codes_own_timeout_takes_it_back_too(home: Home) -> None:
    @home.app.workflow
    async def shop(ctx: Context) -> str:
        try:
            async with asyncio.timeout(0.05):
                await ctx.remote("echo")
        except TimeoutError:
            await ctx.sleep(0.3)
            return "given up"
        return "?"

    run = await home.app.start(shop)
    async with home.app.worker():
        assert await run.result(timeout=20) == "given up"
        await home.nothing_is_left()


@everywhere
async def test_a_cancelled_run_takes_back_what_nobody_has_begun(home: Home) -> None:
    begun, go = asyncio.Event(), asyncio.Event()

    @home.app.workflow
    async def shop(ctx: Context) -> Any:
        return await ctx.gather(ctx.remote("echo", 1), ctx.remote("later", group="nobody"))

    worker = home.worker()

    @worker.handle("echo")
    async def echo(input: Any) -> Any:
        begun.set()
        await go.wait()
        return input

    run = await home.app.start(shop)
    async with home.app.worker(), worker:
        await asyncio.wait_for(begun.wait(), 20)
        await run.cancel()
        await eventually(lambda: home.count_tasks(1))  # the one that nobody serves is gone
        go.set()
        await home.nothing_is_left()  # and what came of the other was thrown away
    assert await run.status() == "cancelled"


@joined
async def test_a_retried_run_sends_again_what_was_taken_back(home: Home) -> None:
    run = await start_shop(home.app, 5)
    async with home.app.worker():
        await eventually(lambda: home.count_tasks(1))
        await run.cancel()
        await home.nothing_is_left()
        await run.retry()
        async with home.echoing():
            assert await run.result(timeout=20) == 5


@joined
async def test_a_worker_that_dies_while_its_run_waits_changes_nothing(home: Home, calls: Calls) -> None:
    run = await start_shop(home.app, 5)
    async with stopped_at_once(home.app):
        await eventually(lambda: home.count_tasks(1))
    async with home.echoing(calls), home.app.worker():
        assert await run.result(timeout=20) == 5
    assert calls == {"echo": 1}


# -- what is refused -------------------------------------------------------------------------------------------------


async def test_on_sqlite_alone_it_is_refused_with_what_to_do(sqlite_url: str) -> None:
    async with Stepfast(sqlite_url) as app:
        run = await start_shop(app)
        await app.drain()
        await failure(run, r"Pass Stepfast\(transport=SqlTransport\(url\)\)")
        assert (await run.info()).attempt == 1


async def test_a_transport_is_checked_when_the_application_is_made(sqlite_url: str) -> None:
    with pytest.raises(ConfigurationError, match="transport= takes a transport"):
        Stepfast(sqlite_url, transport=SqlTransport)  # type: ignore[arg-type]
    with pytest.raises(ConfigurationError, match="transport= takes a transport"):
        Stepfast(sqlite_url, transport="postgresql://localhost/shop")  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"name": "x" * 192}, "at most 191"),
        ({"group": "g" * 192}, "at most 191"),
        ({"partition": "p" * 191}, "at most 191"),
        ({"partition": "eu "}, "begins or ends with blanks, which some databases ignore"),
        ({"retries": -1}, "retries must be"),
        ({"retries": True}, "retries must be"),
        ({"timeout": -1}, "timeout"),
        ({"backoff": 3}, "backoff must be"),
        ({"grp": "x"}, "grp"),
        ({"type": object()}, "annotation"),
    ],
)
def test_options_that_cannot_work_are_refused(options: dict[str, Any], said: str) -> None:
    given = {"name": "echo", **options}
    with pytest.raises((ConfigurationError, InvalidInput), match=said):
        remote_order(given.pop("name"), 1, given, 200)  # type: ignore[arg-type]


def test_groups_are_spelled_as_the_contract_does() -> None:
    for name in ("pipeline.extract", "a:b:c", "Ä b"):
        for partition, behind in ((None, ""), ("", ""), ("default", ""), ("eu", "@eu"), ("a:b", "@a:b")):
            assert remote_order(name, 1, {"partition": partition}, 200).group == name.replace(":", "-") + behind
    assert remote_order("charge", 1, {"group": "pay:ments@tenant:7"}, 200).group == "pay-ments@tenant:7"
    assert RemoteWorker("postgresql://localhost/x", "pay:ments@tenant:7").group == "pay-ments@tenant:7"
    assert issubclass(FatalError, NonRetryableError)


@joined
async def test_observers_hear_of_what_goes_out_and_comes_back(home: Home) -> None:
    """Also if the run gave its slot back meanwhile; and without what it was given."""

    class Diary(Observer):
        def __init__(self) -> None:
            self.pages: list[Any] = []

        def remote_sent(self, event: RemoteSent) -> None:
            self.pages.append(event)

        def remote_ended(self, event: RemoteEnded) -> None:
            self.pages.append(event)

    diary = Diary()
    app = home.make(observers=[diary, Metrics()])

    @app.workflow
    async def shop(ctx: Context) -> None:
        await ctx.remote("echo", "s3cret")
        with contextlib.suppress(RemoteStepError):
            await ctx.remote("fatal", "s3cret", group="echo")

    worker = home.echoing()

    @worker.handle("fatal")
    async def fatal(input: Any) -> None:
        raise FatalError("s3cret")

    run = await app.start(shop)
    async with app.worker(), worker:
        await run.result(timeout=20)
        text = await metrics_text(app)
    sent, came = [page for page in diary.pages if isinstance(page, RemoteSent)], diary.pages[1::2]
    assert [(event.workflow, event.step, event.group) for event in sent] == [
        ("shop", "echo", "echo"), ("shop", "fatal", "echo"),
    ]  # fmt: skip
    assert [(event.step, event.outcome, event.tries, event.error_type is None) for event in came] == [
        ("echo", "completed", 1, True), ("fatal", "failed", 1, False),
    ]  # fmt: skip
    assert "s3cret" not in repr(diary.pages)
    assert 'stepfast_step_seconds_count{workflow="shop",step="echo",outcome="completed"} 1' in text


# -- undos that are served elsewhere


def paying(home: Home, seen: list[Any], *, failing: int = 0) -> RemoteWorker:
    """A worker that charges, and refunds after so many failures."""
    worker = home.worker("payments")

    @worker.handle("charge")
    async def charge(input: Any) -> str:
        return f"receipt {input}"

    @worker.handle("refund")
    async def refund(input: Any, task: RemoteTask) -> None:
        seen.append((task.step_id.rpartition(":")[2], task.attempt, input))
        if task.attempt <= failing:
            raise ValueError("not now")

    return worker


@enough_joined
async def test_completed_steps_are_undone_elsewhere_in_reverse(home: Home) -> None:
    seen: list[Any] = []

    @home.app.workflow
    async def shop(ctx: Context) -> None:
        for number in (1, 2):
            await ctx.remote("charge", number, group="payments", compensate="refund")
        raise NonRetryableError("no stock")

    run = await home.app.start(shop)
    async with home.app.worker(), paying(home, seen, failing=1):
        await failure(run, "no stock")
        await home.nothing_is_left()
    two, one = {"input": 2, "output": "receipt 2"}, {"input": 1, "output": "receipt 1"}
    assert seen == [("-1", 1, two), ("-1", 2, two), ("-2", 1, one), ("-2", 2, one)]
    assert await run.status() == "compensated"
    told = [(step.name, step.kind, step.status, step.undo, step.attempts) for step in await run.steps()]
    assert told == [
        ("charge", "remote", "completed", "refund", 1), ("charge", "remote", "completed", "refund", 1),
        ("refund", "undo", "compensated", None, 2), ("refund", "undo", "compensated", None, 2),
    ]  # fmt: skip


@joined
async def test_a_cancelled_run_waits_for_its_undo_without_a_slot(home: Home) -> None:
    seen: list[Any] = []
    app = home.make(settings=replace(QUICK, inline_wait=0.0))

    @app.workflow
    def shop(ctx: SyncContext) -> None:
        ctx.remote("charge", 1, group="payments", compensate="refund")
        ctx.wait_signal("never")

    run = await app.start(shop)
    async with app.worker(concurrency=1) as worker:
        async with paying(home, seen):
            await eventually(lambda: _undo_waits_for(run, "signal:never"))
        await run.cancel()
        await eventually(lambda: home.count_tasks(1))
        await eventually(lambda: _undo_waits_for(run, "remote:refund"))
        assert (await run.info()).status == "compensating"
        assert worker.running == 0
        async with paying(home, seen):
            await eventually(lambda: _has_status(run, "compensated"))
    assert seen == [("-1", 1, {"input": 1, "output": "receipt 1"})]


async def _undo_waits_for(run: Any, what: str) -> bool:
    return bool((await run.info()).waiting_for == what)


async def _has_status(run: Any, status: str) -> bool:
    return bool(await run.status() == status)


@joined
async def test_an_undo_that_fails_for_good_is_named(home: Home) -> None:
    seen: list[Any] = []
    app = home.make(settings=replace(QUICK, undo_retries=0))

    @app.workflow
    async def shop(ctx: Context) -> None:
        await ctx.remote("charge", 1, group="payments", compensate="refund")
        raise NonRetryableError("no stock")

    run = await app.start(shop)
    async with app.worker(), paying(home, seen, failing=9):
        await failure(run, "undo 'refund' of step 'charge': RemoteStepError: not now")


@joined
async def test_a_function_may_undo_a_remote_step(home: Home) -> None:
    seen: list[Any] = []

    async def refund(output: str, input: int) -> None:
        seen.append((output, input))

    @home.app.workflow
    async def shop(ctx: Context) -> None:
        await ctx.remote("charge", 1, group="payments", compensate=refund)
        raise NonRetryableError("no stock")

    run = await home.app.start(shop)
    async with home.app.worker(), paying(home, []):
        await failure(run, "no stock")
    assert seen == [("receipt 1", 1)]


# -- remote steps of declared graphs


@enough_joined
async def test_a_step_of_a_graph_is_served_elsewhere(home: Home) -> None:
    fulfil = home.app.dag("fulfil")

    @fulfil.step
    async def scan(ctx: Any) -> int:
        return int(ctx.input) + 1

    fulfil.remote("echo", after=[scan])
    fulfil.remote("twice", handler="echo", group="echo", after=["echo"], input=lambda ctx: ctx.outputs["scan"] * 2)
    fulfil.remote("never", after=["scan"], when=lambda ctx: False)
    worker = home.echoing()
    run = await home.app.start(fulfil, 1)
    async with home.app.worker(), worker:
        assert await run.result(timeout=20) == {"scan": 2, "echo": {"input": 1, "outputs": {"scan": 2}}, "twice": 4}
        await home.nothing_is_left()
    assert {call.name for call in await run.activity() if call.queue_wait is not None} == {"echo"}
    assert {step.name for step in await run.steps() if step.queue_wait is not None} == {"echo", "twice"}


@joined
async def test_its_retries_its_failure_and_its_catch(home: Home) -> None:
    fulfil = home.app.dag("fulfil")
    fulfil.remote("echo", retries=1, catch={RemoteStepError: "mend"})
    fulfil.remote("mend", group="echo")
    worker, seen = home.worker(), []

    @worker.handle("echo")
    async def echo(input: Any) -> None:
        seen.append("echo")
        raise ValueError("no")

    @worker.handle("mend")
    async def mend(input: Any) -> str:
        return "mended"

    run = await home.app.start(fulfil)
    async with home.app.worker(), worker:
        assert await run.result(timeout=20) == {"mend": "mended"}
    assert seen == ["echo", "echo"]


@joined
async def test_it_waits_without_a_slot_and_says_for_what(home: Home) -> None:
    fulfil = home.app.dag("fulfil")
    fulfil.remote("echo")
    run = await home.app.start(fulfil)
    async with home.app.worker(concurrency=1):
        await eventually(lambda: _detail(run, "remote:echo"))
        await run.cancel()
        await home.nothing_is_left()


async def _detail(run: Any, what: str) -> bool:
    return [step.detail for step in await run.steps()] == [what]


@joined
async def test_a_completed_step_is_undone_elsewhere(home: Home) -> None:
    fulfil, undone = home.app.dag("fulfil"), list[Any]()
    fulfil.remote("charge", group="echo", input=lambda ctx: {"cents": ctx.input}, compensate="refund")
    fulfil.remote("ship", group="echo", after=["charge"])
    worker = home.worker()

    @worker.handle("charge")
    async def charge(input: Any) -> str:
        return "receipt"

    @worker.handle("ship")
    async def ship(input: Any) -> None:
        raise FatalError("no stock")

    @worker.handle("refund")
    async def refund(input: Any, task: Any) -> None:
        undone.append((input, task.step_id))

    run = await home.app.start(fulfil, 5)
    async with home.app.worker(), worker:
        await failure(run, "no stock")
        await home.nothing_is_left()
    assert undone == [({"input": {"cents": 5}, "output": "receipt"}, f"{run.id}:-1")]
    assert await run.status() == "compensated"


@joined
async def test_it_is_tried_again_as_the_settings_say(home: Home) -> None:
    fulfil, calls = home.app.dag("fulfil"), list[int]()
    fulfil.remote("charge", group="echo", backoff=Backoff(base=0.001))
    worker = home.worker()

    @worker.handle("charge")
    async def charge(input: Any, task: Any) -> None:
        calls.append(task.attempt)
        raise ConnectionError("no answer")

    run = await home.app.start(fulfil)
    async with home.app.worker(), worker:
        await failure(run, "no answer")
        await home.nothing_is_left()
    assert calls == [1, 2, 3]


def test_the_graph_says_nothing_of_its_retries(sqlite_url: str) -> None:
    """They are counted where it is served. Its run is executed once, which is not what a reader has to know."""
    from stepfast import Stepfast

    fulfil = Stepfast(sqlite_url).dag("fulfil")
    fulfil.remote("echo", retries=4)
    assert fulfil.graph.dag_steps["echo"].retries is None
    assert fulfil.steps["echo"].options.max_attempts == 1


def test_what_cannot_work_is_refused_with_the_name_of_the_step(sqlite_url: str) -> None:
    from stepfast import Stepfast

    fulfil = Stepfast(sqlite_url).dag("fulfil")
    with pytest.raises(ConfigurationError, match="step 'echo' of dag 'fulfil': retries must be"):
        fulfil.remote("echo", retries=-1)
    with pytest.raises(ConfigurationError, match="step 'echo' of dag 'fulfil': compensate must be the name of a"):
        fulfil.remote("echo", compensate=print)  # type: ignore[arg-type]
    with pytest.raises(ConfigurationError, match="step 'echo' of dag 'fulfil': input must be a function"):
        fulfil.remote("echo", input=5)  # type: ignore[arg-type]
    with pytest.raises(UnknownOption, match="aftr"):
        fulfil.remote("echo", aftr=["x"])  # type: ignore[call-arg]


@joined
async def test_the_outcome_of_a_run_in_memory_is_delivered_without_a_tick_of_the_sweeper(home: Home) -> None:
    app = home.make(settings=Settings(sweep_interval=60, poll_interval=60, inline_wait=60))
    ticks = Counted(await app.store(), "tick")
    counts = list[int]()

    @app.workflow
    async def shop(ctx: Context) -> None:
        for number in range(4):
            await ctx.remote("echo", number)
            counts.append(len(ticks))

    run = await app.start(shop)
    async with home.echoing(), app.worker():
        await run.result(timeout=PATIENCE)
    assert counts[1:] == [counts[1]] * 3
