"""The table of steps: a line for each, with a link to what it holds, and its undo beside it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from ...engine.matching import UNDO
from ...engine.workflow import DAG_STEP
from ...model import status
from ...reports import RunInfo, StepInfo
from ...telling.states import due_at, outcome_of, waited_for
from ...telling.words import ago, lasting
from ..visit import Visit


class StepRow(NamedTuple):
    """One line of the table."""

    step: StepInfo
    state: str
    took: str
    outcome: str
    payload: str | None
    """Where its output can be loaded from; None: it has none."""
    inside: str | None
    """Where the run is that it started."""


def step_rows(visit: Visit, run: RunInfo, steps: Sequence[StepInfo]) -> list[StepRow]:
    """The lines, as many as there are steps."""
    return [_row(visit, run, step) for step in steps]


def _row(visit: Visit, run: RunInfo, step: StepInfo) -> StepRow:
    has_payload = step.output is not None and step.completed_at is not None and step.kind != UNDO
    payload = visit.url(
        "runs", step.child if step.kind == DAG_STEP and step.child else run.id, "payload",
        what="output" if step.kind == DAG_STEP else "step",
        branch=step.branch, position=step.position,
    )  # fmt: skip
    inside = None if step.child is None else visit.url("runs", step.child)
    return StepRow(step, _state(step), _took(run, step), _outcome(run, step), payload if has_payload else None, inside)


def _state(step: StepInfo) -> str:
    if step.kind == DAG_STEP and step.detail not in (None, step.status, status.REASON_CODE):
        kind, _, target = step.detail.partition(":")
        return f"caught by {target}" if kind == status.REASON_CAUGHT else waited_for(step.detail)
    return ""


def _took(run: RunInfo, step: StepInfo) -> str:
    if step.started_at is None or step.status == status.SKIPPED:
        return ""
    span = lasting(((step.completed_at or run.read_at) - step.started_at).total_seconds())
    return span + ("" if step.queue_wait is None else f", {lasting(step.queue_wait)} of it queued")


def _outcome(run: RunInfo, step: StepInfo) -> str:
    """What came of it, in a few words; the payload itself is loaded when somebody opens it."""
    if step.lost_to is not None:
        return f"lost the race to {step.lost_to!r}"
    is_open = step.status == status.WAITING and step.error is None
    due = due_at(step) if is_open or step.kind == "sleep" else None
    if due is not None:
        return f"until {due:%Y-%m-%d %H:%M:%S} UTC ({ago(due, run.read_at)})"
    if step.error is not None:
        return outcome_of(step.error, None)
    return (step.detail or "") if is_open or step.status == status.RUNNING else ""
