"""Time, timers and chance: the engine and the worker take all of it from one object.

Where that object is replaced, a clock can stand until it is moved, and chance can come from a seed. What decides about
runs is never in here: that is the time of the database. ``tools/clockwork.py`` finds whoever takes time or chance from
elsewhere.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Collection, Coroutine
from concurrent.futures import Future
from contextvars import Context
from random import Random
from typing import Any, Protocol, TypeVar

from ..model.ids import new_id
from .tasks import RunTask

T = TypeVar("T")
F = TypeVar("F", bound="asyncio.Future[Any]")

CHANCE = 0.01
"""Seconds that code is given to go on before it counts as being at rest."""
TURNS = 5
"""Turns of the event loop that it is given at least: what a task needs at most to go on after another has ended."""


class Timer(Protocol):
    """Something that rings once, unless it is cancelled."""

    def cancel(self) -> object:
        """Keep the timer from ringing."""


class Clock:
    """Time and chance as they are in life."""

    now = staticmethod(time.monotonic)
    """Seconds by a clock that only goes on."""
    new_id = staticmethod(new_id)
    """An id that nobody else has."""

    database_now: Callable[[], int] | None = None
    """What a database in memory takes for its time, in milliseconds since 1970; None: that of the machine."""

    def __init__(self) -> None:
        self.random = Random()

    def after(self, seconds: float, function: Callable[..., object], *args: Any) -> Timer:
        """Call a function of the event loop's thread after so many seconds."""
        return asyncio.get_running_loop().call_later(seconds, function, *args)

    def alarm(self, seconds: float, function: Callable[..., object], *args: Any) -> Timer:
        """Call a function after so many seconds, and keep nothing of the run alive until then. The event loop holds on
        to a cancelled timer, and to the context it was set in, until its time has come or many others are cancelled
        too."""
        return asyncio.get_running_loop().call_later(seconds, function, *args, context=Context())

    def task(self, work: Coroutine[Any, Any, Any]) -> asyncio.Task[Any]:
        """A task for the code of a run. It begins at a later turn of the event loop, whatever task factory that has."""
        return RunTask(work, loop=asyncio.get_running_loop())

    def task_from_thread(self, loop: asyncio.AbstractEventLoop, work: Callable[[], Coroutine[Any, Any, T]]) -> T:
        """Do work in such a task, for a thread that waits until it is done: its result, or the error that it raised."""
        waiting: Future[T] = Future()

        async def perform() -> None:
            try:
                waiting.set_result(await work())
            except BaseException as error:  # ends here: raised in the thread that waits
                waiting.set_exception(error)

        loop.call_soon_threadsafe(lambda: self.task(perform()))
        return waiting.result()

    async def sleep(self, seconds: float) -> None:
        """Go on after so many seconds."""
        await asyncio.sleep(seconds)

    def timeout(self, seconds: float) -> asyncio.Timeout:
        """What is done ``async with`` this ends by a TimeoutError after so many seconds."""
        return asyncio.timeout(seconds)

    async def wait(self, tasks: Collection[F], seconds: float, return_when: str = asyncio.ALL_COMPLETED) -> set[F]:
        """Wait for tasks, but no longer than so many seconds; those that are not done."""
        await asyncio.wait(tasks, timeout=seconds, return_when=return_when)
        return {task for task in tasks if not task.done()}
