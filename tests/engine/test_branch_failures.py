"""Branches that fail, and branches of code that was changed or misused."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from stepfast import Backoff, Context, ContextMisuse, StepFailed, Stepfast
from tests.engine.conftest import MakeApp
from tests.support.engine import (
    Calls,
    Gate,
    drained,
    failure,
    finished,
    interrupt,
    make_due,
    outcome,
    replayed,
)
from tests.support.workflows import calling

pytestmark = pytest.mark.enough_on("sqlite")
LATER = Backoff(base=600, max=3600)
"""So that a new attempt is made when the test wants it."""
Body = Callable[[Context], Awaitable[Any]]


# -- failures ------------------------------------------------------------------------------------------------------


class Sad:
    """Branches of which some fail, and a count of what they did."""

    def __init__(self, calls: Calls) -> None:
        self.calls = calls
        self.healthy = asyncio.Event()

    async def branch(self, ctx: Context, name: str) -> str:
        await ctx.step(f"first {name}", lambda: self.calls.hit(f"first {name}"))
        await ctx.step(f"second {name}", lambda: self.second(name))
        return await ctx.step(f"third {name}", lambda: f"{name} {self.calls.hit(f'third {name}')}")

    def second(self, name: str) -> None:
        self.calls.hit(f"second {name}")
        if name.isupper() and not self.healthy.is_set():
            raise ValueError(name)


WAYS: dict[str, Callable[[Context, Sad, list[str]], Awaitable[list[Any]]]] = {
    "gather": lambda ctx, sad, names: ctx.gather(*(ctx.branch(sad.branch, name) for name in names)),
    "map": lambda ctx, sad, names: ctx.map(sad.branch, names),
    "map with a limit": lambda ctx, sad, names: ctx.map(sad.branch, names, limit=1),
}
ways = pytest.mark.parametrize("way", WAYS.values(), ids=WAYS)


@ways
async def test_the_others_are_settled_before_an_error_surfaces(app: Stepfast, calls: Calls, way: Any) -> None:
    """And the error is the first one in the order of the code."""
    sad = Sad(calls)

    @app.workflow(max_attempts=1)
    async def order(ctx: Context) -> str:
        try:
            await way(ctx, sad, ["a", "B", "c", "D"])
        except StepFailed as error:
            return f"{error.message} after {calls['third a'] + calls['third c']} others, {calls['second D']} D"
        return "?"

    assert await outcome(app, order) == "B after 2 others, 1 D"


@ways
async def test_a_new_attempt_repeats_only_the_branch_that_failed(app: Stepfast, calls: Calls, way: Any) -> None:
    """Rule 15: the failed record is made anew; its own earlier steps and its siblings are kept."""
    sad = Sad(calls)

    @app.workflow(backoff=LATER)
    async def order(ctx: Context) -> list[Any]:
        before = await ctx.step("before", lambda: calls.hit("before"))
        return [before, *await way(ctx, sad, ["a", "B", "c"])]

    run = await drained(app, order)
    sad.healthy.set()
    await make_due(app, run.id)
    assert await finished(app, run) == [1, "a 1", "B 1", "c 1"]
    assert {name: count for name, count in calls.items() if count > 1} == {"second B": 2}


@ways
async def test_errors_may_be_collected(app: Stepfast, calls: Calls, way: Any) -> None:
    """Return_errors=True, live and replayed."""
    sad, gate = Sad(calls), Gate()

    @app.workflow(max_attempts=1)
    async def order(ctx: Context) -> list[Any]:
        if way is WAYS["gather"]:
            branches = [ctx.branch(sad.branch, name) for name in ("A", "b", "C")]
            results = await ctx.gather(*branches, return_errors=True)
        else:
            results = await ctx.map(sad.branch, ["A", "b", "C"], return_errors=True, limit=2)
        await ctx.step("gate", gate.passing)
        return [f"{type(r).__name__}: {r}" if isinstance(r, Exception) else r for r in results]

    run = await app.start(order)
    await interrupt(app, gate)
    assert await finished(app, run, gate) == [
        "StepFailed: step 'second A' failed: ValueError: A", "b 1", "StepFailed: step 'second C' failed: ValueError: C",
    ]  # fmt: skip
    assert calls["second A"] == calls["second C"] == 1


async def test_a_collected_error_raised_later_forgets_what_came_after_it(app: Stepfast, calls: Calls) -> None:
    """Rule 15: what the code did knowing of the error is made anew, what it had done before is not."""
    sad = Sad(calls)

    @app.workflow(backoff=LATER)
    async def order(ctx: Context) -> list[Any]:
        await ctx.step("before", lambda: calls.hit("before"))
        results = await ctx.map(sad.branch, ["a", "B"], return_errors=True)
        await ctx.step("after", lambda: calls.hit("after"))
        for result in results:
            if isinstance(result, Exception):
                raise result
        return results

    run = await drained(app, order)
    sad.healthy.set()
    await make_due(app, run.id)
    assert await finished(app, run) == ["a 1", "B 1"]
    assert {name: count for name, count in calls.items() if count > 1} == {"second B": 2, "after": 2}


async def test_a_caught_error_of_a_nested_branch_stays_caught(app: Stepfast, calls: Calls) -> None:
    """Catch is code; a crash later does not call the failed step again."""
    sad, gate = Sad(calls), Gate()

    async def careful(ctx: Context, name: str) -> str:
        try:
            return await ctx.branch(sad.branch, name)
        except StepFailed as error:
            return await ctx.step(f"instead of {name}", str.upper, error.message + "!")

    @app.workflow
    async def order(ctx: Context) -> list[str]:
        results = await ctx.map(careful, ["a", "B"])
        await ctx.step("gate", gate.passing)
        return results

    assert await (await replayed(app, gate, order)).result() == ["a 1", "B!"]
    assert set(calls.values()) == {1}


async def test_an_error_of_the_branchs_own_code_ends_the_attempt(app: Stepfast, calls: Calls) -> None:
    """No step failed, so nothing is forgotten; the code runs again on its records."""

    async def branch(ctx: Context, name: str) -> str:
        await ctx.step(f"step {name}", lambda: calls.hit(f"step {name}"))
        if calls.hit(name) == 1 and name == "b":
            raise KeyError("in the code")
        return name

    order = calling(app, lambda ctx: ctx.map(branch, ["a", "b"]), backoff=LATER)
    run = await drained(app, order)
    await make_due(app, run.id)
    assert await finished(app, run) == ["a", "b"]
    assert calls == {"step a": 1, "step b": 1, "a": 2, "b": 2}


# -- the code was changed, or misused ------------------------------------------------------------------------------


async def branches_in_order(ctx: Context) -> None:
    await ctx.gather(ctx.branch(part, "a"), ctx.branch(part, "b"))


async def part(ctx: Context, name: str) -> None:
    await ctx.step(f"{name} 1", lambda: None)
    await ctx.step(f"{name} 2", lambda: None)


def with_gate(body: Body, gate: Gate) -> Body:
    async def order(ctx: Context) -> None:
        await body(ctx)
        await ctx.step("gate", gate.passing)

    return order


async def swapped(ctx: Context) -> None:
    await ctx.gather(ctx.branch(part, "b"), ctx.branch(part, "a"))


async def one_less(ctx: Context) -> None:
    await ctx.gather(ctx.branch(part, "a"))


async def without_branches(ctx: Context) -> None:
    await part(ctx, "a")


async def longer_first(ctx: Context) -> None:
    async def longer(ctx: Context) -> None:
        await ctx.step("a new one", lambda: None)
        await part(ctx, "a")

    await ctx.gather(ctx.branch(longer), ctx.branch(part, "b"))


@pytest.mark.parametrize("changed", [swapped, one_less, without_branches, longer_first])
async def test_changed_branches_are_noticed(make_app: MakeApp, changed: Body) -> None:
    """With where it was, in which branch, and no attempt burnt."""
    old, new = make_app(), make_app()
    gate = Gate()

    old.workflow(name="order")(with_gate(branches_in_order, gate))
    new.workflow(name="order")(with_gate(changed, gate))
    run = await old.start("order")
    await interrupt(old, gate)
    gate.open()
    await new.drain()
    failed = await failure(new.get(run.id))
    assert (failed.reason, failed.error_type) == ("non_determinism", "NonDeterminismError")
    assert (await new.get(run.id).info()).attempt == 1


async def test_the_context_of_a_branch_is_not_for_others(app: Stepfast) -> None:
    """Rule 18: nor is the outer one for the branch."""

    async def branch(ctx: Context, outer: Context) -> None:
        await outer.step("mixed up", lambda: None)

    order = calling(app, lambda ctx: ctx.branch(branch, ctx), max_attempts=1)
    failed = await failure(await drained(app, order), r"ctx\.branch")
    assert failed.error_type == ContextMisuse.__name__


async def test_a_branch_never_awaited_is_told(app: Stepfast) -> None:
    """Rule 18: by name."""

    async def forgotten(ctx: Context) -> None: ...

    @app.workflow
    async def order(ctx: Context) -> None:
        ctx.branch(forgotten)

    await failure(await drained(app, order), "without awaiting 'forgotten'")


@pytest.mark.parametrize("limit", [0, -1, True, 1.5, "2"])
async def test_a_limit_that_makes_no_sense_is_refused(app: Stepfast, limit: Any) -> None:
    async def item(ctx: Context, n: int) -> None: ...

    order = calling(app, lambda ctx: ctx.map(item, [1], limit=limit), max_attempts=1)
    await failure(await drained(app, order), r"the limit of ctx\.map must be a whole number")
