"""Retries: counted, put off by the backoff that is stored, never before their time; and calls that workers lost."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from datetime import timedelta
from typing import Any

import msgspec
import pytest

from stepfast import Backoff, ConfigurationError, Context, NonRetryableError, RetryLater, Run, Settings, Stepfast, step
from stepfast.engine import outcomes
from stepfast.errors import NonDeterminismError
from stepfast.model import status
from stepfast.model.graph import DagStep, Graph
from stepfast.model.records import Claimed
from tests.engine.conftest import ON_BOTH, ON_SQLITE, MakeApp
from tests.support.crashing import crash_at, outcome_of
from tests.support.engine import Calls, Gate, drained, eventually, failure, finished, make_due, stopped_at_once
from tests.support.waiting import rows_of
from tests.support.workflows import calling

pytestmark = ON_SQLITE

AT_ONCE = Backoff(base=0, jitter=False)


async def waited(app: Stepfast, run: Run[Any]) -> float:
    """Seconds between the last failure of a run and when it is due again, both by the database's clock."""
    info, log = await run.info(), await run.activity()
    last = max((call for call in log if call.status == "failed"), key=lambda call: call.started_at + call.duration)
    assert info.due_at is not None
    return (info.due_at - last.started_at - last.duration).total_seconds()


def failing(app: Stepfast, calls: Calls, error: BaseException | None = None, **options: Any) -> Any:
    """A task that fails whenever it is called."""

    @app.task(name="mail", **options)
    async def mail(number: Any = None) -> None:
        calls.hit("mail")
        raise error or ValueError("always")

    return mail


def failing_step(app: Stepfast, calls: Calls, step: dict[str, Any], error: Any = None, **options: Any) -> Any:
    """A workflow with a step that is done, and one that fails whenever it is called."""

    def fail() -> None:
        calls.hit("fail")
        raise error or ValueError("always")

    @app.workflow(name="order", **options)
    async def order(ctx: Context) -> None:
        await ctx.step("ok", lambda: calls.hit("ok"))
        await ctx.options(**step).step(fail)

    return order


# -- which errors --------------------------------------------------------------------------------------------------


def by_text(error: Exception) -> bool:
    return "busy" in str(error)


def broken(error: Exception) -> bool:
    raise LookupError("the rule has a bug")


@pytest.mark.parametrize(
    ("rule", "error", "tries"),
    [
        ({"retry_on": ConnectionError}, ConnectionResetError("reset"), 3),
        ({"retry_on": (ConnectionError, TimeoutError)}, ValueError("no"), 1),
        ({"retry_on": by_text}, ValueError("busy"), 3),
        ({"retry_on": by_text}, ValueError("no"), 1),
        ({"give_up_on": LookupError}, KeyError("x"), 1),
        ({"give_up_on": (LookupError,)}, ValueError("x"), 3),
        ({"retry_on": OSError, "give_up_on": by_text}, OSError("busy"), 1),
        ({"retry_on": broken}, ValueError("x"), 1),
        ({"retry_on": ValueError}, RetryLater(0), 3),
    ],
    ids=[
        "class",
        "other class",
        "function",
        "not the function's",
        "given up",
        "not given up",
        "both",
        "broken",
        "later",
    ],
)
async def test_a_step_says_which_errors_are_tried_again(
    app: Stepfast, calls: Calls, rule: dict[str, Any], error: Exception, tries: int
) -> None:
    """An error that is not tried again ends the run as well: no attempt follows."""
    order = failing_step(app, calls, {"retries": 2, "backoff": AT_ONCE, **rule}, error, backoff=AT_ONCE, max_attempts=2)
    run = await app.start(order)
    await app.drain()
    assert calls["fail"] == (tries if tries == 1 else 2 * tries) and calls["ok"] == 1
    assert (await run.info()).attempt == (1 if tries == 1 else 2)
    if rule.get("retry_on") is broken:
        told = (await run.info()).error
        assert told is not None and "could not judge it: LookupError: the rule has a bug" in (told.traceback or "")


async def test_a_timeout_is_judged_as_any_other_error(app: Stepfast, calls: Calls) -> None:
    @app.workflow(max_attempts=1)
    async def order(ctx: Context) -> None:
        options = ctx.options(timeout=0.01, retries=1, backoff=AT_ONCE, retry_on=ValueError)
        await options.step("wait", asyncio.Event().wait)

    run = await app.start(order)
    await app.drain()
    assert [call.status for call in await run.activity() if call.position is not None] == ["failed"]


async def test_what_says_nothing_of_errors_is_refused(app: Stepfast) -> None:
    odd: list[Any] = [(), [ValueError], "ValueError", int, (ValueError, "x"), KeyboardInterrupt]
    for wrong in odd:
        with pytest.raises(ConfigurationError, match="retry_on must be a class of errors"):
            step(retry_on=wrong)
    with pytest.raises(ConfigurationError, match="applies: call it by"):
        app.dag("graph").step(step(give_up_on=ValueError)(lambda: None))


# -- counting ----------------------------------------------------------------------------------------------------


DEFAULT: dict[str, Any] = {}


@pytest.mark.parametrize(
    ("settings", "run_options", "step_options", "called", "attempts"),
    [
        (DEFAULT, {"max_attempts": 1}, {"retries": 0}, 1, 1),
        (DEFAULT, {"max_attempts": 1}, {"retries": 3}, 4, 1),
        (DEFAULT, {"max_attempts": 2}, {"retries": 2}, 6, 2),
        (DEFAULT, DEFAULT, DEFAULT, 3, 3),
        ({"max_attempts": 2, "retries": 1}, DEFAULT, DEFAULT, 4, 2),
    ],
    ids=["no retries", "retries", "each attempt has its own", "defaults", "defaults of the application"],
)
async def test_retries_of_a_step_and_attempts_are_counted(
    make_app: MakeApp, calls: Calls, settings: Any, run_options: Any, step_options: Any, called: int, attempts: int
) -> None:
    """``retries=3`` is at most four calls; a step that is recorded is not called again."""
    app = make_app(settings=Settings(backoff_base=0.0, **settings))
    run = await drained(app, failing_step(app, calls, step_options, **run_options))
    assert await run.status() == "failed"
    assert calls == {"ok": 1, "fail": called}
    assert (await run.info()).attempt == attempts
    assert [s.attempts for s in await run.steps()] == [1, called // attempts]


@pytest.mark.parametrize("attempts", [1, 3])
@pytest.mark.parametrize("where", ["declared", "at the start"])
@pytest.mark.parametrize("error", [ValueError("always"), RetryLater(0)], ids=["error", "RetryLater"])
async def test_attempts_of_a_task_are_counted(
    app: Stepfast, calls: Calls, attempts: int, where: str, error: Exception
) -> None:
    """``max_attempts=3`` is at most three calls; what is given at the start wins."""
    declared = where == "declared"
    mail = failing(app, calls, error, max_attempts=attempts if declared else 7, backoff=AT_ONCE)
    run = await drained(app, mail, max_attempts=None if declared else attempts)
    assert await run.status() == "failed"
    assert calls["mail"] == attempts
    assert (await run.info()).attempt == attempts


async def test_fails_twice_then_succeeds(app: Stepfast, calls: Calls) -> None:

    @app.task(backoff=AT_ONCE)
    def mail() -> str:
        if calls.hit("mail") < 3:
            raise ConnectionError("busy")
        return "sent"

    run = await drained(app, mail)
    assert await run.result() == "sent"
    info = await run.info()
    assert (info.attempt, info.losses, info.error) == (3, 0, None)
    assert [(a.attempt, a.status, a.error and a.error.type) for a in await run.activity()] == [
        (1, "failed", "ConnectionError"),
        (2, "failed", "ConnectionError"),
    ]


async def test_every_failed_try_is_journalled_before_the_next(app: Stepfast, calls: Calls) -> None:
    """Rule 16: and the log tells of each, in start order."""
    seen: list[int] = []

    async def flaky(run_id: str) -> str:
        seen.append(len(await app.get(run_id).activity()))
        if calls.hit("flaky") < 4:
            raise ValueError(f"try {calls['flaky']}")
        return "ok"

    order = calling(app, lambda ctx: ctx.options(retries=3, backoff=AT_ONCE).step(flaky, ctx.run_id))
    run = await drained(app, order)
    assert await run.result() == "ok"
    assert seen == [0, 1, 2, 3]
    log = await run.activity()
    assert [(a.attempt, a.status, a.error.message if a.error else a.result) for a in log] == [
        (1, "failed", "try 1"),
        (2, "failed", "try 2"),
        (3, "failed", "try 3"),
        (4, "completed", "ok"),
    ]
    assert all(a.parameters == {"run_id": run.id} for a in log)


async def test_tries_survive_the_worker(app: Stepfast, calls: Calls) -> None:
    """Rule 16: a step that waited for its retry elsewhere has not forgotten how many it had."""
    order = calling(app, lambda ctx: ctx.options(retries=2).step("fail", fail), max_attempts=1)

    async def fail() -> None:
        calls.hit("fail")
        raise RetryLater(0.0 if calls["fail"] > 1 else 60)

    run = await drained(app, order)
    assert (await run.info()).waiting_for == "retry"
    await make_due(app, run.id)
    await app.drain()
    assert await run.status() == "failed"
    assert calls["fail"] == 3


# -- how long ----------------------------------------------------------------------------------------------------


async def test_each_backoff_of_a_run_is_longer_than_the_last(app: Stepfast, calls: Calls) -> None:
    run = await app.start(failing(app, calls, max_attempts=5, backoff=Backoff(base=5, jitter=False)))
    waits = []
    for attempt in range(1, 5):
        await app.drain()
        info = await run.info()
        assert (info.status, info.ready, info.attempt) == ("queued", False, attempt + 1)
        assert info.error is not None and info.error.message == "always"  # its error is kept
        waits.append(await waited(app, run))
        await make_due(app, run.id)
    assert waits == [5, 10, 20, 40]


async def test_the_default_backoff_is_one_second_give_or_take_a_fifth(make_app: MakeApp, calls: Calls) -> None:
    app = make_app(settings=Settings(inline_wait=0, drain=0))
    runs = await app.start_many(failing(app, calls), range(12))  # few: none is due again before all were looked at
    await app.drain()  # which does not wait for the retries, because the settings say so
    waits = [await waited(app, run) for run in runs if (await run.info()).attempt == 2]
    assert len(waits) > 8
    assert all(0.799 <= wait <= 1.2 for wait in waits)
    assert len(set(waits)) > 5


@pytest.mark.parametrize(
    ("backoff", "waits"),
    [
        (Backoff(base=10, factor=3, max=1000, jitter=False), [10, 30, 90]),
        (Backoff(base=10, factor=1, jitter=False), [10, 10, 10]),
        (Backoff(base=10, factor=10, max=50, jitter=False), [10, 50, 50]),
    ],
    ids=["exponential", "fixed", "capped"],
)
async def test_the_backoff_of_a_step_is_stored_with_the_waiting_run(
    app: Stepfast, calls: Calls, backoff: Backoff, waits: list[float]
) -> None:
    run = await app.start(failing_step(app, calls, {"retries": 3, "backoff": backoff}, max_attempts=1))
    found = []
    for _ in waits:
        await app.drain()
        info = await run.info()
        assert (info.status, info.waiting_for, info.worker, info.attempt) == ("waiting", "retry", None, 1)
        found.append(await waited(app, run))
        await make_due(app, run.id)
    # The span is measured from the commit of the try to that of the wait, so it may be a little longer.
    assert all(wait - 0.01 <= seen < wait + 5 for wait, seen in zip(waits, found, strict=True))
    await app.drain()
    assert await run.status() == "failed"


async def test_a_retry_is_not_delivered_before_its_time(app: Stepfast, calls: Calls) -> None:
    run = await app.start(failing(app, calls, RetryLater(3600)))
    for _ in range(4):
        await app.drain()
    assert calls["mail"] == 1
    info = await run.info()
    assert (info.status, info.attempt, info.losses) == ("queued", 2, 0)


@pytest.mark.parametrize("delay", [90, 90.0, timedelta(minutes=1.5)], ids=["int", "float", "timedelta"])
async def test_an_error_may_say_when_to_try_again(app: Stepfast, calls: Calls, delay: Any) -> None:
    run = await drained(app, failing(app, calls, RetryLater(delay, "come back later")))
    assert await waited(app, run) == 90
    error = (await run.info()).error
    assert error is not None and error.message == "come back later"


@pytest.mark.parametrize(("retries", "status", "attempt"), [(1, "waiting", 1), (0, "queued", 2)])
async def test_retry_later_puts_off_a_step_with_retries_and_else_the_run(
    app: Stepfast, calls: Calls, retries: int, status: str, attempt: int
) -> None:
    run = await drained(app, failing_step(app, calls, {"retries": retries}, RetryLater(120)))
    info = await run.info()
    assert (info.status, info.attempt) == (status, attempt)
    assert 119.99 <= await waited(app, run) < 125


@pytest.mark.parametrize("delay", [-1, float("nan"), float("inf"), 1e300, timedelta(seconds=-1)], ids=str)
def test_a_delay_that_makes_no_sense_is_refused(delay: Any) -> None:
    with pytest.raises(ValueError):
        RetryLater(delay)


class Forbidden(NonRetryableError):
    pass


@pytest.mark.parametrize("error", [NonRetryableError("no"), Forbidden("no")], ids=["itself", "a subclass"])
@pytest.mark.parametrize("where", ["task", "step"])
async def test_a_permanent_error_ends_step_and_run_at_once(
    app: Stepfast, calls: Calls, error: Exception, where: str
) -> None:
    often: dict[str, Any] = {"max_attempts": 5, "backoff": AT_ONCE}
    if where == "task":
        run = await drained(app, failing(app, calls, error, **often))
    else:
        run = await drained(app, failing_step(app, calls, {"retries": 5, "backoff": AT_ONCE}, error, **often))
    assert (await failure(run, "no")).reason == "code"
    assert calls["mail"] + calls["fail"] == 1


SETTINGS = Settings(poll_interval=0.05, running_after=0.01)


LOST = "UPDATE [runs] SET losses = losses + 1, unrecorded_losses = unrecorded_losses + 1 WHERE status = 'queued'"


async def lose(app: Stepfast, when: Callable[[Any], bool], and_of: str = "") -> None:
    """A worker dies when a step has acted and before it is recorded."""
    await crash_at(app, when, written=False)
    async with rows_of(app) as rows:
        await rows.fetch(LOST + and_of)


@ON_BOTH
async def test_every_call_that_was_under_way_when_a_worker_died_says_so(make_app: MakeApp, calls: Calls) -> None:
    """In what is read of steps and of calls; those before and after do not."""
    app = make_app(settings=SETTINGS)

    @app.workflow
    async def order(ctx: Context) -> None:
        await ctx.step("reserve", lambda: calls.hit("reserve"))
        await ctx.gather(ctx.step("charge", lambda: calls.hit("charge")), ctx.step("pack", lambda: calls.hit("pack")))
        await ctx.step("send", lambda: calls.hit("send"))

    run = await app.start(order)
    for _ in range(2):
        await lose(app, outcome_of("charge"))
    await finished(app, run)
    told = {step.name: (step.attempts, step.losses) for step in await run.steps()}
    assert told == {"reserve": (1, 0), "charge": (1, 2), "pack": (1, 2), "send": (1, 0)}
    assert {call.name: call.losses for call in await run.activity()} == {name: told[name][1] for name in told}
    assert (calls["reserve"], calls["charge"], calls["send"]) == (1, 3, 1)
    assert 1 <= calls["pack"] <= 3, "how far it was when its workers died is not known"


@ON_BOTH
async def test_so_does_a_call_that_is_under_way_again(make_app: MakeApp, calls: Calls) -> None:
    app, gate = make_app(settings=SETTINGS), Gate()

    @app.workflow
    async def order(ctx: Context) -> None:
        async def charge() -> None:
            if calls.hit("charge") > 1:
                await gate.passing()

        await ctx.step(charge)

    run = await app.start(order)
    await lose(app, outcome_of("charge"))
    async with stopped_at_once(app):
        await gate.reached()
        [step] = await eventually(run.steps)
        assert (step.name, step.status, step.losses) == ("charge", "running", 1)


@ON_BOTH
async def test_so_does_a_transaction(make_app: MakeApp, calls: Calls) -> None:
    app = make_app(settings=SETTINGS)

    def book(connection: Any) -> int:
        return calls.hit("book")

    async def book_async(connection: Any) -> int:
        return calls.hit("book")

    order = calling(app, lambda ctx: ctx.transaction("book", book if app.url.kind == "sqlite" else book_async))
    run = await app.start(order)
    async with rows_of(app) as rows:
        await rows.fetch(LOST)
    await finished(app, run)
    [step] = await run.steps()
    assert (step.attempts, step.losses) == (1, 1)


@ON_BOTH
async def test_so_does_a_step_of_a_dag(make_app: MakeApp, calls: Calls) -> None:
    app = make_app(settings=SETTINGS)
    dag = app.dag("order")

    @dag.step
    async def charge(ctx: Any) -> int:
        return calls.hit("charge")

    run = await app.start(dag)
    await lose(app, lambda batch: any(move.settled for move in batch.transitions), " AND dag_id IS NOT NULL")
    await finished(app, run)
    [step] = await run.steps()
    assert (step.name, step.attempts, step.losses) == ("charge", 1, 1)
    assert calls == {"charge": 2}


# -- what becomes of a run when its claim ends: what is known of it goes in, the transition comes out


FORMAT = 1


def claimed(**facts: Any) -> Claimed:
    """As a claim brings it, first attempt, nothing asked."""
    plain = Claimed(
        id="r", workflow="w", queue="w", priority=0, claim=7, attempt=1, first_attempt=1, losses=0, wakes=3, format=1,
        input="null", max_attempts=None, timeout_ms=None, deadline_in_ms=None, started_at=0, place=0, last_version="v1",
    )  # fmt: skip
    return msgspec.structs.replace(plain, **facts)


class RecordedSoFar:
    """What is recorded of it."""

    def __init__(self, undos: bool, recorded: bool) -> None:
        self.fresh: Sequence[tuple[str, int]] = ()
        self.recorded = recorded
        self._undos = undos

    def has_undos(self) -> bool:
        return self._undos

    def last_step(self) -> str | None:
        return "charge"


class Leaving:
    """A run that leaves: what its transitions are made from."""

    def __init__(self, undos: bool = False, recorded: bool = False, **facts: Any) -> None:
        self.claimed = claimed(**facts)
        self.run_id, self.claim = self.claimed.id, self.claimed.claim
        self.diverged: NonDeterminismError | None = None
        self.needs_new_record = False
        self.ledger = RecordedSoFar(undos, recorded)

    def to_forget(self, error: BaseException | None, by_operator: bool = False) -> list[tuple[str, int]]:
        return [("", 4)]


def leaving(undos: bool = False, recorded: bool = False, **facts: Any) -> Any:
    """In place of an execution, with a type that takes it as one."""
    return Leaving(undos, recorded, **facts)


def test_a_cancelled_suspect_names_the_step_after_which_something_may_have_been_done() -> None:
    assert "charge" in (outcomes.cancelled(leaving(losses=2)).error or "")


def test_a_run_that_waits_while_it_is_undone_goes_on_being_undone() -> None:
    assert outcomes.waiting(leaving(), 5, 1000, "time").status == status.WAITING
    assert outcomes.waiting(leaving(undoing=True), 5, 1000, "time").status == status.COMPENSATING


def test_a_pause_carries_the_wakes_of_the_claim() -> None:
    """Whatever was seen since: a resume has taken the wish back, and moved the count on."""
    assert outcomes.paused(leaving()).wakes == 3


def test_an_attempt_that_ends_never_comes_back_in_the_same_millisecond() -> None:
    move = outcomes.next_attempt(leaving(recorded=True), "error", 0.0, None, FORMAT)
    assert (move.status, move.delay_ms, move.next_attempt, move.recorded) == (status.QUEUED, 1, True, True)


def test_a_caught_error_leads_somewhere_once_the_step_has_ended() -> None:
    graph, outcome = Graph([DagStep("a", ())]), outcomes.caught_by("mend")
    undoing = leaving(True, dag_step="a", dag_id="d")
    move = outcomes.failed(undoing, "error", status.REASON_CODE, None, FORMAT)
    outcomes.settle_caught(undoing, outcome, move, graph)
    assert move.settled is None  # it undoes first
    ended = outcomes.undone(undoing, FORMAT)
    outcomes.settle_caught(undoing, outcome, ended, graph)
    assert ended.settled is not None and ended.settled.outcome == outcome
