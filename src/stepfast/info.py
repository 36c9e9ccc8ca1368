"""`RunInfo`, `StepInfo` and `Activity`: what callers read of runs, and how it is made from rows."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import AsyncIterator, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from typing import Any

import msgspec

from .engine.children import STARTS
from .engine.compensation import UNDO_BRANCH
from .engine.concurrency import Winners, lost_to
from .engine.history import STEP, UNDO
from .engine.outcomes import shown_error
from .engine.remote_step import REMOTE
from .engine.timers import SLEEP, planned_end
from .errors import sentence
from .model import remote_steps as remote
from .model import status
from .model.attributes import decode
from .model.cron import clock
from .model.forks import is_copied, is_own
from .model.graph import Graph
from .model.ids import child_id, is_id
from .model.payload import Payloads
from .model.records import RUN_ITSELF, StepRecord
from .model.remote_steps import RemoteStep
from .model.rows import ActivityRow, DagStepRow, ExecutorRow, ProgressRow, RunRow
from .model.schedules import schedule_of
from .model.status import DAG_STEP, WORKFLOW
from .model.stored import moment, moment_or_none, span
from .settings import FORMAT
from .store import Store


@dataclass(frozen=True, slots=True)
class ErrorInfo:
    """A recorded error."""

    type: str
    message: str
    traceback: str | None = field(default=None, repr=False)


@dataclass(frozen=True, slots=True)
class ExecutedBy:
    """The worker that executed something, and where. It may be gone."""

    worker: str
    host: str | None
    """None, as ``pid``: not known any more."""
    pid: int | None


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
    """When a run that waits or is delayed is due."""
    expires_at: datetime | None
    """When the run fails, unless a worker has claimed it by then."""
    worker: str | None
    """The worker that executes it now; None while no worker does, see ``executed_by``."""
    ready: bool
    """Whether a worker may claim it now."""
    asked: str | None
    """The request of an operator that the worker which executes it has not applied yet."""
    origin: str | None
    """The run that this one continues (``ctx.continue_as``) or repeats (``retry(from_start=True)``)."""
    read_at: datetime
    """When this was read, by the database's clock, as all times here."""
    paused_at: datetime | None = None
    """Since when it is paused; None: it is not."""
    concurrency_key: str | None = None
    """Whose limits of its queue it counts for."""
    left_out: tuple[str, ...] = ()
    """In a list: which of ``input`` and ``output`` are None because they are large. ``run.info()`` brings both."""
    executed_by: ExecutedBy | None = None
    """The worker that claimed it last, also after its end. None: no worker has yet."""
    attributes: dict[str, Any] = field(default_factory=dict)
    """By name: texts, numbers, bools, and datetimes in UTC."""
    unique: str | None = None
    """The name that it was started by (``unique=``), and has until it ends."""
    continued_by: str | None = None
    """The run that it has continued as (``ctx.continue_as``), told by ``run.this.info()`` and in lists."""

    @property
    def schedule(self) -> str | None:
        """The name of the schedule that started it; None: none did."""
        found = schedule_of(self.tags, self.key)
        return None if found is None else found[0]

    @property
    def tick(self) -> datetime | None:
        """The tick of its schedule that it was started for; None without a schedule, or if it was triggered by hand."""
        found = schedule_of(self.tags, self.key)
        return None if found is None or found[1] is None else datetime.fromisoformat(found[1])


@dataclass(frozen=True, slots=True)
class StepInfo:
    """One step: its recorded outcome, or that it is under way."""

    name: str
    branch: str
    position: int
    status: str
    detail: str | None = None
    data: Any = field(default=None, repr=False)
    output: Any = field(default=None, repr=False)
    error: ErrorInfo | None = None
    attempts: int = 0
    started_at: datetime | None = None
    """None: a step of a dag that has not begun."""
    completed_at: datetime | None = None
    line: str | None = None
    kind: str = "step"
    """What it is: a step, a sleep, a signal, a child (start, result, call), a transaction, an undo …"""
    undo: str | None = None
    """The name of the function that undoes it, if it has one."""
    lost_to: str | None = None
    """Of what lost a race (``ctx.first``): who won it."""
    child: str | None = None
    """The id of the run that it started; for a step of a dag, under which its own checkpoints are found."""
    queue_wait: float | None = None
    """Of a remote step: seconds for which its last attempt waited for a worker, as far as that is known."""
    number: int | None = None
    """Its number among all records of the run; an undo has the number of the step that it undoes as its position. None:
    it has no record yet."""
    executed_by: ExecutedBy | None = None
    """The worker that recorded it, or that executes it now. Of a remote step: that sent it."""
    losses: int = 0
    """Workers that died with the run while this call was under way, or may have been: so many times more than
    ``attempts`` says its function may have been called."""


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
    id: str = ""
    """The same at every reading, and no other call's: the run, the branch, the position, the attempt and the try."""
    queue_wait: float | None = None
    """Of a remote step: seconds for which it waited for a worker, as far as that is known."""
    executed_by: ExecutedBy | None = None
    """The worker that made the call."""
    losses: int = 0
    """Of a recorded step: workers that died before while it was under way, or may have been."""


class Executors:
    """Which worker executed which claim of one run."""

    def __init__(self, rows: Sequence[ExecutorRow]) -> None:
        self._last = [row.claim for row in rows]
        self._who = [ExecutedBy(row.worker, row.host, row.pid) for row in rows]

    def of(self, claim: int) -> ExecutedBy | None:
        """The worker that had this claim."""
        found = bisect_left(self._last, claim)
        return self._who[found] if found < len(self._who) else None

    @property
    def last(self) -> ExecutedBy | None:
        """The worker of the last claim."""
        return self._who[-1] if self._who else None


def run_info(row: RunRow, payloads: Payloads) -> RunInfo:
    """A run as it stands."""
    return RunInfo(
        id=row.id,
        workflow=row.workflow,
        version=row.graph or row.version,
        queue=row.queue,
        status=row.status,
        reason=row.reason,
        waiting_for=row.waiting_for,
        input=payloads.shown(row.input, row.format, "the input"),
        output=payloads.shown(row.output, row.output_format or row.format, "the output"),
        error=_error(row.error, row.output_format or row.format, payloads),
        attempt=row.attempt,
        max_attempts=row.max_attempts,
        losses=row.losses,
        priority=row.priority,
        key=row.key,
        tags=row.tags,
        parent=row.parent_id,
        created_at=moment(row.created_at),
        started_at=moment_or_none(row.started_at),
        completed_at=moment_or_none(row.completed_at),
        deadline=moment_or_none(row.deadline_at),
        due_at=None if row.ready else moment_or_none(row.visible_at),
        expires_at=moment_or_none(row.expires_at),
        worker=row.worker,
        ready=row.ready,
        asked=row.asked,
        origin=row.origin_id,
        read_at=moment(row.now_ms),
        paused_at=moment_or_none(row.paused_at),
        concurrency_key=row.concurrency_key,
        left_out=("input",) * (row.input is None) + ("output",) * row.large_output,
        executed_by=None if row.executed_by is None else ExecutedBy(row.executed_by, row.host, row.pid),
        attributes={name: decode(value) for name, value in row.attributes.items()},
        unique=row.unique_name,
        continued_by=_continuation(row),
    )


def _continuation(row: RunRow) -> str | None:
    if row.reason != status.REASON_CONTINUED or row.output is None:
        return None
    return row.output.strip('"')


def listed_info(row: RunRow, payloads: Payloads) -> RunInfo:
    """A run in a list. One whose payloads cannot be read (another codec's, or written by hand) must not keep the others
    from being listed: it says so in place of what it holds."""
    try:
        return run_info(row, payloads)
    except Exception as error:  # also any error of the application's codec
        bare = run_info(msgspec.structs.replace(row, input="null", format=FORMAT, output=None, error=None), payloads)
        unreadable = f"(cannot be read: {sentence(error)})"
        return replace(bare, input=unreadable, output=None if row.output is None else unreadable)


_UNDO_WORDS = {status.COMPLETED: status.COMPENSATED, status.FAILED: status.COMPENSATION_FAILED}


def _end_of(row: StepRecord, run: RunRow) -> tuple[str, int | None]:
    """Return the status of a record, and when it ended. The record of a sleep is made when it begins, and says when it
    ends. Waits that were open when the run ended were cancelled then. Undos have statuses of their own."""
    if row.status == status.WAITING:
        until = run.completed_at or run.now_ms
        over = planned_end(row) if row.kind == SLEEP else None
        if over is not None and over <= until:
            return status.COMPLETED, over
        return (status.CANCELLED, until) if run.status in status.TERMINAL else (status.WAITING, None)
    return _UNDO_WORDS.get(row.status, row.status) if row.kind == UNDO else row.status, row.completed_at


def step_info(row: StepRecord, run: RunRow, payloads: Payloads, winners: Winners, executors: Executors) -> StepInfo:
    """Make the `StepInfo` of a recorded step."""
    where, ended = _end_of(row, run)
    return StepInfo(
        name=row.name,
        kind=row.kind,
        branch=row.branch,
        position=row.position,
        status=where,
        output=payloads.shown(row.output, row.format, f"the output of step {row.name!r}"),
        error=_error(row.error, row.format, payloads),
        attempts=row.attempts,
        started_at=moment(row.started_at),
        completed_at=moment_or_none(ended),
        line=row.line,
        undo=row.undo if is_own(row.undo) else None,
        child=_child_of(row, run, payloads) if row.kind in STARTS else None,
        lost_to=lost_to(row, where, winners),
        number=row.seq,
        executed_by=None if is_copied(row.undo) else executors.of(row.claim),
        losses=row.losses or 0,
    )


def _child_of(row: StepRecord, run: RunRow, payloads: Payloads) -> str:
    """The child that a record tells of. One that cannot be read was started at its address."""
    named = row.output if row.kind == "start" or row.status == status.WAITING else row.arguments
    try:
        child = payloads.plain(named, row.format, "the id of a child")
    except Exception:  # also any error of the application's codec
        child = None
    return child if is_id(child) else child_id(run.id, row.branch, row.position)


UNKNOWN = "unknown"
"""The kind of a row that names a dag run, and is no step of its graph."""


def dag_step_info(
    row: DagStepRow, number: int, graph: Graph, payloads: Payloads, executed_by: ExecutedBy | None
) -> StepInfo:
    """Make the `StepInfo` of a step of a dag run; one that is ready, or is to be tried again, is waiting. A row that is
    no step of the graph has the kind UNKNOWN."""
    declared = graph.dag_steps.get(row.name)
    return StepInfo(
        name=row.name or "",
        kind=UNKNOWN if declared is None else DAG_STEP,
        branch="",
        position=number,
        status=status.WAITING if row.status == status.QUEUED else row.status,
        detail=row.waiting_for or row.reason,
        output=payloads.shown(row.output, row.format, f"the output of step {row.name!r}"),
        error=_error(row.error, row.format, payloads),
        attempts=row.attempt,
        started_at=moment_or_none(row.started_at),
        completed_at=moment_or_none(row.completed_at),
        undo=None if declared is None else declared.undo,
        child=row.id,
        number=graph.numbers.get(row.name),
        executed_by=executed_by,
        losses=row.losses,
    )


def progress_info(row: ProgressRow, payloads: Payloads, executed_by: ExecutedBy | None, losses: int = 0) -> StepInfo:
    """Make the `StepInfo` of a step under way from its row of progress."""
    return StepInfo(
        name=row.name,
        kind=WORKFLOW if row.position == RUN_ITSELF else _kind_under_way(row.branch),
        branch=row.branch,
        position=row.position,
        status=status.COMPENSATING if row.branch == UNDO_BRANCH else status.RUNNING,
        detail=row.detail,
        data=payloads.shown(row.data, row.format, "the data of ctx.progress"),
        started_at=moment(row.started_at),
        executed_by=executed_by,
        losses=losses,
    )


TELLING = frozenset((STEP, UNDO, "transaction", "wait_until"))
"""Kinds of steps whose function may report its progress."""


def with_last_words(found: list[StepInfo], words: list[ProgressRow], payloads: Payloads) -> list[StepInfo]:
    """Return the steps with their last progress; a step that has ended keeps it, above all if it failed."""
    last = {(row.branch, row.position): row for row in words}
    return [
        replace(step, detail=row.detail, data=payloads.plain(row.data, row.format, "the data of ctx.progress"))
        if step.kind in TELLING and step.detail is None and (row := last.get((step.branch, step.position)))
        else step
        for step in found
    ]


def _kind_under_way(branch: str) -> str:
    """The kind of a step that has no record yet: only its address is known, and undos have a branch of their own."""
    return UNDO if branch == UNDO_BRANCH else "step"


def told_once(found: list[StepInfo], under_way: list[StepInfo], *, executed: bool) -> list[StepInfo]:
    """Join recorded steps and steps under way. A step that had to wait is among both, by an open record and by its
    progress: it is under way while a worker executes the run, else it is waiting."""
    opened = {(step.branch, step.position) for step in found if step.status == status.WAITING}
    if not executed:
        said = {(step.branch, step.position): step.detail for step in under_way}
        found = [replace(step, detail=step.detail or said.get((step.branch, step.position))) for step in found]
        under_way = [replace(step, status=status.WAITING) if step.kind == WORKFLOW else step for step in under_way]
        return found + [step for step in under_way if (step.branch, step.position) not in opened]
    told = {(step.branch, step.position) for step in under_way}
    return [
        step for step in found if step.status != status.WAITING or (step.branch, step.position) not in told
    ] + under_way


def waiting_steps(
    rows: list[ActivityRow], known: list[StepInfo], payloads: Payloads, executors: Executors
) -> list[StepInfo]:
    """Return the steps that have failed and are to be tried again: they have no record, only failed calls."""
    listed = {(info.branch, info.position) for info in known}
    last = {(row.branch, row.position): row for row in rows if row.position != RUN_ITSELF}
    return [
        StepInfo(
            name=row.name,
            kind=_kind_under_way(row.branch),
            branch=row.branch,
            position=row.position,
            status=status.WAITING,
            detail=None,
            output=None,
            error=_error(row.error, row.format, payloads),
            attempts=row.number,
            started_at=moment(row.started_at),
            executed_by=executors.of(row.claim),
        )
        for address, row in last.items()
        if address not in listed
    ]


def activity_info(
    run_id: str, row: ActivityRow, payloads: Payloads, executors: Executors, dag_step: str = ""
) -> Activity:
    """Make the `Activity` of a call; in a step of a dag run, the name of the step is the branch."""
    return Activity(
        name=row.name,
        branch=f"{dag_step}/{row.branch}" if dag_step and row.branch else dag_step or row.branch,
        position=None if row.position == RUN_ITSELF else row.position,
        attempt=row.number if row.position != RUN_ITSELF else row.attempt,
        status=row.status,
        parameters=payloads.shown(row.arguments, row.format, "arguments"),
        result=payloads.shown(row.output, row.format, "a result"),
        error=_error(row.error, row.format, payloads),
        started_at=moment(row.started_at),
        duration=span(row.completed_at - row.started_at),
        id=f"{run_id}:{row.branch}:{row.position}:{row.attempt}:{row.number}",
        executed_by=executors.of(row.claim),
        losses=row.losses or 0,
    )


def _error(text: str | None, format_: int, payloads: Payloads) -> ErrorInfo | None:
    if text is None:
        return None
    found = shown_error(text, format_, payloads)
    return ErrorInfo(found["type"], found["message"], found["traceback"])


async def read_steps(store: Store, run_id: str, size: int = 1000) -> AsyncIterator[list[StepRecord]]:
    """Yield the records of a run, page by page: a run may have more of them than fit into memory."""
    after = ("", -1)
    page: list[StepRecord] | None = None
    while page is None or len(page) == size:
        page = await store.steps(run_id, after, size)
        if page:
            yield page
            after = (page[-1].branch, page[-1].position)


async def all_steps(store: Store, run_id: str) -> list[StepRecord]:
    """Return all records of a run, in the order of the database."""
    return [record async for page in read_steps(store, run_id) for record in page]


Address = tuple[str, int]


def may_be_remote(records: Iterable[StepRecord]) -> bool:
    """Whether there may be remote steps among the records; undos may be remote too."""
    return any(record.kind in (REMOTE, UNDO) for record in records)


def with_remote(steps: Sequence[StepInfo], rows: Sequence[RemoteStep]) -> list[StepInfo]:
    """Return the steps; remote ones with where they are and how long they waited for a worker."""
    last = {(row.branch, row.position): row for row in _last(rows)}
    return [_told(step, row) if (row := last.get((step.branch, step.position))) else step for step in steps]


def with_remote_inside(steps: Sequence[StepInfo], rows: Sequence[RemoteStep]) -> list[StepInfo]:
    """Return the steps of a dag run; those that call one remote step with how long it waited for a worker."""
    inside: dict[str | None, list[RemoteStep]] = {}
    for row in _last(rows):
        inside.setdefault(row.run_id, []).append(row)
    return [
        replace(step, queue_wait=_seconds(found[0])) if len(found := inside.get(step.child, [])) == 1 else step
        for step in steps
    ]


def with_claims(steps: Sequence[StepInfo], begun: Mapping[Address, bool]) -> list[StepInfo]:
    """Return the steps; remote ones with whether a worker has begun them."""
    words = {True: "; a worker has begun it", False: "; no worker has begun it"}
    return [
        replace(step, detail=step.detail + words[begun[address]])
        if (address := (step.branch, step.position)) in begun and step.detail
        else step
        for step in steps
    ]


def with_queue_waits(calls: Sequence[Activity], rows: Sequence[RemoteStep]) -> list[Activity]:
    """Return the calls; the last attempts of remote steps with how long they waited for a worker."""
    waits = {
        (row.run_id, row.branch, row.position, row.attempt): _seconds(row)
        for row in _last(rows)
        if row.queue_ms is not None
    }
    return [replace(call, queue_wait=waits.get(_address(call))) for call in calls] if waits else list(calls)


def _address(call: Activity) -> tuple[str, str, int, int]:
    """The run, branch, position and try of a call: its id has them, also of one in a step of a dag."""
    run_id, rest = call.id.split(":", 1)
    branch, position, _, number = rest.rsplit(":", 3)
    return run_id, branch, int(position), int(number)


def _last(rows: Sequence[RemoteStep]) -> list[RemoteStep]:
    """Return the last task of each address of each run."""
    ordered = sorted(rows, key=lambda row: abs(row.seq))
    return list({(row.run_id, row.branch, row.position): row for row in ordered}.values())


def _told(step: StepInfo, row: RemoteStep) -> StepInfo:
    detail = _where(row) if step.status in (status.WAITING, status.COMPENSATING) else step.detail
    return replace(step, detail=detail, queue_wait=_seconds(row))


def _where(row: RemoteStep) -> str | None:
    """Say where an unfinished remote step is."""
    attempt = f"attempt {row.attempt} of {row.retries + 1}" if row.retries else "it"
    if row.state == remote.SENT:
        return f"{attempt} was sent to group {row.group!r} at {clock(moment(row.dispatched_at))}"
    if row.state == remote.OUTBOX and row.due_at is not None:
        return f"{attempt} is to be sent to group {row.group!r} at {clock(moment(row.due_at))}"
    return "its outcome is there, and will be recorded" if row.state == remote.SETTLED else None


def _seconds(row: RemoteStep) -> float | None:
    return None if row.queue_ms is None else row.queue_ms / 1000
