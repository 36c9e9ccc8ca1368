"""Children: runs that a run starts, exactly once, and waits for without holding a slot."""

from __future__ import annotations

from typing import Any

import pytest

from stepfast import ChildRun, Context, ContextMisuse, NonRetryableError, RunCancelled, Settings, Stepfast, SyncContext
from tests.engine.conftest import ON_BOTH, ON_SQLITE, WAITS, MakeApp
from tests.support.children import add_double, all_delivered
from tests.support.crashing import crash_at, dying_worker, end_of, outcome_of
from tests.support.engine import (
    PATIENCE,
    Calls,
    Gate,
    drained,
    eventually,
    failure,
    finished,
    outcome,
    replayed,
    worked,
)
from tests.support.waiting import reached, rows_of
from tests.support.workflows import calling, task

pytestmark = ON_SQLITE

# -- start, call, wait ---------------------------------------------------------------------------------------------


@ON_BOTH
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
async def test_a_parent_waits_for_its_child_without_a_slot(app: Stepfast) -> None:
    """The waiting parent says what it waits for, and nobody executes it."""
    gate = Gate()
    slow = task(app, "slow", gate=gate, returns="at last")
    parent = calling(app, lambda ctx: ctx.call(slow), name="parent")
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
    parent = calling(app, lambda ctx: ctx.call(slow), name="parent")
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
    parent = calling(app, lambda ctx: getattr(ctx, verb)("double", 1, key="k"), name="parent")
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
@ON_BOTH
async def test_the_same_child_may_be_asked_in_several_branches(app: Stepfast) -> None:
    """Also where the worker died when only one of them had its answer recorded."""
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


# -- children are started exactly once, also many of them; a parent may go on as another run


async def claims(app: Stepfast, run_id: str) -> int:
    """How often a run was claimed."""
    async with rows_of(app) as rows:
        return int(await rows.get(run_id, "claim"))


# -- exactly once --------------------------------------------------------------------------------------------------


@ON_BOTH
@pytest.mark.parametrize("written", [False, True], ids=["before the commit", "after the commit"])
@pytest.mark.parametrize("verb", ["start", "call"])
async def test_a_child_is_started_once_whenever_the_worker_dies(
    app: Stepfast, calls: Calls, verb: str, written: bool
) -> None:
    """Rule 26: its id comes of its place, and it is written with the record of its start."""
    add_double(app, calls)

    @app.workflow
    async def parent(ctx: Context) -> int:
        if verb == "call":
            result: int = await ctx.call("double", 5)
            return result
        return await (await ctx.start("double", 5)).result()  # type: ignore[no-any-return]

    run = await app.start(parent)
    await crash_at(app, outcome_of("double", verb), written=written)
    assert len(await app.runs(workflow="double")) == (1 if written else 0)
    assert await finished(app, run) == 10
    assert len(await app.runs(workflow="double")) == 1
    assert calls == {"double": 1}


@ON_BOTH
@pytest.mark.parametrize("written", [False, True], ids=["before the commit", "after the commit"])
async def test_the_end_of_a_child_reaches_its_parent_whenever_the_worker_dies(
    app: Stepfast, calls: Calls, written: bool
) -> None:
    """Rule 26: the outcome is posted by the transaction that ends the child."""

    @app.task
    async def double(number: int) -> int:
        calls.hit("double")
        return number * 2

    parent = calling(app, lambda ctx: ctx.call(double, 5), name="parent")
    run = await app.start(parent)
    await crash_at(app, end_of("completed"), written=written)
    assert await finished(app, run) == 10
    assert calls == {"double": 1 if written else 2}


@ON_BOTH
@pytest.mark.parametrize("written", [False, True], ids=["before the commit", "after the commit"])
@WAITS
async def test_the_end_of_a_child_is_taken_once_whenever_the_worker_dies(
    app: Stepfast, calls: Calls, written: bool
) -> None:
    """Rule 7: taken and recorded in one transaction, so it is neither lost nor met again."""
    add_double(app, calls)

    @app.workflow
    async def parent(ctx: Context) -> int:
        return await ctx.call("double", 5) + await ctx.call("double", 6)  # type: ignore[no-any-return]

    run = await app.start(parent)
    await crash_at(app, outcome_of("double", "call", status="completed"), written=written)
    assert await finished(app, run) == 22
    assert calls == {"double": 2}
    assert [s.output for s in await run.steps()] == [10, 12]


# -- many ----------------------------------------------------------------------------------------------------------


@ON_BOTH
@pytest.mark.parametrize("way", ["call", "start", "map"])
@pytest.mark.parametrize("count", [300, pytest.param(10_000, marks=[pytest.mark.slow, pytest.mark.timeout(600)])])
async def test_a_parent_of_many_children_is_woken_a_few_times(app: Stepfast, way: str, count: int) -> None:
    """Rule 25: not once for each."""
    child = task(app, "child")

    async def branch(ctx: Context, number: int) -> Any:
        return await ctx.call(child, number)

    @app.workflow
    async def parent(ctx: Context, count: int) -> int:
        if way == "call":
            results = await ctx.gather(*(ctx.call(child, n) for n in range(count)))
        elif way == "start":
            children = await ctx.gather(*(ctx.start(child, n) for n in range(count)))
            results = await ctx.gather(*(one.result() for one in children))
        else:
            results = await ctx.map(branch, range(count))
        assert results == list(range(count))
        return sum(results)

    run = await app.start(parent, count)
    assert await worked(app, run, 3 * PATIENCE, concurrency=100) == sum(range(count))
    assert await claims(app, run.id) <= 15


@ON_BOTH
async def test_a_parent_that_waits_for_all_is_not_woken_for_one(make_app: MakeApp, calls: Calls) -> None:
    """Rule 25: the wait names its set."""
    app = make_app(settings=Settings(inline_wait=0))
    gates = [Gate() for _ in range(3)]

    @app.task
    async def child(number: int) -> int:
        await gates[number].passing()
        return number

    @app.workflow
    async def parent(ctx: Context) -> list[int]:
        calls.hit("parent")
        children = [await ctx.start(child, number) for number in range(3)]
        return await ctx.gather(*(one.result() for one in children))

    run = await app.start(parent)
    async with app.worker():
        await eventually(lambda: all(gate.arrivals for gate in gates))
        await reached(run, "waiting")
        woken = calls["parent"]
        for number in (1, 0):
            gates[number].open()
            [info] = [i for i in await app.runs(workflow=child) if i.input == number]
            await app.get(info.id).result(timeout=20)
        await eventually(lambda: all_delivered(app))
        assert calls["parent"] == woken
        gates[2].open()
        assert await run.result(timeout=20) == [0, 1, 2]
    assert calls["parent"] == woken + 1


@ON_BOTH
async def test_a_parent_goes_on_with_each_child_that_it_waits_for_singly(make_app: MakeApp) -> None:
    """Rule 25: branches that wait for a child each go on when theirs has ended."""
    app = make_app(settings=Settings(inline_wait=0))
    gates = [Gate() for _ in range(2)]

    @app.task
    async def child(number: int) -> int:
        await gates[number].passing()
        return number

    async def branch(ctx: Context, number: int) -> int:
        result = await ctx.call(child, number)
        await ctx.set(f"done {number}", True)
        return result

    @app.workflow
    async def parent(ctx: Context) -> list[int]:
        return await ctx.map(branch, [0, 1])

    run = await app.start(parent)
    async with app.worker():
        await eventually(lambda: all(gate.arrivals for gate in gates))
        gates[1].open()
        await eventually(lambda: run.get("done 1"))
        assert await run.get("done 0") is None
        gates[0].open()
        assert await run.result(timeout=20) == [0, 1]


# -- going on as another -------------------------------------------------------------------------------------------


def add_chain(app: Stepfast, calls: Calls) -> None:
    """A child that goes on as another, twice, and then may fail."""

    @app.workflow
    async def chain(ctx: Context, number: int) -> str:
        if number < 2:
            ctx.continue_as(number + 1)
        if calls.hit("last") == 1 and calls["may fail"]:
            raise NonRetryableError("the last one")
        return "the end"


@ON_BOTH
@pytest.mark.parametrize("verb", ["start", "call"])
@WAITS
async def test_a_child_that_goes_on_as_another_answers_with_its_last(app: Stepfast, calls: Calls, verb: str) -> None:
    """The whole chain is the child."""
    add_chain(app, calls)

    @app.workflow
    async def parent(ctx: Context) -> Any:
        return await (ctx.call("chain", 0) if verb == "call" else (await ctx.start("chain", 0)).result())

    run = await drained(app, parent)
    assert await run.result() == "the end"
    assert {info.parent for info in await app.runs(workflow="chain")} == {run.id}


@ON_BOTH
async def test_the_last_of_a_chain_is_retried_with_its_parent(app: Stepfast, calls: Calls) -> None:
    add_chain(app, calls)
    calls.hit("may fail")
    parent = calling(app, lambda ctx: ctx.call("chain", 0), name="parent")
    run = await app.start(parent)
    async with app.worker():
        await failure(run, "the last one")
        await run.retry()
        assert await run.result(timeout=10) == "the end"
    assert len(await app.runs(workflow="chain")) == 3


@ON_BOTH
async def test_cancelling_a_parent_cancels_a_child_that_went_on_as_another(app: Stepfast, calls: Calls) -> None:
    @app.workflow
    async def chain(ctx: Context, number: int) -> None:
        if number < 2:
            ctx.continue_as(number + 1)
        await ctx.wait_signal("never")

    parent = calling(app, lambda ctx: ctx.call(chain, 0), name="parent")
    run = await app.start(parent)
    async with app.worker():

        async def last() -> Any:
            return [info for info in await app.runs(workflow=chain) if info.status == "waiting"]

        [info] = await eventually(last)
        await run.cancel()
        with pytest.raises(RunCancelled):
            await app.get(info.id).result(timeout=20)
