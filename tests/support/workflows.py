"""Workflows and tasks that many tests need."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from typing import Any

from stepfast import Context, Stepfast
from tests.support.engine import Calls, Gate

GIVEN: Any = object()
"""What a task returns that returns its input."""


def task(
    app: Stepfast, name: str, *, gate: Gate | None = None, error: Exception | None = None, returns: Any = GIVEN,
    **options: Any,
) -> Any:  # fmt: skip
    """A task that passes the gate, and then raises the error, or returns the value: its input, if none is given."""

    @app.task(name=name, **options)
    async def work(given: Any = None) -> Any:
        if gate is not None:
            await gate.passing()
        if error is not None:
            raise error
        return given if returns is GIVEN else returns

    return work


def listener(
    app: Stepfast, *signals: str, name: str = "order", timeout: float | timedelta | None = None,
    calls: Calls | None = None, **options: Any,
) -> Any:  # fmt: skip
    """A workflow that waits for signals, one after the other, and returns their values; the value if it is only one."""

    @app.workflow(name=name, **options)
    async def order(ctx: Context) -> Any:
        if calls is not None:
            calls.hit("body")
        values = [await ctx.wait_signal(each, timeout=timeout) for each in signals or ("go",)]
        return values if len(values) > 1 else values[0]

    return order


def sleeper(
    app: Stepfast, seconds: float = 3600, *, name: str = "order", calls: Calls | None = None, **options: Any
) -> Any:
    """A workflow that sleeps, and returns "awake"."""

    @app.workflow(name=name, **options)
    async def order(ctx: Context) -> str:
        if calls is not None:
            calls.hit("body")
        await ctx.sleep(seconds)
        return "awake"

    return order


def calling(app: Stepfast, call: Callable[[Any], Any], *, name: str = "order", **options: Any) -> Any:
    """A workflow that makes one call of its context, and returns what comes of it."""

    @app.workflow(name=name, **options)
    async def order(ctx: Context) -> Any:
        return await call(ctx)

    return order
