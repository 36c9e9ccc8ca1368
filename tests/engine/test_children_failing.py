"""Children that fail, parents that end first, and what an operator's retry does to both."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from stepfast import ChildFailed, Context, NonRetryableError, RunCancelled, RunFailed, Settings, Stepfast
from tests.engine.conftest import ON_BOTH, ON_SQLITE, WAITS, MakeApp
from tests.store.scene import Rows
from tests.support.children import add_double, all_delivered
from tests.support.engine import (
    Calls,
    Gate,
    drained,
    eventually,
    failure,
    finished,
    interrupt,
    make_due,
    worked,
)
from tests.support.workflows import calling, listener, task

pytestmark = ON_SQLITE


async def has_status(app: Stepfast, run_id: str, status: str) -> bool:
    return await app.get(run_id).status() == status


# -- failures ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("verb", ["start", "call"])
async def test_the_failure_of_a_child_names_it(app: Stepfast, verb: str) -> None:
    """As an error that the code can catch, alike live and replayed."""
    gate = Gate()

    @app.task(max_attempts=1)
    async def broken(number: int) -> None:
        raise ValueError(f"no {number}")

    @app.workflow
    async def parent(ctx: Context) -> list[Any]:
        told: list[Any] = []
        try:
            await (ctx.call(broken, 3) if verb == "call" else (await ctx.start(broken, 3)).result())
        except ChildFailed as error:
            told = [error.workflow, error.run_id, error.error_type, error.message, str(error)]
        await ctx.step("gate", gate.passing)
        return told

    run = await app.start(parent)
    await interrupt(app, gate)
    gate.open()
    await app.drain()
    [child] = await app.runs(workflow=broken)
    assert await run.result() == [
        "broken", child.id, "ValueError", "no 3", f"child 'broken' (run {child.id}) failed: ValueError: no 3",
    ]  # fmt: skip


@ON_BOTH
async def test_an_uncaught_failure_of_a_child_ends_the_parent_at_once(app: Stepfast, calls: Calls) -> None:
    """Another attempt of the parent could not help: the child had its own."""

    @app.task(max_attempts=1)
    async def broken() -> None:
        calls.hit("broken")
        raise ValueError("no")

    parent = calling(app, lambda ctx: ctx.call(broken), name="parent", max_attempts=5)
    run = await drained(app, parent)
    [child] = await app.runs(workflow=broken)
    failed = await failure(run, f"child 'broken' .run {child.id}. failed: ValueError: no")
    assert failed.error_type == "ChildFailed"
    assert calls == {"broken": 1}
    assert (await run.info()).attempt == 1


async def test_a_cancelled_child_fails_for_its_parent(app: Stepfast) -> None:
    gate = Gate()
    child = listener(app, "never", name="child")

    @app.workflow
    async def parent(ctx: Context) -> str:
        handle = await ctx.start(child)
        await ctx.step("gate", gate.passing)
        try:
            await handle.result()
        except ChildFailed as error:
            return error.error_type
        return "?"

    run = await app.start(parent)
    async with app.worker():
        await gate.reached()
        [info] = await app.runs(workflow=child)
        await app.get(info.id).cancel()
        gate.open()
        assert await run.result(timeout=20) == "RunCancelled"


async def test_a_child_that_expires_or_misses_its_deadline_fails_for_its_parent(app: Stepfast) -> None:
    """Ends that no worker writes reach the parent too."""
    idle = task(app, "idle", returns=None, queue="nobody")

    @app.workflow
    async def parent(ctx: Context) -> list[str]:
        told = []
        for options in ({"expires_in": 0.05}, {"deadline": 0.05}):
            try:
                await ctx.call(idle, **options)  # type: ignore[call-overload]
            except ChildFailed as error:
                told.append(error.message)
        return told

    run = await app.start(parent)
    async with app.worker(queues=["parent"]):
        expired, late = await run.result(timeout=20)
    assert "expires_in" in expired
    assert "deadline" in late


@ON_BOTH
async def test_a_child_lost_with_too_many_workers_fails_for_its_parent(make_app: MakeApp) -> None:
    """A dead letter is an end like any other."""
    app = make_app(settings=Settings(max_losses=0))
    gate = Gate()
    child = calling(app, lambda ctx: ctx.step("gate", gate.passing), name="child")

    @app.workflow
    async def parent(ctx: Context) -> str:
        try:
            await ctx.call(child)
        except ChildFailed as error:
            return error.message
        return "?"

    run = await app.start(parent)
    store = await app.store()
    rows = Rows(store, app.namespace, app.url.text)
    async with app.worker(shutdown_grace=0) as worker:
        await gate.reached()
        await eventually(lambda: has_status(app, run.id, "waiting"))
        await rows.silence(worker.id)
        await store.reap("00000000-0000-7000-8000-000000000000", 10, 0)
        assert "workers" in await run.result(timeout=20)
    await rows.close()


# -- the parent ends first -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("end", ["completed", "failed"])
async def test_children_outlive_a_parent_that_ends_by_itself(app: Stepfast, end: str) -> None:
    """Rule 26: left alone when it completes or fails."""
    gate = Gate()
    child = task(app, "child", gate=gate, returns="done")

    @app.workflow
    async def parent(ctx: Context) -> str:
        handle = await ctx.start(child)
        await ctx.step("reached", gate.reached)
        if end == "failed":
            raise NonRetryableError("no")
        return handle.id

    run = await app.start(parent)
    async with app.worker():
        await eventually(lambda: has_status(app, run.id, end))
        [info] = await app.runs(workflow=child)
        assert info.status == "running"
        gate.open()
        assert await app.get(info.id).result(timeout=20) == "done"
        await eventually(lambda: all_delivered(app))
    assert await run.status() == end


@WAITS
@ON_BOTH
async def test_children_and_theirs_are_cancelled_with_a_cancelled_parent(app: Stepfast) -> None:
    """Rule 26: those that wait at once, one that runs after its step."""
    gate = Gate()
    grandchild = listener(app, "never", name="grandchild")
    child = calling(app, lambda ctx: ctx.call(grandchild), name="child")

    @app.workflow
    async def busy(ctx: Context) -> None:
        await ctx.step("gate", gate.passing)
        await ctx.step("never reached", lambda: None)

    queued = task(app, "queued", returns=None, queue="nobody")

    @app.workflow
    async def parent(ctx: Context) -> None:
        await ctx.start(queued)
        await ctx.start(busy)
        await ctx.call(child)

    run = await app.start(parent)
    async with app.worker(queues=["parent", "child", "grandchild", "busy"]):
        await gate.reached()

        async def busy_was_asked() -> bool:
            [info] = await app.runs(workflow=busy)
            return info.asked == "cancel"

        async def waits() -> bool:
            infos = await app.runs(workflow=grandchild)
            return bool(infos) and infos[0].status == "waiting"

        await eventually(waits)
        await run.cancel()
        await eventually(busy_was_asked)
        gate.open()
        with pytest.raises(RunCancelled):
            await run.result(timeout=20)
        for workflow in (child, grandchild, busy, queued):
            [info] = await app.runs(workflow=workflow)
            with pytest.raises(RunCancelled):
                await app.get(info.id).result(timeout=20)
    [info] = await app.runs(workflow=busy)
    assert [(s.name, s.status) for s in await app.get(info.id).steps()] == [("gate", "completed")]


# -- an operator's retry -------------------------------------------------------------------------------------------


def add_flaky_family(app: Stepfast, calls: Calls) -> None:
    """A child that fails the first time, and a parent that has a step before it."""

    @app.workflow(max_attempts=1)
    async def flaky(ctx: Context) -> str:
        await ctx.step("child's own", lambda: calls.hit("child's own"))
        if calls.hit("flaky") == 1:
            raise NonRetryableError("not yet")
        return "better"

    @app.workflow(max_attempts=1)
    async def parent(ctx: Context) -> str:
        await ctx.step("parent's own", lambda: calls.hit("parent's own"))
        return await ctx.call(flaky)


@ON_BOTH
async def test_retrying_a_parent_retries_its_failed_child(app: Stepfast, calls: Calls) -> None:
    """The child goes on from its own records; what the parent had done stays done."""
    add_flaky_family(app, calls)
    run = await drained(app, "parent")
    assert await run.status() == "failed"
    await run.retry()
    assert await finished(app, run) == "better"
    assert calls == {"parent's own": 1, "child's own": 1, "flaky": 2}
    [child] = await app.runs(workflow="flaky")
    assert (child.status, child.attempt) == ("completed", 2)


async def test_retrying_a_child_and_then_its_parent_takes_the_new_result(app: Stepfast, calls: Calls) -> None:
    """A child that succeeded meanwhile is not executed a third time."""
    add_flaky_family(app, calls)
    run = await drained(app, "parent")
    [child] = await app.runs(workflow="flaky")
    await app.get(child.id).retry()
    await app.drain()
    assert await app.get(child.id).status() == "completed"
    assert await run.status() == "failed"
    await run.retry()
    assert await finished(app, run) == "better"
    assert calls == {"parent's own": 1, "child's own": 1, "flaky": 2}


async def test_a_child_that_fails_again_fails_its_retried_parent_again(app: Stepfast, calls: Calls) -> None:
    @app.task(max_attempts=1)
    async def broken() -> None:
        raise ValueError(f"time {calls.hit('broken')}")

    parent = calling(app, lambda ctx: ctx.call(broken), name="parent")
    run = await drained(app, parent)
    await run.retry()
    await app.drain()
    await failure(run, "time 2")
    assert calls == {"broken": 2}


@pytest.mark.parametrize("child_ends", ["compensated", "cancelled"])
async def test_retrying_a_parent_whose_child_was_undone_or_cancelled_comes_to_an_end(
    app: Stepfast, calls: Calls, child_ends: str
) -> None:
    """A child that was undone cannot go on from its records: its parent hears of the same failure again."""

    @app.workflow(max_attempts=1)
    async def child(ctx: Context) -> str:
        undo = (lambda output: calls.hit("undo")) if child_ends == "compensated" else None
        await ctx.options(compensate=undo).step("charge", lambda: 1)
        if child_ends == "cancelled":
            await ctx.wait_signal("go")
            return "went on"
        raise NonRetryableError("no")

    parent = calling(app, lambda ctx: ctx.call(child), name="parent", max_attempts=1)
    run = await app.start(parent)
    async with app.worker():
        if child_ends == "cancelled":

            async def waiting() -> Any:
                return [info for info in await app.runs(workflow=child) if info.status == "waiting"]

            [info] = await eventually(waiting)
            await app.get(info.id).cancel()
        with pytest.raises(RunFailed, match="no" if child_ends == "compensated" else "it was cancelled"):
            await run.result(timeout=20)
        await run.retry()
        if child_ends == "compensated":
            with pytest.raises(RunFailed, match="NonRetryableError: no"):
                await run.result(timeout=10)
        else:
            await eventually(lambda: has_status(app, info.id, "waiting"))
            await app.get(info.id).signal("go")
            assert await run.result(timeout=10) == "went on"
    assert calls == ({"undo": 1} if child_ends == "compensated" else {})


async def test_a_new_attempt_of_the_parent_finds_the_results_of_its_children(app: Stepfast, calls: Calls) -> None:
    """What the parent recorded of them stays; what it did not record is not lost either."""
    add_double(app, calls)
    gate = Gate()

    @app.workflow
    async def parent(ctx: Context) -> list[Any]:
        kept = await ctx.call("double", 1)
        late = await ctx.start("double", 2)
        if calls.hit("parent") == 1:
            raise ValueError("once more")
        return [kept, await late.result()]

    run = await drained(app, parent)
    await make_due(app, run.id)
    await app.drain()
    gate.open()
    assert await run.result() == [2, 4]
    assert calls["double"] == 2
    assert (await run.info()).attempt == 2


@ON_BOTH
async def test_a_parent_is_not_slept_over_by_a_child_that_ends_while_it_lies_down(make_app: MakeApp) -> None:
    """Rule 6: many parents, children that end at once, every wait released."""
    app = make_app(settings=Settings(inline_wait=0))
    quick = task(app, "quick")

    @app.workflow
    async def parent(ctx: Context, number: int) -> Any:
        return await ctx.call(quick, number) + await ctx.call(quick, 1)

    runs = await app.start_many(parent, range(50))
    async with app.worker(concurrency=20):
        results = await asyncio.gather(*(run.result(timeout=30) for run in runs))
    assert results == [number + 1 for number in range(50)]


@ON_BOTH
async def test_a_child_whose_end_was_taken_by_what_lost_a_race_can_still_be_asked(make_app: MakeApp) -> None:
    """The loser is not replayed, but what it recorded is known."""
    app = make_app(settings=Settings(inline_wait=0))

    @app.task
    async def double(number: int) -> int:
        return 2 * number

    @app.workflow
    async def parent(ctx: Context) -> int:
        child = await ctx.start(double, 21)

        async def slow(inner: Context) -> int:
            found = await child.result()
            await inner.sleep(3600)
            return found

        await ctx.first(slow=ctx.branch(slow), nap=ctx.sleep(0.5))
        await ctx.sleep(0.05)
        return await child.result()

    assert await worked(app, await app.start(parent)) == 42
