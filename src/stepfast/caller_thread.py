"""Statements on a caller's connection that has no event loop, executed in the caller's thread.

A caller of ``app.sync`` waits in its own thread while the call runs in another. Statements on a connection that it
passes are executed in its thread: some connections cannot be used in another one, and no other thread may use them at
the same time. A caller in an event loop must not block that loop: its statements run in a thread of a pool, and the
call does not end before they do.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import contextlib
import queue
from collections.abc import Callable, Iterator
from contextvars import ContextVar
from typing import TypeVar

from .cancellation import seen
from .errors import ConfigurationError

T = TypeVar("T")

_callers: ContextVar[CallersThread | None] = ContextVar("stepfast_callers_thread", default=None)


class CallersThread:
    """The thread of one call of ``app.sync``, and the work for it."""

    def __init__(self) -> None:
        self._jobs: queue.SimpleQueue[Callable[[], None] | None] = queue.SimpleQueue()

    @contextlib.contextmanager
    def known(self) -> Iterator[None]:
        """Make this the thread of every call that begins inside the block."""
        token = _callers.set(self)
        try:
            yield
        finally:
            _callers.reset(token)

    def work_until(self, ended: concurrent.futures.Future[T]) -> T:
        """Do the work that is handed over until the call has ended, and return its result."""
        ended.add_done_callback(lambda _: self._jobs.put(None))
        while (job := self._jobs.get()) is not None:
            job()
        return ended.result()

    async def do(self, work: Callable[[], T]) -> T:
        """Hand work over and wait for its result. An interruption (Ctrl+C) stays in the thread in which it happens."""
        future: concurrent.futures.Future[T] = concurrent.futures.Future()

        def job() -> None:
            if not future.set_running_or_notify_cancel():
                return  # the call was cancelled before its turn came
            try:
                future.set_result(work())
            except Exception as error:
                future.set_exception(error)

        self._jobs.put(job)
        return await asyncio.wrap_future(future)


def callers_thread() -> CallersThread | None:
    """Return the thread of the caller; None if the call is awaited in an event loop."""
    return _callers.get()


def refuse_without_loop() -> None:
    """Refuse, in a call of ``app.sync``, a connection that belongs to an event loop: it can only be used there."""
    if callers_thread() is not None:
        raise ConfigurationError(
            "connection= belongs to an event loop, and app.sync cannot use it: write `await app.start(…)` in that "
            "loop, or pass a connection that needs none"
        )


async def beside_the_loop(work: Callable[[], T], give_up: Callable[[], None]) -> T:
    """Do blocking work in the caller's own thread, else in one of a pool. ``give_up`` is called when the caller is
    cancelled, to make the work end soon: until then, the connection is in use."""
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
