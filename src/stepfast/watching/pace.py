"""How often open tabs look again by themselves: the more there are and the more they ask, the less often each."""

from __future__ import annotations

import time

LONGEST = 60.0
"""A tab looks again after a minute at the latest."""


class TabPace:
    """Hands out turns, so that all tabs of a process together ask no more than so many questions a second."""

    def __init__(self, rate: float) -> None:
        self._rate = rate
        self._taken = 0.0
        """Up to when every turn is taken."""

    def again(self, soonest: float, questions: int) -> float:
        """In how many seconds a tab may look again whose page has asked so many questions."""
        now = time.monotonic()
        self._taken = max(self._taken, now) + questions / self._rate
        return round(min(max(soonest, self._taken - now), LONGEST), 1)
