"""Handles follow the runs of a chain; signals are taken all at once, without waiting."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import pytest

from stepfast import Context, InvalidInput, InvalidState, Stepfast, SyncContext
from stepfast.testing import crash_everywhere
from tests.engine.conftest import ON_BOTH, ON_SQLITE, WAITS, MakeApp
from tests.support.engine import PATIENCE, eventually

pytestmark = ON_BOTH


async def test_a_handle_reads_the_last_run_of_its_chain(app: Stepfast) -> None:
    async def step(number: int) -> int:
        return number

    @app.workflow
    async def counter(ctx: Context, number: int) -> str:
        await ctx.set("number", number)
        await ctx.options(name=f"step {number}").step(step, number)
        if number < 3:
            ctx.continue_as(number + 1)
        await ctx.wait_signal("end")
        return "over"

    async with app.worker():
        run = await app.start(counter, 1)
        await eventually(lambda: _has(run, 3))
        await eventually(lambda: _is(run, "waiting", "running"))
        assert (await run.values(), (await run.info()).input) == ({"number": 3}, 3)
        await eventually(lambda: _took(run, "step 3"))
        first = await run.this.info()
        assert (first.id, first.status, first.reason) == (run.id, "completed", "continued")
        assert await run.this.get("number") == 1 and await run.this.values() == {"number": 1}
        assert [each.name for each in await run.this.steps()] == ["step 1"]
        second = await app.get(str(first.continued_by)).this.info()
        assert (second.input, second.continued_by) == (2, (await run.info()).id)
        assert await app.get(run.id).this.status() == "completed"
        await run.signal("end")
        assert await run.result(timeout=PATIENCE) == "over"
        assert await run.status() == "completed" and (await run.info()).output == "over"


async def test_what_a_chain_did_and_said_is_read_as_one(make_app: MakeApp) -> None:
    """Its activity and its export are those of its last run; its streams and its log go over all of them."""
    app = make_app(run_logs="INFO")

    async def step(number: int) -> int:
        return number

    @app.workflow
    async def counter(ctx: Context, number: int) -> str:
        ctx.stream("all").send(number)
        ctx.stream(f"only {number}").send(number)
        ctx.log.info("number %d", number)
        await ctx.options(name=f"step {number}").step(step, number)
        if number < 3:
            ctx.continue_as(number + 1)
        return "over"

    async with app.worker():
        run = await app.start(counter, 1)
        assert await run.result(timeout=PATIENCE) == "over"
    one = run.this
    assert [call.name for call in await run.activity()] == ["step 3"]
    assert [call.name for call in await one.activity()] == ["step 1"]
    assert ((await run.export())["run"]["input"], (await one.export())["run"]["input"]) == ("3", "1")
    assert await run.streams() == ["all", "only 1", "only 2", "only 3"]
    assert await one.streams() == ["all", "only 1"]
    found = [item async for item in run.stream("all", timeout=PATIENCE)]
    assert [item.value for item in found] == [1, 2, 3]
    assert [item.value async for item in one.stream("all", timeout=PATIENCE)] == [1]
    with pytest.raises(InvalidInput, match=r"run\.this reads one run alone"):
        await anext(one.stream("all", after=found[1].offset))
    said = ["number 1", "number 2", "number 3"]
    assert [line.message for line in await run.logs()] == said
    assert [line.message async for line in run.follow_logs(timeout=PATIENCE)] == said
    assert [line.message for line in await one.logs()] == said[:1]
    assert [line.message async for line in one.follow_logs(timeout=PATIENCE)] == said[:1]
    with pytest.raises(InvalidState, match=f"run {run.id} is completed, and has not set 'x'"):
        await one.wait_value("x", timeout=PATIENCE)


async def test_an_offset_stays_true_when_runs_of_its_chain_are_removed(app: Stepfast) -> None:
    """A page that comes back after a month finds the items after the last that it showed, and none again."""

    @app.workflow
    async def counter(ctx: Context, number: int) -> None:
        ctx.stream("s").send(number)
        if number < 6:
            ctx.continue_as(number + 1)
        await ctx.wait_signal("end")

    run = await app.start(counter, 0)
    await app.drain()
    seen = [item async for item in _first(run, 7)]
    links = [run.id]
    while (after := (await app.get(links[-1]).this.info()).continued_by) is not None:
        links.append(after)
    for gone in (links[2], links[3], links[4]):  # one after the other: what is counted adds up
        await app.get(gone).this.delete()
        for at, item in enumerate(seen[:-1]):
            later = [number for number in range(at + 1, 7) if await _is_kept(app, links[number])]
            found = [each async for each in _first(run, len(later), item.offset)]
            assert [(each.value, each.offset) for each in found] == [(n, seen[n].offset) for n in later]
    await run.signal("end")
    await app.drain()
    assert [item.value async for item in run.stream("s", after=seen[3].offset)] == [5, 6]
    assert await run.streams() == ["s"]


async def _first(run: Any, most: int, after: str | None = None) -> AsyncIterator[Any]:
    items = run.stream("s", after=after, timeout=PATIENCE)
    for _ in range(most):
        yield await anext(items)
    await items.aclose()


async def _is_kept(app: Stepfast, run_id: str) -> bool:
    return run_id not in await (await app.store()).missing([run_id])


async def _has(run: Any, number: int) -> bool:
    return bool(await run.get("number") == number)


async def _took(run: Any, name: str) -> bool:
    return name in {each.name for each in await run.steps()}


async def _is(run: Any, *statuses: str) -> bool:
    return await run.status() in statuses


@WAITS
@pytest.mark.parametrize("kind", ["async", "plain"])
async def test_all_signals_are_taken_at_once(app: Stepfast, kind: str) -> None:
    """Those that are there, of the name and the type; without waiting, and in the order in which they were sent."""

    @app.workflow(name="async")
    async def listens(ctx: Context) -> list[Any]:
        found: list[Any] = [await ctx.take_signals("stop")]
        await ctx.wait_signal("go")
        found.append(await ctx.take_signals("stop", type=int))
        found += [await ctx.take_signals("stop", type=int), await ctx.take_signals("stop")]
        return found

    @app.workflow(name="plain")
    def listens_too(ctx: SyncContext) -> list[Any]:
        found: list[Any] = [ctx.take_signals("stop")]
        ctx.wait_signal("go")
        found.append(ctx.take_signals("stop", type=int))
        found += [ctx.take_signals("stop", type=int), ctx.take_signals("stop")]
        return found

    async with app.worker():
        run = await app.start(kind)
        await eventually(lambda: _waits(run))
        sent = [*range(30), "no number"]
        for value in sent:
            await run.signal("stop", value)
        await run.signal("go")
        assert await run.result(timeout=PATIENCE) == [[], list(range(30)), [], ["no number"]]


async def _waits(run: Any) -> bool:
    return any(step.name == "go" and step.status == "waiting" for step in await run.steps()) or (
        await run.status() == "waiting"
    )


@ON_SQLITE
async def test_taking_signals_crashes_anywhere(app: Stepfast) -> None:
    @app.workflow
    async def takes(ctx: Context) -> list[Any]:
        await ctx.wait_signal("go")
        return [await ctx.take_signals("stop"), await ctx.take_signals("stop")]

    async def drive(lab: Any, run: Any) -> None:
        for number in range(3):
            await run.signal("stop", number)
        await run.signal("go")

    await crash_everywhere(app, takes, drive=drive)
