"""Code that cancels its own task, or leaves something behind that does: a failed attempt, or a failed try of a step."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import anyio
import pytest

from stepfast import Backoff, Context, StepFailed, Stepfast, SyncContext, step
from tests.support.engine import PATIENCE, Calls, Gate, drained, eventually, failure, finished, replayed
from tests.support.workflows import task

pytestmark = pytest.mark.enough_on("sqlite")

AT_ONCE = Backoff(base=0.001, jitter=False)


# -- ways in which code cancels its own task ------------------------------------------------------------------------


async def cancels_itself() -> None:
    """What a program does that means to end here."""
    task = asyncio.current_task()
    assert task is not None
    task.cancel()
    await asyncio.sleep(0)


async def insists() -> None:
    """The same, and once more while it unwinds."""
    try:
        await cancels_itself()
    finally:
        await cancels_itself()


async def leaks_timeout() -> None:
    """A timeout that is entered and never left."""
    await asyncio.timeout(0).__aenter__()
    await asyncio.Event().wait()


async def leaks_scope() -> None:
    """The same with anyio, whose scope cancels the task again at every turn of the event loop."""
    scope = anyio.CancelScope()
    scope.__enter__()
    asyncio.get_running_loop().call_later(0.2, scope._tasks.clear)  # type: ignore[attr-defined]
    scope.cancel()
    await anyio.sleep_forever()


async def child_cancels_parent() -> None:
    """A task that was spawned cancels the one that spawned it."""
    parent = asyncio.current_task()
    assert parent is not None
    child = asyncio.create_task(asyncio.sleep(0))
    child.add_done_callback(lambda _: parent.cancel())
    await asyncio.Event().wait()


WAYS = [
    cancels_itself,
    leaks_scope,
    child_cancels_parent,
    pytest.param(insists, marks=pytest.mark.thorough),
    pytest.param(leaks_timeout, marks=pytest.mark.thorough),
]


KINDS = {
    # name → (how often its code is called, what its run ends with)
    "task": (2, "task 'task': its task was cancelled by its own code"),
    "workflow": (2, "workflow 'workflow': its task was cancelled by its own code"),
    "step": (None, "cancelled by"),
    "step with a timeout": (2, "step 'bad': its task was cancelled by its own code"),
    "step of a def": (None, "cancelled"),
    "map": (2, "cancelled"),
    "check": (2, "cancelled by"),
    "dag": (2, "cancelled by its own code"),
    "condition": (2, "cancelled by its own code"),
    "undo": (2, "undo 'refund' of step 'charge'"),
}


def register(app: Stepfast, way: Callable[[], Awaitable[None]], calls: Calls) -> None:
    """A workflow of each kind, of which each has two tries."""
    twice: Any = {"retries": 1, "backoff": AT_ONCE}

    def culprit(name: str) -> Callable[..., Awaitable[None]]:
        async def bad(_: Any = None) -> None:
            calls.hit(name)
            await way()

        return bad

    @app.task(name="task", max_attempts=2, backoff=AT_ONCE)
    async def job() -> None:
        await culprit("task")()

    @app.workflow(name="workflow", max_attempts=2, backoff=AT_ONCE)
    async def body(ctx: Context) -> None:
        await ctx.step("first", lambda: calls.hit("first"))
        await culprit("workflow")()

    @app.workflow(name="step", max_attempts=1)
    async def with_step(ctx: Context) -> None:
        await ctx.options(**twice).step(culprit("step"))

    @app.workflow(name="step with a timeout", max_attempts=1)
    async def with_timeout(ctx: Context) -> None:
        await ctx.options(**twice, timeout=10).step(culprit("step with a timeout"))

    @app.workflow(name="step of a def", max_attempts=1)
    def plain(ctx: SyncContext) -> None:
        ctx.step(culprit("step of a def"))

    @app.workflow(name="map", max_attempts=2, backoff=AT_ONCE)
    async def mapped(ctx: Context) -> None:
        async def each(ctx: Context, item: int) -> None:
            await ctx.step("item", lambda: calls.hit(f"item {item}"))
            if item == 1:
                await culprit("map")()

        await ctx.map(each, [0, 1, 2])

    @app.workflow(name="check", max_attempts=2, backoff=AT_ONCE)
    async def checked(ctx: Context) -> None:
        async def check() -> bool:
            if calls.hit("asked") % 2 == 0:
                await culprit("check")()
            return False

        await ctx.wait_until(check, every=0.001)

    dag = app.dag("dag")
    dag.step(**twice)(culprit("dag"))

    conditional = app.dag("condition")

    @conditional.step(when=culprit("condition"), **twice)
    async def never(ctx: Any) -> None: ...

    async def release(_output: None) -> None:
        calls.hit("release")

    async def refund(_output: None) -> None:
        await culprit("undo")()

    @app.workflow(name="undo", max_attempts=1)
    async def undone(ctx: Context) -> None:
        await ctx.step(step(compensate=release)(reserve))
        await ctx.step(step(compensate=step(**twice)(refund))(charge))
        raise ValueError("on purpose")

    async def reserve() -> None: ...

    async def charge() -> None: ...


@pytest.mark.parametrize("way", WAYS, ids=lambda way: way.__name__)
async def test_code_that_cancels_its_task_has_failed(app: Stepfast, calls: Calls, way: Callable[[], Any]) -> None:
    """Rule 60: whatever kind of code it is, its run ends with an error that tells, after the tries that it has; and the
    worker lives on."""
    other = task(app, "other", returns="fine")
    register(app, way, calls)
    runs = {kind: await app.start(kind) for kind in KINDS}
    async with app.worker() as worker:
        for kind, run in runs.items():
            times, said = KINDS[kind]
            caught = await failure(run)
            assert said in str(caught), kind
            assert calls[kind] in ([1, 2] if times is None else [times]), kind
        assert await (await app.start(other)).result(timeout=PATIENCE) == "fine"
        await eventually(lambda: worker.running == 0)
    assert [calls[name] for name in ("first", "item 0", "item 1", "item 2", "release")] == [1] * 5
    undone = await runs["undo"].info()
    assert (undone.status, undone.reason) == ("failed", "undo_failed")


async def test_a_workflow_goes_on_after_a_step_that_cancelled_its_task(app: Stepfast, calls: Calls) -> None:
    async def bad(item: int) -> int:
        calls.hit("bad")
        if item == 1:
            await cancels_itself()
        return item

    @app.workflow(max_attempts=1)
    async def order(ctx: Context) -> list[str]:
        async def each(ctx: Context, item: int) -> int:
            return await ctx.step(bad, item)

        found = await ctx.map(each, [0, 1, 2], return_errors=True)
        try:
            await ctx.step(bad, 1)
        except StepFailed as error:
            found.append(error)
        await ctx.step(gate.passing)
        return [type(one).__name__ for one in found]

    gate = Gate()
    assert await (await replayed(app, gate, order)).result() == ["int", "StepFailed", "int", "StepFailed"]
    assert calls == {"bad": 4}


async def test_a_task_that_a_step_left_behind_ends_a_later_call(app: Stepfast, calls: Calls) -> None:
    async def leaks() -> None:
        calls.hit("leaks")
        parent = asyncio.current_task()
        assert parent is not None
        waiting = asyncio.create_task(begun.wait())
        waiting.add_done_callback(lambda _: parent.cancel())

    async def hangs() -> str:
        if calls.hit("hangs") == 1:
            begun.set()
            await asyncio.Event().wait()
        return "done"

    @app.workflow(max_attempts=2, backoff=AT_ONCE)
    async def order(ctx: Context) -> str:
        await ctx.step(leaks)
        return await ctx.step(hangs)

    begun = asyncio.Event()
    run = await drained(app, order)
    assert await run.result() == "done"
    assert calls == {"leaks": 1, "hangs": 2}
    [failed] = [line for line in await run.activity() if line.error is not None]
    assert failed.error is not None and "the code of its step 'leaks'" in failed.error.message


@pytest.mark.parametrize("way", [cancels_itself, insists], ids=lambda way: way.__name__)
async def test_a_transaction_that_cancels_its_task_has_failed(
    postgres_url: str, calls: Calls, way: Callable[[], Any]
) -> None:
    async def pay(connection: Any) -> None:
        await connection.execute("CREATE TABLE paid (id int)")
        calls.hit("pay")
        await way()

    async with Stepfast(postgres_url) as app:

        @app.workflow(max_attempts=2, backoff=AT_ONCE)
        async def order(ctx: Context) -> None:
            await ctx.transaction(pay)

        await failure(await drained(app, order), "was cancelled by the code of its step 'pay'")
    assert calls == {"pay": 2}


# -- when it is too late, or meant ------------------------------------------------------------------------------------


async def test_a_handler_that_returns_has_completed(app: Stepfast) -> None:
    """A cancellation that would come only afterwards changes nothing: neither one that is pending, nor one that comes
    while the result is committed."""

    @app.task
    async def pending() -> str:
        task = asyncio.current_task()
        assert task is not None
        task.cancel()
        return "done"

    @app.task
    async def later() -> str:
        task = asyncio.current_task()
        assert task is not None
        asyncio.get_running_loop().call_soon(task.cancel)
        return "done"

    runs = [await app.start(pending), await app.start(later)]
    async with app.worker() as worker:
        assert [await run.result(timeout=PATIENCE) for run in runs] == ["done", "done"]
        await eventually(lambda: worker.running == 0)


async def test_structured_cancellation_within_code_is_its_own_affair(app: Stepfast) -> None:
    async def within() -> str:
        with anyio.move_on_after(0.001):
            await anyio.sleep_forever()
        async with anyio.create_task_group() as group:
            group.start_soon(anyio.sleep_forever)
            group.cancel_scope.cancel()
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0):
                await asyncio.Event().wait()
        return "went on"

    @app.task(max_attempts=1)
    async def job() -> str:
        return await within()

    @app.workflow(max_attempts=1)
    async def order(ctx: Context) -> list[str]:
        return [await within(), await ctx.step(within), await ctx.step("after", within)]

    job_run, order_run = await app.start(job), await app.start(order)
    assert await finished(app, job_run) == "went on"
    assert await order_run.result() == ["went on"] * 3
