"""Threads of the world: real ones, of which exactly one runs at any time, the event loop's or one that it has woken.

A thread gives the turn back where it would wait: at a bell, for a future, for time to pass. So its order is that of
the event loop, and the seed decides it.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import contextlib
import threading
from collections.abc import Callable, Iterator
from contextvars import copy_context
from typing import Any

from tests.simulation.loop import SimLoop, current_process

_here = threading.local()


class Gone(BaseException):
    """The process of this thread is no more; whatever it still does counts for nothing."""


class SimThread:
    """A thread whose turn it is only when the loop says so."""

    def __init__(self, loop: SimLoop, name: str, function: Callable[[], None]) -> None:
        self._loop = loop
        self._name = name
        self._function = function
        self._context = copy_context()
        self._process = current_process.get()
        self._turn = threading.Lock()
        self._turn.acquire()
        self._back = threading.Lock()
        self._back.acquire()
        self._alive = False
        self._gone = False
        self._thread: threading.Thread | None = None
        self.ended: list[Callable[[], object]] = []
        """Called in the event loop when the thread has ended."""

    def start(self) -> None:
        """Let it begin when it is its turn."""
        self._alive = True
        self._loop.threads.append(self)
        self._loop.call_soon(self._go, context=self._process.blank)

    def is_alive(self) -> bool:
        """Whether it has begun and not ended."""
        return self._alive

    # -- in the event loop -------------------------------------------------------------------------------------------

    def wake(self) -> None:
        """Let it go on when it is its turn."""
        self._loop.call_soon(self._go, context=self._process.blank)

    def _go(self) -> None:
        """Give it the turn, and wait until it gives it back."""
        if not self._alive:
            return
        if self._thread is None:
            self._thread = threading.Thread(target=self._main, name=self._name, daemon=True)
            self._thread.start()
        else:
            self._turn.release()
        self._back.acquire()
        self._tell_of_the_end()

    def _tell_of_the_end(self) -> None:
        if not self._alive:
            if self._thread is not None:
                self._thread.join()  # it has given its last turn back, but may still be counted
            for tell in self.ended:
                tell()

    def bury(self) -> None:
        """Let it unwind, because its world is over."""
        self._gone = True
        while self._alive and self._thread is not None:
            self._go()
        self._alive = False

    # -- in the thread -----------------------------------------------------------------------------------------------

    def _main(self) -> None:
        _here.thread = self
        try:
            self._context.run(self._function)
        except Gone:
            pass
        finally:
            self._alive = False
            self._back.release()

    def park(self) -> None:
        """Give the turn back until somebody wakes this thread."""
        if self._gone:
            raise Gone
        self._back.release()
        self._turn.acquire()
        if self._gone:
            raise Gone

    def wait_for(self, arm: Callable[[Callable[[], None]], object], seconds: float | None) -> None:
        """Give the turn back until what was armed calls, or so many seconds have passed."""
        rung = False

        def ring() -> None:
            nonlocal rung
            if not rung:
                rung = True
                self.wake()

        timer = None if seconds is None else self._loop.call_later(seconds, ring, context=self._process.blank)
        arm(ring)
        self.park()
        if timer is not None:
            timer.cancel()


def sleep(seconds: float) -> None:
    """Let time pass, in a thread of the world."""
    thread: SimThread = _here.thread
    thread.wait_for(lambda _: None, max(0.0, seconds))


class SimBell(threading.Event):
    """What a thread of the world waits at."""

    def __init__(self) -> None:
        super().__init__()
        self._rings: list[Callable[[], None]] = []

    def set(self) -> None:
        """Let go on whoever waits."""
        super().set()
        rings, self._rings = self._rings, []
        for ring in rings:
            ring()

    def wait(self, timeout: float | None = None) -> bool:
        """Until it is rung, for so many seconds at most."""
        if not self.is_set():
            thread: SimThread = _here.thread
            thread.wait_for(self._rings.append, timeout)
        return self.is_set()


class SimPool:
    """Threads for blocking calls: one for each."""

    def __init__(self, loop: SimLoop, name: str) -> None:
        self._loop = loop
        self._name = name

    def submit(self, function: Callable[[], Any]) -> asyncio.Future[Any]:
        """Call it in a thread."""
        future = self._loop.create_future()
        outcome: list[tuple[Any, BaseException | None]] = []

        def call() -> None:
            try:
                outcome.append((function(), None))
            except Gone:
                raise
            except BaseException as error:
                outcome.append((None, error))

        def hand_back() -> None:
            if outcome and not future.done():
                result, error = outcome[0]
                if error is None:
                    future.set_result(result)
                else:
                    future.set_exception(error)

        thread = SimThread(self._loop, self._name, call)
        thread.ended.append(hand_back)
        thread.start()
        return future

    def close(self) -> None:
        """There is nothing to be let go."""


def bury_all(loop: SimLoop) -> None:
    """Let every thread of a world unwind."""
    for thread in loop.threads:
        thread.bury()


@contextlib.contextmanager
def futures_give_the_turn_back() -> Iterator[None]:
    """A thread of the world that waits for a future waits as it does at a bell."""
    result = concurrent.futures.Future.result

    def waited(self: concurrent.futures.Future[Any], timeout: float | None = None) -> Any:
        thread: SimThread | None = getattr(_here, "thread", None)
        if thread is None or self.done():
            return result(self, timeout)
        thread.wait_for(lambda ring: self.add_done_callback(lambda _: ring()), timeout)
        return result(self, 0)

    concurrent.futures.Future.result = waited  # type: ignore[method-assign]
    try:
        yield
    finally:
        concurrent.futures.Future.result = result  # type: ignore[method-assign]
