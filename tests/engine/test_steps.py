"""The forms of ``ctx.step``: with and without a label, sync and async, functions of every kind."""

from __future__ import annotations

import asyncio
import functools
import threading
import types
from collections.abc import Generator
from typing import Any

import pytest

from stepfast import Context, Stepfast, step
from tests.support.engine import Calls, drained, failure, outcome

pytestmark = pytest.mark.enough_on("sqlite")


async def double(number: int) -> int:
    return number * 2


def triple(number: int) -> int:
    return number * 3


@types.coroutine
def as_in_old_times(number: int) -> Generator[Any, None, int]:
    return (yield from double(number * 2).__await__())


class Adder:
    def __init__(self, amount: int) -> None:
        self.amount = amount

    async def add(self, number: int) -> int:
        return number + self.amount

    def __call__(self, number: int) -> int:
        return number + self.amount


async def names(app: Stepfast, run_id: str) -> list[str]:
    return [step.name for step in await app.get(run_id).steps()]


async def test_a_step_is_named_after_its_function(app: Stepfast) -> None:
    @app.workflow
    async def order(ctx: Context, number: int) -> int:
        return await ctx.step(triple, await ctx.step(double, number))

    run = await drained(app, order, 7)
    assert await run.result() == 42
    steps = await run.steps()
    assert [(s.name, s.status, s.output, s.position, s.attempts) for s in steps] == [
        ("double", "completed", 14, 0, 1),
        ("triple", "completed", 42, 1, 1),
    ]


@pytest.mark.parametrize(
    ("function", "args", "result"),
    [
        (double, (4,), 8),
        (triple, (4,), 12),
        (lambda number: number + 1, (4,), 5),
        (lambda: double(4), (), 8),
        (lambda: as_in_old_times(4), (), 16),
        (functools.partial(double, 5), (), 10),
        (functools.partial(triple, number=5), (), 15),
        (Adder(1).add, (4,), 5),
        (Adder(2), (4,), 6),
        (step(double), (4,), 8),
        (step(retries=1)(triple), (4,), 12),
        (len, ([1, 2],), 2),
    ],
    ids=["async", "def", "lambda", "lambda-of-coroutine", "lambda-of-generator", "partial", "partial-def", "method",
         "object", "step", "step-def", "builtin"],
)  # fmt: skip
async def test_a_label_goes_with_any_callable(app: Stepfast, function: Any, args: tuple[Any, ...], result: int) -> None:
    @app.workflow
    async def order(ctx: Context) -> int:
        return await ctx.step("add tax", function, *args)

    run = await drained(app, order)
    assert await run.result() == result
    assert await names(app, run.id) == ["add tax"]


@pytest.mark.parametrize(
    ("function", "name"),
    [(functools.partial(double, 5), "double"), (Adder(1).add, "add"), (functools.partial(Adder(1), 3), "Adder")],
    ids=["partial", "method", "object"],
)
async def test_partials_methods_and_objects_have_names_too(app: Stepfast, function: Any, name: str) -> None:

    @app.workflow
    async def order(ctx: Context) -> int:
        return await ctx.step(function, *(() if isinstance(function, functools.partial) else (2,)))

    run = await drained(app, order)
    assert await names(app, run.id) == [name]


async def test_keyword_arguments_belong_to_the_function(app: Stepfast) -> None:
    async def send(to: str, *, name: str, retries: int, timeout: float) -> list[Any]:
        return [to, name, retries, timeout]

    @app.workflow
    async def order(ctx: Context) -> list[Any]:
        return await ctx.step(send, "a@b", name="Ann", retries=9, timeout=0.5)

    run = await drained(app, order)
    assert await run.result() == ["a@b", "Ann", 9, 0.5]
    assert await names(app, run.id) == ["send"]


async def test_a_blocking_step_runs_in_a_thread(app: Stepfast) -> None:
    loop_thread = threading.get_ident()

    def where() -> bool:
        return threading.get_ident() == loop_thread

    @app.workflow
    async def order(ctx: Context) -> bool:
        return await ctx.step(where)

    assert await outcome(app, order) is False


async def test_parallel_steps_of_one_run_complete_each_exactly_once(app: Stepfast, calls: Calls) -> None:
    meet = asyncio.Barrier(20)

    async def work(number: int) -> int:
        calls.hit(str(number))
        await meet.wait()  # passes only if all twenty run at once
        return number * number

    @app.workflow
    async def order(ctx: Context) -> list[int]:
        return list(await asyncio.gather(*(ctx.step(work, n) for n in range(20))))

    run = await drained(app, order)
    assert await run.result() == [n * n for n in range(20)]
    assert calls == {str(n): 1 for n in range(20)}
    assert sorted(s.position for s in await run.steps()) == list(range(20))


async def test_a_step_name_repeated_in_a_loop_has_records_of_its_own(app: Stepfast) -> None:
    @app.workflow
    async def order(ctx: Context) -> list[int]:
        return [await ctx.step(double, n) for n in range(5)]

    run = await drained(app, order)
    assert await run.result() == [0, 2, 4, 6, 8]
    assert [s.output for s in await run.steps()] == [0, 2, 4, 6, 8]


async def test_each_step_is_recorded_before_the_next_begins(app: Stepfast) -> None:
    seen: list[list[str]] = []

    async def look(run_id: str) -> None:
        seen.append(await names(app, run_id))

    @app.workflow
    async def order(ctx: Context) -> None:
        for number in range(3):
            await ctx.step(f"look {number}", look, ctx.run_id)

    await drained(app, order)
    assert seen == [[], ["look 0"], ["look 0", "look 1"]]


@pytest.mark.parametrize(
    ("misuse", "sentence"),
    [
        (lambda ctx: ctx.step(lambda: 1), "label"),
        (lambda ctx: ctx.step("only a label"), "no function"),
        (lambda ctx: ctx.step(5), "takes a function"),
        (lambda ctx: ctx.step("label", 5), "takes a function"),
        (lambda ctx: ctx.step("x" * 201, triple, 1), "201 characters"),
        (lambda ctx: ctx.step("a\0b", triple, 1), "NUL"),
        (lambda ctx: ctx.step("", triple, 1), "empty"),
    ],
    ids=["lambda", "label-alone", "number", "label-number", "long", "nul", "empty"],
)
async def test_a_step_that_cannot_be_named_or_called_is_refused(app: Stepfast, misuse: Any, sentence: str) -> None:
    @app.workflow(max_attempts=1)
    async def order(ctx: Context) -> None:
        await misuse(ctx)

    run = await drained(app, order)
    await failure(run, sentence)
    assert await run.steps() == []
