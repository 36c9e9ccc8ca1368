"""Answers that hold for a moment, for everybody who asks the same: one asks, and whoever comes meanwhile waits with it.

An answer that took long to find holds for long, so that a question which is asked again and again takes up no more than
a small part of the time of one connection, however slow it is.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from contextvars import ContextVar
from math import inf
from typing import Any, NamedTuple

_TIMES = 20
"""An answer holds for so many times what it took to find: a question takes a twentieth of one connection at most."""
_LONGEST = 60.0
"""But no longer than a minute."""
_MOST = 500
"""Answers that are kept. The oldest go first."""


class Sight:
    """What one visitor has been given: how old it is, and how old it may be."""

    def __init__(self) -> None:
        self.floor = -inf
        """Nothing that was asked before is to be given, unless it takes long to find."""
        self.oldest = inf
        """When the oldest answer was asked for that was given."""


SIGHT: ContextVar[Sight | None] = ContextVar("stepfast_sight", default=None)
"""Of the visitor who is being served."""


class _Kept(NamedTuple):
    answer: Any
    until: float
    began: float
    slow: bool


class Remembered:
    """The answers of one process, within one event loop."""

    def __init__(self, fresh: float) -> None:
        self._fresh = fresh
        self._kept: dict[object, _Kept] = {}
        self._under_way: dict[object, tuple[asyncio.Task[Any], float]] = {}
        self.asked = 0
        """Questions that were put to the database so far."""

    async def get(self, key: object, ask: Callable[[], Awaitable[Any]]) -> Any:
        """The answer that still holds, or a new one."""
        kept, sight = self._kept.get(key), SIGHT.get()
        if kept is not None and _holds(kept, sight):
            return kept.answer
        if key in self._under_way:
            task, began = self._under_way[key]
        else:
            task, began = asyncio.create_task(self._ask(key, ask)), time.monotonic()
            self._under_way[key] = task, began
            task.add_done_callback(lambda done: self._ended(key, done))
        if sight is not None:
            sight.oldest = min(sight.oldest, began)
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
        if self._is_asking(key, asyncio.current_task()):
            self._tidy(now)
            holds = _TIMES * (now - began)
            until = now + min(max(self._fresh, holds), _LONGEST)
            self._kept[key] = _Kept(answer, until, began, holds > self._fresh)
        return answer

    def _tidy(self, now: float) -> None:
        for key in [key for key, kept in self._kept.items() if kept.until <= now]:
            del self._kept[key]
        while len(self._kept) >= _MOST:
            del self._kept[next(iter(self._kept))]

    def _is_asking(self, key: object, task: asyncio.Task[Any] | None) -> bool:
        return key in self._under_way and self._under_way[key][0] is task

    def _ended(self, key: object, task: asyncio.Task[Any]) -> None:
        if self._is_asking(key, task):
            del self._under_way[key]
        if not task.cancelled():
            task.exception()  # whoever asked may be gone


def _holds(kept: _Kept, sight: Sight | None) -> bool:
    """Whether an answer is still good for a visitor, who is then told how old it is."""
    if time.monotonic() >= kept.until:
        return False
    if sight is None:
        return True
    if kept.began < sight.floor and not kept.slow:
        return False
    sight.oldest = min(sight.oldest, kept.began)
    return True
