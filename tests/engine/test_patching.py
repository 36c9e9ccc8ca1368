"""``ctx.patched``: living with changes of the code. Old runs go the old way, new ones the new way, for ever."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from stepfast import Backoff, Context, NonRetryableError, Settings, StepFailed, Stepfast, SyncContext
from tests.engine.conftest import MakeApp
from tests.support.engine import Calls, Gate, drained, failure, finished, interrupt, make_due, outcome, replayed

pytestmark = pytest.mark.enough_on("sqlite")

Body = Callable[[Context], Awaitable[Any]]


def register(app: Stepfast, body: Body) -> Stepfast:
    app.workflow(name="order", backoff=Backoff(base=600, max=600))(body)
    return app


async def say(text: str) -> str:
    return text


async def old(ctx: Context) -> list[str]:
    return [await ctx.step("a", say, "a"), await ctx.step("b", say, "old b")]


async def patched(ctx: Context) -> list[str]:
    results = [await ctx.step("a", say, "a")]
    if ctx.patched("new b"):
        results += [await ctx.step("check", say, "checked"), await ctx.step("new b", say, "new b")]
    else:
        results.append(await ctx.step("b", say, "old b"))
    return results


def with_gate(body: Body, gate: Gate) -> Body:
    async def order(ctx: Context) -> Any:
        results = await body(ctx)
        await ctx.step("gate", gate.passing)
        return results

    return order


async def test_a_new_run_takes_the_new_way(app: Stepfast) -> None:
    register(app, patched)
    assert await outcome(app, "order") == ["a", "checked", "new b"]


async def test_a_run_of_the_old_code_goes_on_the_old_way(make_app: MakeApp) -> None:
    gate = Gate()
    before, after = register(make_app(), with_gate(old, gate)), register(make_app(), with_gate(patched, gate))
    run = await before.start("order")
    await interrupt(before, gate)
    assert await finished(after, run, gate) == ["a", "old b"]


async def test_a_run_that_had_not_come_there_takes_the_new_way(make_app: MakeApp) -> None:
    gate = Gate()

    def held(body: Body) -> Body:
        async def order(ctx: Context) -> Any:
            await ctx.step("gate", gate.passing)
            return await body(ctx)

        return order

    before, after = register(make_app(), held(old)), register(make_app(), held(patched))
    run = await before.start("order")
    await interrupt(before, gate)
    assert await finished(after, run, gate) == ["a", "checked", "new b"]


async def test_the_way_taken_is_taken_again(app: Stepfast, calls: Calls) -> None:
    gate = Gate()

    async def order(ctx: Context) -> list[Any]:
        way = ctx.patched("p")
        await ctx.step("gate", gate.passing)
        return [way, ctx.patched("p"), await ctx.step("after", lambda: calls.hit("after"))]

    register(app, order)
    assert await (await replayed(app, gate, "order")).result() == [True, True, 1]


async def test_the_way_taken_survives_the_failure_of_the_step_behind_it(make_app: MakeApp, calls: Calls) -> None:
    app = make_app()

    def flaky() -> str:
        if calls.hit("flaky") == 1:
            raise ValueError("once")
        return "better"

    async def order(ctx: Context) -> list[Any]:
        return [ctx.patched("p"), await ctx.step(flaky)]

    register(app, order)
    run = await drained(app, "order")
    await make_due(app, run.id)
    assert await finished(app, run) == [True, "better"]


async def test_branches_take_their_ways_singly(make_app: MakeApp) -> None:
    gate = Gate()

    async def ahead(ctx: Context, new: bool) -> str:
        way = "new" if new and ctx.patched("p") else "old"
        return await ctx.step(f"{way} way", say, way)

    async def behind(ctx: Context, new: bool) -> str:
        await ctx.step("gate", gate.passing)
        return await ahead(ctx, new)

    def body(new: bool) -> Body:
        async def order(ctx: Context) -> list[str]:
            return list(await ctx.gather(ctx.branch(ahead, new), ctx.branch(behind, new)))

        return order

    before, after = register(make_app(), body(False)), register(make_app(), body(True))
    run = await before.start("order")
    await interrupt(before, gate)
    assert await finished(after, run, gate) == ["old", "new"]


async def test_each_item_of_a_map_takes_its_way(app: Stepfast) -> None:
    async def item(ctx: Context, number: int) -> list[Any]:
        return [ctx.patched("p"), await ctx.step("s", lambda: number)]

    async def order(ctx: Context) -> list[Any]:
        return await ctx.map(item, range(3))

    register(app, order)
    assert await outcome(app, "order") == [[True, n] for n in range(3)]


async def test_a_change_met_in_a_loop_is_one_decision(make_app: MakeApp) -> None:
    gate = Gate()

    def body(new: bool) -> Body:
        async def order(ctx: Context) -> list[str]:
            results = []
            for number in range(3):
                way = "new" if new and ctx.patched("p") else "old"
                results.append(await ctx.step(f"{way} {number}", say, way))
                if number == 1:
                    await ctx.step("gate", gate.passing)
            return results

        return order

    app = register(make_app(), body(True))
    assert await (await replayed(app, gate, "order")).result() == ["new"] * 3


async def test_a_change_met_in_every_round_begins_with_the_first_new_round(make_app: MakeApp) -> None:
    settings = Settings(inline_wait=0)

    def body(new: bool) -> Body:
        async def order(ctx: Context) -> list[str]:
            results = []
            for _ in range(4):
                if new and ctx.patched("p"):
                    results.append(await ctx.step("new", say, "new"))
                results.append(await ctx.step("round", say, "round"))
                await ctx.wait_signal("on")
            return results

        return order

    before, after = (
        register(make_app(settings=settings), body(False)),
        register(make_app(settings=settings), body(True)),
    )
    run = await drained(before, "order")
    await run.signal("on")
    await before.drain()
    for _ in range(3):
        assert [found.verdict for found in await after.check()] == ["fits"]
        await run.signal("on")
        await after.drain()
    assert await run.result() == ["round", "round", "new", "round", "new", "round"]


async def test_a_change_in_two_places_may_be_old_at_the_first_and_new_at_the_second(make_app: MakeApp) -> None:
    settings = Settings(inline_wait=0)

    def body(new: bool) -> Body:
        async def order(ctx: Context) -> list[bool]:
            ways = []
            for name in ("a", "b"):
                ways.append(new and ctx.patched("p"))
                await ctx.step(f"new {name}" if ways[-1] else name, say, name)
                await ctx.wait_signal("on")
            return ways

        return order

    before, after = (
        register(make_app(settings=settings), body(False)),
        register(make_app(settings=settings), body(True)),
    )
    run = await drained(before, "order")
    for _ in range(2):
        await run.signal("on")
        await after.drain()
    assert await run.result() == [False, True]


async def test_a_new_attempt_that_comes_to_the_change_earlier_takes_the_new_way(app: Stepfast, calls: Calls) -> None:
    gate = Gate()

    def flaky() -> str:
        if calls.hit("flaky") == 1:
            raise ValueError("once")
        return "better"

    async def order(ctx: Context) -> list[Any]:
        try:
            await ctx.step(flaky)
        except StepFailed:
            await ctx.step("a detour", say, "a detour")
            ctx.patched("p")
            raise
        way = ctx.patched("p")
        await ctx.step("gate", gate.passing)
        return [way, ctx.patched("p")]

    register(app, order)
    run = await drained(app, "order")
    await make_due(app, run.id)
    await interrupt(app, gate)
    assert await finished(app, run, gate) == [True, True]


async def test_several_changes_are_told_apart(make_app: MakeApp) -> None:
    gate = Gate()

    async def first_change(ctx: Context) -> list[Any]:
        return [ctx.patched("one"), await ctx.step("a", say, "a")]

    async def second_change(ctx: Context) -> list[Any]:
        return [ctx.patched("one"), ctx.patched("two"), await ctx.step("a", say, "a")]

    before = register(make_app(), with_gate(first_change, gate))
    after = register(make_app(), with_gate(second_change, gate))
    run = await before.start("order")
    await interrupt(before, gate)
    assert await finished(after, run, gate) == [True, False, "a"]


async def test_a_change_may_leave_the_code_when_no_run_needs_it(make_app: MakeApp) -> None:
    gate = Gate()

    async def cleaned(ctx: Context) -> list[str]:
        return [
            await ctx.step("a", say, "a"),
            await ctx.step("check", say, "checked"),
            await ctx.step("new b", say, "new b"),
        ]

    before, after = register(make_app(), with_gate(patched, gate)), register(make_app(), with_gate(cleaned, gate))
    run = await before.start("order")
    await interrupt(before, gate)
    assert await finished(after, run, gate) == ["a", "checked", "new b"]


async def test_a_plain_def_is_patched_too(make_app: MakeApp) -> None:
    before, after = make_app(), make_app()
    gate = Gate()

    @before.workflow(name="order")
    def was(ctx: SyncContext) -> list[Any]:
        result = [ctx.step("a", say, "a")]
        ctx.step("gate", gate.passing)
        return result

    @after.workflow(name="order")
    def now(ctx: SyncContext) -> list[Any]:
        result: list[Any] = [ctx.patched("early"), ctx.step("a", say, "a")]
        ctx.step("gate", gate.passing)
        return [*result, ctx.patched("late")]

    run = await before.start("order")
    await interrupt(before, gate)
    assert await finished(after, run, gate) == [False, "a", True]


async def test_a_patch_is_not_listed_among_the_steps(app: Stepfast) -> None:
    register(app, patched)
    run = await drained(app, "order")
    assert [s.name for s in await run.steps()] == ["a", "check", "new b"]


async def test_a_run_undone_by_newer_code_goes_the_way_it_went(make_app: MakeApp) -> None:
    gate = Gate()
    undone: list[str] = []

    def body(new: bool) -> Body:
        async def order(ctx: Context) -> None:
            if new and ctx.patched("p"):
                await ctx.options(compensate=lambda *_: undone.append("new")).step("new", say, "new")
            else:
                await ctx.options(compensate=lambda *_: undone.append("old")).step("old", say, "old")
            await ctx.step("gate", gate.passing)
            raise NonRetryableError("no")

        return order

    before, after = register(make_app(), body(False)), register(make_app(), body(True))
    run = await before.start("order")
    await interrupt(before, gate)
    gate.open()
    await after.drain()
    assert await run.status() == "compensated"
    assert undone == ["old"]


@pytest.mark.parametrize("name", ["", "x" * 300])
async def test_a_change_needs_a_name(app: Stepfast, name: str) -> None:
    async def order(ctx: Context) -> None:
        ctx.patched(name)

    app.workflow(name="order", max_attempts=1)(order)
    await failure(await drained(app, "order"), "the name of a change")
