"""Whether an event loop moves, seen from another thread."""

from __future__ import annotations

import asyncio
import time

EVERY = 1.0
"""Seconds between two looks."""
_STOPPED = 2.0
"""A look that comes so many seconds late: the whole process was stopped, which is not the loop's fault."""


class LoopLag:
    """Sends a word to an event loop, and sees how long it lies there. Used in one thread that is not the loop's."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._sent: float | None = None
        """When the word was sent that has not been taken yet."""
        self._examined = time.monotonic()
        self._took = 0.0
        """How long the last one lay there."""

    @property
    def seconds(self) -> float:
        """For how long the loop has not moved, or needed for its last word."""
        sent = self._sent
        return self._took if sent is None else max(self._took, time.monotonic() - sent)

    def examine(self) -> None:
        """Send a word, unless one is still there. To be called about once a second."""
        now = time.monotonic()
        if self._sent is not None and now - self._examined > EVERY + _STOPPED:
            self._sent = now
        self._examined = now
        if self._sent is None:
            self._sent = now
            try:
                self._loop.call_soon_threadsafe(self._taken)
            except RuntimeError:
                self._sent = None  # it is closed: the process is about to end

    def _taken(self) -> None:
        """In the event loop: it moves."""
        sent = self._sent
        if sent is not None:
            self._took, self._sent = time.monotonic() - sent, None
