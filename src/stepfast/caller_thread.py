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
from .errors import ConfigurationError, ContextMisuse

T = TypeVar("T")

_callers: ContextVar[CallersThread | None] = ContextVar("stepfast_callers_thread", default=None)
_transaction: ContextVar[list[str] | None] = ContextVar("stepfast_transaction", default=None)
"""Set in the function of a transaction, and in all that it begins; emptied when it has returned."""


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


@contextlib.contextmanager
def in_transaction(step: str) -> Iterator[None]:
    """Mark what is called in the block as the function of a transaction."""
    inside = [step]
    token = _transaction.set(inside)
    try:
        yield
    finally:
        inside.clear()
        _transaction.reset(token)


def refuse_in_transaction() -> None:
    """Refuse a write that would wait for the transaction in whose function it is made, which waits for it."""
    if inside := _transaction.get():
        raise ContextMisuse(
            f"the function of ctx.transaction {inside[0]!r} made a call that writes to the database beside its "
            "transaction. SQLite has one writer, which executes this function: the call would wait for it without "
            "end. Pass connection= (start, signal), or make the call after the transaction"
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
