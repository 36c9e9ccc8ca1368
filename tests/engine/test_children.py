"""Children: runs that a run starts, exactly once, and waits for without holding a slot."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from stepfast import (
    ChildFailed,
    ChildRun,
    Context,
    ContextMisuse,
    NonRetryableError,
    RunCancelled,
    RunFailed,
    Settings,
    Stepfast,
    SyncContext,
)
from tests.engine.conftest import MakeApp
from tests.store.scene import Rows
from tests.support.crashing import crash_at, dying_worker, end_of, outcome_of
from tests.support.engine import Calls, Gate, eventually, interrupt, make_due, stopped_at_once

WAITS = pytest.mark.parametrize("moment", [0.0, 2.0], ids=["released", "in memory"])
"""Every wait released at once; and the usual, where a short one stays in memory."""


async def claims(app: Stepfast, run_id: str) -> int:
    """How often a run was claimed."""
    rows = Rows(await app.store(), app.namespace, app.url.text)
    try:
        return int(await rows.get(run_id, "claim"))
    finally:
        await rows.close()


async def has_status(app: Stepfast, run_id: str, status: str) -> bool:
    return await app.get(run_id).status() == status


def add_double(app: Stepfast, calls: Calls) -> None:
    """A child that anybody can have."""

    @app.task
    async def double(number: int) -> int:
        calls.hit("double")
        return number * 2


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

    run = await app.start("parent")
    async with app.worker(concurrency=1):
        assert await run.result(timeout=20) == 12
    assert calls == {"double": 2}


async def test_one_slot_is_enough_for_generations(app: Stepfast, calls: Calls) -> None:
    @app.workflow
    async def ancestor(ctx: Context, depth: int) -> int:
        calls.hit("born")
        return 0 if depth == 0 else 1 + await ctx.call("ancestor", depth - 1)

    run = await app.start(ancestor, 4)
    async with app.worker(concurrency=1):
        assert await run.result(timeout=20) == 4
    assert len(await app.runs(workflow=ancestor)) == 5


@WAITS
async def test_a_parent_waits_for_its_child_without_a_slot(make_app: MakeApp, moment: float) -> None:
    """The waiting parent says what it waits for, and nobody executes it."""
    app = make_app(settings=Settings(moment=moment))
    gate = Gate()

    @app.task
    async def slow() -> str:
        await gate.passing()
        return "at last"

    @app.workflow
    async def parent(ctx: Context) -> str:
        return await ctx.call(slow)

    run = await app.start(parent)
    async with app.worker():
        await gate.reached()
        await eventually(lambda: has_status(app, run.id, "waiting"))
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

    run = await app.start(parent)
    await app.drain()
    child = app.get(await run.result())
    assert (await child.info()).parent == run.id
    assert await child.result() == 8
    assert [(s.kind, s.name, s.status, s.output) for s in await run.steps()] == [
        ("start", "double", "completed", child.id)
    ]


async def test_a_call_is_one_record_that_becomes_the_result(app: Stepfast) -> None:
    gate = Gate()

    @app.task
    async def slow() -> int:
        await gate.passing()
        return 7

    @app.workflow
    async def parent(ctx: Context) -> int:
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


@WAITS
@pytest.mark.parametrize("value", [None, False, 0, "", [], {}])
@pytest.mark.enough_on("sqlite")
async def test_empty_values_come_through_children_as_themselves(make_app: MakeApp, moment: float, value: Any) -> None:
    """As input and as result, live and replayed."""
    app = make_app(settings=Settings(moment=moment))
    gate = Gate()

    @app.task
    async def echo(value: Any) -> Any:
        return [value]

    @app.task
    async def plain(value: Any) -> Any:
        return value

    @app.workflow
    async def parent(ctx: Context, value: Any) -> list[Any]:
        given = [await ctx.call(echo, value), await ctx.call(plain, value)]
        await ctx.step("gate", gate.passing)
        return given

    run = await app.start(parent, value)
    await interrupt(app, gate)
    gate.open()
    await app.drain()
    assert await run.result() == [[value], value]


async def test_the_result_of_a_child_has_the_type_its_code_names(app: Stepfast) -> None:
    """Rule 13: by workflow typed, by name plain."""

    @app.task
    async def pair() -> tuple[int, int]:
        return 1, 2

    @app.workflow
    async def parent(ctx: Context) -> list[bool]:
        return [isinstance(await ctx.call(pair), tuple), isinstance(await (await ctx.start(pair)).result(), tuple)]

    run = await app.start(parent)
    await app.drain()
    assert await run.result() == [True, True]


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
        run = await here.start(parent)
        async with here.worker():
            assert await run.result(timeout=20) == 2


async def test_a_child_takes_the_options_of_a_start(app: Stepfast, calls: Calls) -> None:
    add_double(app, calls)

    @app.workflow
    async def parent(ctx: Context) -> str:
        child = await ctx.start("double", 1, queue="later", priority=7, delay=3600, tags=["a", "b"])
        return child.id

    run = await app.start(parent)
    await app.drain()
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

    run = await app.start(parent)
    await app.drain()
    with pytest.raises(RunFailed, match="take no key") as failed:
        await run.result()
    assert failed.value.error_type == ContextMisuse.__name__
    assert await app.runs(workflow="double") == []


async def test_an_input_that_does_not_fit_starts_nothing(app: Stepfast, calls: Calls) -> None:
    """Checked before anything is written, and not tried again."""
    add_double(app, calls)

    @app.workflow
    async def parent(ctx: Context) -> None:
        calls.hit("parent")
        await ctx.start("double", "many")

    run = await app.start(parent)
    await app.drain()
    with pytest.raises(RunFailed) as failed:
        await run.result()
    assert failed.value.error_type == "InvalidInput"
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

    run = await app.start(parent)
    await interrupt(app, gate)
    gate.open()
    await app.drain()
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

    run = await app.start(parent)
    async with app.worker():
        assert await run.result(timeout=10) == [8, 8]


@WAITS
async def test_the_same_child_may_be_asked_in_several_branches(make_app: MakeApp, moment: float) -> None:
    """Also where the worker died when only one of them had its answer recorded."""
    app = make_app(settings=Settings(moment=moment))
    gate = Gate()

    @app.task
    async def slow() -> str:
        await gate.passing()
        return "here"

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
    async with app.worker():
        assert await run.result(timeout=10) == ["here"] * 3


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


async def test_an_uncaught_failure_of_a_child_ends_the_parent_at_once(app: Stepfast, calls: Calls) -> None:
    """Another attempt of the parent could not help: the child had its own."""

    @app.task(max_attempts=1)
    async def broken() -> None:
        calls.hit("broken")
        raise ValueError("no")

    @app.workflow(max_attempts=5)
    async def parent(ctx: Context) -> None:
        await ctx.call(broken)

    run = await app.start(parent)
    await app.drain()
    [child] = await app.runs(workflow=broken)
    with pytest.raises(RunFailed, match=f"child 'broken' .run {child.id}. failed: ValueError: no") as failed:
        await run.result()
    assert failed.value.error_type == "ChildFailed"
    assert calls == {"broken": 1}
    assert (await run.info()).attempt == 1


async def test_a_cancelled_child_fails_for_its_parent(app: Stepfast) -> None:
    gate = Gate()

    @app.workflow
    async def child(ctx: Context) -> None:
        await ctx.wait_signal("never")

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

    @app.task(queue="nobody")
    async def idle() -> None: ...

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


async def test_a_child_lost_with_too_many_workers_fails_for_its_parent(make_app: MakeApp) -> None:
    """A dead letter is an end like any other."""
    app = make_app(settings=Settings(max_losses=0))
    gate = Gate()

    @app.workflow
    async def child(ctx: Context) -> None:
        await ctx.step("gate", gate.passing)

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
    async with app.worker(grace=0) as worker:
        await gate.reached()
        await eventually(lambda: has_status(app, run.id, "waiting"))
        await rows.silence(worker.id)
        await store.reap("00000000-0000-7000-8000-000000000000", 10, 0)
        assert "workers" in await run.result(timeout=20)
    await rows.close()


# -- exactly once --------------------------------------------------------------------------------------------------


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
    await app.drain()
    assert await run.result() == 10
    assert len(await app.runs(workflow="double")) == 1
    assert calls == {"double": 1}


@pytest.mark.parametrize("written", [False, True], ids=["before the commit", "after the commit"])
async def test_the_end_of_a_child_reaches_its_parent_whenever_the_worker_dies(
    app: Stepfast, calls: Calls, written: bool
) -> None:
    """Rule 26: the outcome is posted by the transaction that ends the child."""

    @app.task
    async def double(number: int) -> int:
        calls.hit("double")
        return number * 2

    @app.workflow
    async def parent(ctx: Context) -> int:
        return await ctx.call(double, 5)

    run = await app.start(parent)
    await crash_at(app, end_of("completed"), written=written)
    await app.drain()
    assert await run.result() == 10
    assert calls == {"double": 1 if written else 2}


@pytest.mark.parametrize("written", [False, True], ids=["before the commit", "after the commit"])
@WAITS
async def test_the_end_of_a_child_is_taken_once_whenever_the_worker_dies(
    make_app: MakeApp, calls: Calls, moment: float, written: bool
) -> None:
    """Rule 7: taken and recorded in one transaction, so it is neither lost nor met again."""
    app = make_app(settings=Settings(moment=moment))
    add_double(app, calls)

    @app.workflow
    async def parent(ctx: Context) -> int:
        return await ctx.call("double", 5) + await ctx.call("double", 6)  # type: ignore[no-any-return]

    run = await app.start(parent)
    await crash_at(app, outcome_of("double", "call", status="completed"), written=written)
    await app.drain()
    assert await run.result() == 22
    assert calls == {"double": 2}
    assert [s.output for s in await run.steps()] == [10, 12]


async def test_no_child_is_started_by_a_run_that_is_being_cancelled(app: Stepfast, calls: Calls) -> None:
    """Rule 27: the start is fenced on it."""
    add_double(app, calls)
    gate = Gate()

    @app.workflow
    async def parent(ctx: Context) -> None:
        await ctx.step("gate", gate.passing)
        await ctx.call("double", 5)

    run = await app.start(parent)
    async with app.worker():
        await gate.reached()
        await run.cancel()
        gate.open()
        with pytest.raises(RunCancelled):
            await run.result(timeout=20)
    assert await app.runs(workflow="double") == []


# -- many ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("way", ["call", "start", "map"])
@pytest.mark.parametrize("count", [1000, pytest.param(10_000, marks=[pytest.mark.slow, pytest.mark.timeout(600)])])
async def test_a_parent_of_many_children_is_woken_a_few_times(app: Stepfast, way: str, count: int) -> None:
    """Rule 25: not once for each."""

    @app.task
    async def child(number: int) -> int:
        return number

    async def branch(ctx: Context, number: int) -> int:
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
    async with app.worker(concurrency=100):
        assert await run.result(timeout=500) == sum(range(count))
    assert await claims(app, run.id) <= 15


async def test_a_parent_that_waits_for_all_is_not_woken_for_one(make_app: MakeApp, calls: Calls) -> None:
    """Rule 25: the wait names its set."""
    app = make_app(settings=Settings(moment=0))
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
        await eventually(lambda: has_status(app, run.id, "waiting"))
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


async def all_delivered(app: Stepfast) -> bool:
    rows = Rows(await app.store(), app.namespace, app.url.text)
    try:
        return not await rows.fetch("SELECT id FROM [mailbox] WHERE NOT delivered")
    finally:
        await rows.close()


async def test_a_parent_goes_on_with_each_child_that_it_waits_for_singly(make_app: MakeApp) -> None:
    """Rule 25: branches that wait for a child each go on when theirs has ended."""
    app = make_app(settings=Settings(moment=0))
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


# -- the parent ends first -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("end", ["completed", "failed"])
async def test_children_outlive_a_parent_that_ends_by_itself(app: Stepfast, end: str) -> None:
    """Rule 26: left alone when it completes or fails."""
    gate = Gate()

    @app.task
    async def child() -> str:
        await gate.passing()
        return "done"

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
async def test_children_and_theirs_are_cancelled_with_a_cancelled_parent(make_app: MakeApp, moment: float) -> None:
    """Rule 26: those that wait at once, one that runs after its step."""
    app = make_app(settings=Settings(moment=moment))
    gate = Gate()

    @app.workflow
    async def grandchild(ctx: Context) -> None:
        await ctx.wait_signal("never")

    @app.workflow
    async def child(ctx: Context) -> None:
        await ctx.call(grandchild)

    @app.workflow
    async def busy(ctx: Context) -> None:
        await ctx.step("gate", gate.passing)
        await ctx.step("never reached", lambda: None)

    @app.task(queue="nobody")
    async def queued() -> None: ...

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


@pytest.mark.parametrize("verb", ["start", "call"])
@WAITS
async def test_a_child_that_goes_on_as_another_answers_with_its_last(
    make_app: MakeApp, calls: Calls, moment: float, verb: str
) -> None:
    """The whole chain is the child."""
    app = make_app(settings=Settings(moment=moment))
    add_chain(app, calls)

    @app.workflow
    async def parent(ctx: Context) -> Any:
        return await (ctx.call("chain", 0) if verb == "call" else (await ctx.start("chain", 0)).result())

    run = await app.start(parent)
    await app.drain()
    assert await run.result() == "the end"
    assert {info.parent for info in await app.runs(workflow="chain")} == {run.id}


async def test_the_last_of_a_chain_is_retried_with_its_parent(app: Stepfast, calls: Calls) -> None:
    add_chain(app, calls)
    calls.hit("may fail")

    @app.workflow
    async def parent(ctx: Context) -> Any:
        return await ctx.call("chain", 0)

    run = await app.start(parent)
    async with app.worker():
        with pytest.raises(RunFailed, match="the last one"):
            await run.result(timeout=20)
        await run.retry()
        assert await run.result(timeout=10) == "the end"
    assert len(await app.runs(workflow="chain")) == 3


async def test_cancelling_a_parent_cancels_a_child_that_went_on_as_another(app: Stepfast, calls: Calls) -> None:
    @app.workflow
    async def chain(ctx: Context, number: int) -> None:
        if number < 2:
            ctx.continue_as(number + 1)
        await ctx.wait_signal("never")

    @app.workflow
    async def parent(ctx: Context) -> None:
        await ctx.call(chain, 0)

    run = await app.start(parent)
    async with app.worker():

        async def last() -> Any:
            return [info for info in await app.runs(workflow=chain) if info.status == "waiting"]

        [info] = await eventually(last)
        await run.cancel()
        with pytest.raises(RunCancelled):
            await app.get(info.id).result(timeout=20)


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


async def test_retrying_a_parent_retries_its_failed_child(app: Stepfast, calls: Calls) -> None:
    """The child goes on from its own records; what the parent had done stays done."""
    add_flaky_family(app, calls)
    run = await app.start("parent")
    await app.drain()
    assert await run.status() == "failed"
    await run.retry()
    await app.drain()
    assert await run.result() == "better"
    assert calls == {"parent's own": 1, "child's own": 1, "flaky": 2}
    [child] = await app.runs(workflow="flaky")
    assert (child.status, child.attempt) == ("completed", 2)


async def test_retrying_a_child_and_then_its_parent_takes_the_new_result(app: Stepfast, calls: Calls) -> None:
    """A child that succeeded meanwhile is not executed a third time."""
    add_flaky_family(app, calls)
    run = await app.start("parent")
    await app.drain()
    [child] = await app.runs(workflow="flaky")
    await app.get(child.id).retry()
    await app.drain()
    assert await app.get(child.id).status() == "completed"
    assert await run.status() == "failed"
    await run.retry()
    await app.drain()
    assert await run.result() == "better"
    assert calls == {"parent's own": 1, "child's own": 1, "flaky": 2}


async def test_a_child_that_fails_again_fails_its_retried_parent_again(app: Stepfast, calls: Calls) -> None:
    @app.task(max_attempts=1)
    async def broken() -> None:
        raise ValueError(f"time {calls.hit('broken')}")

    @app.workflow
    async def parent(ctx: Context) -> None:
        await ctx.call(broken)

    run = await app.start(parent)
    await app.drain()
    await run.retry()
    await app.drain()
    with pytest.raises(RunFailed, match="time 2"):
        await run.result()
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

    @app.workflow(max_attempts=1)
    async def parent(ctx: Context) -> str:
        return await ctx.call(child)

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

    run = await app.start(parent)
    await app.drain()
    await make_due(app, run.id)
    await app.drain()
    gate.open()
    assert await run.result() == [2, 4]
    assert calls["double"] == 2
    assert (await run.info()).attempt == 2


async def test_a_parent_interrupted_at_every_turn_has_the_same_children(app: Stepfast, calls: Calls) -> None:
    """A worker with nothing but interruptions; count the calls."""
    add_double(app, calls)
    gates = [Gate() for _ in range(3)]

    @app.workflow
    async def parent(ctx: Context) -> list[Any]:
        results = []
        for number, gate in enumerate(gates):
            child = await ctx.start("double", number)
            await ctx.step(f"gate {number}", gate.passing)
            results.append(await child.result())
        return results

    run = await app.start(parent)
    for gate in gates:
        async with stopped_at_once(app):
            await gate.reached()
        gate.open()
    await app.drain()
    assert await run.result() == [0, 2, 4]
    assert calls == {"double": 3}


async def test_a_parent_is_not_slept_over_by_a_child_that_ends_while_it_lies_down(make_app: MakeApp) -> None:
    """Rule 6: many parents, children that end at once, every wait released."""
    app = make_app(settings=Settings(moment=0))

    @app.task
    async def quick(number: int) -> int:
        return number

    @app.workflow
    async def parent(ctx: Context, number: int) -> int:
        return await ctx.call(quick, number) + await ctx.call(quick, 1)

    runs = await app.start_many(parent, range(50))
    async with app.worker(concurrency=20):
        results = await asyncio.gather(*(run.result(timeout=30) for run in runs))
    assert results == [number + 1 for number in range(50)]


async def test_a_child_whose_end_was_taken_by_what_lost_a_race_can_still_be_asked(make_app: MakeApp) -> None:
    """The loser is not replayed, but what it recorded is known."""
    app = make_app(settings=Settings(moment=0))

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

    run = await app.start(parent)
    async with app.worker():
        assert await run.result(timeout=20) == 42
