"""Bulk jobs: one action on many runs, in the background of the console.

A job lives in this process. If the process ends, the runs that were done stay done, and a new job does the rest. While
it runs, its audit entry is updated every few seconds.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from ..app import Stepfast
from ..bulk import Bulk, BulkResult
from ..errors import StepfastError
from ..filters import ListKeywords
from ..model.bulk_actions import BulkAction
from ..model.ids import new_id
from ..monitoring.text import count
from ..store.answers import DONE, FAILED, INTERRUPTED
from .refusals import Refused

_AT_ONCE = 3
_KEPT = 50
"""Ended jobs whose pages are kept."""
_REPORT_INTERVAL = 10.0
"""Seconds between updates of the audit entry of a job."""


Apply = Callable[[Bulk], Awaitable[None]]
"""Applies the action to the selected runs."""


def all_of(choices: Sequence[ListKeywords]) -> Apply:
    """Select all runs that one of these filters selects while the job runs."""
    return lambda bulk: bulk.run(choices)


@dataclass(eq=False)
class Job:
    """A bulk job, under way or ended."""

    action: BulkAction
    found: str
    """How many runs were counted before it began."""
    chosen: str
    """The filters, as in an address."""
    id: str = field(default_factory=new_id)
    result: BulkResult = field(default_factory=BulkResult)
    began: float = field(default_factory=time.monotonic)
    ended: float | None = None
    error: str | None = None
    _task: asyncio.Task[None] | None = None

    @property
    def seconds(self) -> float:
        """How long it has taken so far, or took."""
        return (self.ended or time.monotonic()) - self.began

    @property
    def said(self) -> str:
        """The progress in words."""
        refused = f", {len(self.result.refused):,} refused" if self.result.refused else ""
        return f"{count(self.result.done, 'run')} {self.action.done}{refused}"

    def shape(self) -> dict[str, Any]:
        """Return the progress as JSON, in the shape of the command line."""
        refused = [{"id": run_id, "error": why} for run_id, why in list(self.result.refused.items())[:1000]]
        return {
            "job": self.id, "found": self.found, self.action.done: self.result.done, "refused": refused,
            "ended": self.ended is not None, "error": self.error,
        }  # fmt: skip


class Jobs:
    """The jobs of one console."""

    def __init__(self, app: Stepfast) -> None:
        self._app = app
        self._jobs: dict[str, Job] = {}

    def get(self, job_id: str) -> Job:
        """Return a job by its id."""
        if job_id not in self._jobs:
            raise Refused(404, "there is no such job any more; the audit has its outcome")
        return self._jobs[job_id]

    async def begin(self, job: Job, apply: Apply, audit_id: str) -> Job:
        """Start a job, which closes its audit entry at its end. If the same job is under way already, as after a double
        click, return that one."""
        connected = await self._app._connect()
        under_way = [each for each in self._jobs.values() if each.ended is None]
        for each in under_way:
            if (each.action, each.chosen) == (job.action, job.chosen):
                return each
        if len(under_way) >= _AT_ONCE:
            raise Refused(409, f"{_AT_ONCE} such jobs are under way already: wait for one to end")
        ended = [each.id for each in self._jobs.values() if each.ended is not None]
        for job_id in ended[: max(0, len(self._jobs) - _KEPT + 1)]:
            del self._jobs[job_id]
        self._jobs[job.id] = job
        job._task = asyncio.create_task(self._run(job, apply, audit_id))
        connected.guests.add(job._task)
        job._task.add_done_callback(connected.guests.discard)
        return job

    async def close(self) -> None:
        """Cancel the jobs under way; started again, they would do the rest."""
        tasks = [job._task for job in self._jobs.values() if job._task is not None and not job._task.done()]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def _run(self, job: Job, apply: Apply, audit_id: str) -> None:
        bulk = Bulk(self._app, job.action)
        job.result = bulk.result
        reporting = asyncio.create_task(self._report(job, audit_id))
        try:
            await apply(bulk)
        except asyncio.CancelledError:
            job.error = "the console was stopped. Ask again for the rest"
            await self._close(job, audit_id, INTERRUPTED)
            raise
        except Exception as error:
            job.error = str(error) if isinstance(error, StepfastError) else type(error).__name__
            self._app.logger.warning("the console could not %s all chosen runs", job.action.verb, exc_info=True)
        finally:
            reporting.cancel()
            job.ended = time.monotonic()
        await self._close(job, audit_id, DONE if job.error is None else FAILED)

    async def _report(self, job: Job, audit_id: str) -> None:
        """Update the audit entry: one without updates is taken for interrupted."""
        while True:
            await asyncio.sleep(_REPORT_INTERVAL)
            with contextlib.suppress(StepfastError):
                await (await self._app.store()).audit_progress(audit_id, f"{job.said} so far")

    async def _close(self, job: Job, audit_id: str, outcome: str) -> None:
        said = job.said if job.error is None else f"{job.said}; then {job.error}"
        try:
            await (await self._app.store()).audit_end(audit_id, outcome, said)
        except StepfastError as error:
            self._app.logger.warning("the outcome of a job could not be written into the audit: %s", error)
