"""How often strangers can make this process look: at once while they ring as honest ones do, bundled when they storm.

Whoever may connect to the database may send a notification. A bucket of credits lets the first of them through without
any delay; when it is empty, whatever rings meanwhile is passed on together, as often as new credits come.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable

from ...model.records import Lane
from ..protocol import Wakeups

_MOST_IN_A_BUNDLE = 500
"""Lanes in one bundle; if there are more, the database is asked which have something."""


class Bucket:
    """Credits that come back with time."""

    def __init__(self, most: float, per_second: float) -> None:
        self._most = most
        self._per_second = per_second
        self._credits = most
        self._at = time.monotonic()

    def take(self) -> float:
        """Use one up: 0. Or the seconds until there is one."""
        now = time.monotonic()
        self._credits = min(self._most, self._credits + (now - self._at) * self._per_second)
        self._at = now
        if self._credits < 1:
            return (1 - self._credits) / self._per_second
        self._credits -= 1
        return 0.0


class Doorbell:
    """Passes wake-ups on. A look costs this process a question to the database, and is rarer than news of lanes."""

    def __init__(self, heard: Callable[[Wakeups], None]) -> None:
        self._heard = heard
        self._news, self._looks = Bucket(500, 250), Bucket(100, 50)
        self._lanes: set[Lane] = set()
        self._ended = self._look = False
        self._timer: asyncio.TimerHandle | None = None

    def ring(self, wakeups: Wakeups) -> None:
        """Somebody rings: pass it on now, or with others a little later."""
        self._lanes |= wakeups.lanes
        self._ended |= wakeups.ended
        self._look |= wakeups.anything
        if len(self._lanes) > _MOST_IN_A_BUNDLE:
            self._lanes, self._look = set(), True
        if self._timer is None:
            self._pass_on()

    def _pass_on(self) -> None:
        self._timer = None
        wait = (self._looks if self._look else self._news).take()
        if wait > 0:
            self._timer = asyncio.get_running_loop().call_later(wait, self._pass_on)
            return
        wakeups = Wakeups(frozenset(self._lanes), self._ended, self._look)
        self._lanes, self._ended, self._look = set(), False, False
        self._heard(wakeups)

    def close(self) -> None:
        """Nobody listens any more."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
