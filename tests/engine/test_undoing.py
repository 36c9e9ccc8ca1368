"""Undo: what a run did is undone in reverse when it fails for good or is cancelled (rule 28)."""

from __future__ import annotations

import asyncio
import threading
from typing import Any

import pytest

from stepfast import (
    Backoff,
    Context,
    NonRetryableError,
    RetryLater,
    RunFailed,
    Settings,
    StepFailed,
    Stepfast,
    SyncContext,
    step,
)
from tests.engine.conftest import MakeApp
from tests.support.crashing import crash_at, outcome_of
from tests.support.engine import Calls, Gate, eventually, interrupt, make_due
from tests.support.trips import Trip

pytestmark = pytest.mark.enough_on("sqlite")
QUICK = Backoff(base=0.001, jitter=False)


@pytest.fixture
def trip() -> Trip:
    return Trip()


async def has_status(app: Stepfast, run_id: str, status: str) -> bool:
    return await app.get(run_id).status() == status


# -- a run that fails ----------------------------------------------------------------------------------------------


async def test_completed_steps_are_undone_in_reverse_with_their_output_and_arguments(app: Stepfast, trip: Trip) -> None:
    """Those that have an undo, once each."""

    @app.workflow
    async def order(ctx: Context) -> None:
        await trip.booked(ctx, "flight")
        await ctx.step("no undo", lambda: trip.log.append("no undo"))
        await trip.booked(ctx, "hotel")
        raise NonRetryableError("no car")

    run = await app.start(order)
    await app.drain()
    assert trip.log == ["book flight", "no undo", "book hotel", "undo hotel hotel-1", "undo flight flight-1"]
    assert await run.status() == "compensated"


async def test_the_result_of_an_undone_run_is_the_error_that_caused_it(app: Stepfast, trip: Trip) -> None:
    """Semantics, statuses."""

    @app.workflow
    async def order(ctx: Context) -> None:
        await trip.booked(ctx, "flight")
        raise NonRetryableError("no car")

    run = await app.start(order)
    await app.drain()
    with pytest.raises(RunFailed, match="no car") as failed:
        await run.result()
    assert (failed.value.reason, failed.value.error_type) == ("code", "NonRetryableError")
    info = await run.info()
    assert (info.status, info.reason, info.waiting_for, info.worker) == ("compensated", "code", None, None)
    assert info.completed_at is not None


async def test_the_undos_are_listed_with_words_of_their_own(app: Stepfast, trip: Trip) -> None:
    trip.failing = {"flight"}

    @app.workflow
    async def order(ctx: Context) -> None:
        undo = step(retries=0)(trip.unbook)
        await trip.booked(ctx, "flight", undo)
        await trip.booked(ctx, "hotel", undo)
        raise NonRetryableError("no car")

    run = await app.start(order)
    await app.drain()
    undos = [(s.name, s.kind, s.status) for s in await run.steps() if s.kind == "undo"]
    assert undos == [("unbook", "undo", "compensated"), ("unbook", "undo", "compensation_failed")]


@pytest.mark.parametrize("fails", [False, True])
async def test_an_undo_goes_by_the_name_that_it_was_declared_with(app: Stepfast, fails: bool) -> None:
    """In a workflow and in a dag, where it is listed, and where it fails."""

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
    """The failed step's own undo must not run."""

    def broken(what: str) -> None:
        raise ValueError(what)

    @app.workflow(max_attempts=1)
    async def order(ctx: Context) -> None:
        await trip.booked(ctx, "flight")
        await ctx.options(compensate=trip.unbook).step(broken, "hotel")

    run = await app.start(order)
    await app.drain()
    assert trip.undone == ["flight"]
    assert await run.status() == "compensated"


async def test_nothing_is_undone_while_there_are_attempts_left(app: Stepfast, trip: Trip, calls: Calls) -> None:
    @app.workflow(max_attempts=2, backoff=QUICK)
    async def order(ctx: Context) -> str:
        await trip.booked(ctx, "flight")
        if calls.hit("attempt") == 1:
            raise ValueError("once")
        return "done"

    run = await app.start(order)
    await app.drain()
    assert await run.result() == "done"
    assert trip.log == ["book flight"]


async def test_a_caught_failure_undoes_nothing(app: Stepfast, trip: Trip) -> None:
    @app.workflow
    async def order(ctx: Context) -> str:
        await trip.booked(ctx, "flight")
        try:
            await ctx.step("broken", lambda: 1 / 0)
        except StepFailed:
            return "anyway"
        return "?"

    run = await app.start(order)
    await app.drain()
    assert await run.result() == "anyway"
    assert trip.undone == []


async def test_a_run_with_nothing_to_undo_ends_failed(app: Stepfast, trip: Trip) -> None:
    """Semantics, statuses: also if an undo was named for a step that was never done."""

    @app.workflow
    async def order(ctx: Context) -> None:
        await ctx.step("plain", lambda: None)
        raise NonRetryableError("no")

    run = await app.start(order)
    await app.drain()
    assert await run.status() == "failed"


async def test_an_undo_declared_with_the_step_gets_its_keyword_arguments(app: Stepfast) -> None:
    seen: list[Any] = []

    async def refund(receipt: str, order: str, *, cents: int) -> None:
        seen.append((receipt, order, cents))

    @step(compensate=refund)
    async def charge(order: str, *, cents: int) -> str:
        return f"{order}:{cents}"

    @app.workflow
    async def order(ctx: Context) -> None:
        await ctx.step(charge, "o-1", cents=5)
        raise NonRetryableError("no")

    await app.start(order)
    await app.drain()
    assert seen == [("o-1:5", "o-1", 5)]


async def test_an_undo_gets_what_the_step_was_given_and_gave_not_what_became_of_it(app: Stepfast) -> None:
    """The code may go on to change its list and its result."""
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

    run = await app.start(order)
    await app.drain()
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

    run = await app.start(order)
    await app.drain()
    assert await run.status() == "compensated"
    assert undone == [(lock, [])]


async def test_a_step_in_a_plain_def_workflow_is_undone_too(app: Stepfast, trip: Trip) -> None:
    @app.workflow
    def order(ctx: SyncContext) -> None:
        for what in ("flight", "hotel"):
            ctx.options(compensate=trip.unbook).step(f"book {what}", trip.book, what)
        raise NonRetryableError("no")

    run = await app.start(order)
    await app.drain()
    assert trip.undone == ["hotel", "flight"]
    assert await run.status() == "compensated"


@pytest.mark.parametrize("value", [None, False, 0, ""])
async def test_an_empty_output_is_undone_as_itself(app: Stepfast, value: Any) -> None:
    seen: list[Any] = []

    @app.workflow
    async def order(ctx: Context) -> None:
        await ctx.options(compensate=lambda output: seen.append(output)).step("give", lambda: value)
        raise NonRetryableError("no")

    await app.start(order)
    await app.drain()
    assert seen == [value] and type(seen[0]) is type(value)


@pytest.mark.enough_on("postgres", "sqlite")
async def test_an_undone_run_undoes_the_rows_of_a_transaction_as_any_step(app: Stepfast, trip: Trip) -> None:
    """``compensate`` works with ctx.transaction too: by an undo of its own, after the commit."""

    def write(connection: Any, what: str) -> str:
        return f"{what}-row"

    async def write_async(connection: Any, what: str) -> str:
        return f"{what}-row"

    @app.workflow
    async def order(ctx: Context) -> None:
        function = write if app.url.kind == "sqlite" else write_async
        await ctx.options(compensate=trip.unbook).transaction(function, "ledger")
        raise NonRetryableError("no")

    run = await app.start(order)
    await app.drain()
    assert trip.log == ["undo ledger ledger-row"]
    assert await run.status() == "compensated"


# -- undos that fail -----------------------------------------------------------------------------------------------


async def test_a_failing_undo_is_recorded_and_the_chain_goes_on(app: Stepfast, trip: Trip) -> None:
    """The end tells it from a clean undo, and names it."""
    trip.failing = {"hotel"}

    @app.workflow
    async def order(ctx: Context) -> None:
        undo = step(name="cancel booking", retries=0)(trip.unbook)
        for what in ("flight", "hotel", "car"):
            await trip.booked(ctx, what, undo)
        raise NonRetryableError("the cause")

    run = await app.start(order)
    await app.drain()
    assert trip.undone == ["car", "hotel", "flight"]
    with pytest.raises(RunFailed, match="hotel cannot be undone") as failed:
        await run.result()
    assert (failed.value.reason, failed.value.error_type) == ("undo_failed", "CompensationFailed")
    assert "'book hotel'" in failed.value.message
    assert await run.status() == "failed"


async def test_an_undo_is_retried_by_its_own_policy(app: Stepfast, trip: Trip, calls: Calls) -> None:
    """Retries and backoff of the undo, not of the step."""

    @step(retries=4, backoff=QUICK)
    def undo(output: str, what: str) -> None:
        if calls.hit("undo") < 5:
            raise ValueError("not yet")

    @app.workflow
    async def order(ctx: Context) -> None:
        await trip.booked(ctx, "flight", undo)
        raise NonRetryableError("no")

    run = await app.start(order)
    await app.drain()
    assert calls == {"undo": 5}
    assert await run.status() == "compensated"
    assert [s.attempts for s in await run.steps() if s.kind == "undo"] == [5]


async def test_an_undo_that_says_nothing_is_tried_a_few_times(make_app: MakeApp, trip: Trip) -> None:
    """Settings: undo_retries, because nobody tries it again later."""
    app = make_app(settings=Settings(undo_retries=2, backoff_base=0.001))
    trip.failing = {"flight"}

    @app.workflow
    async def order(ctx: Context) -> None:
        await trip.booked(ctx, "flight")
        raise NonRetryableError("no")

    run = await app.start(order)
    await app.drain()
    assert trip.undone == ["flight"] * 3
    assert await run.status() == "failed"


async def test_an_undo_that_must_wait_frees_the_slot(app: Stepfast, trip: Trip, calls: Calls) -> None:
    """The run stays compensating, with the error it had, and goes on when the time has come."""

    def undo(output: str, what: str) -> None:
        if calls.hit("undo") == 1:
            raise RetryLater(3600)

    @app.workflow
    async def order(ctx: Context) -> None:
        await trip.booked(ctx, "flight")
        await trip.booked(ctx, "hotel", undo)
        raise NonRetryableError("the cause")

    run = await app.start(order)
    await app.drain()
    info = await run.info()
    assert (info.status, info.worker, info.waiting_for) == ("compensating", None, "retry")
    assert info.due_at is not None
    assert trip.undone == []
    await make_due(app, run.id)
    await app.drain()
    assert await run.status() == "compensated"
    assert trip.undone == ["flight"]
    with pytest.raises(RunFailed, match="the cause"):
        await run.result()


# -- crashes -------------------------------------------------------------------------------------------------------


async def test_an_interrupted_undoing_goes_on_where_it_was(app: Stepfast, trip: Trip) -> None:
    """Durable; what was undone is not undone again."""
    gate = Gate()

    async def held(output: str, what: str) -> None:
        trip.unbook(output, what)
        await gate.passing()

    @app.workflow
    async def order(ctx: Context) -> None:
        await trip.booked(ctx, "flight")
        await trip.booked(ctx, "hotel", held)
        await trip.booked(ctx, "car")
        raise NonRetryableError("no")

    run = await app.start(order)
    await interrupt(app, gate)
    assert await run.status() == "compensating"
    assert trip.undone == ["car", "hotel"]
    gate.open()
    await app.drain()
    assert trip.undone == ["car", "hotel", "hotel", "flight"]
    assert await run.status() == "compensated"


@pytest.mark.parametrize("written", [False, True], ids=["before the commit", "after the commit"])
@pytest.mark.enough_on("postgres", "sqlite")
async def test_a_crash_in_the_middle_repeats_at_most_the_undo_in_flight(
    app: Stepfast, trip: Trip, written: bool
) -> None:
    @app.workflow
    async def order(ctx: Context) -> None:
        for what in ("flight", "hotel", "car"):
            await trip.booked(ctx, what)
        raise NonRetryableError("no")

    run = await app.start(order)
    await crash_at(app, outcome_of("unbook", "undo"), written=written)
    await app.drain()
    assert trip.undone == ["car", *([] if written else ["car"]), "hotel", "flight"]
    assert await run.status() == "compensated"


@pytest.mark.parametrize("written", [False, True], ids=["before the commit", "after the commit"])
@pytest.mark.enough_on("postgres", "sqlite")
async def test_a_crash_when_the_undoing_begins_undoes_everything_once(app: Stepfast, trip: Trip, written: bool) -> None:
    @app.workflow
    async def order(ctx: Context) -> None:
        await trip.booked(ctx, "flight")
        raise NonRetryableError("no")

    run = await app.start(order)
    await crash_at(app, lambda batch: any(m.status == "compensating" for m in batch.transitions), written=written)
    await app.drain()
    assert trip.log == ["book flight", "undo flight flight-1"]
    assert await run.status() == "compensated"


async def test_undos_of_a_long_history_are_all_found(app: Stepfast, trip: Trip) -> None:
    """More records than a claim brings along."""

    @app.workflow
    async def order(ctx: Context) -> None:
        for number in range(150):
            await trip.booked(ctx, str(number))
        raise NonRetryableError("no")

    run = await app.start(order)
    await app.drain()
    assert trip.undone == [str(number) for number in reversed(range(150))]
    assert await run.status() == "compensated"


async def test_the_undo_of_a_step_from_an_earlier_claim_is_found(app: Stepfast, trip: Trip) -> None:
    gate = Gate()

    @app.workflow
    async def order(ctx: Context) -> None:
        await trip.booked(ctx, "flight")
        await ctx.step("gate", gate.passing)
        raise NonRetryableError("no")

    run = await app.start(order)
    await interrupt(app, gate)
    gate.open()
    await app.drain()
    assert trip.log == ["book flight", "undo flight flight-1"]
    assert await run.status() == "compensated"


# -- branches ------------------------------------------------------------------------------------------------------


async def test_steps_in_branches_are_undone_in_the_reverse_order_of_their_completion(app: Stepfast, trip: Trip) -> None:
    """Running siblings are settled first, and then undone too."""
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

    run = await app.start(order)
    await app.drain()
    assert trip.log == [
        "book train", "book hotel", "book flight", "undo flight flight-1", "undo hotel hotel-1", "undo train train-1",
    ]  # fmt: skip
    assert await run.status() == "compensated"


async def test_items_of_a_map_are_undone(app: Stepfast, trip: Trip) -> None:
    async def item(ctx: Context, number: int) -> None:
        await trip.booked(ctx, str(number))
        if number == 3:
            raise NonRetryableError("three")

    @app.workflow
    async def order(ctx: Context) -> None:
        await ctx.map(item, range(6), limit=2)

    run = await app.start(order)
    await app.drain()
    assert sorted(trip.undone) == [str(n) for n in range(6)]
    assert await run.status() == "compensated"


async def test_a_run_that_waited_in_between_is_undone(make_app: MakeApp, trip: Trip) -> None:
    """The code is replayed over sleeps, signals and children, none of which is waited for again."""
    app = make_app(settings=Settings(inline_wait=0))

    @app.task
    async def child(number: int) -> int:
        return number

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
        await eventually(lambda: has_status(app, run.id, "compensated"))
    assert trip.undone == ["hotel", "flight"]
