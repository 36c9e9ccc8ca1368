"""What is asked after runs from outside: values that are waited for, counts, the newest steps; and many children."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from stepfast import (
    ConfigurationError,
    Context,
    ContextMisuse,
    InvalidState,
    RunFailed,
    RunNotFound,
    Stepfast,
    SyncContext,
)
from stepfast.model.ids import new_id
from stepfast.testing import crash_everywhere
from tests.engine.conftest import ON_BOTH, ON_SQLITE, MakeApp
from tests.support.engine import PATIENCE, Gate, drained

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


@pytest.mark.parametrize("kind", ["async", pytest.param("def", marks=ON_SQLITE)])
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
