"""Answers that hold for a moment, for everybody who asks the same: one asks, and whoever comes meanwhile waits with it.

An answer that took long to find holds for long, so that a question which is asked again and again takes up no more than
a small part of the time of one connection, however slow it is.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from typing import Any, NamedTuple

_TIMES = 20
"""An answer holds for so many times what it took to find: a question takes a twentieth of one connection at most."""
_LONGEST = 60.0
"""But no longer than a minute."""
_MOST = 500
"""Answers that are kept. The oldest go first."""


class _Kept(NamedTuple):
    answer: Any
    until: float


class Remembered:
    """The answers of one process, within one event loop."""

    def __init__(self, fresh: float) -> None:
        self._fresh = fresh
        self._kept: dict[object, _Kept] = {}
        self._under_way: dict[object, asyncio.Task[Any]] = {}
        self.asked = 0
        """Questions that were put to the database so far."""

    async def get(self, key: object, ask: Callable[[], Awaitable[Any]]) -> Any:
        """The answer that still holds, or a new one."""
        kept = self._kept.get(key)
        if kept is not None and time.monotonic() < kept.until:
            return kept.answer
        task = self._under_way.get(key)
        if task is None:
            task = self._under_way[key] = asyncio.create_task(self._ask(key, ask))
            task.add_done_callback(lambda done: self._ended(key, done))
        return await asyncio.shield(task)

    def forget(self) -> None:
        """Somebody has changed something, and wants to see it: nothing that was asked before holds."""
        self._kept.clear()
        self._under_way.clear()

    async def _ask(self, key: object, ask: Callable[[], Awaitable[Any]]) -> Any:
        self.asked += 1
        began = time.monotonic()
        answer = await ask()
        now = time.monotonic()
        if self._under_way.get(key) is asyncio.current_task():
            self._tidy(now)
            self._kept[key] = _Kept(answer, now + min(max(self._fresh, _TIMES * (now - began)), _LONGEST))
        return answer

    def _tidy(self, now: float) -> None:
        for key in [key for key, kept in self._kept.items() if kept.until <= now]:
            del self._kept[key]
        while len(self._kept) >= _MOST:
            del self._kept[next(iter(self._kept))]

    def _ended(self, key: object, task: asyncio.Task[Any]) -> None:
        if self._under_way.get(key) is task:
            del self._under_way[key]
        if not task.cancelled():
            task.exception()  # whoever asked may be gone
