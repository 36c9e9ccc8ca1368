"""Who gets the free slots when both the usual claims and those of limited queues want some.

The more urgent goes first, as within one claim. Equally urgent ones share by halves, and the odd slot goes to whoever
did not have it the last time, so that neither starves: not a limited queue beside a long backlog, nor the others beside
a limited queue that could take everything.
"""

from __future__ import annotations


class Sharing:
    """Divides the free slots of one worker."""

    def __init__(self) -> None:
        self._limited_last = False

    def for_limited(self, free: int, limited: int | None, usual: int | None) -> int:
        """How many of the free slots a limited queue may take, by the priorities of both; None: nothing is wanted."""
        if usual is None or (limited is not None and limited > usual):
            return free
        if limited is None or limited < usual:
            return 0
        return free // 2 + (free % 2 and not self._limited_last)

    def for_usual(self, free: int, limited: int | None, usual: int | None) -> int:
        """How many of the free slots are left for the usual claims."""
        return free if limited is None else free - self.for_limited(free, limited, usual)

    def took(self, limited: bool) -> None:
        """Note who has taken the slots: a limited queue, or the usual claims."""
        self._limited_last = limited
