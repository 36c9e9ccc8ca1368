"""One action for all runs that filters choose, carried out beside the pages: how far it is can be looked at.

It lives in this process. If that ends, what was done is done; asked again, the rest is. Its line in the audit says how
far it is every few seconds, and how far it came, if there is time to.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, NamedTuple

from ..app import Stepfast
from ..bulk import Bulk, BulkProgress
from ..errors import StepfastError
from ..filters import ListKeywords
from ..model import status
from ..model.ids import new_id
from ..monitoring.text import count
from ..run import Run
from ..store.answers import DONE, FAILED, INTERRUPTED
from .refusals import Refused

_AT_ONCE = 3
_KEPT = 50
"""Jobs that can still be looked at after their end."""
_TOLD_EVERY = 10.0
"""Seconds between two words in the audit on how far a job is."""


class BulkAction(NamedTuple):
    """What can be asked of many runs."""

    verb: str
    done: str
    usual: Sequence[str]
    """The statuses of runs that it is about, unless the filters name one."""
    ask: Callable[[Run[Any]], Awaitable[object]]
    happens: str
    """What happens to each of them, in a sentence."""


_GOING_ON = (status.QUEUED, status.RUNNING, status.WAITING)
BULK_ACTIONS = {
    action.verb: action
    for action in (
        BulkAction(
            "cancel", "cancelled", (*_GOING_ON, status.PAUSED), lambda run: run.cancel(),
            "Each ends at once, or after the step that is being executed; its children are cancelled too, and its "
            "completed steps undone where they say how.",
        ),
        BulkAction("pause", "paused", _GOING_ON, lambda run: run.pause(),
                   "Each is held from its next step on, until somebody resumes it."),
        BulkAction("resume", "resumed", (status.PAUSED,), lambda run: run.resume(), "Each goes on where it was held."),
        BulkAction("retry", "retried", (status.FAILED,), lambda run: run.retry(),
                   "Each is queued again: recorded steps are kept, what failed is made anew."),
    )
}  # fmt: skip


Apply = Callable[[Bulk], Awaitable[None]]
"""Asks all runs that are meant."""


def all_of(choices: Sequence[ListKeywords]) -> Apply:
    """Whatever filters choose while it goes on."""
    return lambda bulk: bulk.run(choices, None, lambda _: None)


class Job:
    """A action for many runs, under way or done."""

    def __init__(self, action: BulkAction, found: str, chosen: str) -> None:
        self.id = new_id()
        self.action = action
        self.found = found
        """How many were counted before it began."""
        self.chosen = chosen
        """What they are chosen by, as an address has it."""
        self.tally = BulkProgress()
        self.began = time.monotonic()
        self.ended: float | None = None
        self.error: str | None = None
        self._task: asyncio.Task[None] | None = None

    @property
    def seconds(self) -> float:
        """How long it has taken so far, or took."""
        return (self.ended or time.monotonic()) - self.began

    @property
    def said(self) -> str:
        """How far it is, in words."""
        refused = f", {len(self.tally.refused):,} refused" if self.tally.refused else ""
        return f"{count(self.tally.done, 'run')} {self.action.done}{refused}"

    def shape(self) -> dict[str, Any]:
        """How far the job is, as JSON, in the shape that the command line prints."""
        refused = [{"id": run_id, "error": why} for run_id, why in list(self.tally.refused.items())[:1000]]
        return {
            "job": self.id, "found": self.found, self.action.done: self.tally.done, "refused": refused,
            "ended": self.ended is not None, "error": self.error,
        }  # fmt: skip


class Jobs:
    """The jobs of one console."""

    def __init__(self, app: Stepfast) -> None:
        self._app = app
        self._jobs: dict[str, Job] = {}

    def get(self, job_id: str) -> Job:
        """A job by its id."""
        if job_id not in self._jobs:
            raise Refused(404, "there is no such job any more; the audit says what came of it")
        return self._jobs[job_id]

    async def begin(self, job: Job, apply: Apply, line: str) -> Job:
        """Apply it out from now on; its line in the audit is closed at the end. If the very same is under way, as after
        a second click, that one is given."""
        connected = await self._app._connect()
        under_way = [each for each in self._jobs.values() if each.ended is None]
        for each in under_way:
            if (each.action, each.chosen) == (job.action, job.chosen):
                return each
        if len(under_way) >= _AT_ONCE:
            raise Refused(409, f"{_AT_ONCE} such jobs are under way already: wait for one to end")
        over = [each.id for each in self._jobs.values() if each.ended is not None]
        for job_id in over[: max(0, len(self._jobs) - _KEPT + 1)]:
            del self._jobs[job_id]
        self._jobs[job.id] = job
        job._task = asyncio.create_task(self._run(job, apply, line))
        connected.guests.add(job._task)
        job._task.add_done_callback(connected.guests.discard)
        return job

    async def close(self) -> None:
        """Give up what is under way; called again, the rest would be done."""
        tasks = [job._task for job in self._jobs.values() if job._task is not None and not job._task.done()]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def _run(self, job: Job, apply: Apply, line: str) -> None:
        bulk = Bulk(self._app, job.action.verb, job.action.ask, lambda _: True)
        job.tally = bulk.tally
        telling = asyncio.create_task(self._tell(job, line))
        try:
            await apply(bulk)
        except asyncio.CancelledError:
            job.error = "the console was stopped. Ask again for the rest"
            await self._close(job, line, INTERRUPTED)
            raise
        except Exception as error:
            job.error = str(error) if isinstance(error, StepfastError) else type(error).__name__
            self._app.logger.warning(
                "the console could not %s all runs it was asked to", job.action.verb, exc_info=True
            )
        finally:
            telling.cancel()
            job.ended = time.monotonic()
        await self._close(job, line, DONE if job.error is None else FAILED)

    async def _tell(self, job: Job, line: str) -> None:
        """Let the audit know how far it is: one that falls silent is taken for gone."""
        while True:
            await asyncio.sleep(_TOLD_EVERY)
            with contextlib.suppress(StepfastError):
                await (await self._app.store()).audit_heard(line, f"{job.said} so far")

    async def _close(self, job: Job, line: str, outcome: str) -> None:
        said = job.said if job.error is None else f"{job.said}; then {job.error}"
        try:
            await (await self._app.store()).audit_end(line, outcome, said)
        except StepfastError as error:
            self._app.logger.warning("what came of a job could not be written into the audit: %s", error)
