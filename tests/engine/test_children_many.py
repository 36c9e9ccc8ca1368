"""Children are started exactly once, also many of them; a parent may go on as another run."""

from __future__ import annotations

from typing import Any

import pytest

from stepfast import Context, NonRetryableError, RunCancelled, Settings, Stepfast
from tests.engine.conftest import MakeApp
from tests.support.children import add_double, all_delivered
from tests.support.crashing import crash_at, end_of, outcome_of
from tests.support.engine import Calls, Gate, drained, eventually, failure, finished, worked
from tests.support.waiting import reached, rows_of
from tests.support.workflows import task

WAITS = pytest.mark.parametrize("moment", [0.0, 2.0], ids=["released", "in memory"])
"""Every wait released at once; and the usual, where a short one stays in memory."""


async def claims(app: Stepfast, run_id: str) -> int:
    """How often a run was claimed."""
    async with rows_of(app) as rows:
        return int(await rows.get(run_id, "claim"))


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
    assert await finished(app, run) == 10
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
    assert await finished(app, run) == 10
    assert calls == {"double": 1 if written else 2}


@pytest.mark.parametrize("written", [False, True], ids=["before the commit", "after the commit"])
@WAITS
async def test_the_end_of_a_child_is_taken_once_whenever_the_worker_dies(
    make_app: MakeApp, calls: Calls, moment: float, written: bool
) -> None:
    """Rule 7: taken and recorded in one transaction, so it is neither lost nor met again."""
    app = make_app(settings=Settings(inline_wait=moment))
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


@pytest.mark.parametrize("way", ["call", "start", "map"])
@pytest.mark.parametrize("count", [1000, pytest.param(10_000, marks=[pytest.mark.slow, pytest.mark.timeout(600)])])
async def test_a_parent_of_many_children_is_woken_a_few_times(app: Stepfast, way: str, count: int) -> None:
    """Rule 25: not once for each."""
    child = task(app, "child")

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
    assert await worked(app, run, concurrency=100) == sum(range(count))
    assert await claims(app, run.id) <= 15


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


@pytest.mark.parametrize("verb", ["start", "call"])
@WAITS
async def test_a_child_that_goes_on_as_another_answers_with_its_last(
    make_app: MakeApp, calls: Calls, moment: float, verb: str
) -> None:
    """The whole chain is the child."""
    app = make_app(settings=Settings(inline_wait=moment))
    add_chain(app, calls)

    @app.workflow
    async def parent(ctx: Context) -> Any:
        return await (ctx.call("chain", 0) if verb == "call" else (await ctx.start("chain", 0)).result())

    run = await drained(app, parent)
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
        await failure(run, "the last one")
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
