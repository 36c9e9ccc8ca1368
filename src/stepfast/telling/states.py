"""Where a run and its steps stand, and what came of them, in a few words."""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import Any

from ..model import status
from ..model.moments import EPOCH, moment
from ..reports import ErrorInfo, RunInfo, StepInfo
from .words import brief, listed, shortened

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
        return moment(plan["until"])
    if isinstance(plan, dict) and isinstance(plan.get("for"), int):
        if step.started_at is None:
            return None
        return moment((step.started_at - EPOCH) / timedelta(milliseconds=1) + plan["for"])
    return None


def outcome_of(error: ErrorInfo | None, value: Any, detail: str | None = None) -> str:
    """An error, or what the step says of itself, or a value."""
    if error is not None:
        return shortened(f"{error.type}: {error.message}")
    return shortened(detail) if detail else "" if value is None else brief(value)
