"""Threads for blocking code: as few as the work needs, as many as it requests, never in the way of an exit."""

from __future__ import annotations

import asyncio
import queue
import threading
from collections import deque
from collections.abc import Awaitable, Callable
from contextvars import Context
from time import monotonic
from typing import Any, Protocol

from ..engine.host import Clock, Promise, wake_all

_KEEP_IDLE = 10.0
"""Seconds an idle thread waits for more work."""
_WATCH = 0.002
"""Seconds after which it is checked whether the backlog has moved."""
_QUICK = 0.00025
"""Seconds that a call may take on average while few threads do them all. Blocking calls take longer."""
_STAY_WIDE = 1.0
"""Seconds for which each call wakes a thread of its own after one was last seen to block."""
_STALLED = 0.02
"""Seconds after which a backlog that does not move is taken to be blocked, however late the looks come."""
_FEW = 8
"""Threads that are added when the backlog does not move for the first time."""
_QUICK_AGAIN = 64
"""After so many quick calls in a row they share few threads again."""

Job = tuple[Callable[[], Any], Promise[Any]]
Done = tuple[Promise[Any], Any, BaseException | None]


class Threads:
    """Daemon threads that come and go with the work of one event loop."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._loop: asyncio.AbstractEventLoop | None = None
        self._backlog: deque[Job] = deque()
        self._done: deque[Done] = deque()
        self._handing_back = False
        self._bell: queue.SimpleQueue[bool] = queue.SimpleQueue()
        """A thread is woken by True, and sent away by False."""
        self._lock = threading.Lock()
        self._idle = 0
        self._awake = 0
        """Threads that work through the backlog, blocked or not."""
        self._count = 0
        self._closed = False
        self._taken = 0
        """Calls taken out of the backlog since the last check."""
        self._watching: asyncio.TimerHandle | None = None
        self._no_context = Context()
        """Watching belongs to no run: even a cancelled timer keeps its context, and with it the run that called."""
        self._counted_since = 0.0
        self._stalled = 0
        """How many looks in a row that came in time have found the backlog standing still."""
        self._moved_at = 0.0
        """When the backlog was last found moving."""
        self._wide_until = 0.0
        self._quick = 0
        """Quick calls in a row, since each has a thread of its own."""

    def submit(self, function: Callable[[], Any]) -> Promise[Any]:
        """Run a blocking call; the promise belongs to the running loop."""
        if self._loop is None:
            self._loop = asyncio.get_running_loop()
        promise: Promise[Any] = Promise(self._loop)
        with self._lock:
            self._backlog.append((function, promise))
            waking = self._awake == 0 or monotonic() < self._wide_until
            spawning = waking and self._wake()
        if spawning:
            self._spawn()
        elif not waking and self._watching is None:
            self._watch_backlog(self._loop)
        return promise

    def close(self) -> None:
        """Let idle threads go; busy ones go when they are done."""
        if self._watching is not None:
            self._watching.cancel()
        with self._lock:
            self._closed = True
            idle, self._idle = self._idle, 0
        for _ in range(idle):
            self._bell.put(False)

    # -- in the event loop ---------------------------------------------------------------------------------------

    def _wake(self) -> bool:
        """One thread more works through the backlog; whether it has to be made. Call it with the lock held."""
        self._awake += 1
        if self._idle:
            self._idle -= 1
            self._bell.put(True)
            return False
        return True

    def _spawn(self) -> None:
        self._count += 1
        threading.Thread(target=self._work, name=f"stepfast-{self._name}-{self._count}", daemon=True).start()

    def _watch_backlog(self, loop: asyncio.AbstractEventLoop) -> None:
        """A first look at a backlog."""
        self._stalled, self._moved_at = 0, monotonic()
        self._watch_on(loop)

    def _watch_on(self, loop: asyncio.AbstractEventLoop) -> None:
        self._taken, self._counted_since = 0, monotonic()
        self._watching = loop.call_later(_WATCH, self._see_to_backlog, loop, context=self._no_context)

    def _see_to_backlog(self, loop: asyncio.AbstractEventLoop) -> None:
        """If calls wait because others block, each gets a thread."""
        self._watching = None
        waiting = len(self._backlog)
        if not waiting:
            return
        now = monotonic()
        if self._stands_still(now):
            self._widen(now, waiting)
        self._watch_on(loop)

    def _stands_still(self, now: float) -> bool:
        """Whether the backlog has not moved for so long that a call must block."""
        passed = now - self._counted_since
        if passed * self._awake <= _QUICK * self._taken:
            self._stalled, self._moved_at = 0, now
        elif passed < 2 * _WATCH or now - self._moved_at > _STALLED:
            self._stalled += 1  # else the loop was kept from looking, and perhaps the thread from working
        return self._stalled > 1

    def _widen(self, now: float, waiting: int) -> None:
        """A few more threads; and if these do not help, one for each call that waits, and for each that comes."""
        few = self._stalled == 2
        if not few:
            self._quick, self._wide_until = 0, now + _STAY_WIDE
        with self._lock:
            made = sum(self._wake() for _ in range(min(_FEW, waiting) if few else waiting))
        for _ in range(made):
            self._spawn()

    def _hand_back(self) -> None:
        """Wake the tasks that wait for what is done by now; what they call then is handed back later."""
        assert self._loop is not None
        self._handing_back = False
        wake_all(self._loop, iter([_fulfilled(*self._done.popleft()) for _ in range(len(self._done))]))

    # -- in the threads ------------------------------------------------------------------------------------------

    def _work(self) -> None:
        while self._work_off() and self._is_woken():
            pass

    def _is_woken(self) -> bool:
        """Wait for the bell; whether to go on. A thread that is no longer counted as idle has been rung for, and has to
        hear it: a ring that is left over would wake a thread that is not counted as awake."""
        try:
            return self._bell.get(timeout=_KEEP_IDLE)
        except queue.Empty:
            with self._lock:
                if self._idle:
                    self._idle -= 1
                    return False
            return self._bell.get()

    def _work_off(self) -> bool:
        """Make the calls of the backlog; whether to wait for more."""
        while True:
            try:
                function, promise = self._backlog.popleft()
            except IndexError:
                with self._lock:
                    if self._backlog:
                        continue
                    self._awake -= 1
                    self._idle += not self._closed
                    return not self._closed
            self._taken += 1
            began = monotonic()
            try:
                done: Done = (promise, function(), None)
            except BaseException as caught:  # ends here: handed to the task that waits for the thread
                done = (promise, None, caught)
            if began < self._wide_until:
                self._notice(monotonic() - began)
            self._done.append(done)
            del function, promise, done
            if not self._handing_back:
                self._handing_back = True
                self._call_loop()

    def _notice(self, took: float) -> None:
        """How long a call took while each has a thread of its own: calls that block keep one, and many quick
        ones in a row do not. (Two threads may count at once, and be one off: that is no matter.)"""
        if took >= _QUICK:
            self._quick, self._wide_until = 0, monotonic() + _STAY_WIDE
            return
        self._quick += 1
        if self._quick >= _QUICK_AGAIN:
            self._wide_until = 0.0

    def _call_loop(self) -> None:
        assert self._loop is not None
        try:
            self._loop.call_soon_threadsafe(self._hand_back)
        except RuntimeError:
            pass  # the loop is closed: no task waits any more


def _fulfilled(promise: Promise[Any], result: Any, error: BaseException | None) -> Promise[Any]:
    if error is None:
        promise.keep(result)
    elif isinstance(error, StopIteration):  # cannot be raised in a coroutine
        promise.fail(RuntimeError("the function raised StopIteration"))
    else:
        promise.fail(error)
    return promise


class Pool(Protocol):
    """Threads for blocking calls."""

    def submit(self, function: Callable[[], Any]) -> Awaitable[Any]:
        """Run a blocking call; to be awaited in the running loop."""
        ...

    def close(self) -> None:
        """Let idle threads go; busy ones go when they are done."""


class Clockwork(Clock):
    """Time, timers, threads and chance as they are in life."""

    def pool(self, name: str) -> Pool:
        """Threads for blocking calls, as many as are needed."""
        return Threads(name)

    def thread(self, name: str, function: Callable[[], None]) -> threading.Thread:
        """A thread of its own for a duty that must not wait for the event loop. It is not started yet."""
        return threading.Thread(target=function, name=name, daemon=True)

    def bell(self) -> threading.Event:
        """What such a thread waits at, for so many seconds at most."""
        return threading.Event()

    async def joined(self, thread: threading.Thread, seconds: float) -> None:
        """Wait for a thread to end, for so many seconds at most."""
        await asyncio.get_running_loop().run_in_executor(None, thread.join, seconds)


REAL = Clockwork()
"""That of every application, unless a test gives it another."""
