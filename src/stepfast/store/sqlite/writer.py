"""The one writer of a process: a thread with a connection of its own executes jobs, and all that wait go out in one
transaction.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import sqlite3
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable
from typing import Any, Generic, TypeVar

from ...caller_thread import refuse_in_transaction
from ...errors import DatabaseUnavailable
from .connections import patiently
from .ctx_transaction import Undone
from .errors import Troubles, closed

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
        """Notify the caller, unless it was cancelled."""
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
            pass  # the loop was closed: no caller waits there any more


def _hand_back_all(jobs: list[Job[Any]]) -> None:
    for job in jobs:
        job.hand_back()


GROUP = 1000
"""Jobs served together at most."""


class ConnectionThread:
    """Serves jobs until closed. What "serving" means is defined by the writer and the reader."""

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
        """Done once the thread has its connection, or knows why it has none."""
        self.ended: concurrent.futures.Future[None] = concurrent.futures.Future()
        """Done once the thread has given it up."""
        for promise in (self.connected, self.ended):
            promise.set_running_or_notify_cancel()  # one caller that waits for it cannot cancel it for the others

    def start(self) -> None:
        """Connect, in the thread. No transaction is begun: the thread that opens us may hold the lock."""
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


_LOOK_AROUND = 0.04
"""Seconds between two looks whether another process has committed, while there is nothing else to do. One costs about
170 microseconds of processor time with waking up for it: less than half a percent of a core."""
_LATELY = 1.0
"""Another process that committed within this many seconds is taken to want the lock again."""
_YIELD = 0.001
"""How long the lock is left alone after a commit then. SQLite wakes no waiters: they have to find it free."""
_BEGIN = "BEGIN IMMEDIATE -- a group"
"""In words that no other statement has: what is prepared already is not shown to the authorizer again, so that a
function in ``ctx.transaction`` would get past it. COMMIT and ROLLBACK are Python's own methods, which prepare them
each time."""
_TELL = 0.02
"""Seconds between two reports of foreign commits at least: they say "look", and looking costs a query."""


class Writer(ConnectionThread):
    """Group commit over one connection."""

    def __init__(
        self,
        name: str,
        connect: Callable[[], sqlite3.Connection],
        troubles: Troubles,
        patience: float,
        *,
        watched: Callable[[], bool],
        others_wrote: Callable[[], None],
    ) -> None:
        super().__init__(name, connect, troubles, patience)
        self._watched = watched
        self._others_wrote = others_wrote
        self._data_version: int | None = None
        self._others_at = -_LATELY
        self._told_at = 0.0
        self._news = False

    async def do(self, work: Work[T]) -> T:
        """Have it done with the next group; refused to the function of a transaction, which is part of one."""
        refuse_in_transaction()
        return await super().do(work)

    # -- one group ------------------------------------------------------------------------------------------

    def _serve(self) -> None:
        """The lock first, then the jobs: what comes in while another process holds it joins the group."""
        if self._data_version is None:
            self._look_for_others()  # what is committed from now on is news, also before this group is handed back
        try:
            self._begin()
        except Exception as error:
            self._fail(self._queue.take(GROUP), error)
            return
        jobs = self._queue.take(GROUP)
        try:
            self._run_all(jobs)
            self._database.commit()
        except Exception as error:
            self._roll_back()
            self._fail(jobs, error)
            return
        hand_back(jobs)

    def _begin(self) -> None:
        patiently(lambda: self._database.execute(_BEGIN), self._patience)

    def _run_all(self, jobs: list[Job[Any]]) -> None:
        """Again from the beginning, without the culprit, each time that one has made SQLite roll all of them back."""
        left = jobs
        while (culprit := self._run_until_spoiled(left)) is not None:
            left = [job for job in left if job is not culprit]
            self._begin()

    def _run_until_spoiled(self, jobs: list[Job[Any]]) -> Job[Any] | None:
        alone = len(jobs) == 1
        for job in jobs:
            try:
                self._run(job, alone)
            except Undone as error:
                job.error = error
                return job
        return None

    def _run(self, job: Job[Any], alone: bool) -> None:
        """A job that has the transaction to itself needs no savepoint: each statement less is one wait for Python's
        lock less."""
        if not alone:
            self._database.execute("SAVEPOINT stepfast_job")
        job.error = None  # of an earlier round
        try:
            job.result = job.work(self._database)
        except Exception as error:
            if not self._database.in_transaction:
                raise  # a full disk and its like, or a user's function: SQLite has rolled back the whole group
            if alone:
                self._database.rollback()
            else:
                self._database.execute("ROLLBACK TO stepfast_job")
            job.error = self._troubles.explain(error)
        if not alone:
            self._database.execute("RELEASE stepfast_job")

    def _roll_back(self) -> None:
        try:
            if self._database.in_transaction:
                self._database.rollback()
        except sqlite3.Error:
            pass  # the next BEGIN will say what is wrong, if anything still is

    # -- other processes ------------------------------------------------------------------------------------

    def _idle(self) -> float | None:
        return _LOOK_AROUND if self._watched() else None

    def _after(self, served: bool) -> None:
        self._look_for_others()
        now = time.monotonic()
        if self._news and self._watched() and now - self._told_at >= _TELL:
            self._news, self._told_at = False, now
            self._others_wrote()
        if served and now - self._others_at < _LATELY:
            time.sleep(_YIELD)

    def _look_for_others(self) -> None:
        """The number moves when any connection but this one has committed."""
        try:
            (version,) = self._database.execute("PRAGMA data_version").fetchone()
        except sqlite3.Error:
            return  # locked for a moment: the next look will tell
        if version != self._data_version:
            if self._data_version is not None:
                self._others_at = time.monotonic()
                self._news = True
            self._data_version = version
