"""How a run begins: its first state, and how a debounced start changes a run that waits for its start."""

from __future__ import annotations

from typing import NamedTuple

from msgspec.structs import replace

from .. import status
from ..records import NewRun, RunShape
from ..run_state import RunState, place_at, sooner
from ..status import QUEUED, RUNNING, WAITING, WAITING_NAME, WAITING_STEPS


class Beginning(NamedTuple):
    """The columns of a new row that are decided."""

    status: str
    waiting_for: str | None
    ready: bool
    """Whether it has a place in its lane from the start."""
    visible_at: int | None
    """When a timer is to look at it: it is due, late, or expired."""
    expires_at: int | None
    deadline_at: int | None
    started_at: int | None = None
    ready_at: int | None = None
    """For dags: when it could begin; outputs of later steps are not for it."""


def begin(run: NewRun, now: int) -> Beginning:
    """A run that is started at a time."""
    if run.unique is not None and run.unique.waits:
        return _begin_named(run.shape, now)
    if run.steps:
        return _begin_dag(run.shape, now)
    if run.dag_step is None:
        return begin_alone(run.shape, now)
    if run.dag_step.pending:
        return _begin_blocked(run.shape, now)
    return begin_alone(run.shape, now)._replace(ready_at=now)


def begin_alone(shape: RunShape, now: int) -> Beginning:
    """A run that waits for nothing but its time. What is due at once is born ready."""
    due = max(now + shape.delay_ms, shape.at_ms or now)
    ready = due <= now
    expires_at = None if shape.expires_ms is None else due + shape.expires_ms
    deadline_at = _deadline(shape, now)
    times = (None if ready else due, expires_at, deadline_at)
    timer = min((time for time in times if time is not None), default=None)
    return Beginning(QUEUED, None, ready, timer, expires_at, deadline_at)


def _begin_dag(shape: RunShape, now: int) -> Beginning:
    """A dag run has begun, and is not ready before its steps are settled. What expires are its first steps."""
    deadline_at = _deadline(shape, now)
    return Beginning(RUNNING, None, False, deadline_at, None, deadline_at, started_at=now, ready_at=now)


def _begin_blocked(shape: RunShape, now: int) -> Beginning:
    """A step that waits does so for other steps alone: no time makes it ready, and it does not expire."""
    return Beginning(WAITING, WAITING_STEPS, False, None, None, _deadline(shape, now))


def _begin_named(shape: RunShape, now: int) -> Beginning:
    """A run waits for the end of another, whose name it has then. It is due now, and expires like any that is."""
    deadline_at = _deadline(shape, now)
    expires_at = None if shape.expires_ms is None else now + shape.expires_ms
    return Beginning(WAITING, WAITING_NAME, False, sooner(expires_at, deadline_at), expires_at, deadline_at)


def take_name(run: RunState, now: int, number: int = 0) -> RunState:
    """The name that a run waits for is free: it is ready."""
    return replace(run, status=QUEUED, waiting_for=None, place=place_at(now, number), visible_at=run.late_at)


def _deadline(shape: RunShape, now: int) -> int | None:
    return None if shape.deadline_ms is None else now + shape.deadline_ms


class Debounce(NamedTuple):
    """How long a run waits after the last start of its key; and after the first at most (None: however long)."""

    wait_ms: int
    max_ms: int | None = None

    def due_at(self, first_at: int, now: int) -> int:
        """When the run is due, if its key was started now, and for the first time then."""
        due = now + self.wait_ms
        return due if self.max_ms is None else min(due, first_at + self.max_ms)


def put_off(run: RunState, first_at: int, now: int, debounce: Debounce, expires_ms: int | None) -> RunState:
    """A run that no worker has claimed yet, started once more. One that is ready already is not any more, unless its
    time is up. For how long it may stay unclaimed is counted from now."""
    due = debounce.due_at(first_at, now)
    late = None if expires_ms is None else max(due, now) + expires_ms
    if run.status == status.PAUSED:
        return replace(run, held_due=due, expires_at=late)
    late_at = sooner(late, run.deadline_at)
    if due > now:
        return replace(run, place=None, visible_at=sooner(due, late_at), expires_at=late)
    place = place_at(now, 1) if run.place is None else run.place
    return replace(run, place=place, visible_at=late_at, expires_at=late)
