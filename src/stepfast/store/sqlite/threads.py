"""Threads with a connection of their own that serve jobs: SQLite's calls block, so no event loop makes them."""

from __future__ import annotations

import asyncio
import concurrent.futures
import sqlite3
import threading
from collections.abc import Callable
from typing import Any

from ...errors import DatabaseUnavailable
from .connections import patiently
from .jobs import Job, JobQueue, T, Work, hand_back
from .troubles import Troubles

GROUP = 1000
"""Jobs served together at most."""


class ConnectionThread:
    """Serves jobs until closed. What "serving" means is told by the writer and the reader."""

    def __init__(
        self, name: str, connect: Callable[[], sqlite3.Connection], troubles: Troubles, patience: float
    ) -> None:
        self._connect = connect
        self._troubles = troubles
        self._patience = patience
        self._queue = JobQueue()
        self._thread = threading.Thread(target=self._main, name=name, daemon=True)
        self._database: sqlite3.Connection
        self.connected: concurrent.futures.Future[None] = concurrent.futures.Future()
        """Done once the thread has its connection, or knows what stands in the way."""
        self.ended: concurrent.futures.Future[None] = concurrent.futures.Future()
        """Done once the thread has given it up."""
        for promise in (self.connected, self.ended):
            promise.set_running_or_notify_cancel()  # nobody who waits for it can cancel it for the others

    def start(self) -> None:
        """Connect, in the thread. No transaction is begun: whoever opens us may hold the lock."""
        self._thread.start()

    def finish(self) -> None:
        """Take nothing more in; what waits is done, and then the thread disconnects by itself."""
        self._queue.close()

    async def do(self, work: Work[T]) -> T:
        """Have it done, and wait without blocking the event loop."""
        job = Job(work, asyncio.get_running_loop())
        self._queue.put(job)
        result: T = await job.future
        return result

    def do_first(self, work: Work[T], patience: float) -> T:
        """Have it done before everything that waits; for threads, which block, and not for ever."""
        job = Job(work, None)
        self._queue.put(job, first=True)
        try:
            result: T = job.future.result(patience)
        except TimeoutError:
            raise DatabaseUnavailable(f"the database did not answer within {patience:g} s") from None
        return result

    # -- in the thread --------------------------------------------------------------------------------------

    def _main(self) -> None:
        try:
            self._live()
        finally:
            self.ended.set_result(None)

    def _live(self) -> None:
        try:
            self._database = self._connect()
        except Exception as error:
            self._queue.close()
            self._fail(self._queue.take(GROUP), error)
            self.connected.set_exception(self._troubles.explain(error))
            return
        try:
            self.connected.set_result(None)
            while not self._queue.finished:
                served = self._queue.wait(self._idle())
                if served:
                    self._serve()
                self._after(served)
        finally:
            self._database.close()

    def _idle(self) -> float | None:
        """How long to wait for a job before looking around; None: until one comes."""
        return None

    def _serve(self) -> None:
        raise NotImplementedError

    def _after(self, served: bool) -> None:
        """What is to be done after a group, or after waiting in vain for one."""

    def _fail(self, jobs: list[Job[Any]], error: Exception) -> None:
        for job in jobs:
            job.error = self._troubles.explain(error)
        hand_back(jobs)


class Reader(ConnectionThread):
    """Answers questions, each on its own and none in a transaction: no snapshot outlives a statement."""

    def _serve(self) -> None:
        jobs = self._queue.take(GROUP)
        for job in jobs:
            try:
                job.result = patiently(lambda work=job.work: work(self._database), self._patience)  # type: ignore[misc]
            except Exception as error:
                job.error = self._troubles.explain(error)
        hand_back(jobs)
