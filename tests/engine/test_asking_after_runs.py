"""What is asked after runs from outside: values that are waited for, counts, the newest steps; and many children."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from stepfast import (
    AppClosed,
    ConfigurationError,
    Context,
    ContextMisuse,
    InvalidState,
    RunFailed,
    RunNotFound,
    Stepfast,
    StepInfo,
    SyncContext,
)
from stepfast.model.ids import new_id
from stepfast.run import Run
from stepfast.testing import crash_everywhere
from tests.engine.conftest import ON_BOTH, ON_SQLITE, MakeApp, with_settings
from tests.support.engine import PATIENCE, Gate, drained, eventually

pytestmark = ON_BOTH


# -- values


async def test_a_value_is_waited_for(app: Stepfast, make_app: MakeApp) -> None:
    """In this process and in another, by many at once, and in a later run of the chain."""
    gate, other = Gate(), make_app()

    @app.workflow
    async def order(ctx: Context, number: int) -> None:
        if number == 1:
            await ctx.set("first", None)
            ctx.continue_as(2)
        await ctx.step(gate.passing)
        await ctx.set("stage", {"at": number})

    run = await app.start(order, 1)
    with pytest.raises(TimeoutError, match="has not set"):
        await run.wait_value("stage", timeout=0.01)
    async with app.worker():
        waits = [asyncio.create_task(run.wait_value("stage", timeout=PATIENCE)) for _ in range(3)]
        waits.append(asyncio.create_task(other.get(run.id).wait_value("stage", timeout=PATIENCE)))
        assert await run.wait_value("first", timeout=PATIENCE) is None
        await gate.reached()
        assert not any(wait.done() for wait in waits)
        gate.open()
        assert await asyncio.gather(*waits) == [{"at": 2}] * 4
        with pytest.raises(InvalidState, match="is completed, and has not set 'other'"):
            await run.wait_value("other", timeout=PATIENCE)
        with pytest.raises(RunNotFound):
            await app.get(new_id()).wait_value("stage", timeout=PATIENCE)


# -- counts


async def test_runs_are_counted_as_they_are_listed(app: Stepfast) -> None:
    @app.workflow(name="wait")
    async def wait(ctx: Context, number: int) -> None:
        await ctx.wait_signal("go")

    @app.task(name="plain")
    async def plain(number: int) -> None:
        if number == 2:
            raise ValueError("no")

    dag = app.dag("approve")
    dag.approval("ok")
    await app.start_many(wait, [1, 2, 3], tags=["t"])
    await app.start_many(plain, [1, 2, 3], max_attempts=1)
    await app.start(dag, None)
    await app.drain()
    await app.start(plain, 4, delay=3600, queue="late")
    every = [
        {}, {"workflow": wait}, {"workflow": "plain", "status": "failed"}, {"status": "waiting"}, {"status": "running"},
        {"status": "queued"}, {"tag": "t"}, {"tag": "t", "status": "completed"}, {"queue": "late"}, {"since": 3600},
        {"older_than": 3600}, {"reason": "code"}, {"status": "completed"},
    ]  # fmt: skip
    numbers = {str(filters): await app.count(**filters) for filters in every}  # type: ignore[arg-type]
    assert numbers == {str(filters): len(await app.runs(**filters)) for filters in every}  # type: ignore[arg-type]
    assert numbers["{}"] == 8 and numbers["{'status': 'waiting'}"] == 4
    assert await asyncio.to_thread(app.sync.count, tag="t") == 3
    with pytest.raises(ConfigurationError, match="has no option 'limit'"):
        await app.count(limit=5)  # type: ignore[call-arg]


# -- steps


async def test_steps_after_one_and_of_a_status(app: Stepfast) -> None:
    def fail() -> None:
        raise ValueError

    @app.workflow
    async def order(ctx: Context) -> None:
        for number in range(3):
            await ctx.step(f"s{number}", lambda: number)  # noqa: B023
        try:
            await ctx.options(retries=0).step(fail)
        except Exception:
            await ctx.wait_signal("go")

    run = await drained(app, order)
    every = await run.steps()
    assert [step.name for step in every] == ["s0", "s1", "s2", "fail", "go"]
    assert await run.steps(after=every[1]) == every[2:] == await run.steps(after=every[1].number)
    assert await run.steps(status="failed") == [every[3]]
    assert await run.steps(after=every[3], status="waiting") == [every[4]]
    assert await run.steps(after=every[4]) == []
    with pytest.raises(ConfigurationError, match="no step has the status 'done'"):
        await run.steps(status="done")


# -- many children


@ON_SQLITE
@pytest.mark.parametrize("kind", ["async", "def"])
async def test_many_children_are_started_by_one_record(app: Stepfast, kind: str) -> None:
    @app.task(name="double")
    async def double(number: int) -> int:
        return 2 * number

    if kind == "async":

        @app.workflow(name="parent")
        async def parent(ctx: Context) -> list[int]:
            children = await ctx.start_many(double, range(5), tags=["child"])
            assert await ctx.start_many("double", []) == []
            return [await child.result() for child in children]

    else:

        @app.workflow(name="parent")
        def sync_parent(ctx: SyncContext) -> list[int]:
            children = ctx.start_many(double, range(5), tags=["child"])
            assert ctx.start_many("double", []) == []
            return [child.result() for child in children]

    report = await crash_everywhere(app, "parent")
    assert report.result == [0, 2, 4, 6, 8]
    run = await drained(app, "parent")
    assert await run.result(timeout=PATIENCE) == [0, 2, 4, 6, 8]
    assert await app.count(workflow="double") == 5 == await app.count(tag="child")
    assert [step.kind for step in await run.steps()][:2] == ["start_many", "start_many"]


@ON_SQLITE
async def test_many_children_take_no_keys(app: Stepfast) -> None:
    @app.workflow
    async def parent(ctx: Context) -> Any:
        await ctx.start_many("parent", [1], key="k")  # type: ignore[call-overload]

    with pytest.raises(RunFailed, match=ContextMisuse.__name__):
        await (await drained(app, parent)).result(timeout=PATIENCE)


# -- names and progress


@ON_SQLITE
@with_settings(inline_wait=0)
async def test_any_call_can_be_given_a_name(app: Stepfast) -> None:
    """It is what the record is called, and a replay compares it."""

    @app.task(name="double")
    async def double(number: int) -> int:
        return 2 * number

    @app.workflow
    async def order(ctx: Context) -> Any:
        named = ctx.options(name="mine")
        await named.sleep(0.01)
        await named.sleep_until(ctx.now())
        child = await named.start(double, 1)
        [other] = await named.start_many(double, [2])
        winner, _ = await named.first(a=ctx.sleep(0), b=ctx.sleep(60))
        return [await child.result(), await other.result(), await named.call(double, 3), winner]

    run = await drained(app, order)
    assert await run.result(timeout=PATIENCE) == [2, 4, 6, "a"]
    kinds = [step.kind for step in await run.steps() if step.name == "mine"]
    assert kinds == ["sleep", "sleep", "start", "start_many", "first", "result", "result", "call"]


@ON_SQLITE
async def test_a_map_says_how_far_it_is(app: Stepfast) -> None:
    """Once a second, as the progress of the run; its own words go before that."""
    gate = Gate()

    async def work(ctx: Context, number: int) -> None:
        if number == 1500:
            await ctx.step("stop", gate.passing)
        elif number == 3:
            raise ValueError(number)

    @app.workflow
    async def order(ctx: Context) -> None:
        await ctx.options(name="pages").map(work, range(1501), return_errors=True)

    @app.workflow
    async def talks(ctx: Context) -> None:
        ctx.progress("my own")
        await ctx.map(work, range(1501), return_errors=True)

    async def said(run: Run[Any], text: str) -> StepInfo | None:
        found = [step for step in await run.steps(status="running") if step.kind == "workflow" and step.detail == text]
        return found[0] if found else None

    async with app.worker():
        run = await app.start(order)
        told = await eventually(lambda: said(run, "pages: 1 500 of 1 501, 1 failed"))
        assert told.data == {"map": "pages", "done": 1500, "of": 1501, "failed": 1}
        other = await app.start(talks)
        await eventually(lambda: said(other, "my own"))
        gate.open()
        await run.result(timeout=PATIENCE)
        await other.result(timeout=PATIENCE)


@ON_SQLITE
def test_a_worker_without_an_event_loop(url: str) -> None:
    app = Stepfast(url)

    @app.task(name="double")
    def double(number: int) -> int:
        return 2 * number

    with app.sync as sync:
        with sync.worker(concurrency=2) as worker:
            assert sync.start(double, 4).result(timeout=PATIENCE) == 8
            assert worker.id
        assert [each.state for each in sync.call(_workers(app))] in ([], ["stopped"])
        with pytest.raises(ConfigurationError, match="has no option 'slots'"), sync.worker(slots=1):  # type: ignore[call-arg]
            raise AssertionError
    with pytest.raises(AppClosed):
        sync.start(double, 4)


async def _workers(app: Stepfast) -> list[Any]:
    return list(await (await app.store()).workers())
