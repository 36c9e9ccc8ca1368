"""The forms of ``ctx.step``, options of steps and of calls, and functions that are declared or wrapped already."""

from __future__ import annotations

import asyncio
import functools
import inspect
import linecache
import os
import subprocess
import sys
import threading
import types
from collections.abc import Callable, Generator
from datetime import timedelta
from typing import Any
from unittest import mock

import pytest

from stepfast import Backoff, ConfigurationError, Context, DagContext, Stepfast, SyncContext, step
from stepfast.engine.function_spec import code_version
from stepfast.remote import RemoteWorker
from tests.engine.conftest import ON_BOTH, ON_SQLITE
from tests.support.both_kinds import KINDS, workflow_of
from tests.support.engine import Calls, drained, failure, finished, outcome
from tests.support.workflows import calling

pytestmark = ON_SQLITE


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


def one_step(app: Stepfast, *call: Any, **named: Any) -> Any:
    """A workflow of one step, with one attempt."""

    @app.workflow(name="order", max_attempts=1)
    async def order(ctx: Context) -> Any:
        return await ctx.step(*call, **named)

    return order


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


CALLABLES = {
    "async": (double, (4,), 8),
    "def": (triple, (4,), 12),
    "lambda": (lambda number: number + 1, (4,), 5),
    "lambda-of-coroutine": (lambda: double(4), (), 8),
    "lambda-of-generator": (lambda: as_in_old_times(4), (), 16),
    "partial": (functools.partial(double, 5), (), 10),
    "partial-def": (functools.partial(triple, number=5), (), 15),
    "method": (Adder(1).add, (4,), 5),
    "object": (Adder(2), (4,), 6),
    "step": (step(double), (4,), 8),
    "step-def": (step(retries=1)(triple), (4,), 12),
    "builtin": (len, ([1, 2],), 2),
}


@pytest.mark.parametrize("which", CALLABLES)
async def test_a_label_goes_with_any_callable(app: Stepfast, which: str) -> None:
    function, args, result = CALLABLES[which]
    run = await drained(app, one_step(app, "add tax", function, *args))
    assert await run.result() == result
    assert await names(app, run.id) == ["add tax"]


@pytest.mark.parametrize(
    ("function", "args", "name"),
    [
        (functools.partial(double, 5), (), "double"),
        (Adder(1).add, (2,), "add"),
        (functools.partial(Adder(1), 3), (), "Adder"),
    ],
    ids=["partial", "method", "object"],
)
async def test_partials_methods_and_objects_have_names_too(
    app: Stepfast, function: Any, args: tuple[Any, ...], name: str
) -> None:
    run = await drained(app, one_step(app, function, *args))
    assert await names(app, run.id) == [name]


async def test_keyword_arguments_belong_to_the_function(app: Stepfast) -> None:
    """Also those that are called like options."""

    async def send(to: str, *, name: str, retries: int, timeout: float) -> list[Any]:
        return [to, name, retries, timeout]

    run = await drained(app, one_step(app, send, "a@b", name="Ann", retries=9, timeout=0.5))
    assert await run.result() == ["a@b", "Ann", 9, 0.5]
    assert await names(app, run.id) == ["send"]


async def test_a_blocking_step_runs_in_a_thread(app: Stepfast) -> None:
    assert await outcome(app, one_step(app, "where", threading.get_ident)) != threading.get_ident()


async def test_parallel_steps_of_one_run_complete_each_exactly_once(app: Stepfast, calls: Calls) -> None:
    meet = asyncio.Barrier(20)

    async def work(number: int) -> int:
        calls.hit(str(number))
        await meet.wait()  # passes only if all twenty run at once
        return number * number

    order = calling(app, lambda ctx: asyncio.gather(*(ctx.step(work, n) for n in range(20))))
    run = await drained(app, order)
    assert await run.result() == [n * n for n in range(20)]
    assert calls == {str(n): 1 for n in range(20)}
    assert sorted(s.position for s in await run.steps()) == list(range(20))


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


MISUSED = {
    "lambda": ((lambda: 1,), "label"),
    "label alone": (("only a label",), "no function"),
    "number": ((5,), "takes a function"),
    "label and number": (("label", 5), "takes a function"),
    "long": (("x" * 201, triple, 1), "201 characters"),
    "nul": (("a\0b", triple, 1), "NUL"),
    "empty": (("", triple, 1), "empty"),
}


@pytest.mark.parametrize("misuse", MISUSED)
async def test_a_step_that_cannot_be_named_or_called_is_refused(app: Stepfast, misuse: str) -> None:
    call, sentence = MISUSED[misuse]
    run = await drained(app, one_step(app, *call))
    await failure(run, sentence)
    assert await run.steps() == []


AT_ONCE = Backoff(base=0, jitter=False)


@KINDS
async def test_options_hold_for_one_call_only(app: Stepfast, calls: Calls, kind: str) -> None:
    def flaky(number: int) -> int:
        if calls.hit("flaky") < 3:
            raise ValueError("not yet")
        return number

    async def order(ctx: Context) -> int:
        value = await ctx.options(name="careful", retries=2, backoff=AT_ONCE).step(flaky, 5)
        calls["flaky"] = 0
        return await ctx.step(flaky, value)

    run = await drained(app, workflow_of(app, kind, order, max_attempts=1))
    await failure(run, "not yet")
    listed = [(s.name, s.status, s.attempts) for s in await run.steps()]
    assert listed == [("careful", "completed", 3), ("flaky", "failed", 1)]


async def test_a_context_with_options_is_a_context(app: Stepfast) -> None:
    """It knows the run, and may be kept for several calls and given more options; the later option wins."""

    @app.workflow
    async def order(ctx: Context) -> None:
        careful = ctx.options(name="one", timeout=5)
        assert type(careful) is Context
        assert (careful.run_id, careful.step_key, careful.now()) == (ctx.run_id, ctx.step_key, ctx.now())
        await careful.step("labelled", asyncio.sleep, 0)
        await careful.step(asyncio.sleep, 0)
        await careful.options(name="two").step(asyncio.sleep, 0)
        await ctx.step("plain", asyncio.sleep, 0)

    run = await drained(app, order)
    await run.result()
    assert await names(app, run.id) == ["labelled", "one", "two", "plain"]


async def test_a_context_of_a_dag_step_keeps_its_facts_with_options(app: Stepfast) -> None:
    dag = app.dag("facts")

    @dag.step
    async def look(ctx: DagContext) -> list[Any]:
        careful = ctx.options(retries=1)
        await careful.step(asyncio.sleep, 0)
        return [careful.input, careful.step_name, careful.run_id == ctx.run_id]

    assert await outcome(app, dag, 7) == {"look": [7, "look", True]}


async def test_options_of_the_call_go_before_those_of_the_function(app: Stepfast, calls: Calls) -> None:
    @step(name="own name", retries=5, backoff=AT_ONCE)
    async def flaky() -> None:
        calls.hit("flaky")
        raise ValueError("never")

    order = calling(app, lambda ctx: ctx.options(retries=1).step(flaky), max_attempts=1)
    run = await drained(app, order)
    assert await run.status() == "failed"
    assert calls["flaky"] == 2
    assert [s.name for s in await run.steps()] == ["own name"]


async def test_a_label_goes_before_every_other_name(app: Stepfast) -> None:
    @step(name="declared")
    async def work() -> int:
        return 1

    @app.workflow
    async def order(ctx: Context) -> int:
        await ctx.step(work)
        await ctx.options(name="optioned").step(work)
        await ctx.step("labelled", work)
        return await ctx.options(name="optioned").step("labelled", work)

    run = await drained(app, order)
    assert [s.name for s in await run.steps()] == ["declared", "optioned", "labelled", "labelled"]


async def test_a_declared_step_called_directly_is_just_the_function(calls: Calls) -> None:
    @step(retries=5)
    async def work(number: int, plus: int = 1) -> int:
        """What it does."""
        calls.hit("work")
        return number + plus

    assert await work(1) == 2
    assert await work(1, plus=5) == 6
    assert calls["work"] == 2
    assert (getattr(work, "__name__", None), work.__doc__) == ("work", "What it does.")


BAD_STEPS = [
    {"retries": -1}, {"retries": 1.5}, {"retries": True}, {"retries": "3"}, {"timeout": -1}, {"timeout": "10"},
    {"timeout": float("nan")}, {"timeout": timedelta(seconds=-1)}, {"backoff": 5}, {"name": ""}, {"name": "a\0b"},
    {"name": 5},
]  # fmt: skip
BAD_TASKS = [
    {"max_attempts": 0}, {"max_attempts": -1}, {"max_attempts": 1.5}, {"max_attempts": True}, {"timeout": -1},
    {"timeout": "1"}, {"deadline": float("inf")}, {"deadline": True}, {"backoff": 1.0}, {"queue": ""}, {"queue": 7},
    {"name": "\ud800"},
]  # fmt: skip


@pytest.mark.parametrize(
    ("what", "options"), [*(("step", each) for each in BAD_STEPS), *(("task", each) for each in BAD_TASKS)], ids=repr
)
def test_bad_options_are_refused_where_they_are_written(what: str, options: dict[str, Any]) -> None:
    async def order() -> None: ...

    with pytest.raises(ConfigurationError):
        (step(**options) if what == "step" else Stepfast("sqlite://").task(**options)(order))


def passes_on(function: Callable[..., Any]) -> Callable[..., Any]:
    """A decorator as people write them: plain, although what it wraps is an async def."""

    @functools.wraps(function)
    def wrapper(*args: Any) -> Any:
        return function(*args)

    return wrapper


async def test_a_task_or_workflow_over_a_step_calls_its_function(app: Stepfast) -> None:
    @app.task
    @step
    async def double(numbers: tuple[int, ...]) -> list[int]:
        assert isinstance(numbers, tuple)
        return [number * 2 for number in numbers]

    @app.task
    @step
    def plain(number: int) -> int:
        return number + 1

    @app.workflow
    @step
    async def order(ctx: Context) -> list[int]:
        return await ctx.call(double, (1, 2))

    @app.workflow
    @step
    def sync_order(ctx: SyncContext, number: int) -> int:
        return ctx.call(plain, number)

    first, second = await app.start(order), await app.start(sync_order, 1)
    assert await finished(app, first) == [2, 4]
    assert await second.result() == 2
    assert double.version != plain.version


async def test_what_a_plain_wrapper_returns_is_awaited(app: Stepfast) -> None:
    """In a task, in a step, and in a step of a dag."""

    async def greet(_ctx: Any = None) -> str:
        await asyncio.sleep(0)
        return "hello"

    async def in_dag(ctx: Any) -> str:
        return await greet()

    dag = app.dag("dag")
    dag.step(passes_on(in_dag))
    task = app.task(name="task")(passes_on(lambda: greet()))
    runs = [await app.start(each) for each in (task, one_step(app, passes_on(greet)), dag)]
    await app.drain()
    assert [await run.result() for run in runs] == ["hello", "hello", {"in_dag": "hello"}]


async def test_options_of_a_step_below_a_task_are_refused_by_name(app: Stepfast) -> None:
    @step(retries=3, backoff=Backoff(base=1))
    async def charge(_input: None = None) -> None: ...

    said = r"'charge' \(test_steps.*over @step with retries, backoff, which"
    for declare in (app.task, RemoteWorker("postgresql://nowhere", "group").handle("charge")):
        with pytest.raises(ConfigurationError, match=said):
            declare(charge)
    assert app.task(charge.function).name == "charge"


async def test_inspect_and_mock_see_whether_a_step_or_a_task_is_async(app: Stepfast) -> None:
    @step
    async def charge(amount: int) -> int:
        return amount

    @step
    def plain() -> None: ...

    @app.task
    async def task() -> None: ...

    assert inspect.iscoroutinefunction(charge)
    assert not inspect.iscoroutinefunction(plain)
    assert str(inspect.signature(charge)) == "(amount: 'int') -> 'int'"
    assert await charge(3) == 3
    shop = mock.Mock()
    for function, is_async in ((charge, True), (plain, False), (task, True)):
        shop.function = function
        with mock.patch.object(shop, "function") as replaced:
            assert isinstance(replaced, mock.AsyncMock) == is_async


# -- the version of a workflow's code: the same while the code is, another when it changes


def made(source: str) -> Any:
    """The function ``f`` of a text that is in no file."""
    space: dict[str, Any] = {}
    exec(source, space)
    return space["f"]


@ON_BOTH
@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("return 'bill'", "return 'mail'"),
        ("return 1", "return 2"),
        ("return a", "return b"),
        ("return lambda: 1", "return lambda: 2"),
        ("return a in {1, 2}", "return a in {1, 3}"),
    ],
)
def test_code_without_a_source_has_another_version_when_it_says_something_else(one: str, other: str) -> None:
    first, again, second = (made(f"def f(a, b):\n    {body}") for body in (one, one, other))
    assert code_version(first) == code_version(again) != code_version(second)


@ON_BOTH
def test_lines_of_another_text_are_not_taken_for_the_source(monkeypatch: pytest.MonkeyPatch) -> None:
    lines = ["def f(): pass\n"]
    monkeypatch.setitem(linecache.cache, "<string>", (len(lines[0]), None, lines, "<string>"))
    assert code_version(made("def f():\n    return 1")) != code_version(made("def f():\n    return 2"))


@ON_BOTH
def test_code_without_a_source_has_one_version_in_all_processes() -> None:
    program = (
        "from stepfast.engine.function_spec import code_version\n"
        "space = {}\n"
        'exec(\'def f(a):\\n    return a in {"x", "y", "z"}, lambda: 1\', space)\n'
        "print(code_version(space['f']))"
    )
    told = {
        subprocess.run(
            [sys.executable, "-c", program],
            env={**os.environ, "PYTHONHASHSEED": seed},
            capture_output=True, text=True, check=True, timeout=60,
        ).stdout
        for seed in ("1", "2", "3")
    }  # fmt: skip
    assert len(told) == 1
