"""The state of a run that decisions are made from: the columns of its row that transitions read and change."""

from __future__ import annotations

from typing import Any

from msgspec import UNSET, Struct, UnsetType
from msgspec.structs import fields

from . import status
from .records import Lane


class RunState(Struct, gc=False):
    """Where a run stands. The fields up to ``child`` are read from the row, in this order."""

    id: str
    status: str
    reason: str | None = None
    waiting_for: str | None = None
    asked: str | None = None
    """What an operator asks of the worker that executes the run."""
    worker: str | None = None
    claim: int = 0
    place: int | None = None
    """Its place in its queue; None: it is not ready."""
    visible_at: int | None = None
    """Its one timer: when it becomes ready, or when it is late."""
    deadline_at: int | None = None
    deadline_ms: int | None = None
    expires_at: int | None = None
    held_due: int | None = None
    """Of a paused run: when it would have been due."""
    paused_at: int | None = None
    wakes: int = 0
    ends: int = 0
    awaits: int | None = None
    """The number of ends of children at which it is to be woken."""
    linger_ms: int = 0
    attempt: int = 0
    first_attempt: int = 1
    losses: int = 0
    """Workers that died with it since it last made a record or came to a wait."""
    unrecorded_losses: int = 0
    """Workers that died with it since its last record: a step may have acted of which there is none."""
    undoing: bool = False
    failing: bool = False
    pending: int = 0
    met: int = 0
    ready_at: int | None = None
    started_at: int | None = None
    completed_at: int | None = None
    version: str = ""
    forget: str | None = None
    queue: str = ""
    workflow: str = ""
    priority: int = 0
    dag_id: str | None = None
    dag_step: str | None = None
    graph: str | None = None
    child: bool = False
    """Whether it has a parent, which waits to hear of its end."""
    output: str | UnsetType | None = UNSET
    """Payloads are not read for a decision. Unset: the row keeps what it has."""
    output_format: int | None = None
    error: str | UnsetType | None = UNSET

    @property
    def lane(self) -> Lane:
        """The lane in which the run is claimed when it is ready."""
        return Lane(self.queue, self.workflow, self.priority)

    @property
    def ready(self) -> bool:
        """Whether the run has a place in its queue: the next worker may claim it."""
        return self.place is not None

    @property
    def held(self) -> bool:
        """Whether a worker has the run."""
        return self.worker is not None

    @property
    def ended(self) -> bool:
        """Whether only an operator changes it."""
        return self.status in status.TERMINAL

    @property
    def begun(self) -> bool:
        """Whether a worker has ever taken it."""
        return self.started_at is not None

    @property
    def is_dag(self) -> bool:
        """Whether it is a dag run, and not one of its steps."""
        return self.graph is not None and self.dag_id is None

    @property
    def blocked(self) -> bool:
        """Whether it has not begun, and waits for others: a step of a dag run, or a run whose name another has."""
        return self.status == status.WAITING and self.waiting_for in (status.WAITING_STEPS, status.WAITING_NAME)

    @property
    def at_rest(self) -> str:
        """The status of a run that is ready."""
        return status.COMPENSATING if self.undoing else status.QUEUED

    @property
    def late_at(self) -> int | None:
        """When it is late, if it stays ready: past its deadline, or, if it never began, not picked up in time."""
        return self.deadline_at if self.begun else sooner(self.expires_at, self.deadline_at)


_WRITTEN_ONLY = ("output", "output_format", "error")

READ_COLUMNS: tuple[str, ...] = tuple(field.name for field in fields(RunState) if field.name not in _WRITTEN_ONLY)
"""What a store reads of a row, in the order of the fields."""


def sooner(one: int | None, other: int | None) -> int | None:
    """The earlier of two times, either of which may be none."""
    if one is None or other is None:
        return other if one is None else one
    return min(one, other)


def place_at(now: int, number: int) -> int:
    """The place of a run that becomes ready now: the smaller, the earlier. ``number`` tells apart the runs of one
    batch."""
    return now * 1000 + number


def written(run: RunState) -> tuple[Any, ...]:
    """The columns that a decision may have changed, in the order of the statement that writes them (``change``)."""
    return (
        run.id, run.status, run.reason, run.waiting_for, run.asked, run.worker is not None, run.claim, run.place,
        run.visible_at, run.deadline_at, run.expires_at, run.held_due, run.paused_at, run.wakes, run.ends, run.awaits,
        run.linger_ms, run.attempt, run.first_attempt, run.losses, run.undoing, run.failing, run.pending, run.met,
        run.ready_at, run.completed_at, run.version, run.forget,
        run.output is not UNSET, None if run.output is UNSET else run.output, run.output_format,
        run.error is not UNSET, None if run.error is UNSET else run.error, run.unrecorded_losses,
    )  # fmt: skip
