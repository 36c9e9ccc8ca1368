"""Work that belongs to the thread of a caller: statements on a connection that knows no event loop.

Whoever calls ``app.sync`` waits in a thread of their own while the call goes on in another. What must be done on a
connection that they bring along is done in their thread meanwhile: some connections can be used nowhere else, and no
other thread touches them while their owner believes to have them alone. Whoever awaits a call in an event loop must not
block that: for them a thread is borrowed, and the call does not end before that thread has.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import contextlib
import queue
from collections.abc import Callable, Iterator
from contextvars import ContextVar
from typing import Any, TypeVar

from .cancellation import seen
from .errors import ConfigurationError

T = TypeVar("T")

_callers: ContextVar[CallersThread | None] = ContextVar("stepfast_callers_thread", default=None)


class CallersThread:
    """The thread of one call of ``app.sync``, and what is to be done in it."""

    def __init__(self) -> None:
        self._jobs: queue.SimpleQueue[Callable[[], None] | None] = queue.SimpleQueue()

    @contextlib.contextmanager
    def known(self) -> Iterator[None]:
        """What is begun inside the block finds this thread by itself."""
        token = _callers.set(self)
        try:
            yield
        finally:
            _callers.reset(token)

    def work_until(self, ended: concurrent.futures.Future[T]) -> T:
        """Do in this thread what is handed over, until the call has ended; its result."""
        ended.add_done_callback(lambda _: self._jobs.put(None))
        while (job := self._jobs.get()) is not None:
            job()
        return ended.result()

    async def do(self, work: Callable[[], T]) -> T:
        """Hand work over, and wait for what comes of it. An interruption (Ctrl+C) stays with the thread that it met."""
        loop = asyncio.get_running_loop()
        promise: asyncio.Future[T] = loop.create_future()

        def job() -> None:
            if promise.done():
                return  # the call was cancelled before its turn came
            try:
                result = work()
            except Exception as error:
                loop.call_soon_threadsafe(_resolve, promise, None, error)
            else:
                loop.call_soon_threadsafe(_resolve, promise, result, None)

        self._jobs.put(job)
        return await promise


def _resolve(promise: asyncio.Future[Any], result: Any, error: Exception | None) -> None:
    if promise.done():
        return
    if error is None:
        promise.set_result(result)
    else:
        promise.set_exception(error)


def callers_thread() -> CallersThread | None:
    """The thread of whoever waits for the running call; None: they await it in an event loop."""
    return _callers.get()


def refuse_without_loop() -> None:
    """A connection that belongs to an event loop can be used there only, and app.sync has another one."""
    if callers_thread() is not None:
        raise ConfigurationError(
            "connection= belongs to an event loop, and app.sync cannot use it: write `await app.start(…)` in that "
            "loop, or pass a connection that needs none"
        )


async def beside_the_loop(work: Callable[[], T], give_up: Callable[[], None]) -> T:
    """Do work that blocks in the caller's own thread, or else in one that is borrowed. ``give_up`` is called when the
    caller is cancelled, to make the work end soon: until it has, the connection is in use."""
    own = callers_thread()
    if own is not None:
        return await own.do(work)
    task = asyncio.ensure_future(asyncio.to_thread(work))
    try:
        return await asyncio.shield(task)
    except asyncio.CancelledError:
        task.add_done_callback(seen)
        await asyncio.shield(asyncio.to_thread(give_up))
        await asyncio.wait([task])
        raise
