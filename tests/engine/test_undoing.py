"""Undo (rule 28): what a run did is undone in reverse when it fails for good, is cancelled, or ends late."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest

from stepfast import (
    Backoff,
    ChildFailed,
    ConfigurationError,
    Context,
    InvalidState,
    NonRetryableError,
    RetryLater,
    Run,
    RunCancelled,
    Settings,
    StepFailed,
    Stepfast,
    step,
)
from tests.engine.conftest import ON_BOTH, ON_SQLITE, MakeApp
from tests.support.both_kinds import KINDS, workflow_of
from tests.support.crashing import crash_at, outcome_of
from tests.support.engine import (
    PATIENCE,
    Calls,
    Gate,
    drained,
    eventually,
    failure,
    finished,
    interrupt,
    make_due,
    outcome,
    replayed,
)
from tests.support.trips import Trip
from tests.support.waiting import deafen, reached, rows_of
from tests.support.workflows import task

pytestmark = ON_SQLITE

QUICK = Backoff(base=0.001, jitter=False)


@pytest.fixture
def trip() -> Trip:
    return Trip()


# -- a run that fails ----------------------------------------------------------------------------------------------


@KINDS
async def test_completed_steps_are_undone_once_in_reverse_with_their_output_and_arguments(
    app: Stepfast, trip: Trip, kind: str
) -> None:
    async def order(ctx: Context) -> None:
        await trip.booked(ctx, "flight")
        await ctx.step("no undo", lambda: trip.log.append("no undo"))
        await trip.booked(ctx, "hotel")
        raise NonRetryableError("no car")

    run = await drained(app, workflow_of(app, kind, order))
    assert trip.log == ["book flight", "no undo", "book hotel", "undo hotel hotel-1", "undo flight flight-1"]
    assert await run.status() == "compensated"


async def test_the_result_of_an_undone_run_is_the_error_that_caused_it(app: Stepfast, trip: Trip) -> None:
    run = await drained(app, trip.workflow(app, "flight", error="no car"))
    failed = await failure(run, "no car")
    assert (failed.reason, failed.error_type) == ("code", "NonRetryableError")
    info = await run.info()
    assert (info.status, info.reason, info.waiting_for, info.worker) == ("compensated", "code", None, None)
    assert info.completed_at is not None


async def test_undos_are_listed_with_statuses_of_their_own(app: Stepfast, trip: Trip) -> None:
    trip.failing = {"flight"}
    undo = step(retries=0)(trip.unbook)
    run = await drained(app, trip.workflow(app, "flight", "hotel", flight=undo, hotel=undo))
    undos = [(s.name, s.kind, s.status) for s in await run.steps() if s.kind == "undo"]
    assert undos == [("unbook", "undo", "compensated"), ("unbook", "undo", "compensation_failed")]


@pytest.mark.parametrize("fails", [False, True])
async def test_an_undo_goes_by_the_name_that_it_was_declared_with(app: Stepfast, fails: bool) -> None:
    @step(name="give it back", retries=0)
    def undo(*_: Any) -> None:
        if fails:
            raise ValueError("gone")

    @app.workflow(max_attempts=1)
    async def order(ctx: Context) -> None:
        await ctx.options(compensate=undo).step("take", lambda: 1)
        raise ValueError("no")

    async def broken(ctx: Any) -> None:
        raise NonRetryableError("no")

    @step(name="return it", retries=0)
    def undo_in_dag(ctx: Any) -> None:
        undo.function()

    dag = app.dag("graph")
    dag.declare(lambda ctx: 1, name="take", compensate=undo_in_dag)
    dag.declare(broken, name="broken", after=["take"])
    for run, name in ((await app.start(order), "give it back"), (await app.start(dag), "return it")):
        await app.drain()
        steps = await run.steps()
        assert [each.undo for each in steps if each.name == "take"] == [name]
        assert name in [each.name for each in steps]
        error = (await run.info()).error
        assert error is not None
        assert (f"undo {name!r} of step 'take'" in error.message) == fails


async def test_a_step_that_did_not_complete_is_not_undone(app: Stepfast, trip: Trip) -> None:
    def broken(what: str) -> None:
        raise ValueError(what)

    @app.workflow(max_attempts=1)
    async def order(ctx: Context) -> None:
        await trip.booked(ctx, "flight")
        await ctx.options(compensate=trip.unbook).step(broken, "hotel")

    run = await drained(app, order)
    assert trip.undone == ["flight"]
    assert await run.status() == "compensated"


@pytest.mark.parametrize("failing", ["a step that is caught", "an attempt that is not the last"])
async def test_a_failure_that_does_not_end_the_run_undoes_nothing(
    app: Stepfast, trip: Trip, calls: Calls, failing: str
) -> None:
    @app.workflow(max_attempts=2, backoff=QUICK)
    async def order(ctx: Context) -> str:
        await trip.booked(ctx, "flight")
        try:
            await ctx.step("broken", lambda: calls.hit("broken") == 1 and 1 / 0)
        except StepFailed:
            if failing != "a step that is caught":
                raise
        return "done"

    assert await outcome(app, order) == "done"
    assert trip.log == ["book flight"]


async def test_a_run_with_nothing_to_undo_ends_failed(app: Stepfast, trip: Trip) -> None:
    """Also if an undo was named for a step that was never done."""

    @app.workflow(max_attempts=1)
    async def order(ctx: Context) -> None:
        await ctx.step("plain", lambda: None)
        await ctx.options(compensate=trip.unbook).step("never", lambda: 1 / 0)

    assert await (await drained(app, order)).status() == "failed"
    assert trip.log == []


async def test_an_undo_gets_what_the_step_was_given_and_gave_not_what_became_of_it(app: Stepfast) -> None:
    undone: list[Any] = []

    def undo(output: list[int], items: list[int], *, names: dict[str, int]) -> None:
        undone.append((output, items, names))

    @app.workflow(max_attempts=1)
    async def order(ctx: Context) -> None:
        items: list[int] = []
        names: dict[str, int] = {}
        for number in (1, 2):
            output = await ctx.options(compensate=undo).step("pack", pack, items, names=names)
            output.append(number)
            items.append(number)
            names["last"] = number
        raise ValueError("no lorry")

    def pack(items: list[int], *, names: dict[str, int]) -> list[int]:
        return [len(items), len(names)]

    run = await drained(app, order)
    assert await run.status() == "compensated"
    assert undone == [([1, 1], [1], {"last": 1}), ([0, 0], [], {})]


async def test_an_undo_gets_an_argument_that_cannot_be_copied_as_it_is(app: Stepfast) -> None:
    lock = threading.Lock()
    undone: list[Any] = []

    def undo(_output: None, given: Any, items: list[int]) -> None:
        undone.append((given, items))

    @app.workflow(max_attempts=1)
    async def order(ctx: Context) -> None:
        items: list[int] = []
        await ctx.options(compensate=undo).step("use", lambda given, items: None, lock, items)
        items.append(1)
        raise ValueError("no")

    run = await drained(app, order)
    assert await run.status() == "compensated"
    assert undone == [(lock, [])]


@ON_BOTH
async def test_an_undone_run_undoes_the_rows_of_a_transaction_as_any_step(app: Stepfast, trip: Trip) -> None:
    def write(connection: Any, what: str) -> str:
        return f"{what}-row"

    async def write_async(connection: Any, what: str) -> str:
        return f"{what}-row"

    @app.workflow
    async def order(ctx: Context) -> None:
        function = write if app.url.kind == "sqlite" else write_async
        await ctx.options(compensate=trip.unbook).transaction(function, "ledger")
        raise NonRetryableError("no")

    run = await drained(app, order)
    assert trip.log == ["undo ledger ledger-row"]
    assert await run.status() == "compensated"


# -- undos that fail -----------------------------------------------------------------------------------------------


async def test_a_failing_undo_is_recorded_and_the_others_follow(app: Stepfast, trip: Trip) -> None:
    trip.failing = {"hotel"}
    undo = step(name="cancel booking", retries=0)(trip.unbook)
    order = trip.workflow(app, "flight", "hotel", "car", error="the cause", flight=undo, hotel=undo, car=undo)
    run = await drained(app, order)
    assert trip.undone == ["car", "hotel", "flight"]
    failed = await failure(run, "hotel cannot be undone")
    assert (failed.reason, failed.error_type) == ("undo_failed", "CompensationFailed")
    assert "'book hotel'" in failed.message
    assert await run.status() == "failed"
    with pytest.raises(InvalidState, match=r"retry\(from_start=True\)"):
        await run.retry()


async def test_an_undo_is_retried_by_its_own_policy(app: Stepfast, trip: Trip, calls: Calls) -> None:
    @step(retries=4, backoff=QUICK)
    def undo(output: str, what: str) -> None:
        if calls.hit("undo") < 5:
            raise ValueError("not yet")

    run = await drained(app, trip.workflow(app, "flight", flight=undo))
    assert calls == {"undo": 5}
    assert await run.status() == "compensated"
    assert [s.attempts for s in await run.steps() if s.kind == "undo"] == [5]


async def test_an_undo_without_options_has_the_retries_of_the_settings(make_app: MakeApp, trip: Trip) -> None:
    app = make_app(settings=Settings(undo_retries=2, backoff_base=0.001))
    trip.failing = {"flight"}
    run = await drained(app, trip.workflow(app, "flight"))
    assert trip.undone == ["flight"] * 3
    assert await run.status() == "failed"


async def test_an_undo_that_must_wait_frees_the_slot(app: Stepfast, trip: Trip, calls: Calls) -> None:
    """The run stays compensating, with the error it had, until the time has come."""

    def undo(output: str, what: str) -> None:
        if calls.hit("undo") == 1:
            raise RetryLater(3600)

    run = await drained(app, trip.workflow(app, "flight", "hotel", error="the cause", hotel=undo))
    info = await run.info()
    assert (info.status, info.worker, info.waiting_for) == ("compensating", None, "retry")
    assert info.due_at is not None
    assert trip.undone == []
    await make_due(app, run.id)
    await app.drain()
    assert await run.status() == "compensated"
    assert trip.undone == ["flight"]
    await failure(run, "the cause")


# -- crashes -------------------------------------------------------------------------------------------------------


async def test_an_interrupted_undoing_continues_where_it_was(app: Stepfast, trip: Trip) -> None:
    gate = Gate()

    async def held(output: str, what: str) -> None:
        trip.unbook(output, what)
        await gate.passing()

    run = await app.start(trip.workflow(app, "flight", "hotel", "car", hotel=held))
    await interrupt(app, gate)
    assert await run.status() == "compensating"
    assert trip.undone == ["car", "hotel"]
    gate.open()
    await app.drain()
    assert trip.undone == ["car", "hotel", "hotel", "flight"]
    assert await run.status() == "compensated"


@pytest.mark.parametrize("written", [False, True], ids=["before the commit", "after the commit"])
@pytest.mark.parametrize("when", ["in the middle", "when it begins"])
@ON_BOTH
async def test_a_crash_repeats_at_most_the_undo_in_flight(app: Stepfast, trip: Trip, written: bool, when: str) -> None:
    undo, begins = outcome_of("unbook", "undo"), when == "when it begins"
    run = await app.start(trip.workflow(app, "flight", "hotel", "car"))
    await crash_at(app, _begins_undoing if begins else undo, written=written)
    await app.drain()
    assert trip.undone == ["car", *([] if written or begins else ["car"]), "hotel", "flight"]
    assert trip.log[:3] == ["book flight", "book hotel", "book car"]
    assert await run.status() == "compensated"


def _begins_undoing(batch: Any) -> bool:
    return any(move.status == "compensating" for move in batch.transitions)


async def test_undos_of_a_long_history_are_all_found(app: Stepfast, trip: Trip) -> None:
    """More records than a claim brings along."""
    booked = [str(number) for number in range(150)]
    run = await drained(app, trip.workflow(app, *booked))
    assert trip.undone == booked[::-1]
    assert await run.status() == "compensated"


async def test_the_undo_of_a_step_from_an_earlier_claim_is_found(app: Stepfast, trip: Trip) -> None:
    gate = Gate()
    run = await replayed(app, gate, trip.workflow(app, "flight", gate=gate))
    assert trip.log == ["book flight", "undo flight flight-1"]
    assert await run.status() == "compensated"


# -- branches ------------------------------------------------------------------------------------------------------


async def test_steps_in_branches_are_undone_in_the_reverse_order_of_their_completion(app: Stepfast, trip: Trip) -> None:
    hotel_booked = asyncio.Event()

    async def flight(ctx: Context) -> None:
        await ctx.step("wait", hotel_booked.wait)
        await trip.booked(ctx, "flight")

    async def hotel(ctx: Context) -> None:
        await trip.booked(ctx, "hotel")
        hotel_booked.set()
        raise NonRetryableError("no breakfast")

    @app.workflow
    async def order(ctx: Context) -> None:
        await trip.booked(ctx, "train")
        await ctx.gather(ctx.branch(hotel), ctx.branch(flight))

    run = await drained(app, order)
    assert trip.log == [
        "book train", "book hotel", "book flight", "undo flight flight-1", "undo hotel hotel-1", "undo train train-1",
    ]  # fmt: skip
    assert await run.status() == "compensated"


async def test_a_run_that_waited_in_between_is_undone(make_app: MakeApp, trip: Trip) -> None:
    """The code is replayed over sleeps, signals and children, none of which is waited for again."""
    app = make_app(settings=Settings(inline_wait=0))
    child = task(app, "child")

    @app.workflow
    async def order(ctx: Context) -> None:
        await trip.booked(ctx, "flight")
        await ctx.sleep(0.01)
        await ctx.wait_signal("go")
        await ctx.call(child, 1)
        await ctx.first(quick=ctx.step("quick", lambda: 1), late=ctx.sleep(3600))
        handle = await ctx.start(child, 2)
        await trip.booked(ctx, "hotel")
        await handle.result()
        raise NonRetryableError("no")

    run = await app.start(order)
    await run.signal("go")
    async with app.worker():
        await reached(run, "compensated")
    assert trip.undone == ["hotel", "flight"]


def waiting(app: Stepfast, trip: Trip) -> Any:
    """A workflow that books a flight, and then waits for a signal that does not come."""

    @app.workflow(name="order")
    async def order(ctx: Context) -> None:
        await trip.booked(ctx, "flight")
        await ctx.wait_signal("never")

    return order


async def was_asked(run: Run[Any]) -> bool:
    return (await run.info()).asked is not None


# -- cancelling ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("where", ["released", "in memory", "without a worker"])
@ON_BOTH
async def test_a_cancelled_run_is_undone(make_app: MakeApp, trip: Trip, where: str) -> None:
    app = make_app(settings=Settings(inline_wait=2 if where == "in memory" else 0))
    run = await app.start(waiting(app, trip))
    if where == "without a worker":
        await app.drain()
        await run.cancel()
        assert await run.status() == "compensating"
    async with app.worker():
        if where == "released":
            await reached(run, "waiting")
        else:
            await eventually(lambda: trip.log)
        if where != "without a worker":
            await run.cancel()
        with pytest.raises(RunCancelled):
            await run.result(timeout=PATIENCE)
    info = await run.info()
    assert (info.status, info.reason, info.error) == ("compensated", "cancelled", None)
    assert trip.undone == ["flight"]


async def test_the_step_in_flight_of_a_cancelled_run_is_recorded_and_undone(app: Stepfast, trip: Trip) -> None:
    """Rule 27."""
    gate = Gate()

    async def book(what: str) -> str:
        await gate.passing()
        return trip.book(what)

    @app.workflow
    async def order(ctx: Context) -> None:
        await ctx.options(compensate=trip.unbook).step(book, "flight")
        await ctx.step("never", trip.book, "never")

    run = await app.start(order)
    async with app.worker():
        await gate.reached()
        await run.cancel()
        await eventually(lambda: was_asked(run))
        gate.open()
        with pytest.raises(RunCancelled):
            await run.result(timeout=PATIENCE)
    assert trip.log == ["book flight", "undo flight flight-1"]
    assert await run.status() == "compensated"


@ON_BOTH
async def test_children_are_cancelled_with_a_parent_that_is_undone(app: Stepfast, trip: Trip) -> None:
    @app.workflow
    async def child(ctx: Context) -> None:
        await trip.booked(ctx, "child's")
        await ctx.wait_signal("never")

    @app.workflow
    async def parent(ctx: Context) -> None:
        await trip.booked(ctx, "parent's")
        await ctx.call(child)

    run = await app.start(parent)
    async with app.worker():
        await eventually(lambda: "book child's" in trip.log)
        await run.cancel()
        with pytest.raises(RunCancelled):
            await run.result(timeout=20)
        [info] = await app.runs(workflow=child)
        with pytest.raises(RunCancelled):
            await app.get(info.id).result(timeout=20)
    assert sorted(trip.undone) == ["child's", "parent's"]


@ON_BOTH
async def test_an_undoing_cannot_be_cancelled_or_paused(app: Stepfast, trip: Trip) -> None:
    gate = Gate()

    async def held(output: str, what: str) -> None:
        await gate.passing()
        trip.unbook(output, what)

    run = await app.start(trip.workflow(app, "flight", flight=held))
    async with app.worker():
        await gate.reached()
        for verb in (run.cancel, run.pause):
            with pytest.raises(InvalidState, match="compensating"):
                await verb()
        gate.open()
        await reached(run, "compensated")
    assert trip.undone == ["flight"]


# -- other ends ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("bounds", "where", "error"),
    [
        ({"deadline": 1}, "executing", ("deadline", "DeadlineExceeded")),
        ({"deadline": 1}, "waiting", ("deadline", "DeadlineExceeded")),
        ({"timeout": 1, "max_attempts": 1}, "executing", ("timeout", "stepfast.AttemptTimeout")),
    ],
    ids=str,
)
async def test_a_deadline_and_a_timeout_for_good_undo(
    app: Stepfast, trip: Trip, bounds: dict[str, Any], where: str, error: tuple[str, str]
) -> None:
    @app.workflow(**bounds)
    async def order(ctx: Context) -> None:
        await trip.booked(ctx, "flight")
        await (ctx.step("hang", asyncio.Event().wait) if where == "executing" else ctx.sleep(3600))

    async with app.worker():
        run = await app.start(order)
        await reached(run, "compensated")
    assert trip.undone == ["flight"]
    failed = await failure(run)
    assert failed.reason == error[0]
    assert failed.error_type is not None and failed.error_type.endswith(error[1].removeprefix("stepfast."))


async def test_changed_code_does_not_undo(make_app: MakeApp, trip: Trip) -> None:
    """Rule 28: a person decides, and can retry after the fix."""
    old, new = make_app(), make_app()
    gate = Gate()

    @old.workflow(name="order")
    async def was(ctx: Context) -> str:
        await trip.booked(ctx, "flight")
        await ctx.step("gate", gate.passing)
        return "done"

    @new.workflow(name="order")
    async def now(ctx: Context) -> None:
        await ctx.step("something else", lambda: None)

    run = await old.start("order")
    await interrupt(old, gate)
    gate.open()
    await new.drain()
    assert ((await run.info()).status, (await run.info()).reason) == ("failed", "non_determinism")
    await run.retry()
    assert await finished(old, run) == "done"
    assert trip.undone == []


async def test_a_dead_letter_does_not_undo(make_app: MakeApp, trip: Trip) -> None:
    """Rule 28: what kills workers would kill the one that undoes."""
    app = make_app(settings=Settings(max_losses=0))
    await deafen(app)  # a heartbeat that is hurried would bring the worker back to life
    gate = Gate()
    run = await app.start(trip.workflow(app, "flight", gate=gate))
    store = await app.store()
    async with app.worker(shutdown_grace=0) as worker, rows_of(app) as rows:
        await gate.reached()
        await rows.set(run.id, "losses", 1)
        await rows.silence(worker.id)
        await store.reap("00000000-0000-7000-8000-000000000000", 10, 0)
        info = await run.info()
        assert (info.status, info.reason) == ("failed", "workers_lost")
    await app.drain()
    assert trip.undone == []


@ON_BOTH
async def test_a_child_that_is_undone_fails_for_its_parent_when_all_is_done(app: Stepfast, trip: Trip) -> None:
    """With the error that caused the undo, after the last one."""
    child = trip.workflow(app, "flight", error="no car")

    @app.workflow
    async def parent(ctx: Context) -> list[Any]:
        try:
            await ctx.call(child)
        except ChildFailed as error:
            return [error.error_type, error.message, trip.undone]
        return []

    assert await outcome(app, parent) == ["NonRetryableError", "no car", ["flight"]]


# -- an operator's retry -------------------------------------------------------------------------------------------


async def undone_run(app: Stepfast, trip: Trip, calls: Calls, **options: Any) -> Any:
    @app.workflow(max_attempts=1)
    async def order(ctx: Context, number: int) -> str:
        await trip.booked(ctx, "flight")
        if calls.hit("body") == 1:
            raise NonRetryableError("once")
        return f"done {number}"

    run = await drained(app, order, 7, **{"tags": ["vip"], **options})
    assert await run.status() == "compensated"
    return run


@ON_BOTH
async def test_a_retry_is_refused_once_an_undo_has_begun(app: Stepfast, trip: Trip, calls: Calls) -> None:
    """Rule 28: its records tell of things that are undone."""
    run = await undone_run(app, trip, calls)
    with pytest.raises(InvalidState, match=r"retry\(from_start=True\)"):
        await run.retry()
    assert await run.status() == "compensated"


async def test_a_retry_from_the_start_is_a_new_run_linked_to_the_old(app: Stepfast, trip: Trip, calls: Calls) -> None:
    run = await undone_run(app, trip, calls)
    again = await run.retry(from_start=True)
    assert again.id != run.id
    assert await finished(app, again) == "done 7"
    info = await again.info()
    assert (info.origin, info.input, info.tags, info.workflow) == (run.id, 7, ["vip"], "order")
    assert await run.status() == "compensated"
    assert trip.log == ["book flight", "undo flight flight-1", "book flight"]


async def test_a_retry_from_the_start_has_the_options_of_the_first(app: Stepfast, trip: Trip, calls: Calls) -> None:
    options = {"queue": "fast", "priority": 3, "max_attempts": 2, "timeout": 5.5, "deadline": 3600, "tags": ["vip"]}
    run = await undone_run(app, trip, calls, key="k", expires_in=1800, **options)
    again = await run.retry(from_start=True)
    columns = "queue, priority, max_attempts, timeout_ms, deadline_ms, tags"
    async with rows_of(app) as rows:
        [found] = await rows.fetch(f"SELECT {columns} FROM [runs] WHERE id = ?", again.id)
    assert found == ("fast", 3, 2, 5500, 3_600_000, '["vip"]')
    info = await again.info()
    assert info.deadline == info.created_at + timedelta(hours=1)
    assert (info.key, info.expires_at, info.ready) == (None, None, True)


async def test_a_failed_run_without_undos_may_be_started_again_too(app: Stepfast, calls: Calls) -> None:
    @app.workflow(max_attempts=1)
    async def order(ctx: Context) -> int:
        await ctx.step("one", lambda: calls.hit("one"))
        if calls.hit("body") == 1:
            raise ValueError("once")
        return calls["one"]

    run = await app.start(order)
    with pytest.raises(InvalidState, match="queued"):
        await run.retry(from_start=True)
    await app.drain()
    again = await run.retry(from_start=True)
    assert await finished(app, again) == 2


# -- undos that today's code does not lead to ----------------------------------------------------------------------


async def test_an_undo_that_is_no_longer_in_the_code_is_reported(make_app: MakeApp, trip: Trip) -> None:
    old, new = make_app(), make_app()
    gate = Gate()

    async def body(ctx: Context, hotel: Callable[..., Any] | None) -> None:
        await trip.booked(ctx, "flight")
        await ctx.options(compensate=hotel).step("book hotel", trip.book, "hotel")
        await ctx.step("gate", gate.passing)
        raise NonRetryableError("the cause")

    @old.workflow(name="order")
    async def was(ctx: Context) -> None:
        await body(ctx, trip.unbook)

    @new.workflow(name="order")
    async def now(ctx: Context) -> None:
        await body(ctx, None)

    run = await old.start("order")
    await interrupt(old, gate)
    gate.open()
    await new.drain()
    assert trip.undone == ["flight"]
    failed = await failure(run, "undo 'unbook' of step 'book hotel' was not called")
    assert failed.reason == "undo_failed"


async def test_code_that_ends_early_now_still_has_what_it_reaches_undone(make_app: MakeApp, trip: Trip) -> None:
    old, new = make_app(), make_app()

    @old.workflow(name="order")
    async def was(ctx: Context) -> None:
        await trip.booked(ctx, "flight")
        await trip.booked(ctx, "hotel")
        await ctx.sleep(3600)

    @new.workflow(name="order")
    async def now(ctx: Context) -> None:
        await trip.booked(ctx, "flight")

    run = await drained(old, "order")
    await run.cancel()
    await new.drain()
    assert trip.undone == ["flight"]
    info = await run.info()
    assert info.status == "failed" and info.error is not None and "book hotel" in info.error.message


async def test_an_undo_that_would_not_be_called_as_it_says_is_refused(app: Stepfast) -> None:
    """Under a name with a tilde it would be taken for that of another run. An undo that fails is called again."""
    undo = step(name="~refund")(lambda output: None)
    with pytest.raises(ConfigurationError, match="cannot begin with a tilde"):
        step(compensate=undo)
    with pytest.raises(ConfigurationError, match="takes no at_most_once="):
        step(compensate=step(at_most_once=True)(lambda output: None))

    @app.workflow(max_attempts=1)
    async def order(ctx: Context, how: str) -> None:
        if how == "remote":
            await ctx.remote("charge", compensate="~refund")
        await ctx.options(compensate=undo).step("charge", lambda: 1)

    for how in ("remote", "options"):
        await failure(await drained(app, order, how), "cannot begin with a tilde")
