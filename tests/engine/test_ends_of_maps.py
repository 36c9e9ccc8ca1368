"""Maps and gathers that end before all of their items have: ``min_successful``, ``max_failures``, ``limit``."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

from stepfast import Context, MapFailed, NonRetryableError, Results, Settings, Stepfast
from stepfast.testing import crash_everywhere
from tests.engine.conftest import ON_BOTH, ON_SQLITE, MakeApp
from tests.support.engine import PATIENCE, Calls, Gate, drained, eventually, failure, finished, interrupt, outcome

pytestmark = ON_SQLITE

SHAPES = pytest.mark.parametrize("shape", ["map", "branches", "steps"])
"""Items of a map, branches of a gather, and steps of one."""


def many(ctx: Context, shape: str, step: Callable[[int], Any], items: list[int], **options: Any) -> Any:
    async def one(ctx: Context, item: int) -> Any:
        await ctx.step("begin", lambda: item)
        return await ctx.step(step, item)

    if shape == "map":
        return ctx.map(one, items, **options)
    if shape == "branches":
        return ctx.gather(*(ctx.branch(one, item) for item in items), **options)
    return ctx.gather(*(ctx.step(step, item) for item in items), **options)


class Items:
    """Items of which some are broken, and some take for ever, until they are mended."""

    def __init__(self, calls: Calls, broken: set[int], slow: set[int] = frozenset()) -> None:  # type: ignore[assignment]
        self.broken, self.slow = set(broken), set(slow)
        self.calls = calls
        self.under_way = 0

    async def do(self, item: int) -> int:
        self.calls.hit(str(item))
        if item in self.slow:
            self.under_way += 1
            await asyncio.Event().wait()
        if item in self.broken:
            while item == max(self.broken) and self.under_way < len(self.slow):
                await asyncio.sleep(0.001)
            raise ValueError(f"item {item} is broken")
        return item * 10

    def mend(self) -> None:
        self.broken, self.slow = set(), set()


@SHAPES
@ON_BOTH
async def test_too_many_failures_end_it_and_a_retry_does_what_is_missing(
    app: Stepfast, calls: Calls, shape: str
) -> None:
    items, seen = Items(calls, {1, 3}, {2, 4}), list[MapFailed]()

    @app.workflow(max_attempts=1)
    async def order(ctx: Context) -> Any:
        try:
            return await many(ctx, shape, items.do, list(range(9)), limit=3, max_failures=1)
        except MapFailed as error:
            seen.append(error)
            raise

    run = await drained(app, order)
    error = await failure(run, "2 of 9 items failed, which is more than max_failures=1 tolerates")
    assert error.error_type == "MapFailed" and "item 1 is broken" in error.message and "item 3" in error.message
    results = seen[0].results
    assert (results.succeeded, len(results.failed), results.not_run) == ([0], 2, [2, 4, 5, 6, 7, 8])
    assert results[0] == 0 and results[2] is None and isinstance(results[3], Exception)
    steps = {(step.branch, step.position): step.status for step in await run.steps()}
    assert list(steps.values()).count("cancelled") == 2
    assert calls == {"0": 1, "1": 1, "2": 1, "3": 1, "4": 1}
    items.mend()
    await run.retry()
    assert await finished(app, run) == [item * 10 for item in range(9)]
    assert calls == {"0": 1, "1": 2, "2": 2, "3": 2, "4": 2, **{str(item): 1 for item in range(5, 9)}}


@SHAPES
async def test_a_replay_finds_the_same_end(app: Stepfast, calls: Calls, shape: str) -> None:
    items, gate, seen = Items(calls, {1}, {2, 3}), Gate(), list[Any]()

    @app.workflow
    async def order(ctx: Context) -> Any:
        found = await many(ctx, shape, items.do, list(range(6)), limit=3, max_failures=0, return_errors=True)
        seen.append((found.succeeded, list(map(str, found.failed)), found.not_run))
        await ctx.step(gate.passing)
        return found.not_run

    run = await app.start(order)
    await interrupt(app, gate)
    items.mend()
    assert await finished(app, run, gate) == [2, 3, 4, 5]
    assert seen[0] == seen[1]
    assert calls == {"0": 1, "1": 1, "2": 1, "3": 1}


@SHAPES
@ON_BOTH
async def test_enough_results_end_it(app: Stepfast, calls: Calls, shape: str) -> None:
    items = Items(calls, {0, 9}, {4})

    @app.workflow
    async def order(ctx: Context) -> Any:
        found = await many(ctx, shape, items.do, list(range(5)), min_successful=0.5)
        assert type(found) is Results
        return found.succeeded, len(found.failed), found.not_run

    run = await drained(app, order)
    assert await run.result(timeout=PATIENCE) == [[10, 20, 30], 1, [4]]


async def test_a_gather_may_be_bounded_alone(app: Stepfast, calls: Calls) -> None:
    """All come to their end, before an error is raised; and it leaves no record."""
    items, at_once = Items(calls, {1}), list[int]()

    async def do(item: int) -> int:
        at_once.append(item)
        assert len(at_once) <= 2
        await asyncio.sleep(0)
        at_once.remove(item)
        return await items.do(item)

    @app.workflow(max_attempts=1)
    async def order(ctx: Context, collect: bool) -> Any:
        found = await ctx.gather(*(ctx.step(do, item) for item in range(5)), limit=2, return_errors=collect)
        return found.succeeded, len(found.failed)

    run = await drained(app, order, True)
    assert await run.result(timeout=PATIENCE) == [[0, 20, 30, 40], 1]
    assert {step.kind for step in await run.steps()} == {"step"}
    await failure(await drained(app, order, False), "step 'do' failed: ValueError: item 1 is broken")
    assert calls == {str(item): 2 for item in range(5)}


@pytest.mark.parametrize(("needed", "total", "runs"), [(3, 3, 1), (5, 4, 0), (0.9, 10, 2)])
async def test_what_cannot_be_reached_any_more_fails(
    app: Stepfast, calls: Calls, needed: float, total: int, runs: int
) -> None:
    items = Items(calls, set(range(10)))

    @app.workflow(max_attempts=1)
    async def order(ctx: Context) -> Any:
        await many(ctx, "map", items.do, list(range(total)), min_successful=needed, limit=1)

    said = f"{runs} of {total} items failed, so that min_successful={needed} cannot be reached"
    await failure(await drained(app, order), said)
    assert sum(calls.values()) == runs


@pytest.mark.parametrize(("share", "allowed"), [(0.29, 29), (0.03, 3), (0.005, 0), (7, 7)])
async def test_a_share_is_counted_exactly(app: Stepfast, calls: Calls, share: float, allowed: int) -> None:
    @app.workflow
    async def order(ctx: Context, broken: int) -> Any:
        async def one(ctx: Context, item: int) -> int:
            if item < broken:
                raise ValueError("broken")
            return item

        return len((await ctx.map(one, range(100), max_failures=share)).failed)

    assert await outcome(app, order, allowed) == allowed
    await failure(await drained(app, order, allowed + 1), f"{allowed + 1} of 100 items failed")


async def test_items_that_wait_are_stopped_too(make_app: MakeApp, calls: Calls) -> None:
    """Also if the run was released meanwhile; and code of an item that cleans up when it is stopped is called again."""
    app, items = make_app(settings=Settings(inline_wait=0)), Items(calls, {0})

    @app.workflow(max_attempts=1)
    async def order(ctx: Context) -> Any:
        async def one(ctx: Context, item: int) -> Any:
            if item == 0:
                await ctx.wait_signal("go")
                return await ctx.step(items.do, 0)
            try:
                return await ctx.wait_signal(f"item {item}")
            finally:
                await ctx.step("tidy", calls.hit, f"tidy {item}")

        return await ctx.map(one, range(3), max_failures=0)

    run = await drained(app, order)
    await run.signal("go")
    await app.drain()
    await failure(run, "item 0 is broken")
    assert calls == {"0": 1, "tidy 1": 1, "tidy 2": 1}
    items.mend()
    await run.retry()
    for item in (1, 2):
        await run.signal(f"item {item}", item)
    assert await finished(app, run) == [0, 1, 2]
    assert calls == {"0": 2, "tidy 1": 2, "tidy 2": 2}


@pytest.mark.parametrize("shape", ["map", "branches"])
async def test_it_comes_to_the_same_wherever_the_worker_dies(app: Stepfast, calls: Calls, shape: str) -> None:
    """Steps of items that were stopped are undone, too."""
    undone = []

    def undo(output: int, item: int) -> None:
        undone.append(item)

    async def do(item: int) -> int:
        if item == 2:
            raise NonRetryableError("two is bad")
        return item

    @app.workflow(max_attempts=1)
    async def order(ctx: Context) -> Any:
        async def one(ctx: Context, item: int) -> int:
            done = await ctx.options(compensate=undo).step(do, item)
            if item == 1:
                await ctx.wait_signal("never")
            return done

        if shape == "map":
            return await ctx.map(one, range(5), limit=2, max_failures=0)
        return await ctx.gather(*(ctx.branch(one, item) for item in range(5)), limit=2, max_failures=0)

    report = await crash_everywhere(app, order)
    assert report.status == "compensated"
    assert undone[:2] == [1, 0] and set(undone) == {0, 1}


async def test_a_run_is_cancelled_while_items_are_under_way(app: Stepfast, calls: Calls) -> None:
    items = Items(calls, {9}, {0, 1})

    @app.workflow
    async def order(ctx: Context) -> Any:
        return await many(ctx, "map", items.do, list(range(4)), limit=2, max_failures=1)

    run = await app.start(order)
    async with app.worker():
        await eventually(lambda: items.under_way == 2)
        await run.cancel()
        await eventually(run.status)
    items.mend()
    await app.drain()
    assert await run.status() == "cancelled"
    assert calls == {"0": 1, "1": 1}


async def test_one_within_another(app: Stepfast, calls: Calls) -> None:
    """An inner map that failed is an item that failed; a retry does what is broken in it, and no other item."""
    items = Items(calls, {11})

    @app.workflow(max_attempts=1)
    async def order(ctx: Context) -> Any:
        async def outer(ctx: Context, ten: int) -> Any:
            return await many(ctx, "map", items.do, [ten, ten + 1, ten + 2], limit=1, max_failures=0)

        return await ctx.map(outer, [0, 10, 20], limit=1, max_failures=0)

    run = await drained(app, order)
    await failure(run, "1 of 3 items failed, which is more than max_failures=0 tolerates")
    assert calls == {"0": 1, "1": 1, "2": 1, "10": 1, "11": 1}
    items.mend()
    await run.retry()
    assert await finished(app, run) == [[0, 10, 20], [100, 110, 120], [200, 210, 220]]
    assert calls["11"] == 2 and sum(calls.values()) == 10


async def test_a_next_attempt_does_what_is_missing(app: Stepfast, calls: Calls) -> None:
    items = Items(calls, {1, 2})

    @app.workflow(max_attempts=2)
    async def order(ctx: Context) -> Any:
        if ctx.attempt == 2:
            items.mend()
        found = await many(ctx, "map", items.do, list(range(4)), max_failures=0.25)
        return list(found)

    run = await app.start(order)
    async with app.worker():
        assert await run.result(timeout=PATIENCE) == [0, 10, 20, 30]
    assert calls == {"0": 1, "1": 2, "2": 2, "3": 1}
