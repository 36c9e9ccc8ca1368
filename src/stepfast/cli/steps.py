"""The steps of one run, as ``show`` lists them: what each is, how it stands, and what came of it."""

from __future__ import annotations

from collections.abc import Sequence

from ..engine.compensation import UNDO_BRANCH
from ..engine.concurrency import FIRST
from ..model import status
from ..model.cron import clock
from ..model.status import DAG_STEP
from ..monitoring.text import ago, brief, due_at, executor_name, lasting, outcome_of, shortened, status_of
from ..reports import RunInfo, StepInfo
from .output import write_heading, write_table

_COLUMNS = ("step", "kind", "branch", "status", "tries", "took", "undone by", "ran on", "outcome")


def write_steps(steps: Sequence[StepInfo], run: RunInfo) -> None:
    """Write the steps of a run as a table; with the worker of each where there was more than one."""
    if steps:
        several = len({step.executed_by for step in steps}) > 1
        write_heading("Steps")
        write_table(_COLUMNS, [_row(step, run, several) for step in steps])


def write_children(children: Sequence[RunInfo], more: int) -> None:
    """Write the runs that a run started as a table."""
    if children:
        write_heading(f"Children (the last {len(children)} of {len(children) + more})" if more else "Children")
        rows = [
            (child.id, child.workflow, status_of(child), ago(child.created_at, child.read_at)) for child in children
        ]
        write_table(("id", "workflow", "status", "created"), rows)


def _row(step: StepInfo, run: RunInfo, several: bool) -> tuple[str, ...]:
    took = ((step.completed_at or run.read_at) - (step.started_at or run.read_at)).total_seconds()
    kind = "" if step.kind == "step" else step.kind
    branch = "" if step.branch == UNDO_BRANCH else step.branch
    tries = str(step.attempts or "") + (f" + {step.losses} lost" if step.losses else "")
    last = " (last try)" if step.attempts > 1 and step.kind != DAG_STEP else ""
    span = lasting(took) + last + ("" if step.queue_wait is None else f", {lasting(step.queue_wait)} of it queued")
    who = executor_name(step.executed_by) if several else ""
    return step.name, kind, branch, step.status, tries, span, step.undo or "", who, _outcome(step, run)


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
