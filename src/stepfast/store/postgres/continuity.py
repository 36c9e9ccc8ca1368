"""Continuity: whether we still talk to the server that has told us what we know.

A connection that broke, or one that leads to a server which was started at another time, means that commits may be gone
of which we were told. Behind a pooler connections to us outlive those to the server, so there its start is looked at in
every flush.
"""

from __future__ import annotations

from ..breaks import Breaks


class Continuity:
    """Knows whether the server is still the same; one for all connections of a store."""

    def __init__(self) -> None:
        self.breaks = Breaks()
        self.started: int | None = None
        """When the server was started (microseconds), as last seen."""

    def met(self, started: int | None) -> None:
        """A connection leads to a server that was started then."""
        before, self.started = self.started, started
        if before is not None and before != started:
            self.breaks.tell()

    def broke(self) -> None:
        """A connection is gone."""
        self.breaks.tell()
