"""Promises: what tasks wait for that are woken many at a time.

A future of asyncio wakes its task by a turn of the event loop of its own. One commit has hundreds of them waiting, and
so has a thread that works off a backlog of calls: then the turns cost as much as what is waited for. Promises are kept
first, and then one turn wakes all who wait for them, in the order of the promises.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Generator, Iterator
from contextvars import Context, copy_context
from typing import Any, Generic, TypeVar

T = TypeVar("T")


class Promise(Generic[T]):
    """Something that will come, or fail. Behaves to a task as a future does, as far as it asks."""

    __slots__ = ("_asyncio_future_blocking", "_context", "_done", "_error", "_loop", "_others", "_value", "_waiter")

    _value: T

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._asyncio_future_blocking = False
        """By this a task knows that it may wait for us, and that somebody does."""
        self._done = False
        self._error: BaseException | None = None
        self._waiter: Callable[[Any], object] | None = None
        """What the first who waits is woken by."""
        self._context: Context | None = None
        """The context in which it is. A run and the context of its task know each other: once woken, this is let go, or
        only the garbage collector could free them."""
        self._others: list[tuple[Callable[[Any], object], Context]] | None = None

    # -- for those who wait ------------------------------------------------------------------------------------

    def __await__(self) -> Generator[Any, None, T]:
        if not self._done:
            self._asyncio_future_blocking = True
            yield self  # if it fails, its task raises the error here
        return self.result()

    def done(self) -> bool:
        """Whether the result has come, or an error."""
        return self._done

    def cancelled(self) -> bool:
        """Whether the promise was given up."""
        return isinstance(self._error, asyncio.CancelledError)

    def result(self) -> T:
        """What has come; raises what it failed by."""
        if self._error is not None:
            raise self._error
        if not self._done:
            raise asyncio.InvalidStateError("nothing has come yet")
        return self._value

    def exception(self) -> BaseException | None:
        """What it failed by, if it did."""
        return self._error

    def cancel(self, msg: object = None) -> bool:
        """Give it up: whoever waits for it is cancelled."""
        if self._done:
            return False
        self.fail(asyncio.CancelledError() if msg is None else asyncio.CancelledError(msg))
        return True

    def get_loop(self) -> asyncio.AbstractEventLoop:
        """The event loop of those who wait."""
        return self._loop

    def add_done_callback(self, function: Callable[[Any], object], *, context: Context | None = None) -> None:
        """Call a function in the event loop when it has come."""
        context = copy_context() if context is None else context
        if self._done:
            self._loop.call_soon(function, self, context=context)
        elif self._waiter is None:
            self._waiter, self._context = function, context
        else:
            self._others = [*(self._others or ()), (function, context)]

    def remove_done_callback(self, function: Callable[[Any], object]) -> int:
        """Take a function back; how often it was there."""
        others = self._others or []
        self._others = [other for other in others if other[0] != function]
        removed = len(others) - len(self._others)
        if self._waiter == function:
            self._waiter = self._context = None
            removed += 1
        return removed

    # -- for those who keep it ---------------------------------------------------------------------------------

    def keep(self, value: T) -> None:
        """Note what has come; whoever does so also wakes those who wait. A promise that was given up stays so."""
        if not self._done:
            self._done, self._value = True, value

    def fail(self, error: BaseException) -> None:
        """Note why nothing will come. Those who wait are woken by a turn of their own: few promises fail."""
        if not self._done:
            self._done, self._error = True, error
            if self._waiter is not None or self._others:
                self._loop.call_soon(self.wake)

    def wake(self) -> None:
        """Wake who waits. Only a turn of the event loop may call this, never a task: tasks go on within it."""
        waiter, context, others = self._waiter, self._context, self._others
        self._waiter = self._context = self._others = None
        for function, theirs in others or ():
            self._loop.call_soon(function, self, context=theirs)
        if waiter is not None and context is not None:
            context.run(waiter, self)


def wake_all(loop: asyncio.AbstractEventLoop, kept: Iterator[Promise[Any]]) -> None:
    """Wake all who wait for these, in one turn of the event loop."""
    try:
        for promise in kept:
            promise.wake()
    except BaseException:  # what asyncio lets out of the event loop, which may go on: the others are not forgotten
        loop.call_soon(wake_all, loop, kept)
        raise
