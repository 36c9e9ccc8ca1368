"""Functions that cannot do what they are declared for: refused when declared, by name, file and line, with what to
write instead."""

from __future__ import annotations

import functools
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NoReturn, Protocol

import pytest

from stepfast import (
    ConfigurationError,
    Context,
    ContextMisuse,
    DagContext,
    InvalidInput,
    RunFailed,
    Stepfast,
    SyncContext,
    step,
)
from tests.support.engine import Calls, drained, failure, finished, outcome
from tests.support.workflows import task

if TYPE_CHECKING:
    from stepfast import Context as OnlyForTyping


@dataclass
class Order:
    id: str = ""


class Client:
    """Nothing that could be stored."""


class Service:
    async def charge(self, order: Order) -> str:
        return order.id

    @staticmethod
    async def plain(order: Order) -> str:
        return order.id


def no_context() -> None: ...
async def other_context(order: Order) -> None: ...
async def list_context(orders: list[Order], order: Order) -> None: ...
async def sync_context(ctx: SyncContext, order: Order) -> None: ...
def async_context(ctx: Context, order: Order) -> None: ...
async def with_context(ctx: Context, order: Order) -> None: ...
async def unannotated(ctx, order): ...  # type: ignore[no-untyped-def]
async def context_alone(ctx): ...  # type: ignore[no-untyped-def]
async def variadic(*orders: Order) -> None: ...
async def keywords(ctx: Context, **options: Any) -> None: ...
async def two(ctx: Context, order: Order, cents: int) -> None: ...
async def two_by_default(ctx: Context, order: Order, cents: int = 5) -> None: ...
async def needs_keyword(ctx: Context, *, order: Order) -> None: ...
async def with_default(ctx: Context, name: str = "Ann") -> None: ...
def generator(ctx: SyncContext) -> Iterator[int]:
    yield 1


async def async_generator(ctx: Context) -> AsyncIterator[int]:
    yield 1


async def unreadable_input(ctx: Context, client: Client) -> None: ...
async def unreadable_result(ctx: Context) -> list[Client]: ...  # type: ignore[empty-body]
async def unreadable_union(ctx: Context, given: dict[str, int] | Order) -> None: ...


WORKFLOWS = [
    (no_context, "must take a context as its first parameter: def no_context(ctx: SyncContext, …)"),
    (other_context, "with Order, but is given the context. Write async def other_context(ctx: Context, …), or"),
    (list_context, "but is given the context"),
    (sync_context, "is written with async def, but its context is annotated with SyncContext"),
    (async_context, "is written with def, but its context is annotated with Context"),
    (variadic, "functools.wraps"),
    (keywords, "takes **options"),
    (two, "takes 2 inputs (order, cents); it must take one value: a dict, a dataclass"),
    (two_by_default, "put a * before 'cents'"),
    (needs_keyword, "needs the keyword 'order', but is called with its input alone"),
    (with_default, "Write name=None"),
    (generator, "is a generator"),
    (async_generator, "is a generator"),
    (Service.charge, "is a method, and is called without an object as its self"),
    (Client, "is a class"),
    (unreadable_input, "cannot be read from JSON: Client"),
    (unreadable_result, "cannot be read from JSON: Client"),
    (unreadable_union, "cannot be read from JSON"),
]  # fmt: skip


@pytest.mark.parametrize(("function", "said"), WORKFLOWS, ids=lambda case: getattr(case, "__name__", ""))
def test_a_function_that_can_be_no_workflow_is_refused_when_declared(function: Any, said: str) -> None:
    app = Stepfast("sqlite://")
    with pytest.raises(ConfigurationError) as caught:
        app.workflow(function)
    assert said in str(caught.value)
    assert f"{function.__name__!r}" in str(caught.value)
    if function is not Client:
        assert f"(test_declaring.py:{function.__code__.co_firstlineno})" in str(caught.value)
    assert not app.workflows


@pytest.mark.parametrize(
    ("function", "said"),
    [
        (with_context, "a task has none. Declare it with @app.workflow"),
        (unannotated, "a task has none"),
        (context_alone, "a task has none"),
        (variadic, "takes *orders"),
        (async_generator, "is a generator"),
        (Service.charge, "is a method, and is called without an object as its self"),
        (5, "must be a function, not 5"),
    ],
    ids=lambda case: getattr(case, "__name__", ""),
)
def test_a_function_that_can_be_no_task_is_refused_when_declared(function: Any, said: str) -> None:
    with pytest.raises(ConfigurationError) as caught:
        Stepfast("sqlite://").task(function)
    assert said in str(caught.value)


class HasStep(Protocol):
    def step(self, *args: Any) -> Awaitable[Any]: ...


async def protocol(ctx: HasStep, order: Order) -> None: ...
async def typing_only(ctx: OnlyForTyping, order: Order) -> None: ...
async def untyped(context, order): ...  # type: ignore[no-untyped-def]
async def anything(ctx: Any, order: object) -> object: ...
async def either(ctx: Context | SyncContext, order: Order | None = None) -> None: ...
async def dag_context(ctx: DagContext) -> None: ...
async def constants(ctx: Context, order: Order, *, rate: float = 1.2) -> NoReturn:
    raise NotImplementedError


@pytest.mark.parametrize("function", [protocol, typing_only, untyped, anything, either, dag_context, constants])
def test_what_may_be_a_workflow_is_taken(function: Any) -> None:
    assert Stepfast("sqlite://").workflow(function).takes_input is (function is not dag_context)


def test_bound_methods_and_partials_may_be_declared() -> None:
    app = Stepfast("sqlite://")

    async def order(ctx: Context, order: Order, rate: float) -> float:
        return rate

    assert app.task(Service().charge).input_type is Order
    assert app.task(name="plain")(Service.plain).input_type is Order
    assert app.workflow(functools.partial(order, rate=1.2)).input_type is Order


def test_steps_are_checked_as_well() -> None:
    with pytest.raises(ConfigurationError, match=r"'async_generator' \(test_declaring.py:\d+\) is a generator"):
        step(async_generator)
    with pytest.raises(ConfigurationError, match="is a method, and is called without an object as its self"):
        step(Service.charge)
    with pytest.raises(ConfigurationError, match=r"the result of step 'unreadable_result' .* JSON: Client"):
        step(unreadable_result)
    with pytest.raises(ConfigurationError, match=r"dag 'd'|is a generator"):
        Stepfast("sqlite://").dag("d").step(async_generator)


# -- objects mean anything -------------------------------------------------------------------------------------------


async def test_an_annotation_of_object_means_anything() -> None:
    @step
    async def echo(value: object) -> object:
        return value

    async with Stepfast("sqlite://") as app:

        @app.workflow
        async def order(ctx: Context, given: dict[str, object]) -> list[object]:
            return [await ctx.step(echo, given), await ctx.step(wide, given["b"])]

        async def wide(value: object) -> object | None:
            return value

        assert await outcome(app, order, {"a": 1, "b": ["x", None]}) == [{"a": 1, "b": ["x", None]}, ["x", None]]


# -- undo ------------------------------------------------------------------------------------------------------------


async def charge(order: Order, cents: int, note: str = "") -> str:
    return order.id


async def undo_nothing() -> None: ...
async def undo_output(output: str) -> None: ...
async def undo_required(output: str, order: Order, cents: int) -> None: ...
async def undo_all(output: str, order: Order, cents: int, note: str = "") -> None: ...
async def undo_any(*args: Any) -> None: ...
async def undo_keyword(output: str, order: Order, cents: int, *, why: str) -> None: ...


@pytest.mark.parametrize("undo", [undo_nothing, undo_output, undo_keyword])
def test_an_undo_that_cannot_be_called_is_refused_when_declared(undo: Callable[..., Any]) -> None:
    with pytest.raises(ConfigurationError) as caught:
        step(compensate=undo)(charge)
    assert f"{undo.__name__}(output, order, cents, note)" in str(caught.value)
    assert f"'charge' (test_declaring.py:{charge.__code__.co_firstlineno})" in str(caught.value)
    assert f"{undo.__name__!r} (test_declaring.py:{undo.__code__.co_firstlineno})" in str(caught.value)


@pytest.mark.parametrize("undo", [undo_required, undo_all, undo_any, step(undo_all), print])
def test_an_undo_that_can_be_called_is_taken(undo: Callable[..., Any]) -> None:
    step(compensate=undo)(charge)


def test_the_undo_of_a_step_of_a_dag_takes_the_context() -> None:
    async def dag_step(ctx: DagContext) -> None: ...
    async def dag_undo(ctx: DagContext) -> None: ...

    step(compensate=dag_undo)(dag_step)


@pytest.mark.parametrize("way", ["options", "step", "transaction", "wait_until"])
async def test_an_undo_that_cannot_be_called_with_these_arguments_stops_the_run_before_the_step(
    calls: Calls, way: str
) -> None:
    async def act(*args: Any, **kwargs: Any) -> str:
        calls.hit("act")
        return "done"

    async with Stepfast("sqlite://") as app:

        @app.workflow
        async def order(ctx: Context) -> str:
            if way == "options":
                return await ctx.options(compensate=undo_output).step("act", act, "one")
            if way == "transaction":
                return await ctx.options(compensate=undo_output).transaction("act", act, "one")
            if way == "wait_until":
                return await ctx.options(compensate=undo_output).wait_until(act, "one")
            return await ctx.step(step(name="act", compensate=undo_output)(act), "one", note="x")

        caught = await failure(await drained(app, order))
    assert caught.error_type == ContextMisuse.__name__
    assert "undo_output" in caught.message and "test_declaring.py" in caught.message
    assert not calls


# -- calls -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["task", "workflow"])
async def test_a_workflow_called_as_a_step_is_refused_and_names_what_to_write(kind: str) -> None:
    async with Stepfast("sqlite://") as app:
        task(app, "task", returns=None)

        @app.workflow(name="workflow")
        async def child(ctx: Context, given: str) -> None: ...

        @app.workflow
        async def order(ctx: Context) -> None:
            await ctx.step(app.workflows[kind], "x")

        run = await drained(app, order)
        with pytest.raises(
            RunFailed, match=rf"ContextMisuse: '{kind}' is a {kind}, not a step: ctx.call\({kind}, input\)"
        ):
            await run.result()


async def test_a_step_whose_result_cannot_be_read_back_is_refused_before_it_is_called(calls: Calls) -> None:
    async def connect() -> Client:
        calls.hit("connect")
        return Client()

    async with Stepfast("sqlite://") as app:

        @app.workflow
        async def order(ctx: Context) -> None:
            await ctx.step(connect)

        await failure(await drained(app, order), r"'connect' \(test_declaring.py:\d+\).*Client")
    assert not calls


# -- decorators ------------------------------------------------------------------------------------------------------


def careless(function: Callable[..., Any]) -> Callable[..., Any]:
    async def wrapper(*args, **kwargs):  # type: ignore[no-untyped-def]
        return await function(*args, **kwargs)

    return wrapper


def careful(function: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(function)
    async def wrapper(*args, **kwargs):  # type: ignore[no-untyped-def]
        return await function(*args, **kwargs)

    return wrapper


async def fetch(order: Order) -> Order:
    return order


def test_a_decorator_that_hides_the_types_of_a_step_is_warned_of() -> None:
    with pytest.warns(UserWarning, match=r"'wrapper' .*'fetch' \(test_declaring.py:\d+\) without functools.wraps"):
        step(careless(fetch))
    assert step(careful(fetch)).shape.returns is Order


async def test_it_is_warned_of_when_the_step_is_first_called() -> None:
    async with Stepfast("sqlite://") as app:
        hidden = careless(fetch)

        @app.workflow
        async def order(ctx: Context) -> None:
            await ctx.step("fetch", hidden, Order())

        run = await app.start(order)
        with pytest.warns(UserWarning, match=r"functools.wraps"):
            await app.drain()
        assert await run.status() == "completed"


def test_a_decorated_workflow_whose_types_are_hidden_is_refused() -> None:
    app = Stepfast("sqlite://")
    with pytest.raises(ConfigurationError, match=r"functools.wraps"):
        app.task(careless(fetch))
    assert app.task(careful(fetch)).input_type is Order


# -- options ---------------------------------------------------------------------------------------------------------


async def test_an_option_that_there_is_none_of_is_refused_with_the_nearest() -> None:
    app = Stepfast("sqlite://")
    with pytest.raises(TypeError, match="@step has no option 'retry'; did you mean 'retry_on'"):
        step(retry=3)  # type: ignore[call-overload]
    with pytest.raises(TypeError, match="'max_attempt'; did you mean 'max_attempts'"):
        app.task(max_attempt=3)  # type: ignore[call-overload]
    with pytest.raises(TypeError, match="'time_out'; did you mean 'timeout'"):
        app.workflow(time_out=3)  # type: ignore[call-overload]
    with pytest.raises(TypeError, match="'afer'; did you mean 'after'"):
        app.dag("d").step(afer=["x"])  # type: ignore[call-overload]
    with pytest.raises(TypeError, match="'queues'; did you mean 'queue'"):
        app.dag("e", queues="x")  # type: ignore[call-arg]
    app.task(fetch)
    with pytest.raises(TypeError, match="'prioritty'; did you mean 'priority'"):
        await app.start("fetch", Order(), prioritty=3)  # type: ignore[call-overload]
    with pytest.raises(TypeError, match="'keyy'; did you mean 'key'"):
        await app.start("fetch", Order(), keyy="k")  # type: ignore[call-overload]
    with pytest.raises(TypeError, match=r"app\.start_many has no option 'key'; did you mean 'keys'"):
        await app.start_many("fetch", [Order()], key="k")  # type: ignore[call-overload]
    with pytest.raises(TypeError, match=r"app\.runs has no option 'state'; did you mean 'status'"):
        await app.runs(state="failed")  # type: ignore[call-arg]
    with pytest.raises(TypeError, match=r"app\.worker has no option 'sweep_interval'; did you mean 'poll_interval'"):
        async with app.worker(sweep_interval=3):  # type: ignore[call-arg]
            pass
    await app.close()


@pytest.mark.parametrize("value", ["3 days", "10"])
def test_a_time_given_as_text_is_refused_with_what_to_write(value: Any) -> None:
    with pytest.raises(ConfigurationError, match=r"timeout .*timedelta\(days=3\)"):
        step(timeout=value)
    with pytest.raises(ConfigurationError, match=r"deadline .*timedelta\(days=3\)"):
        Stepfast("sqlite://").task(deadline=value)


async def test_an_input_with_a_misspelt_field_is_refused_with_and_without_the_code(tmp_path: Any) -> None:
    url = f"sqlite:///{tmp_path}/x.db"
    async with Stepfast(url) as app:

        @app.task
        async def mail(order: Order) -> str:
            return order.id

        with pytest.raises(InvalidInput, match=r"unknown field `di`.* id"):
            await app.start("mail", {"di": "o-1"})
        run = await app.start(mail, Order("o-1"))
        async with Stepfast(url) as trigger:
            with pytest.raises(InvalidInput, match=r"unknown field `di`.* id"):
                await trigger.start("mail", {"di": "o-1"})
        assert await finished(app, run) == "o-1"
