"""Work handed to a thread that owns a connection: from any event loop or thread, with the result handed back.

The results of one group are handed back together, by one call per event loop: waking a loop costs more than a job.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import sqlite3
import threading
from collections import deque
from collections.abc import Callable, Iterable
from typing import Any, Generic, TypeVar

from .troubles import closed

T = TypeVar("T")
Work = Callable[[sqlite3.Connection], T]


class Job(Generic[T]):
    """A piece of work, and who waits for it: a coroutine in ``loop``, or a thread when there is none."""

    __slots__ = ("error", "future", "loop", "result", "work")

    def __init__(self, work: Work[T], loop: asyncio.AbstractEventLoop | None) -> None:
        self.work = work
        self.loop = loop
        self.future: Any = concurrent.futures.Future() if loop is None else loop.create_future()
        self.result: T | None = None
        self.error: Exception | None = None

    def hand_back(self) -> None:
        """Tell whoever waits; nobody does if the caller was cancelled."""
        if self.future.done():
            return
        if self.error is None:
            self.future.set_result(self.result)
        else:
            self.future.set_exception(self.error)


class JobQueue:
    """What waits for the thread, in order; heartbeats go to the front."""

    def __init__(self) -> None:
        self._jobs: deque[Job[Any]] = deque()
        self._something = threading.Condition()
        self._closed = False

    def put(self, job: Job[Any], *, first: bool = False) -> None:
        """Leave a job; refused once the store is closed."""
        with self._something:
            if self._closed:
                raise closed()
            if first:
                self._jobs.appendleft(job)
            else:
                self._jobs.append(job)
            self._something.notify()

    def wait(self, timeout: float | None) -> bool:
        """Whether there is anything to do, after waiting for it."""
        with self._something:
            if not self._jobs and not self._closed:
                self._something.wait(timeout)
            return bool(self._jobs)

    def take(self, limit: int) -> list[Job[Any]]:
        """What waits now, up to a limit."""
        with self._something:
            return [self._jobs.popleft() for _ in range(min(limit, len(self._jobs)))]

    def close(self) -> None:
        """Take nothing more in; what waits is still done."""
        with self._something:
            self._closed = True
            self._something.notify()

    @property
    def finished(self) -> bool:
        """Whether the queue is closed and no job is left."""
        with self._something:
            return self._closed and not self._jobs


def hand_back(jobs: Iterable[Job[Any]]) -> None:
    """Deliver a group: threads directly, coroutines by one call into each of their loops."""
    by_loop: dict[asyncio.AbstractEventLoop, list[Job[Any]]] = {}
    for job in jobs:
        if job.loop is None:
            job.hand_back()
        else:
            by_loop.setdefault(job.loop, []).append(job)
    for loop, theirs in by_loop.items():
        try:
            loop.call_soon_threadsafe(_hand_back_all, theirs)
        except RuntimeError:
            pass  # the loop was closed: nobody waits there any more


def _hand_back_all(jobs: list[Job[Any]]) -> None:
    for job in jobs:
        job.hand_back()
