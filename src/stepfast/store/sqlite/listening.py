"""Who wants to be woken when somebody else has committed: another process, which the writer notices, or another event
loop of this one, which tells."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from ..protocol import Wakeups

LOOK = Wakeups(frozenset(), True, True)
"""Something may have changed: look. SQLite does not say what."""


class Bell:
    """Calls every listener in its own event loop, whichever thread rings."""

    def __init__(self) -> None:
        self._listeners: dict[object, tuple[asyncio.AbstractEventLoop, Callable[[Wakeups], None]]] = {}

    @property
    def heard(self) -> bool:
        """Whether anybody listens for wake-ups."""
        return bool(self._listeners)

    def add(self, heard: Callable[[Wakeups], None]) -> object:
        """Listen from now on; the answer is for ``remove``."""
        ticket = object()
        self._listeners[ticket] = (asyncio.get_running_loop(), heard)
        return ticket

    def remove(self, ticket: object) -> None:
        """Take a listener away: it hears nothing more."""
        self._listeners.pop(ticket, None)

    def ring(self) -> None:
        """Wake everybody who listens."""
        for loop, heard in list(self._listeners.values()):
            _call(loop, heard, LOOK)

    def tell(self, wakeups: Wakeups) -> None:
        """Pass on what this event loop has to say to the others, which work with the same writer."""
        here = asyncio.get_running_loop()
        for loop, heard in list(self._listeners.values()):
            if loop is not here:
                _call(loop, heard, wakeups)


def _call(loop: asyncio.AbstractEventLoop, heard: Callable[[Wakeups], None], wakeups: Wakeups) -> None:
    try:
        loop.call_soon_threadsafe(heard, wakeups)
    except RuntimeError:
        pass  # the loop was closed with the listener still in it
