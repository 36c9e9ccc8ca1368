"""What is said to code that calls wrongly: what was wrong, where, and what to write instead."""

from __future__ import annotations

import asyncio
import functools
from collections.abc import Callable
from typing import Any

import pytest

from stepfast import ConfigurationError, Context, Stepfast, SyncContext, UnknownOption
from stepfast.model.urls import redact
from tests.engine.conftest import ON_SQLITE
from tests.support.engine import drained, failure
from tests.support.workflows import task

pytestmark = ON_SQLITE


async def test_several_inputs_are_refused_with_a_sentence(app: Stepfast) -> None:
    @app.task
    async def add(numbers: list[int]) -> int:
        return sum(numbers)

    untyped: Any = app
    said = r"app\.start takes one input, but was given 2 .* as one value: .* Options go by name"
    with pytest.raises(UnknownOption, match=said):
        await untyped.start(add, 1, 2)
    with pytest.raises(UnknownOption, match=said):
        await asyncio.to_thread(untyped.sync.start, "add", 1, 2)
    said = r"app\.start_many takes one list of inputs, but was given 2"
    with pytest.raises(UnknownOption, match=said):
        await untyped.start_many(add, [1], [2])
    with pytest.raises(UnknownOption, match=said):
        await asyncio.to_thread(untyped.sync.start_many, "add", [1], [2])


@pytest.mark.parametrize("called", ["start", "start_many"])
async def test_an_input_given_by_name_is_not_taken_for_a_slip(app: Stepfast, called: str) -> None:
    add = task(app, "add")
    start: Any = getattr(app, called)
    with pytest.raises(UnknownOption) as refused:
        await start(add, *([[]] if called == "start_many" else []), a=1)
    assert f"app.{called} has no option 'a'" in str(refused.value)
    assert "did you mean" not in str(refused.value)
    assert "the input is one value" in str(refused.value)
    with pytest.raises(UnknownOption, match="did you mean 'priority'"):
        await start(add, [], priorty=1)


@pytest.mark.parametrize("called", ["map", "branch", "gather", "first"])
async def test_calls_that_a_plain_def_does_not_have(app: Stepfast, called: str) -> None:
    @app.workflow
    def order(ctx: SyncContext) -> None:
        getattr(ctx, called)(1, [2])

    run = await drained(app, order)
    failed = await failure(run, rf"ctx\.{called} is not for a plain def .* async def")
    assert failed.error_type == "ContextMisuse"
    assert (await run.info()).attempt == 1, "no other attempt can help"


async def test_a_name_that_no_context_has_stays_an_attribute_error(app: Stepfast) -> None:
    @app.workflow(max_attempts=1)
    def order(ctx: SyncContext) -> None:
        ctx.mapp([1])  # type: ignore[attr-defined]

    await failure(await drained(app, order), "'SyncContext' object has no attribute 'mapp'")


@pytest.mark.parametrize(
    ("call", "said"),
    [
        (lambda ctx: ctx.wait_signal("go", timeout=-1), "the timeout of ctx.wait_signal must be zero or more seconds"),
        (lambda ctx: ctx.sleep(-1), "the duration of ctx.sleep must be zero or more seconds"),
        (lambda ctx: ctx.wait_until("x", lambda: 0, every=-1), "every of ctx.wait_until must be zero or more seconds"),
        (lambda ctx: ctx.wait_until("x", lambda: 0, timeout=-1), "the timeout of ctx.wait_until must be zero or more"),
    ],
)
async def test_a_span_that_makes_no_sense_is_named(app: Stepfast, call: Callable[[Any], Any], said: str) -> None:
    @app.workflow(max_attempts=1)
    async def order(ctx: Context) -> None:
        await call(ctx)

    await failure(await drained(app, order), said)


@pytest.mark.parametrize(
    ("url", "shown"),
    [
        ("sqlite:/x", "sqlite:/x"),
        ("sqlite:stepfast.db", "sqlite:stepfast.db"),
        ("postgresql:/me:secret@host/db", "postgresql:***"),
        ("sqlite:/x?password=secret", "sqlite:***"),
        ("me:secret@host", "***"),
    ],
)
def test_a_url_that_lacks_a_slash_is_shown_as_far_as_it_may_be(url: str, shown: str) -> None:
    assert redact(url) == shown
    with pytest.raises(ConfigurationError) as refused:
        Stepfast(url)
    assert repr(shown) in str(refused.value)
    assert "secret" not in str(refused.value)


def plain(function: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(function)
    def wrapper(*args: Any, **kwargs: Any) -> Any:
        return function(*args, **kwargs)

    return wrapper


def test_an_async_def_behind_a_plain_decorator_is_told_from_a_plain_def(app: Stepfast) -> None:
    with pytest.raises(ConfigurationError) as refused:

        @app.workflow
        @plain
        async def order(ctx: Context) -> None: ...

    said = str(refused.value)
    assert "is an async def, but a decorator has wrapped it in a plain def" in said
    assert "async def wrapper" in said
    assert "SyncContext" not in said
