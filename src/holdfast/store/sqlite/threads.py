"""A thread with a connection of its own, serving a queue of jobs. SQLite's calls block, so they never run in an event loop."""

from __future__ import annotations

import asyncio
import sqlite3
import threading
from collections.abc import Callable
from typing import Any

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

    async def open(self) -> None:
        """Connect; raises what stands in the way."""
        self._thread.start()
        await self.do(lambda database: None)

    async def close(self) -> None:
        """Finish what waits, then disconnect."""
        self._queue.close()
        if self._thread.ident is not None:
            await asyncio.to_thread(self._thread.join)

    async def do(self, work: Work[T]) -> T:
        """Have it done, and wait without blocking the event loop."""
        job = Job(work, asyncio.get_running_loop())
        self._queue.put(job)
        result: T = await job.future
        return result

    def do_first(self, work: Work[T]) -> T:
        """Have it done before everything that waits; for threads, which block."""
        job = Job(work, None)
        self._queue.put(job, first=True)
        result: T = job.future.result()
        return result

    # -- in the thread -----------------------------------------------------------------------------------------

    def _main(self) -> None:
        try:
            self._database = self._connect()
        except Exception as error:
            self._queue.close()
            self._fail(self._queue.take(GROUP), error)
            return
        try:
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
