"""The handle of a run, and what can be read of one."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from .engine.failure import decode_error
from .errors import InvalidState, RunCancelled, RunFailed, RunNotFound
from .model import status
from .model.backoff import seconds
from .model.payload import Payloads
from .model.records import RUN_ITSELF, ActivityRow, Outcome, ProgressRow, RunRow, StepRecord

if TYPE_CHECKING:
    from .connected import Connected

O = TypeVar("O", covariant=True)  # noqa: E741


@dataclass(frozen=True, slots=True)
class ErrorInfo:
    """What is kept of an error."""

    type: str
    message: str
    traceback: str | None = field(default=None, repr=False)


@dataclass(frozen=True, slots=True)
class RunInfo:
    """A run as it stands."""

    id: str
    workflow: str
    version: str
    queue: str
    status: str
    reason: str | None
    waiting_for: str | None
    input: Any = field(repr=False)
    output: Any = field(repr=False)
    error: ErrorInfo | None
    attempt: int
    max_attempts: int | None
    """As given at the start; None: the workflow's own."""
    losses: int
    priority: int
    key: str | None
    tags: list[str]
    parent: str | None
    created_at: datetime
    started_at: datetime | None
    completed_at: datetime | None
    deadline: datetime | None
    due_at: datetime | None
    """When a run that waits, or was put off, is due."""
    expires_at: datetime | None
    """When a run that nobody has picked up yet is given up."""
    worker: str | None
    ready: bool
    """Whether it stands in line to be claimed."""
    asked: str | None
    """What an operator asks of the worker that executes it."""
    read_at: datetime
    """When this was read, by the database's clock, as all times here."""


@dataclass(frozen=True, slots=True)
class StepInfo:
    """One step: its recorded outcome, or that it is under way."""

    name: str
    branch: str
    position: int
    status: str
    detail: str | None
    data: Any = field(repr=False)
    output: Any = field(repr=False)
    error: ErrorInfo | None
    attempts: int
    started_at: datetime
    completed_at: datetime | None
    line: str | None = None


@dataclass(frozen=True, slots=True)
class Activity:
    """One call in the activity log."""

    name: str
    branch: str
    position: int | None
    """None: the run as a whole."""
    attempt: int
    status: str
    parameters: Any = field(repr=False)
    result: Any = field(repr=False)
    error: ErrorInfo | None
    started_at: datetime
    duration: timedelta


class Run(Generic[O]):
    """A handle: made without a query, asks when asked."""

    def __init__(
        self,
        run_id: str,
        connect: Callable[[], Awaitable[Connected]],
        payloads: Payloads,
        output_type: Any = Any,
        known: bool = False,
    ) -> None:
        self.id = run_id
        self._connect = connect
        self._payloads = payloads
        self._output_type = output_type
        self._known = known

    def __repr__(self) -> str:
        return f"Run({self.id!r})"

    async def status(self) -> str:
        """Where it stands."""
        return (await self._row()).status

    async def info(self) -> RunInfo:
        """Everything about it."""
        return run_info(await self._row(), self._payloads)

    async def result(self, timeout: float | timedelta | None = None) -> O:
        """Wait for its end: the result, or RunFailed, RunCancelled, or TimeoutError after ``timeout`` seconds."""
        limit = None if timeout is None else seconds(timeout, "the timeout of result()")
        if not self._known:
            await self._row()
        connected = await self._connect()
        outcome = await connected.watcher.wait(self.id, limit)
        if outcome is None:  # the timeout may be shorter than a question takes: ask once all the same
            outcome = next(iter(await connected.store.outcomes([self.id])), None)
        if outcome is None:
            raise TimeoutError(f"run {self.id} has not ended within {limit:g} s; it goes on, and may be asked again")
        return self._value(outcome)

    async def steps(self) -> list[StepInfo]:
        """Its steps: recorded ones in the order they were recorded, then those under way."""
        store = (await self._connect()).store
        row = await self._row()
        records: list[StepRecord] = []
        after = ("", -1)
        while page := await store.steps(self.id, after):
            records += page
            after = (page[-1].branch, page[-1].position)
        records.sort(key=lambda record: record.seq)
        found = [_step_info(record, self._payloads) for record in records]
        if row.status in status.TERMINAL:
            return found
        found += [_progress_info(progress, self._payloads) for progress in await store.progress(self.id)]
        if row.waiting_for == status.WAITING_RETRY:
            found += _waiting_steps(await store.activity(self.id), found, self._payloads)
        return found

    async def activity(self) -> list[Activity]:
        """The append-only log of every call, failed tries included, in start order."""
        await self._row()
        rows = await (await self._connect()).store.activity(self.id)
        return [_activity(row, self._payloads) for row in rows]

    async def retry(self) -> None:
        """Queue a failed or cancelled run again: recorded steps are kept, the failed one is made anew."""
        connected = await self._connect()
        lane = await connected.store.retry(self.id)
        if lane is None:
            row = await self._row()
            raise InvalidState(f"run {self.id} is {row.status}; only failed or cancelled runs can be retried")
        connected.switchboard.ready([lane])

    async def _row(self) -> RunRow:
        row = await (await self._connect()).store.run(self.id)
        if row is None:
            raise RunNotFound(self.id)
        self._known = True
        return row

    def _value(self, outcome: Outcome) -> O:
        if outcome.status == status.COMPLETED:
            what = f"the result of run {self.id}"
            value: O = self._payloads.decode(outcome.output or "null", self._output_type, outcome.format, what)
            return value
        if outcome.status == status.CANCELLED or outcome.reason == status.REASON_CANCELLED:
            raise RunCancelled(self.id)
        error = decode_error(outcome.error, outcome.format, self._payloads)
        raise RunFailed(
            self.id,
            error["message"],
            reason=outcome.reason,
            error_type=error["type"],
            traceback=error["traceback"],
        )


# -- rows to what people read ------------------------------------------------------------------------------------


def run_info(row: RunRow, payloads: Payloads) -> RunInfo:
    """A run as it stands."""
    return RunInfo(
        id=row.id,
        workflow=row.workflow,
        version=row.version,
        queue=row.queue,
        status=row.status,
        reason=row.reason,
        waiting_for=row.waiting_for,
        input=payloads.plain(row.input, row.format, "the input"),
        output=payloads.plain(row.output, row.output_format or row.format, "the output"),
        error=_error(row.error, row.output_format or row.format, payloads),
        attempt=row.attempt,
        max_attempts=row.max_attempts,
        losses=row.losses,
        priority=row.priority,
        key=row.key,
        tags=row.tags,
        parent=row.parent_id,
        created_at=_required_time(row.created_at),
        started_at=_time(row.started_at),
        completed_at=_time(row.completed_at),
        deadline=_time(row.deadline_at),
        due_at=None if row.ready else _time(row.visible_at),
        expires_at=_time(row.expires_at),
        worker=row.worker,
        ready=row.ready,
        asked=row.asked,
        read_at=_required_time(row.now_ms),
    )


def _step_info(row: StepRecord, payloads: Payloads) -> StepInfo:
    return StepInfo(
        name=row.name,
        branch=row.branch,
        position=row.position,
        status=row.status,
        detail=None,
        data=None,
        output=payloads.plain(row.output, row.format, f"the output of step {row.name!r}"),
        error=_error(row.error, row.format, payloads),
        attempts=row.attempts,
        started_at=_required_time(row.started_at),
        completed_at=_time(row.completed_at),
        line=row.line,
    )


def _progress_info(row: ProgressRow, payloads: Payloads) -> StepInfo:
    return StepInfo(
        name=row.name,
        branch=row.branch,
        position=row.position,
        status=status.RUNNING,
        detail=row.detail,
        data=payloads.plain(row.data, row.format, "the data of ctx.progress"),
        output=None,
        error=None,
        attempts=0,
        started_at=_required_time(row.started_at),
        completed_at=None,
    )


def _waiting_steps(rows: list[ActivityRow], known: list[StepInfo], payloads: Payloads) -> list[StepInfo]:
    """Steps that have failed and are to be tried again: all that is known of them is in the log."""
    listed = {(info.branch, info.position) for info in known}
    last = {(row.branch, row.position): row for row in rows if row.position != RUN_ITSELF}
    return [
        StepInfo(
            name=row.name,
            branch=row.branch,
            position=row.position,
            status=status.WAITING,
            detail=None,
            data=None,
            output=None,
            error=_error(row.error, row.format, payloads),
            attempts=row.number,
            started_at=_required_time(row.started_at),
            completed_at=None,
        )
        for place, row in last.items()
        if place not in listed
    ]


def _activity(row: ActivityRow, payloads: Payloads) -> Activity:
    return Activity(
        name=row.name,
        branch=row.branch,
        position=None if row.position == RUN_ITSELF else row.position,
        attempt=row.number if row.position != RUN_ITSELF else row.attempt,
        status=row.status,
        parameters=payloads.plain(row.arguments, row.format, "arguments"),
        result=payloads.plain(row.output, row.format, "a result"),
        error=_error(row.error, row.format, payloads),
        started_at=_required_time(row.started_at),
        duration=timedelta(milliseconds=row.completed_at - row.started_at),
    )


def _error(text: str | None, format_: int, payloads: Payloads) -> ErrorInfo | None:
    if text is None:
        return None
    found = decode_error(text, format_, payloads)
    return ErrorInfo(found["type"], found["message"], found["traceback"])


def _required_time(milliseconds: int) -> datetime:
    return datetime.fromtimestamp(milliseconds / 1000, UTC)


def _time(milliseconds: int | None) -> datetime | None:
    return None if milliseconds is None else _required_time(milliseconds)
