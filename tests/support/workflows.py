"""Workflows that many tests need, under the name "order"."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

from stepfast import Context, Stepfast
from tests.support.engine import Calls


def listener(
    app: Stepfast, *names: str, timeout: float | timedelta | None = None, calls: Calls | None = None, **options: Any
) -> Any:
    """Waits for signals, one after the other, and returns their values; the value itself if it is only one."""

    @app.workflow(name="order", **options)
    async def order(ctx: Context) -> Any:
        if calls is not None:
            calls.hit("body")
        values = [await ctx.wait_signal(name, timeout=timeout) for name in names or ("go",)]
        return values if len(values) > 1 else values[0]

    return order


def sleeper(app: Stepfast, seconds: float = 3600, *, calls: Calls | None = None, **options: Any) -> Any:
    """Sleeps, and returns "awake"."""

    @app.workflow(name="order", **options)
    async def order(ctx: Context) -> str:
        if calls is not None:
            calls.hit("body")
        await ctx.sleep(seconds)
        return "awake"

    return order
