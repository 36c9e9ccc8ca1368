"""Standing between a worker and its store: count calls, hold them up, break them."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from stepfast.store import Store
from tests.support.engine import PATIENCE

only_postgres = pytest.mark.parametrize("url", ["postgres"], indirect=True)
"""For tests of what only a server can do: locks, lost replies, wake-ups between processes."""


def wrap(store: Any, method: str, around: Callable[..., Awaitable[Any]]) -> None:
    """``around(call, *args)`` is called in place of the method, and may make the call."""
    original = getattr(store, method)

    async def wrapper(*args: Any) -> Any:
        return await around(original, *args)

    setattr(store, method, wrapper)


class Counted:
    """How often a method was called, and with what."""

    def __init__(self, store: Any, method: str) -> None:
        self.calls: list[tuple[Any, ...]] = []
        wrap(store, method, self._call)

    def __len__(self) -> int:
        return len(self.calls)

    async def _call(self, call: Callable[..., Awaitable[Any]], *args: Any) -> Any:
        self.calls.append(args)
        return await call(*args)


class HeldReply:
    """Lets the next call of a method through to the database and keeps its reply back until it is released."""

    def __init__(self, store: Store, method: str) -> None:
        self._armed = True
        self._done = asyncio.Event()
        self._release = asyncio.Event()
        self.reply: Any = None
        wrap(store, method, self._call)

    async def done(self) -> Any:
        """Wait until the database has carried it out; the reply that is being held."""
        await asyncio.wait_for(self._done.wait(), PATIENCE)
        return self.reply

    def release(self) -> None:
        self._release.set()

    async def _call(self, call: Callable[..., Awaitable[Any]], *args: Any) -> Any:
        if not self._armed:
            return await call(*args)
        self._armed = False
        self.reply = await call(*args)
        self._done.set()
        await self._release.wait()
        return self.reply
