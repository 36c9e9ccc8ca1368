"""One body for both kinds of workflow: an async def, and a plain def that runs in a thread."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from stepfast import Context, Stepfast, SyncContext

KINDS = pytest.mark.parametrize("kind", ["async", "def"])
"""For a test that declares its workflow with `workflow_of`."""

_AWAITED = {"step", "transaction", "sleep", "sleep_until", "wait_signal", "wait_until", "set", "call"}


class _Plain:
    """The context of a plain def for a body that awaits its calls, each of which is over before it is awaited."""

    def __init__(self, ctx: SyncContext) -> None:
        self._ctx = ctx

    def options(self, **options: Any) -> _Plain:
        return _Plain(self._ctx.options(**options))

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._ctx, name)
        return found if name not in _AWAITED else lambda *args, **named: _given(found(*args, **named))


async def _given(value: Any) -> Any:
    return value


def workflow_of(app: Stepfast, kind: str, body: Callable[[Context], Awaitable[Any]], **options: Any) -> Any:
    """Register a body as the workflow "order": as an async def, or as a plain def that makes the same calls."""
    if kind == "async":
        return app.workflow(name="order", **options)(body)

    def plain(ctx: SyncContext) -> Any:
        awaited: Any = body(_Plain(ctx))  # type: ignore[arg-type]
        try:
            awaited.send(None)
        except StopIteration as ended:
            return ended.value
        raise AssertionError("the body awaits something else than calls of its context")

    return app.workflow(name="order", **options)(plain)
