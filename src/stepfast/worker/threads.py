"""Threads for blocking code: as many as are asked for at once, kept for reuse, never in the way of an exit.

A pool of fixed size would not do: a timed-out handler may keep its thread for as long as it likes, and the slot it
no longer holds must find a thread all the same. The number is bounded by the callers, who hold slots.
"""

from __future__ import annotations

import asyncio
import queue
import threading
from collections.abc import Callable
from typing import Any

_KEEP_IDLE = 10.0
"""Seconds an idle thread waits for more work."""

Job = tuple[Callable[[], Any], asyncio.AbstractEventLoop, "asyncio.Future[Any]"]


class Threads:
    """Daemon threads that come and go with the work."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._jobs: queue.SimpleQueue[Job | None] = queue.SimpleQueue()
        self._lock = threading.Lock()
        self._idle = 0
        self._count = 0

    def submit(self, function: Callable[[], Any]) -> asyncio.Future[Any]:
        """Run a blocking call; the future belongs to the running loop."""
        loop = asyncio.get_running_loop()
        future: asyncio.Future[Any] = loop.create_future()
        with self._lock:
            spawn = self._idle == 0
            if not spawn:
                self._idle -= 1
            else:
                self._count += 1
        self._jobs.put((function, loop, future))
        if spawn:
            threading.Thread(target=self._work, name=f"stepfast-{self._name}-{self._count}", daemon=True).start()
        return future

    def close(self) -> None:
        """Let idle threads go; busy ones go when they are done."""
        with self._lock:
            idle, self._idle = self._idle, 0
        for _ in range(idle):
            self._jobs.put(None)

    def _work(self) -> None:
        while True:
            try:
                job = self._jobs.get(timeout=_KEEP_IDLE)
            except queue.Empty:
                with self._lock:
                    if self._idle == 0:
                        continue  # a job is on its way to us
                    self._idle -= 1
                return
            if job is None:
                return
            self._run(*job)
            with self._lock:
                self._idle += 1

    def _run(self, function: Callable[[], Any], loop: asyncio.AbstractEventLoop, future: asyncio.Future[Any]) -> None:
        try:
            result, error = function(), None
        except BaseException as caught:
            result, error = None, caught
        try:
            loop.call_soon_threadsafe(_deliver, future, result, error)
        except RuntimeError:
            pass  # the loop is closed: nobody waits any more


def _deliver(future: asyncio.Future[Any], result: Any, error: BaseException | None) -> None:
    if future.done():
        return
    if error is None:
        future.set_result(result)
    elif isinstance(error, StopIteration):  # cannot be set on a future
        future.set_exception(RuntimeError("the function raised StopIteration"))
    else:
        future.set_exception(error)
