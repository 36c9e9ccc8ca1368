"""How long a transaction waits for rows that others hold, and how a broken connection is announced."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Iterator
from contextvars import ContextVar
from typing import Any

from ..errors import StepfastError

_longest: ContextVar[tuple[int, asyncio.Task[Any] | None] | None] = ContextVar("stepfast_longest_wait", default=None)


class RowsHeld(StepfastError):
    """Another transaction holds rows that this one needs, for longer than it may wait. It was rolled back. This is no
    trouble of the database that is ridden out: callers that limit the wait handle it."""


@contextlib.contextmanager
def brief(seconds: float) -> Iterator[None]:
    """Let transactions that are begun here wait no longer than this for any row."""
    before = _longest.set((max(1, int(seconds * 1000)), asyncio.current_task()))
    try:
        yield
    finally:
        _longest.reset(before)


def longest_wait_ms() -> int | None:
    """How many milliseconds a transaction may wait here; None: as long as it takes."""
    said = _longest.get()
    return said[0] if said is not None and said[1] is asyncio.current_task() else None


class Breaks:
    """Callbacks for broken connections, in the event loop of the store."""

    def __init__(self) -> None:
        self._listeners: list[Callable[[], None]] = []

    def subscribe(self, told: Callable[[], None]) -> None:
        """Call a function at each break from now on."""
        self._listeners.append(told)

    def unsubscribe(self, told: Callable[[], None]) -> None:
        """Stop calling a function that was called at each break."""
        if told in self._listeners:
            self._listeners.remove(told)

    def tell(self) -> None:
        """A connection broke, or leads to another server than the one before."""
        for told in list(self._listeners):
            told()
