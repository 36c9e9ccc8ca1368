"""The one writer of a process: everything that waits goes out in one transaction.

A commit costs a disk flush whatever it holds, so the thread takes all jobs that gathered while the last commit was
under way and commits them together. There is no timer: a lonely job is committed at once. Each job has a savepoint
of its own, so that one which fails takes no other along, and no caller hears of success before the commit. A user's
function can make SQLite roll back all of them; then the others are done again without it.
"""

from __future__ import annotations

import sqlite3
import time
from collections.abc import Callable
from typing import Any

from .connections import patiently
from .ctx_transaction import Undone
from .jobs import Job, hand_back
from .threads import GROUP, ConnectionThread
from .troubles import Troubles

_LOOK_AROUND = 0.04
"""Seconds between two looks whether another process has committed, while there is nothing else to do. One costs about
170 microseconds of processor time with waking up for it: less than half a percent of a core."""
_LATELY = 1.0
"""Another process that committed within this many seconds is taken to want the lock again."""
_YIELD = 0.001
"""How long the lock is left alone after a commit then. SQLite wakes nobody: who waits for it must find it free."""
_BEGIN = "BEGIN IMMEDIATE -- a group"
"""In words that nobody else uses: what is prepared already is not shown to the authorizer again, so that a function
in ``ctx.transaction`` would get past it. COMMIT and ROLLBACK are Python's own methods, which prepare them each time."""
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
        for job in jobs:
            try:
                self._run(job)
            except Undone as error:
                job.error = error
                return job
        return None

    def _run(self, job: Job[Any]) -> None:
        self._database.execute("SAVEPOINT stepfast_job")
        job.error = None  # of an earlier round
        try:
            job.result = job.work(self._database)
        except Exception as error:
            if not self._database.in_transaction:
                raise  # a full disk and its like, or a user's function: SQLite has rolled back the whole group
            self._database.execute("ROLLBACK TO stepfast_job")
            job.error = self._troubles.explain(error)
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
