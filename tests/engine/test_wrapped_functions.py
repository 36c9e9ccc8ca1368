"""Tasks and workflows over functions that are declared or wrapped already; and steps as others see them."""

from __future__ import annotations

import asyncio
import functools
import inspect
from collections.abc import Callable
from typing import Any
from unittest import mock

import pytest

from stepfast import Backoff, ConfigurationError, Context, Stepfast, SyncContext, step
from stepfast.remote import RemoteWorker
from tests.support.engine import finished

pytestmark = pytest.mark.enough_on("sqlite")


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


async def test_what_a_plain_wrapper_gives_is_awaited(app: Stepfast) -> None:
    async def greet() -> str:
        await asyncio.sleep(0)
        return "hello"

    async def in_dag(ctx: Any) -> str:
        return await greet()

    task = app.task(passes_on(greet))
    dag = app.dag("dag")
    dag.step(passes_on(in_dag))

    @app.workflow
    async def order(ctx: Context) -> str:
        return await ctx.step(passes_on(greet))

    runs = [await app.start(task), await app.start(order), await app.start(dag)]
    await app.drain()
    assert [await run.result() for run in runs] == ["hello", "hello", {"in_dag": "hello"}]


async def test_options_of_a_step_below_a_task_are_refused_by_name(app: Stepfast) -> None:
    @step(retries=3, backoff=Backoff(base=1))
    async def charge(_input: None = None) -> None: ...

    said = r"'charge' \(test_wrapped.*over @step with retries, backoff, which"
    for declare in (app.task, RemoteWorker("postgresql://nowhere", "group").handle("charge")):
        with pytest.raises(ConfigurationError, match=said):
            declare(charge)
    assert app.task(charge.function).name == "charge"


async def test_an_async_step_is_seen_to_be_one() -> None:
    @step
    async def charge(amount: int) -> int:
        return amount

    @step
    def plain() -> None: ...

    assert inspect.iscoroutinefunction(charge)
    assert not inspect.iscoroutinefunction(plain)
    assert str(inspect.signature(charge)) == "(amount: 'int') -> 'int'"
    assert await charge(3) == 3
    shop = mock.Mock()
    shop.charge = charge
    with mock.patch.object(shop, "charge") as replaced:
        assert isinstance(replaced, mock.AsyncMock)
    shop.plain = plain
    with mock.patch.object(shop, "plain") as replaced:
        assert not isinstance(replaced, mock.AsyncMock)


async def test_an_async_task_is_mocked_as_one(app: Stepfast) -> None:
    @app.task
    async def charge() -> None: ...

    shop = mock.Mock()
    shop.charge = charge
    with mock.patch.object(shop, "charge") as replaced:
        assert isinstance(replaced, mock.AsyncMock)
