"""The steps of one run, as ``show`` lists them: what each is, how it stands, and what came of it."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from typing import Any

from ..engine.races import FIRST
from ..engine.undo import UNDO_BRANCH
from ..model import status
from ..reports import ErrorInfo, RunInfo, StepInfo
from .output import write_heading, write_table
from .text import ago, brief, clock, lasting, listed, shortened

_COLUMNS = ("step", "kind", "branch", "status", "tries", "took", "undone by", "outcome")


def write_steps(steps: Sequence[StepInfo], run: RunInfo) -> None:
    """Write the steps of a run as a table."""
    if steps:
        write_heading("Steps")
        write_table(_COLUMNS, [_row(step, run) for step in steps])


def write_children(children: Sequence[RunInfo], more: int) -> None:
    """Write the runs that a run started as a table."""
    if children:
        write_heading(f"Children (the last {len(children)} of {len(children) + more})" if more else "Children")
        rows = [
            (child.id, child.workflow, status_of(child), ago(child.created_at, child.read_at)) for child in children
        ]
        write_table(("id", "workflow", "status", "created"), rows)


REASONS = {
    status.REASON_CODE: "its code raised an error",
    status.REASON_TIMEOUT: "its last attempt took longer than its timeout",
    status.REASON_DEADLINE: "it did not end before its deadline",
    status.REASON_EXPIRED: "no worker picked it up in time",
    status.REASON_LOST: "too many workers died with it",
    status.REASON_NON_DETERMINISM: "the code makes other calls than are recorded",
    status.REASON_CANCELLED: "somebody cancelled it",
    status.REASON_UNDO: "completed steps were to be undone, and not all could be",
    status.REASON_CONTINUED: "it goes on as another run",
}


def explained(run: RunInfo) -> str:
    """Where a run stands, with the reason in words."""
    return f"{run.status} ({run.reason}: {REASONS[run.reason]})" if run.reason in REASONS else status_of(run)


def status_of(run: RunInfo) -> str:
    """Where a run stands, with what it waits for or why it ended."""
    more = run.reason or (run.waiting_for and waited_for(run.waiting_for))
    return f"{run.status} ({more})" if more else run.status


def waited_for(what: str) -> str:
    """``signal:approved, time`` as people say it."""
    said = []
    for part in what.split(", "):
        kind, colon, name = part.partition(":")
        said.append(f"{kind} {name!r}" if colon else part)
    return listed(said)


def due_at(step: StepInfo) -> datetime | None:
    """When an open sleep, or the timeout of an open wait, is over: it was decided when it began."""
    plan = step.output
    if isinstance(plan, dict) and isinstance(plan.get("until"), int):
        return datetime.fromtimestamp(plan["until"] / 1000, UTC)
    if isinstance(plan, dict) and isinstance(plan.get("for"), int):
        return None if step.started_at is None else step.started_at + timedelta(milliseconds=plan["for"])
    return None


def outcome_of(error: ErrorInfo | None, value: Any, detail: str | None = None) -> str:
    """An error, or what the step says of itself, or a value."""
    if error is not None:
        return shortened(f"{error.type}: {error.message}")
    return shortened(detail) if detail else "" if value is None else brief(value)


def _row(step: StepInfo, run: RunInfo) -> tuple[str, ...]:
    took = ((step.completed_at or run.read_at) - (step.started_at or run.read_at)).total_seconds()
    kind = "" if step.kind == "step" else step.kind
    branch = "" if step.branch == UNDO_BRANCH else step.branch
    tries = str(step.attempts or "")
    span = lasting(took) + ("" if step.queue_wait is None else f", {lasting(step.queue_wait)} of it queued")
    return step.name, kind, branch, step.status, tries, span, step.undo or "", _outcome(step, run)


def _outcome(step: StepInfo, run: RunInfo) -> str:
    if step.lost_to is not None:
        return f"lost the race to {step.lost_to!r}"
    is_open = step.status == status.WAITING and step.error is None
    due = due_at(step) if is_open or step.kind == "sleep" else None
    if step.kind == "sleep" and due is not None:
        return f"until {clock(due)} ({ago(due, run.read_at)})"
    if is_open and step.detail:
        return shortened(step.detail)
    if is_open and due is not None:
        return f"until {clock(due)} at the latest ({ago(due, run.read_at)})"
    if step.kind == FIRST and step.error is None and not is_open:
        return f"won by {brief(step.output)}"
    text = "" if is_open or step.kind == "start" else outcome_of(step.error, step.output, step.detail)
    return f"child {step.child}" + (f": {text}" if text else "") if step.child else text
