"""The clock of a lab: it stands still until it is moved, also for the lab's database in memory.

Guards against code that does not return (a stop that takes too long, the time before code counts as being at rest) use
real time: they decide nothing about runs.
"""

from __future__ import annotations

import asyncio
import heapq
import itertools
import math
import threading
from collections.abc import Callable
from contextvars import Context
from random import Random
from typing import Any

from ..engine.host import CHANCE, Timer
from ..worker.threads import Clockwork


class LabTimer:
    """A timer of the lab's clock."""

    def __init__(self, function: Callable[..., object], args: tuple[Any, ...]) -> None:
        self._function: Callable[..., object] | None = function
        self._args = args
        self.of_run = False
        """Whether a run waits for it, and not a service of the worker."""

    @property
    def wanted(self) -> bool:
        """Whether it has not been cancelled."""
        return self._function is not None

    def cancel(self) -> None:
        """Keep the timer from ringing, and from keeping anything alive."""
        self._function, self._args = None, ()

    def ring(self) -> None:
        """The time of the timer has come: call its function."""
        if self._function is not None:
            self._function(*self._args)


class LabClock(Clockwork):
    """Time, timers, threads and chance of one lab."""

    def __init__(self, epoch_ms: int, seed: str | None = None) -> None:
        super().__init__()
        self.epoch_ms = epoch_ms
        """When it was begun, in milliseconds since 1970."""
        self.passed_ms = 0
        """By how much it was moved since."""
        self.random = Random(seed)
        self.database_now = self.milliseconds
        self._ids = Random(seed)
        self._last_id = 0
        self._timers: list[tuple[float, int, LabTimer]] = []
        self._numbers = itertools.count()

    def now(self) -> float:
        """Seconds since it was begun."""
        return self.passed_ms / 1000

    def milliseconds(self) -> int:
        """What the database takes for its time, since 1970."""
        return self.epoch_ms + self.passed_ms

    def new_id(self) -> str:
        """An id that was made at this clock's time. With a seed, the same ids come in the same order each time."""
        ticks = self.milliseconds() << 12
        self._last_id = ticks = ticks if ticks > self._last_id else self._last_id + 1
        value = ((ticks >> 12) << 16 | 0x7000 | ticks & 0xFFF) << 64 | 0x8000000000000000 | self._ids.getrandbits(62)
        text = f"{value:032x}"
        return f"{text[:8]}-{text[8:12]}-{text[12:16]}-{text[16:20]}-{text[20:]}"

    def move_to(self, passed_ms: int) -> None:
        """Let time pass; what is due by then rings, in its order."""
        self.passed_ms = max(self.passed_ms, passed_ms)
        while self._timers and self._timers[0][0] <= self.now():
            heapq.heappop(self._timers)[2].ring()

    # -- timers ------------------------------------------------------------------------------------------------------

    def after(self, seconds: float, function: Callable[..., object], *args: Any) -> Timer:
        """Call a function when the clock was moved so far. A mere turn of the event loop is one in real time."""
        if seconds <= CHANCE:
            return asyncio.get_running_loop().call_later(max(0.0, seconds), function, *args, context=Context())
        timer = LabTimer(function, args)
        heapq.heappush(self._timers, (self.now() + seconds, next(self._numbers), timer))
        return timer

    def alarm(self, seconds: float, function: Callable[..., object], *args: Any) -> Timer:
        """Call a function when something is over that a run waits for: its timeout, its deadline, the timeout of a
        step."""
        timer = self.after(seconds, function, *args)
        if isinstance(timer, LabTimer):
            timer.of_run = True
        return timer

    def next_alarm_ms(self) -> int | None:
        """Return the milliseconds until something is due that a run waits for in its slot."""
        found = [when for when, _, timer in self._timers if timer.of_run and timer.wanted]
        return math.ceil((min(found) - self.now()) * 1000) if found else None

    async def sleep(self, seconds: float) -> None:
        """Go on when the clock was moved so far."""
        if seconds <= CHANCE:
            await asyncio.sleep(seconds)
            return
        over = asyncio.get_running_loop().create_future()
        timer = self.after(seconds, _set, over)
        try:
            await over
        finally:
            timer.cancel()

    def timeout(self, seconds: float) -> asyncio.Timeout:
        """What is done ``async with`` this ends when the clock was moved so far."""
        limit = asyncio.timeout(None)
        self.after(seconds, _end_now, limit)
        return limit

    # -- threads -----------------------------------------------------------------------------------------------------

    def thread(self, name: str, function: Callable[[], None]) -> threading.Thread:
        """Return a thread that does nothing: services that wait by real time are not needed in a lab."""
        return threading.Thread(target=lambda: None, name=name, daemon=True)


def _end_now(limit: asyncio.Timeout) -> None:
    try:
        limit.reschedule(asyncio.get_running_loop().time())
    except RuntimeError:
        pass  # it was left


def _set(future: asyncio.Future[None]) -> None:
    if not future.done():
        future.set_result(None)
