"""Code that tolerates some failures, and fails by others: what its next attempt, and an operator's retry, do again."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from stepfast import Backoff, ChildFailed, Context, NonRetryableError, Run, StepFailed, Stepfast
from tests.engine.conftest import ON_BOTH, ON_SQLITE
from tests.support.engine import Calls, Gate, drained, failure, make_due, replayed

pytestmark = ON_SQLITE

LATER = Backoff(base=600, max=3600)
"""So that a new attempt is made when the test wants it."""


class TooMany(Exception):
    """What the code makes of the failures by itself."""


class Works:
    """Steps and children of which those in capitals fail until they are repaired; what each did is counted."""

    def __init__(self, app: Stepfast, calls: Calls) -> None:
        self.calls = calls
        self.repaired = False

        @app.task(name="child", max_attempts=1)
        async def child(name: str) -> str:
            return self.work(name)

        self.child = child

    def work(self, name: str) -> str:
        self.calls.hit(name)
        if name.isupper() and not self.repaired:
            raise NonRetryableError(name)
        return name

    async def item(self, ctx: Context, name: str) -> str:
        await ctx.step("before", lambda: self.calls.hit(f"before {name}"))
        return await ctx.step("work", self.work, name)

    async def half(self, ctx: Context, names: list[str]) -> list[str]:
        """An item that maps by itself, and fails by an error of its own."""
        return all_of(await ctx.map(self.item, names, return_errors=True))


def all_of(results: list[Any]) -> list[str]:
    failed = [result for result in results if isinstance(result, Exception)]
    if failed:
        raise TooMany(f"{len(failed)} of {len(results)}")
    return results


NAMES = ["a", "B", "c", "D"]


async def by_map(ctx: Context, works: Works) -> list[Any]:
    return await ctx.map(works.item, NAMES, return_errors=True)


async def by_gather(ctx: Context, works: Works) -> list[Any]:
    return await ctx.gather(*(ctx.step("work", works.work, name) for name in NAMES), return_errors=True)


async def by_children(ctx: Context, works: Works) -> list[Any]:
    return await ctx.gather(*(ctx.call(works.child, name) for name in NAMES), return_errors=True)


async def by_children_one_by_one(ctx: Context, works: Works) -> list[Any]:
    results: list[Any] = []
    children = [await ctx.start(works.child, name) for name in NAMES]
    for child in children:
        try:
            results.append(await child.result())
        except ChildFailed as error:
            results.append(error)
    return results


async def by_nested_maps(ctx: Context, works: Works) -> list[Any]:
    return await ctx.map(works.half, [["a", "B", "E"], ["c"], ["D"]], return_errors=True)


def own_error(failed: list[Exception]) -> None:
    raise TooMany(len(failed))


def first_error(failed: list[Exception]) -> None:
    raise failed[0]


def from_last(failed: list[Exception]) -> None:
    raise TooMany(len(failed)) from failed[-1]


def as_group(failed: list[Exception]) -> None:
    raise ExceptionGroup("too many", failed)


def in_context(failed: list[Exception]) -> None:
    try:
        raise failed[0]
    except Exception:
        own_error(failed)


Way = Callable[[Context, Works], Awaitable[list[Any]]]


End = Callable[[list[Exception]], None]


def repeated(calls: Calls) -> set[str]:
    return {name for name, count in calls.items() if count > 1}


def failed_of(results: list[Any]) -> list[Exception]:
    return [each for each in results if isinstance(each, Exception)]


async def retried(app: Stepfast, works: Works, run: Run[Any]) -> Run[Any]:
    """The same run, after what was broken is repaired and an operator has retried it."""
    works.repaired = True
    await run.retry()
    await app.drain()
    return run


async def next_attempt(app: Stepfast, works: Works, run: Run[Any]) -> Run[Any]:
    """The same run, after what was broken is repaired and its next attempt was made."""
    works.repaired = True
    await make_due(app, run.id)
    await app.drain()
    return run


@pytest.mark.parametrize(
    ("way", "end"),
    [
        pytest.param(way, end, id=f"{way.__name__}-{end.__name__}")
        for way in (by_map, by_gather, by_children, by_children_one_by_one, by_nested_maps)
        for end in (own_error, first_error, from_last, as_group, in_context)
        if way is by_map or end in (own_error, as_group)
    ],
)
async def test_a_retry_redoes_all_failures_that_led_to_the_error_and_nothing_else(
    app: Stepfast, calls: Calls, way: Way, end: End
) -> None:
    works = Works(app, calls)

    @app.workflow(max_attempts=1)
    async def order(ctx: Context) -> list[Any]:
        results = await way(ctx, works)
        if failed := failed_of(results):
            end(failed)
        return results

    run = await drained(app, order)
    assert await run.status() == "failed"
    assert await (await retried(app, works, run)).status() == "completed"
    assert repeated(calls) == {name for name in calls if name.isupper()}
    assert max(calls.values()) == 2


@ON_BOTH
@pytest.mark.parametrize("way", [by_map, by_children], ids=["map", "children"])
async def test_a_retry_redoes_them_where_a_worker_died_between(app: Stepfast, calls: Calls, way: Way) -> None:
    """What the code was given before is known from the records."""
    works, gate = Works(app, calls), Gate()

    @app.workflow(max_attempts=1)
    async def order(ctx: Context) -> list[Any]:
        results = await way(ctx, works)
        await gate.passing()
        return all_of(results)

    run = await replayed(app, gate, order)
    await failure(run, "2 of 4")
    assert await (await retried(app, works, run)).result() == NAMES
    assert repeated(calls) == {"B", "D"}


@pytest.mark.parametrize("end", [from_last, as_group, first_error])
async def test_a_new_attempt_redoes_the_failures_that_the_error_carries(app: Stepfast, calls: Calls, end: End) -> None:
    works = Works(app, calls)

    def work(name: str) -> str:
        try:
            return works.work(name)
        except NonRetryableError:
            raise ValueError(name) from None

    async def item(ctx: Context, name: str) -> str:
        return await ctx.step("work", work, name)

    @app.workflow(backoff=LATER)
    async def order(ctx: Context) -> list[Any]:
        results = await ctx.map(item, NAMES, return_errors=True)
        if failed := failed_of(results):
            end(failed)
        return results

    run = await next_attempt(app, works, await drained(app, order))
    carried = {"from_last": {"D"}, "as_group": {"B", "D"}, "first_error": {"B"}}[end.__name__]
    assert repeated(calls) == carried
    assert await run.status() == ("completed" if carried == {"B", "D"} else "queued")


async def test_a_new_attempt_redoes_what_failed_beside_an_error_of_the_code(app: Stepfast, calls: Calls) -> None:
    """The first error is the code's own, and those of the steps beside it were not seen."""
    works = Works(app, calls)

    async def item(ctx: Context, name: str) -> str:
        if name == "own" and calls.hit("own") == 1:
            raise TooMany("in the code")
        return await ctx.step("work", works.work, name)

    async def items(ctx: Context, names: list[str]) -> list[str]:
        return await ctx.map(item, names)

    @app.workflow(backoff=LATER)
    async def order(ctx: Context) -> list[Any]:
        return await ctx.map(items, [["own", "A"], ["B", "C"], ["D"]])

    run = await next_attempt(app, works, await drained(app, order))
    assert await run.result() == [["own", "A"], ["B", "C"], ["D"]]
    assert (await run.info()).attempt == 2
    assert repeated(calls) == {"own", "A", "B", "C", "D"}


async def test_an_error_that_carries_failures_has_them_redone_whatever_came_between(
    app: Stepfast, calls: Calls
) -> None:
    works = Works(app, calls)

    @app.workflow(max_attempts=1)
    async def order(ctx: Context) -> list[Any]:
        results = await ctx.map(works.item, NAMES, return_errors=True)
        if failed := failed_of(results):
            await ctx.step("report", lambda: calls.hit("report"))
            raise TooMany(len(failed)) from failed[0]
        await ctx.step("ship", lambda: calls.hit("ship"))
        return results

    run = await retried(app, works, await drained(app, order))
    assert await run.result() == NAMES
    assert repeated(calls) == {"B", "D"}
    assert (calls["report"], calls["ship"]) == (1, 1)


@pytest.mark.parametrize("later", ["a step", "the code"])
async def test_failures_that_the_code_continued_from_stay(app: Stepfast, calls: Calls, later: str) -> None:
    """They are not repeated because of another error, later."""
    works = Works(app, calls)

    @app.workflow(max_attempts=1)
    async def order(ctx: Context) -> int:
        results = await ctx.map(works.item, NAMES, return_errors=True)
        await ctx.step("charge", lambda: calls.hit("charge"))
        if later == "a step":
            await ctx.step("work", works.work, "SHIP")
        elif not works.repaired:
            raise KeyError("a bug")
        return len([each for each in results if isinstance(each, StepFailed)])

    run = await retried(app, works, await drained(app, order))
    assert await run.result() == 2
    assert repeated(calls) <= {"SHIP"}


@pytest.mark.parametrize("end", [own_error, from_last])
@pytest.mark.parametrize("between", ["a step", "a wait", "a child", "a value"])
async def test_a_call_before_an_own_error_is_the_limit(app: Stepfast, calls: Calls, between: str, end: End) -> None:
    """A step or a wait would be made again with the failures: by an error of its own the code says nothing of them, and
    fails again. An error that carries one of them does; a child is not started again, and no record is not either."""
    works = Works(app, calls)
    calling: dict[str, Callable[[Context], Awaitable[Any]]] = {
        "a step": lambda ctx: ctx.step("report", lambda: calls.hit("report")),
        "a wait": lambda ctx: ctx.sleep(0.001),
        "a child": lambda ctx: ctx.call(works.child, "c1"),
        "a value": lambda ctx: ctx.set("failed", 2),
    }

    @app.workflow(max_attempts=1)
    async def order(ctx: Context) -> list[Any]:
        results = await ctx.map(works.item, NAMES, return_errors=True)
        if failed := failed_of(results):
            await calling[between](ctx)
            end(failed)
        return results

    run = await retried(app, works, await drained(app, order))
    stays = end is own_error and between in ("a step", "a wait")
    assert await run.status() == ("failed" if stays else "completed")
    assert repeated(calls) == (set() if stays else {"B", "D"})


async def test_each_retry_redoes_what_still_fails(app: Stepfast, calls: Calls) -> None:
    broken = {"B", "D"}

    def work(name: str) -> str:
        calls.hit(name)
        if name in broken:
            raise NonRetryableError(name)
        return name

    async def item(ctx: Context, name: str) -> str:
        return await ctx.step(work, name)

    @app.workflow(max_attempts=1)
    async def order(ctx: Context) -> list[Any]:
        return all_of(await ctx.map(item, NAMES, return_errors=True))

    run = await drained(app, order)
    for name in ("B", "D"):
        broken.remove(name)
        await run.retry()
        await app.drain()
    assert await run.result() == NAMES
    assert calls == {"a": 1, "B": 2, "c": 1, "D": 3}


async def test_a_gather_of_asyncio_carries_failures_in_a_group(app: Stepfast, calls: Calls) -> None:
    works = Works(app, calls)

    @app.workflow(max_attempts=1)
    async def order(ctx: Context) -> list[str]:
        branches = [ctx.branch(works.item, name) for name in ("A", "B")]
        results = await asyncio.gather(*branches, return_exceptions=True)
        if failed := failed_of(results):
            raise ExceptionGroup("both", failed)
        return [str(each) for each in results]

    run = await retried(app, works, await drained(app, order))
    assert await run.result() == ["A", "B"]
    assert repeated(calls) == {"A", "B"}
