"""A worker's kit for tests of one duty alone."""

from __future__ import annotations

import asyncio
import heapq
import itertools
import logging
from collections.abc import Callable, Collection
from typing import Any, TypeVar

from stepfast.model.payload import Payloads
from stepfast.settings import Settings
from stepfast.worker.context import Identity, WorkerContext
from stepfast.worker.threads import Clockwork

F = TypeVar("F", bound="asyncio.Future[Any]")


def make_kit(store: Any = None, **settings: Any) -> WorkerContext:
    """With whatever stands in for the store; None: nobody gets to ask it."""
    made = Settings(**settings)
    clock = Clockwork()
    return WorkerContext(store, made, Payloads(made), logging.getLogger("test"), Identity({}, None, clock))


EPOCH = 1_700_000_000_000
"""When the database's time began, where a clock stands."""


class Alarm:
    """A timer of a clock that stands."""

    def __init__(self, function: Callable[..., object], args: tuple[Any, ...]) -> None:
        self._function = function
        self._args = args
        self._cancelled = False

    def cancel(self) -> None:
        self._cancelled = True

    def ring(self) -> None:
        if not self._cancelled:
            self._function(*self._args)


class StandingClock(Clockwork):
    """A clock that stands until it is moved. What threads wait for goes by real time."""

    def __init__(self) -> None:
        super().__init__()
        self.time = 1000.0
        self._alarms: list[tuple[float, int, Alarm]] = []
        self._numbers = itertools.count()

    def advance(self, seconds: float) -> None:
        """Let so many seconds pass: what is due rings, in its order."""
        until = self.time + seconds
        while self._alarms and self._alarms[0][0] <= until:
            self.time, _, alarm = heapq.heappop(self._alarms)
            alarm.ring()
        self.time = until

    @property
    def pending(self) -> int:
        """How many timers were set and have not rung."""
        return len(self._alarms)

    def now(self) -> float:
        """The time that it was moved to."""
        return self.time

    def database_now(self) -> int:
        """The same for a database in memory."""
        return EPOCH + round(self.time * 1000)

    def after(self, seconds: float, function: Callable[..., object], *args: Any) -> Alarm:
        alarm = Alarm(function, args)
        heapq.heappush(self._alarms, (self.time + seconds, next(self._numbers), alarm))
        return alarm

    alarm = after

    async def sleep(self, seconds: float) -> None:
        over = asyncio.get_running_loop().create_future()
        await self.wait((over,), seconds)

    def timeout(self, seconds: float) -> asyncio.Timeout:
        limit = asyncio.timeout(None)
        self.after(seconds, _end_now, limit)
        return limit

    async def wait(self, tasks: Collection[F], seconds: float, return_when: str = asyncio.ALL_COMPLETED) -> set[F]:
        over = asyncio.get_running_loop().create_future()
        alarm = self.after(seconds, over.set_result, None)
        waiting = asyncio.ensure_future(asyncio.wait(tasks, return_when=return_when))
        try:
            await asyncio.wait((over, waiting), return_when=asyncio.FIRST_COMPLETED)
        finally:
            alarm.cancel()
            waiting.cancel()
        return {task for task in tasks if not task.done()}


def _end_now(limit: asyncio.Timeout) -> None:
    """What has not been left by then ends."""
    try:
        limit.reschedule(asyncio.get_running_loop().time())
    except RuntimeError:
        pass  # it was left, or never entered
