"""Children: runs that a run starts, exactly once, and waits for without holding a slot."""

from __future__ import annotations

from typing import Any

import pytest

from stepfast import ChildRun, Context, ContextMisuse, Settings, Stepfast, SyncContext
from tests.engine.conftest import MakeApp
from tests.support.children import add_double
from tests.support.crashing import dying_worker, outcome_of
from tests.support.engine import Calls, Gate, drained, failure, outcome, replayed, worked
from tests.support.waiting import reached
from tests.support.workflows import task

WAITS = pytest.mark.parametrize("moment", [0.0, 2.0], ids=["released", "in memory"])
"""Every wait released at once; and the usual, where a short one stays in memory."""


# -- start, call, wait ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["async", "def"])
async def test_a_worker_with_one_slot_runs_a_parent_and_its_children(app: Stepfast, calls: Calls, kind: str) -> None:
    """A parent that waits holds no slot, so it cannot block its own child."""
    add_double(app, calls)
    if kind == "async":

        @app.workflow(name="parent")
        async def parent(ctx: Context) -> int:
            child = await ctx.start("double", 5)
            doubled: int = await ctx.call("double", 1) + await child.result()
            return doubled
    else:

        @app.workflow(name="parent")
        def parent_in_a_thread(ctx: SyncContext) -> int:
            child = ctx.start("double", 5)
            total: int = ctx.call("double", 1) + child.result()
            return total

    assert await worked(app, await app.start("parent"), concurrency=1) == 12
    assert calls == {"double": 2}


@WAITS
async def test_a_parent_waits_for_its_child_without_a_slot(make_app: MakeApp, moment: float) -> None:
    """The waiting parent says what it waits for, and nobody executes it."""
    app = make_app(settings=Settings(inline_wait=moment))
    gate = Gate()
    slow = task(app, "slow", gate=gate, returns="at last")

    @app.workflow
    async def parent(ctx: Context) -> Any:
        return await ctx.call(slow)

    run = await app.start(parent)
    async with app.worker():
        await gate.reached()
        await reached(run, "waiting")
        info = await run.info()
        assert (info.waiting_for, info.worker, info.due_at) == ("child", None, None)
        gate.open()
        assert await run.result(timeout=20) == "at last"


async def test_a_child_knows_its_parent_and_both_are_ordinary_runs(app: Stepfast, calls: Calls) -> None:
    """A child not waited for is started all the same."""
    add_double(app, calls)

    @app.workflow
    async def parent(ctx: Context) -> str:
        return (await ctx.start("double", 4)).id

    run = await drained(app, parent)
    child = app.get(await run.result())
    assert (await child.info()).parent == run.id
    assert await child.result() == 8
    assert [(s.kind, s.name, s.status, s.output) for s in await run.steps()] == [
        ("start", "double", "completed", child.id)
    ]


async def test_a_call_is_one_record_that_becomes_the_result(app: Stepfast) -> None:
    gate = Gate()
    slow = task(app, "slow", gate=gate, returns=7)

    @app.workflow
    async def parent(ctx: Context) -> Any:
        return await ctx.call(slow)

    run = await app.start(parent)
    async with app.worker():
        await gate.reached()
        [step] = await run.steps()
        assert (step.kind, step.name, step.status, step.completed_at) == ("call", "slow", "waiting", None)
        gate.open()
        assert await run.result(timeout=20) == 7
    [step] = await run.steps()
    assert (step.kind, step.name, step.status, step.output) == ("call", "slow", "completed", 7)


async def test_the_result_of_a_child_has_the_type_its_code_names(app: Stepfast) -> None:
    """Rule 13: by workflow typed, by name plain."""

    @app.task
    async def pair() -> tuple[int, int]:
        return 1, 2

    @app.workflow
    async def parent(ctx: Context) -> list[bool]:
        return [isinstance(await ctx.call(pair), tuple), isinstance(await (await ctx.start(pair)).result(), tuple)]

    assert await outcome(app, parent) == [True, True]


async def test_a_child_of_code_elsewhere_is_started_by_its_name(make_app: MakeApp) -> None:
    """The parent's process has only the stored definition of the child."""
    here, there = make_app(), make_app()

    @there.task
    async def far(number: int) -> int:
        return number + 1

    @here.workflow
    async def parent(ctx: Context) -> int:
        result: int = await ctx.call("far", 1)
        return result

    async with there.worker():
        assert await worked(here, await here.start(parent)) == 2


async def test_a_child_takes_the_options_of_a_start(app: Stepfast, calls: Calls) -> None:
    add_double(app, calls)

    @app.workflow
    async def parent(ctx: Context) -> str:
        child = await ctx.start("double", 1, queue="later", priority=7, delay=3600, tags=["a", "b"])
        return child.id

    run = await drained(app, parent)
    info = await app.get(await run.result()).info()
    assert (info.queue, info.priority, sorted(info.tags), info.status) == ("later", 7, ["a", "b"], "queued")
    assert info.due_at is not None
    assert calls == {}


@pytest.mark.parametrize("verb", ["start", "call"])
async def test_a_child_takes_no_key(app: Stepfast, calls: Calls, verb: str) -> None:
    add_double(app, calls)

    @app.workflow
    async def parent(ctx: Context) -> None:
        await getattr(ctx, verb)("double", 1, key="k")

    failed = await failure(await drained(app, parent), "take no key")
    assert failed.error_type == ContextMisuse.__name__
    assert await app.runs(workflow="double") == []


async def test_an_input_that_does_not_fit_starts_nothing(app: Stepfast, calls: Calls) -> None:
    """Checked before anything is written, and not tried again."""
    add_double(app, calls)

    @app.workflow
    async def parent(ctx: Context) -> None:
        calls.hit("parent")
        await ctx.start("double", "many")

    failed = await failure(await drained(app, parent))
    assert failed.error_type == "InvalidInput"
    assert await app.runs(workflow="double") == []
    assert calls == {"parent": 1}


async def test_a_handle_may_be_passed_into_a_branch(app: Stepfast, calls: Calls) -> None:
    """Its result is recorded in the branch that asks for it."""
    add_double(app, calls)
    gate = Gate()

    async def wait_for(ctx: Context, child: ChildRun[Any]) -> Any:
        await ctx.step("before", lambda: None)
        return await child.result()

    @app.workflow
    async def parent(ctx: Context) -> list[int]:
        children = [await ctx.start("double", n) for n in (1, 2)]
        results = await ctx.gather(*(ctx.branch(wait_for, child) for child in children))
        await ctx.step("gate", gate.passing)
        return results

    run = await replayed(app, gate, parent)
    assert await run.result() == [2, 4]
    places = {(s.branch, s.position, s.kind) for s in await run.steps() if s.kind == "result"}
    assert places == {("2", 1, "result"), ("3", 1, "result")}
    assert calls == {"double": 2}


async def test_the_same_child_may_be_asked_twice(app: Stepfast, calls: Calls) -> None:
    """Its end is taken once; whoever asks again must not wait for ever."""
    add_double(app, calls)

    @app.workflow
    async def parent(ctx: Context) -> list[int]:
        child = await ctx.start("double", 4)
        return [await child.result(), await child.result()]

    assert await worked(app, await app.start(parent)) == [8, 8]


@WAITS
async def test_the_same_child_may_be_asked_in_several_branches(make_app: MakeApp, moment: float) -> None:
    """Also where the worker died when only one of them had its answer recorded."""
    app = make_app(settings=Settings(inline_wait=moment))
    gate = Gate()
    slow = task(app, "slow", gate=gate, returns="here")

    async def ask(ctx: Context, child: ChildRun[Any], name: str) -> Any:
        await ctx.step(f"first {name}", lambda: None)
        return await child.result()

    @app.workflow
    async def parent(ctx: Context) -> list[Any]:
        child = await ctx.start(slow)
        return await ctx.gather(*(ctx.branch(ask, child, name) for name in "abc"))

    run = await app.start(parent)
    async with dying_worker(app, outcome_of("slow", "result"), written=True) as crash:
        await gate.reached()
        gate.open()
        await crash.happened()
    assert await worked(app, run) == ["here"] * 3
