"""The clockwork of a worker: beside time, timers and chance also its threads, all from one object."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Awaitable, Callable
from typing import Any, Protocol

from ..engine.host import Clock
from .threads import Threads


class Pool(Protocol):
    """Threads for blocking calls."""

    def submit(self, function: Callable[[], Any]) -> Awaitable[Any]:
        """Run a blocking call; to be awaited in the running loop."""
        ...

    def close(self) -> None:
        """Let idle threads go; busy ones go when they are done."""


class Clockwork(Clock):
    """Time, timers, threads and chance as they are in life."""

    def pool(self, name: str) -> Pool:
        """Threads for blocking calls, as many as are needed."""
        return Threads(name)

    def thread(self, name: str, function: Callable[[], None]) -> threading.Thread:
        """A thread of its own for a duty that must not wait for the event loop. It is not started yet."""
        return threading.Thread(target=function, name=name, daemon=True)

    def bell(self) -> threading.Event:
        """What such a thread waits at, for so many seconds at most."""
        return threading.Event()

    async def joined(self, thread: threading.Thread, seconds: float) -> None:
        """Wait for a thread to end, for so many seconds at most."""
        await asyncio.get_running_loop().run_in_executor(None, thread.join, seconds)


REAL = Clockwork()
"""That of every application, unless a test gives it another."""
