"""Undoing after other ends than a failure: cancelling, deadlines, an operator's retry, changed code."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest

from stepfast import (
    ChildFailed,
    Context,
    InvalidState,
    NonRetryableError,
    RunCancelled,
    RunFailed,
    Settings,
    Stepfast,
    step,
)
from tests.engine.conftest import MakeApp
from tests.store.scene import Rows
from tests.support.engine import Calls, Gate, eventually, interrupt
from tests.support.trips import Trip
from tests.support.waiting import deafen, rows_of

pytestmark = pytest.mark.enough_on("sqlite")


@pytest.fixture
def trip() -> Trip:
    return Trip()


async def has_status(app: Stepfast, run_id: str, status: str) -> bool:
    return await app.get(run_id).status() == status


async def was_asked(app: Stepfast, run_id: str) -> bool:
    return (await app.get(run_id).info()).asked is not None


# -- cancelling ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("moment", [0.0, 2.0], ids=["released", "in memory"])
@pytest.mark.enough_on("postgres", "sqlite")
async def test_a_cancelled_run_is_undone(make_app: MakeApp, trip: Trip, moment: float) -> None:
    """Semantics: compensated with the reason cancelled; whoever waits gets RunCancelled."""
    app = make_app(settings=Settings(inline_wait=moment))

    @app.workflow
    async def order(ctx: Context) -> None:
        await trip.booked(ctx, "flight")
        await ctx.wait_signal("never")

    run = await app.start(order)
    async with app.worker():
        if moment == 0:
            await eventually(lambda: has_status(app, run.id, "waiting"))
        else:
            await eventually(lambda: trip.log)
        await run.cancel()
        with pytest.raises(RunCancelled):
            await run.result(timeout=20)
    info = await run.info()
    assert (info.status, info.reason, info.error) == ("compensated", "cancelled", None)
    assert trip.undone == ["flight"]


async def test_the_step_in_flight_is_recorded_and_undone(app: Stepfast, trip: Trip) -> None:
    """Rule 27: the only step there is, and it was under way when the run was cancelled."""
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
        await eventually(lambda: was_asked(app, run.id))
        gate.open()
        with pytest.raises(RunCancelled):
            await run.result(timeout=20)
    assert trip.log == ["book flight", "undo flight flight-1"]
    assert await run.status() == "compensated"


@pytest.mark.enough_on("postgres", "sqlite")
async def test_a_cancelled_run_that_nobody_holds_is_undone_by_the_next_worker(app: Stepfast, trip: Trip) -> None:
    @app.workflow
    async def order(ctx: Context) -> None:
        await trip.booked(ctx, "flight")
        await ctx.sleep(3600)

    run = await app.start(order)
    await app.drain()
    await run.cancel()
    assert await run.status() == "compensating"
    await app.drain()
    assert (await run.info()).status == "compensated"
    with pytest.raises(RunCancelled):
        await run.result()


@pytest.mark.enough_on("postgres", "sqlite")
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


@pytest.mark.enough_on("postgres", "sqlite")
async def test_an_undoing_cannot_be_cancelled_or_paused(app: Stepfast, trip: Trip) -> None:
    """One owner, and to the end."""
    gate = Gate()

    async def held(output: str, what: str) -> None:
        await gate.passing()
        trip.unbook(output, what)

    @app.workflow
    async def order(ctx: Context) -> None:
        await trip.booked(ctx, "flight", held)
        raise NonRetryableError("no")

    run = await app.start(order)
    async with app.worker():
        await gate.reached()
        with pytest.raises(InvalidState, match="compensating"):
            await run.cancel()
        with pytest.raises(InvalidState, match="compensating"):
            await run.pause()
        gate.open()
        await eventually(lambda: has_status(app, run.id, "compensated"))
    assert trip.undone == ["flight"]


# -- other ends ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("where", ["executing", "waiting"])
async def test_a_deadline_undoes(app: Stepfast, trip: Trip, where: str) -> None:
    @app.workflow(deadline=1)
    async def order(ctx: Context) -> None:
        await trip.booked(ctx, "flight")
        if where == "executing":
            await ctx.step("hang", asyncio.Event().wait)
        else:
            await ctx.sleep(3600)

    async with app.worker():
        run = await app.start(order)
        await eventually(lambda: has_status(app, run.id, "compensated"))
    assert trip.undone == ["flight"]
    with pytest.raises(RunFailed) as failed:
        await run.result()
    assert (failed.value.reason, failed.value.error_type) == ("deadline", "DeadlineExceeded")


async def test_a_timeout_for_good_undoes(app: Stepfast, trip: Trip) -> None:
    @app.workflow(timeout=1, max_attempts=1)
    async def order(ctx: Context) -> None:
        await trip.booked(ctx, "flight")
        await ctx.step("hang", asyncio.Event().wait)

    run = await app.start(order)
    async with app.worker():
        await eventually(lambda: has_status(app, run.id, "compensated"))
    assert trip.undone == ["flight"]
    assert (await run.info()).reason == "timeout"


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
    await old.drain()
    assert await run.result() == "done"
    assert trip.undone == []


async def test_a_dead_letter_does_not_undo(make_app: MakeApp, trip: Trip) -> None:
    """Rule 28: what kills workers would kill the one that undoes."""
    app = make_app(settings=Settings(max_losses=0))
    await deafen(app)  # a beat that somebody hurries would bring the worker back to life
    gate = Gate()

    @app.workflow
    async def order(ctx: Context) -> None:
        await trip.booked(ctx, "flight")
        await ctx.step("gate", gate.passing)

    run = await app.start(order)
    store = await app.store()
    rows = Rows(store, app.namespace, app.url.text)
    async with app.worker(shutdown_grace=0) as worker:
        await gate.reached()
        await rows.set(run.id, "losses", 1)
        await rows.silence(worker.id)
        await store.reap("00000000-0000-7000-8000-000000000000", 10, 0)
        info = await run.info()
        assert (info.status, info.reason) == ("failed", "workers_lost")
    await rows.close()
    await app.drain()
    assert trip.undone == []


@pytest.mark.enough_on("postgres", "sqlite")
async def test_a_child_that_is_undone_fails_for_its_parent_when_all_is_done(app: Stepfast, trip: Trip) -> None:
    """With the error that caused the undo, after the last one."""

    @app.workflow
    async def child(ctx: Context) -> None:
        await trip.booked(ctx, "flight")
        raise NonRetryableError("no car")

    @app.workflow
    async def parent(ctx: Context) -> list[Any]:
        try:
            await ctx.call(child)
        except ChildFailed as error:
            return [error.error_type, error.message, trip.undone]
        return []

    run = await app.start(parent)
    await app.drain()
    assert await run.result() == ["NonRetryableError", "no car", ["flight"]]


# -- an operator's retry -------------------------------------------------------------------------------------------


async def undone_run(app: Stepfast, trip: Trip, calls: Calls, **options: Any) -> Any:
    @app.workflow(max_attempts=1)
    async def order(ctx: Context, number: int) -> str:
        await trip.booked(ctx, "flight")
        if calls.hit("body") == 1:
            raise NonRetryableError("once")
        return f"done {number}"

    run = await app.start(order, 7, **{"tags": ["vip"], **options})
    await app.drain()
    assert await run.status() == "compensated"
    return run


@pytest.mark.enough_on("postgres", "sqlite")
async def test_a_retry_is_refused_once_an_undo_has_begun(app: Stepfast, trip: Trip, calls: Calls) -> None:
    """Rule 28: its records tell of things that are undone."""
    run = await undone_run(app, trip, calls)
    with pytest.raises(InvalidState, match=r"retry\(from_start=True\)"):
        await run.retry()
    assert await run.status() == "compensated"


async def test_a_run_whose_undo_failed_cannot_be_retried_either(app: Stepfast, trip: Trip) -> None:
    trip.failing = {"flight"}

    @app.workflow
    async def order(ctx: Context) -> None:
        await trip.booked(ctx, "flight", step(retries=0)(trip.unbook))
        raise NonRetryableError("no")

    run = await app.start(order)
    await app.drain()
    assert await run.status() == "failed"
    with pytest.raises(InvalidState, match=r"retry\(from_start=True\)"):
        await run.retry()


async def test_a_retry_from_the_start_is_a_new_run_linked_to_the_old(app: Stepfast, trip: Trip, calls: Calls) -> None:
    run = await undone_run(app, trip, calls)
    again = await run.retry(from_start=True)
    assert again.id != run.id
    await app.drain()
    assert await again.result() == "done 7"
    info = await again.info()
    assert (info.origin, info.input, info.tags, info.workflow) == (run.id, 7, ["vip"], "order")
    assert await run.status() == "compensated"
    assert trip.log == ["book flight", "undo flight flight-1", "book flight"]


async def test_a_retry_from_the_start_has_the_options_of_the_first(app: Stepfast, trip: Trip, calls: Calls) -> None:
    """The deadline counts anew, from a start that nothing keeps waiting. The key stays with the first."""
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


async def test_a_failed_run_without_undos_may_be_started_anew_too(app: Stepfast, calls: Calls) -> None:
    @app.workflow(max_attempts=1)
    async def order(ctx: Context) -> int:
        await ctx.step("one", lambda: calls.hit("one"))
        if calls.hit("body") == 1:
            raise ValueError("once")
        return calls["one"]

    run = await app.start(order)
    await app.drain()
    again = await run.retry(from_start=True)
    await app.drain()
    assert await again.result() == 2


async def test_a_run_under_way_is_not_started_anew(app: Stepfast) -> None:
    @app.workflow
    async def order(ctx: Context) -> None: ...

    run = await app.start(order)
    with pytest.raises(InvalidState, match="queued"):
        await run.retry(from_start=True)


# -- undos that today's code does not lead to ----------------------------------------------------------------------


async def test_an_undo_that_is_no_longer_in_the_code_is_reported(make_app: MakeApp, trip: Trip) -> None:
    """The rest is undone; the run ends failed and says which step was not."""
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
    with pytest.raises(RunFailed, match="undo 'unbook' of step 'book hotel' was not called") as failed:
        await run.result()
    assert failed.value.reason == "undo_failed"


async def test_code_that_ends_early_now_still_has_what_it_reaches_undone(make_app: MakeApp, trip: Trip) -> None:
    """The replay meets the records that it can, and reports the others."""
    old, new = make_app(), make_app()

    @old.workflow(name="order")
    async def was(ctx: Context) -> None:
        await trip.booked(ctx, "flight")
        await trip.booked(ctx, "hotel")
        await ctx.sleep(3600)

    @new.workflow(name="order")
    async def now(ctx: Context) -> None:
        await trip.booked(ctx, "flight")

    run = await old.start("order")
    await old.drain()
    await run.cancel()
    await new.drain()
    assert trip.undone == ["flight"]
    info = await run.info()
    assert info.status == "failed" and info.error is not None and "book hotel" in info.error.message
