"""Breaks: the word that a connection broke, for whoever remembers what the database has said.

After a failover to a standby that lagged behind, or a crash of a server that does not wait for its disk, commits that
were acknowledged are gone. Nobody tells of that; but no server goes away without its connections.
"""

from __future__ import annotations

from collections.abc import Callable


class Breaks:
    """Whoever is to be told that a connection broke, in the event loop of the store."""

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
