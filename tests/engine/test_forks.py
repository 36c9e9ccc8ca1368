"""Forks and rewinds: a run is executed again from one of its steps (rule 62)."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from stepfast import (
    ConfigurationError,
    Context,
    InvalidInput,
    InvalidState,
    NonDeterminismError,
    RunFailed,
    Stepfast,
    step,
)
from stepfast.errors import DatabaseUnavailable
from stepfast.run import Run
from tests.engine.conftest import ON_BOTH, ON_SQLITE, RELEASED
from tests.support.engine import PATIENCE, drained, eventually
from tests.support.waiting import count


@pytest.fixture
def calls() -> list[Any]:
    """What steps and children have done, in order."""
    return []


def orders(app: Stepfast, calls: list[Any], **options: Any) -> Any:
    """Reserves, starts children before and after it charges, and draws at random before and after."""

    @step(compensate=lambda receipt, *_: calls.append(f"undo {receipt}"))
    async def reserve(order: int) -> str:
        calls.append("reserve")
        return f"r{order}"

    @step
    async def charge(order: int) -> str:
        calls.append("charge")
        return f"c{order}"

    @app.task
    async def ship(number: int) -> int:
        calls.append(f"ship {number}")
        return number * 10

    @app.workflow(name="order", max_attempts=1, **options)
    async def order(ctx: Context, number: int) -> dict[str, Any]:
        first = str(ctx.uuid())
        receipt = await ctx.step(reserve, number)
        await ctx.set("stage", "reserved")
        early, late = await ctx.start(ship, 1), await ctx.start(ship, 2)
        shipped = await early.result()
        second = str(ctx.uuid())
        charged = await ctx.step(charge, number)
        more = [shipped, await late.result(), await ctx.call(ship, 3)]
        if number < 0:
            raise ValueError("a negative order")
        return {"first": first, "second": second, "receipt": receipt, "charged": charged, "shipped": more}

    return order


async def test_a_fork_has_the_records_before_a_step_and_goes_on_by_itself(app: Stepfast, calls: list[Any]) -> None:
    order = orders(app, calls)
    run = await drained(app, order, 7, key="o-7", tags=["eu"], attributes={"customer": "c-1"})
    before, result = await run.steps(), await run.result()
    calls.clear()
    fork = await run.fork(before="charge")
    assert await fork.get("stage") == "reserved"
    await app.drain()
    info, made = await fork.info(), await fork.result()
    assert sorted(calls) == ["charge", "ship 3"], "what is recorded is not executed again"
    assert (info.origin, info.key, info.tags, info.attributes) == (run.id, None, ["eu"], {"customer": "c-1"})
    assert (made["first"], made["shipped"]) == (result["first"], result["shipped"])
    assert made["second"] != result["second"], "what comes after is drawn by itself"
    steps = await fork.steps()
    assert [each.child for each in steps[:4]] == [each.child for each in before[:4]]
    assert steps[-1].child is not None and steps[-1].child != before[-1].child
    again = await fork.fork(before=0, input=8)
    twice = await fork.fork(before=steps[4])
    await app.drain()
    assert (await again.result())["receipt"] == "r8"
    assert (await twice.result())["first"] == result["first"]
    assert await run.result() == result and await run.steps() == before
    assert (await run.info()).key == "o-7"


async def test_undos_belong_to_the_run_that_did_the_steps(app: Stepfast, calls: list[Any]) -> None:
    order = orders(app, calls)
    run = await drained(app, order, 7)
    fork = await run.fork(before="charge", input=-1)
    await app.drain()
    assert await fork.status() == "failed"
    assert not [call for call in calls if call.startswith("undo")]
    own = await drained(app, order, -2)
    assert (await own.status(), calls[-1]) == ("compensated", "undo r-2")
    with pytest.raises(InvalidState, match="was undone, with its step 'reserve'"):
        await own.fork(before="charge")
    with pytest.raises(InvalidState, match="was undone and cannot continue"):
        await own.rewind(before="charge")
    fresh = await own.fork(before="reserve", input=3)
    await app.drain()
    assert (await fresh.result())["receipt"] == "r3"


async def test_a_rewound_run_starts_other_children(app: Stepfast, calls: list[Any]) -> None:
    order = orders(app, calls)
    run = await drained(app, order, 7)
    result, before = await run.result(), await run.steps()
    for _ in range(2):
        calls.clear()
        assert (await run.rewind(before="charge")).id == run.id
        await app.drain()
        assert sorted(calls) == ["charge", "ship 3"]
        assert await run.result() == result
    steps = await run.steps()
    assert [each.child for each in steps[:4]] == [each.child for each in before[:4]]
    assert steps[-1].child != before[-1].child
    assert await app.count(workflow="ship") == 5
    fork = await run.fork(before="charge")
    await app.drain()
    assert (await fork.result())["first"] == result["first"]


@ON_SQLITE
async def test_what_cannot_be_done_is_refused_and_changes_nothing(app: Stepfast, calls: list[Any]) -> None:
    order = orders(app, calls)
    run = await drained(app, order, 7, unique="one")
    for before in ("refund", 99, -1):
        with pytest.raises(InvalidState, match="is not recorded in run"):
            await run.fork(before=before)
    for wrong in (True, None, 1.5):
        with pytest.raises(ConfigurationError, match="must be the name of a step"):
            await run.fork(before=wrong)  # type: ignore[arg-type]
    with pytest.raises(InvalidInput):
        await run.fork(before="charge", input="seven")
    live = await app.start(order, 8, unique="one")
    with pytest.raises(InvalidState, match=f"run {live.id} has its name 'one' by now"):
        await run.rewind(before="charge")
    with pytest.raises(InvalidState, match="is queued; only a run that has ended can be rewound"):
        await live.rewind(before=(await run.steps())[0])
    stepinfo = (await run.steps())[2]
    await run.delete()
    for verb in (run.fork, run.rewind):
        with pytest.raises(Exception, match="no run"):
            await verb(before=stepinfo)
    assert await app.count(workflow="order") == 1


@ON_SQLITE
async def test_code_that_does_not_fit_is_told_before_and_fails_the_fork(app: Stepfast, calls: list[Any]) -> None:
    @app.workflow(max_attempts=1)
    async def flow(ctx: Context, way: str) -> str:
        return str(await ctx.step(way, str.upper, way)) + str(await ctx.step("end", str.upper, way))

    run = await drained(app, flow, "left")
    [fits] = await app.check(run=run, before="end")
    [differs] = await app.check(run=run.id, before="end", input="right")
    assert (fits.verdict, differs.verdict) == ("fits", "diverges") and "'left'" in differs.detail
    fork = await run.fork(before="end", input="right")
    await app.drain()
    with pytest.raises(RunFailed, match=NonDeterminismError.__name__):
        await fork.result()
    assert (await (await run.fork(before="left", input="right")).info()).input == "right"


@RELEASED
@ON_BOTH
async def test_a_run_under_way_is_forked_again_and_again(app: Stepfast, calls: list[Any]) -> None:
    """Each fork has what was recorded by then; a signal that waits in the mailbox is not for it. A child that goes on
    is read by both."""

    @app.workflow(max_attempts=1)
    async def slow(ctx: Context) -> str:
        return str(await ctx.wait_signal("go"))

    def note(what: int, value: int) -> int:
        calls.append(what)
        return value

    @app.workflow(max_attempts=1)
    async def flow(ctx: Context) -> list[Any]:
        child = await ctx.start(slow)
        said = [await ctx.step(f"s{n}", note, n, n) for n in range(5)]
        said.append(await ctx.wait_signal("more"))
        return [*said, await child.result()]

    run: Run[Any] = await app.start(flow)
    async with app.worker():
        forks: list[Run[Any]] = []
        while len(forks) < 5:
            recorded = [each for each in await run.steps() if each.kind == "step"]
            forks += [await run.fork(before=each) for each in recorded[len(forks) :]]
        await eventually(lambda: _waits(run))
        await run.signal("more", "mine")
        await eventually(lambda: _waits_for(run, "child"))
        forks.append(await run.fork(before="more"))
        for fork in forks:
            assert await fork.status() != "completed"
            await fork.signal("more", "its own")
        child = next(each.child for each in await run.steps() if each.child)
        await app.get(child).signal("go", "done")
        assert await run.result(PATIENCE) == [0, 1, 2, 3, 4, "mine", "done"]
        for fork in forks:
            assert await fork.result(PATIENCE) == [0, 1, 2, 3, 4, "its own", "done"]
    assert sorted(calls) == sorted([0, 1, 2, 3, 4] + [n for k in range(5) for n in range(k, 5)])
    assert await app.count(workflow="slow") == 1


async def _waits(run: Run[Any]) -> bool:
    return await run.status() == "waiting"


async def _waits_for(run: Run[Any], what: str) -> bool:
    return what in ((await run.info()).waiting_for or "")


@ON_BOTH
async def test_a_fork_whose_reply_was_lost_is_one_fork(
    app: Stepfast, calls: list[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    run = await drained(app, orders(app, calls), 7)
    store: Any = await app.store()
    fork, asked = store.fork, []

    async def lossy(*given: Any) -> Any:
        asked.append(await fork(*given))
        if len(asked) < 3:
            raise DatabaseUnavailable("the reply was lost")
        return asked[-1]

    monkeypatch.setattr(store, "fork", lossy)
    made = await run.fork(before="charge")
    assert asked == [True, True, True]
    assert [info.id for info in await app.runs(workflow="order")] == [made.id, run.id]
    assert len(await made.steps()) == 4
    await app.drain()
    assert (await made.result())["charged"] == "c7"


@ON_BOTH
async def test_of_many_who_rewind_at_once_one_does(app: Stepfast, calls: list[Any]) -> None:
    run = await drained(app, orders(app, calls), 7)
    calls.clear()
    done = await asyncio.gather(*(run.rewind(before="charge") for _ in range(8)), return_exceptions=True)
    assert sum(isinstance(each, Run) for each in done) == 1
    assert all(isinstance(each, InvalidState) for each in done if not isinstance(each, Run))
    await app.drain()
    assert sorted(calls) == ["charge", "ship 3"]


@ON_SQLITE
async def test_a_step_within_a_map_leaves_what_others_had_recorded(app: Stepfast, calls: list[Any]) -> None:
    def note(what: str, value: int) -> int:
        calls.append(what)
        return value

    async def item(ctx: Context, n: int) -> int:
        await ctx.step("first", note, f"first {n}", n)
        return await ctx.step("second", note, f"second {n}", n)

    @app.workflow(max_attempts=1)
    async def flow(ctx: Context) -> list[int]:
        await ctx.step("before", note, "before", 0)
        found = await ctx.map(item, [1, 2, 3], limit=1)
        await ctx.step("after", note, "after", 0)
        return list(found)

    run = await drained(app, flow)
    calls.clear()
    second = [each for each in await run.steps() if each.name == "second"][1]
    fork = await run.fork(before=second)
    await app.drain()
    assert await fork.result() == [1, 2, 3]
    assert calls == ["second 2", "first 3", "second 3", "after"]


@ON_SQLITE
async def test_a_dag_and_an_open_callback_are_refused(app: Stepfast) -> None:
    dag = app.dag("graph")

    @dag.step
    async def one(ctx: Any) -> int:
        return 1

    @app.workflow(max_attempts=1)
    async def calling(ctx: Context) -> Any:
        callback = await ctx.callback("paid")
        await ctx.step("tell", lambda: None)
        return await callback.result()

    graph = await drained(app, dag, None)
    with pytest.raises(InvalidState, match="is a dag run, which cannot be forked"):
        await graph.fork(before="one")
    run = await drained(app, calling)
    with pytest.raises(InvalidState, match="callback 'paid'"):
        await run.fork(before="tell")
    assert await count(app, "steps", run) == 3
    assert await (await run.fork(before="paid")).status() == "queued"


@ON_BOTH
async def test_callbacks_of_one_name_are_told_apart(app: Stepfast) -> None:
    tokens: list[str] = []

    @app.workflow(max_attempts=1)
    async def flow(ctx: Context) -> list[Any]:
        one = await ctx.callback("paid")
        two = await ctx.callback("paid")
        await ctx.step("tell", tokens.extend, [one.token, two.token])
        first = await one.result()
        await ctx.step("between", lambda: None)
        said = [first, await two.result()]
        await ctx.step("end", lambda: None)
        return said

    run = await drained(app, flow)
    await app.complete(tokens[0], "first")
    await app.drain()
    with pytest.raises(InvalidState, match="callback 'paid'"):
        await run.fork(before="between")
    await app.complete(tokens[1], "second")
    await app.drain()
    fork = await run.fork(before="end")
    await app.drain()
    again = await fork.fork(before="end")
    await app.drain()
    assert await fork.result() == await again.result() == await run.result() == ["first", "second"]

    await run.rewind(before=(await run.steps())[1])
    await app.drain()
    assert tokens[2:] == tokens[:2] and await _waits_for(run, "callback")
    await app.complete(tokens[1], "changed")
    await app.drain()
    assert await run.result() == ["first", "changed"]


async def test_an_outcome_of_a_callback_that_is_made_again_does_not_count(app: Stepfast) -> None:
    tokens: list[str] = []

    @app.workflow(max_attempts=1)
    async def flow(ctx: Context) -> Any:
        callback = await ctx.callback("paid")
        await ctx.step("tell", tokens.append, callback.token)
        await ctx.wait_signal("go")
        return await callback.result()

    run = await drained(app, flow)
    await app.complete(tokens[0], "old")
    await run.cancel()
    await run.rewind(before="paid")
    await run.signal("go")
    await app.drain()
    assert await _waits_for(run, "callback")
    await app.complete(tokens[0], "new")
    await app.drain()
    assert await run.result() == "new"


@ON_SQLITE
async def test_a_child_that_was_removed_since_has_failed(app: Stepfast) -> None:
    @app.task
    async def ship() -> str:
        return "shipped"

    @app.workflow(max_attempts=1)
    async def flow(ctx: Context) -> str:
        child = await ctx.start(ship)
        await ctx.step("pack", lambda: None)
        return await child.result()

    run = await drained(app, flow)
    assert await run.result() == "shipped"
    await app.get(str((await run.steps())[0].child)).delete()
    await run.rewind(before="pack")
    await app.drain()
    with pytest.raises(RunFailed, match="was removed"):
        await run.result(PATIENCE)
