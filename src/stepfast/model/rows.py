"""Rows as people read them: runs, steps, calls, definitions. What workers write is in ``records.py``."""

from __future__ import annotations

from typing import NamedTuple

from msgspec import Struct, field

from ..settings import FORMAT
from .records import RUN_ITSELF
from .status import OPEN


class RunRow(Struct):
    """A run as ``run.info()`` and the lists read it."""

    id: str
    workflow: str
    version: str
    queue: str
    status: str
    reason: str | None
    waiting_for: str | None
    input: str | None
    """None: it is large, and this row is one of a list."""
    output: str | None
    error: str | None
    format: int
    output_format: int | None
    attempt: int
    max_attempts: int | None
    losses: int
    claim: int
    priority: int
    key: str | None
    tags: list[str]
    parent_id: str | None
    worker: str | None
    visible_at: int | None
    created_at: int
    started_at: int | None
    completed_at: int | None
    deadline_at: int | None
    expires_at: int | None
    asked: str | None
    ready: bool
    now_ms: int
    undoing: bool = False
    origin_id: str | None = None
    graph: str | None = None
    """For a dag run and its steps: the version of the graph they go by, at any worker."""
    timeout_ms: int | None = None
    deadline_ms: int | None = None
    """The length of its deadline, which a retry gets in full."""
    paused_at: int | None = None
    dag_id: str | None = None
    """For a step of a dag run: that run. Lists have no steps."""
    large_output: bool = False
    """In a list: whether its output was left out, because it is large."""
    concurrency_key: str | None = None
    """Whose limits of its queue it counts for."""
    executed_by: str | None = None
    """The worker of its last claim, and where that ran."""
    host: str | None = None
    pid: int | None = None
    unique_name: str | None = None
    """The name that it has alone, as long as it lives."""
    attributes: dict[str, str] = field(default_factory=dict)
    """Its attributes, as they are stored."""
    unrecorded_losses: int = 0
    """Workers that died with it since its last record. Lists do not bring it."""


class Outcome(Struct):
    """How a run ended, for those who wait for it."""

    id: str
    status: str
    reason: str | None
    output: str | None
    error: str | None
    format: int


class CallbackRow(NamedTuple):
    """A callback as it stands."""

    id: str
    run_id: str
    name: str
    state: str
    """``open``, ``completed``, ``failed`` or ``timed_out``."""
    value: str | None
    error: str | None
    format: int
    expects: str | None
    timeout_ms: int | None
    heartbeat_ms: int | None
    attempt: int
    """The attempt of the run for which it was opened last."""
    opened_at: int
    beat_at: int
    ended_at: int | None

    @property
    def due_at(self) -> int | None:
        """When it times out, unless a heartbeat comes before."""
        return callback_due(self.opened_at, self.beat_at, self.timeout_ms, self.heartbeat_ms)

    def is_late(self, now: int) -> bool:
        """Whether it is open, and its time is up."""
        return self.state == OPEN and self.due_at is not None and self.due_at <= now


def callback_due(opened_at: int, beat_at: int, timeout_ms: int | None, heartbeat_ms: int | None) -> int | None:
    """When a callback times out; None: never."""
    times = [] if timeout_ms is None else [opened_at + timeout_ms]
    if heartbeat_ms is not None:
        times.append(beat_at + heartbeat_ms)
    return min(times, default=None)


class ExecutorRow(NamedTuple):
    """The worker that executed a run from one claim on up to another."""

    run_id: str
    claim: int
    """The last claim of that worker, before another took the run."""
    worker: str
    host: str | None
    pid: int | None


class DagStepRow(Struct):
    """A step of a dag run, as it stands."""

    id: str
    name: str
    status: str
    reason: str | None
    waiting_for: str | None
    output: str | None
    error: str | None
    format: int
    attempt: int
    visible_at: int | None
    ready_at: int | None
    started_at: int | None
    completed_at: int | None
    worker: str | None
    losses: int = 0


class DagOutputs(Struct):
    """What the steps of a dag run see: its input, and what was completed since a time."""

    input: str
    format: int
    outputs: list[tuple[str, str | None, int, int]]
    """(step, output, its format, when it was completed)"""


CallKey = tuple[str, int, int, int]
"""Which call of a run: branch, position, attempt and number of the try."""
NO_CALL: CallKey = ("", RUN_ITSELF - 1, -1, -1)
"""A key that sorts before that of every call."""


class ActivityRow(Struct):
    """One call, successful or not, in the activity log."""

    branch: str
    position: int
    name: str
    attempt: int
    number: int
    status: str
    arguments: str | None
    output: str | None
    error: str | None
    started_at: int
    completed_at: int
    format: int = FORMAT
    claim: int = 0
    losses: int | None = None

    @property
    def key(self) -> CallKey:
        """Which call it is."""
        return self.branch, self.position, self.attempt, self.number


class ProgressRow(Struct):
    """A step that is under way, or has told its progress."""

    branch: str
    position: int
    name: str
    detail: str | None
    data: str | None
    started_at: int
    format: int = FORMAT


class QueueDepth(Struct):
    """How much there is in a queue."""

    queue: str
    ready: int = 0
    running: int = 0
    waiting: int = 0
    delayed: int = 0
    oldest: float | None = None
    """Seconds for which the first in the queue has been ready."""


class Definition(Struct):
    """What the database knows of a workflow."""

    name: str
    version: str
    kind: str
    queue: str
    options: str
    input_schema: str | None
    graph: str | None = None


class EventRow(NamedTuple):
    """An event that a run may take, or that starts a run."""

    id: str
    number: int
    event_id: str
    key: str
    """Empty: it has none."""
    data: str
    format: int
    published_at: int


class ShownEvent(NamedTuple):
    """An event for people."""

    id: str
    """Of its row."""
    number: int | None
    """None: no worker has come to it yet."""
    name: str
    event_id: str
    key: str
    data: str
    format: int
    published_at: int


class EventUse(NamedTuple):
    """What became of an event: a run that took it, or a start."""

    event_id: str
    """Of its row."""
    run_id: str | None
    """None: the run is still to be started."""
    workflow: str | None = None
    """What it starts; None: the run took it."""
    error: str | None = None
    """Why it could not be started the last time."""


class NextEvents(NamedTuple):
    """The next events that a run has not taken."""

    armed: bool
    """Whether it is to be woken by more."""
    events: list[EventRow]


class DueEventStart(NamedTuple):
    """A run that is to be started by an event."""

    workflow: str
    name: str
    """Of the event."""
    event: EventRow
