"""Handles follow the runs of a chain; signals are taken all at once, without waiting."""

from __future__ import annotations

from typing import Any

import pytest

from stepfast import Context, Stepfast, SyncContext
from stepfast.testing import crash_everywhere
from tests.engine.conftest import ON_BOTH, ON_SQLITE, WAITS
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
        assert "step 3" in {each.name for each in await run.steps()}
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


async def _has(run: Any, number: int) -> bool:
    return bool(await run.get("number") == number)


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
