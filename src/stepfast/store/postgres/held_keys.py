"""Where starts wait whose key is held by a transaction that somebody else has open, until that one ends.

Such a wait may be long, and it must keep nobody else waiting. A start is therefore tried on a connection out of the
pool, for a moment only: then it gives the connection back and waits for its turn again. So a few connections are enough
for any number of held keys, and whoever is cancelled leaves no statement behind that waits on.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

from ...errors import DatabaseUnavailable
from ...settings import Settings
from ..protocol import KeysHeld

GLANCE_MS = 100
"""Milliseconds for which a start waits for a lock where others wait behind it."""
_TURN_MS = 1000
"""Milliseconds where only those wait behind it whose keys are held too. The server's log has a line for each turn."""
_TURNS = 2
"""How many such turns there are at once."""

Start = Callable[[Any, int], Awaitable[list[str]]]
"""Starts runs on a connection, and waits for no lock longer than so many milliseconds."""


class HeldKeys:
    """A queue for first tries, and one for those who have found their key held."""

    def __init__(self, lend: Callable[[Callable[[Any], Any]], Awaitable[Any]], settings: Settings) -> None:
        self._lend = lend
        # As long as a statement may take on a connection of our own.
        self._longest = min(settings.command_timeout, max(5.0, settings.lease / 2))
        self._first = asyncio.Semaphore(1)
        self._again = asyncio.Semaphore(_TURNS)

    async def start(self, start: Start) -> list[str]:
        """Try until the key is free, or taken."""
        try:
            async with asyncio.timeout(self._longest):
                ids = await self._turn(self._first, start, GLANCE_MS)
                while ids is None:
                    ids = await self._turn(self._again, start, _TURN_MS)
                return ids
        except TimeoutError:
            raise DatabaseUnavailable(
                "somebody's open transaction holds the key of this start, and has not ended within "
                f"{self._longest:g} s: start it again later, and look for a transaction that stays open"
            ) from None

    async def _turn(self, turns: asyncio.Semaphore, start: Start, longest_ms: int) -> list[str] | None:
        async with turns:
            try:
                ids: list[str] = await self._lend(lambda connection: start(connection, longest_ms))
            except KeysHeld:
                return None
            return ids
