"""An operator cancels a run, a parent its children, a dag run that fails its open steps.

What a worker holds is only marked: its owner records the step in flight, then ends it. A run whose worker died needs
care: a step may have acted, and there is no record of it, which its undo would need. So after a loss the run goes on to
its next record first, and is undone then: the step is called again, as after every crash. A suspect (two losses since
its last record or wait) could cost another worker if it went on: it is cancelled at once, and says which step may have
acted.
"""

from __future__ import annotations

from typing import Literal, NamedTuple

import msgspec
from msgspec.structs import replace

from ..settings import SUSPECT_LOSSES
from . import status
from .standing import Standing, place_at

Way = Literal["refused", "fail", "mark", "first", "undo", "end"]


class Traces(NamedTuple):
    """What other rows tell of a run that is about to be cancelled."""

    undoable: bool = False
    """Whether it has completed something that can be undone."""
    between: bool = False
    """Whether its last attempt failed and nobody has claimed it since: the attempt it waits for is not counted."""
    running: str | None = None
    """A step that was seen under way and has no outcome."""
    last: str | None = None
    """The last step that has a record."""


NO_TRACES = Traces()


_BETWEEN_TRIES = frozenset({status.WAITING_RETRY, status.WAITING_CHECK, status.WAITING_MORE})
"""What a run may wait for while one of its steps is between two tries. A check is named alone in any case."""


def at_rest(run_status: str, waiting_for: str | None) -> bool:
    """Whether a run has come to the end of all that it had begun, and waits for others. A step that waits for its next
    try has not: an earlier one may have acted, when a worker died with it."""
    return run_status == status.WAITING and _BETWEEN_TRIES.isdisjoint((waiting_for or "").split(", "))


def goes_on_first(losses: int, unrecorded: int, run_status: str, waiting_for: str | None = None) -> bool:
    """Whether a run is to come to a new record before it is cancelled: workers died with it since its last one
    (``unrecorded``), and it is no suspect (``losses``)."""
    return unrecorded > 0 and losses < SUSPECT_LOSSES and not at_rest(run_status, waiting_for)


def may_have_acted(
    losses: int,
    unrecorded: int,
    run_status: str,
    running: str | None,
    last: str | None,
    waiting_for: str | None = None,
) -> str | None:
    """The error of a suspect that is cancelled at once: which step may have acted, as far as rows can tell. ``running``
    is a step that was seen under way without an outcome, ``last`` the last one that has a record."""
    if losses < SUSPECT_LOSSES or at_rest(run_status, waiting_for):
        return None
    if running is not None:
        step = f"step {running!r}"
    else:
        step = "its first step" if last is None else f"the step after {last!r}"
    message = (
        f"{step} may have acted: {unrecorded} workers died with this run before a result was recorded. It was not "
        "undone: look whether it happened, and undo it by hand"
    )
    return msgspec.json.encode({"type": "MayHaveActed", "message": message, "retryable": False}).decode()


def way_to_cancel(run: Standing, undoable: bool = False) -> Way:
    """What a cancellation does to a run: nothing, because it is over or being undone; let a dag run fail, with its
    steps; mark it for its owner; let it come to a record first; begin its undoing; end it. A step of a dag run is
    cancelled with that, and not by itself. What ended because its code does not fit, or its workers died, has undone
    nothing: its undoing begins."""
    if run.undoing or run.dag_id is not None or not status.may_be_cancelled(run.status, run.reason):
        return "refused"
    if run.held:
        return "mark"
    if run.is_dag:
        return "undo" if run.ended else "fail"
    if not run.ended and goes_on_first(run.losses, run.unrecorded_losses, run.status, run.waiting_for):
        return "first"
    return "undo" if undoable else "end"


def cancel(run: Standing, traces: Traces, now: int, number: int = 0) -> Standing:
    """The standing of a run that is cancelled, if that is not refused; not for a dag run that goes on, which fails."""
    way = way_to_cancel(run, traces.undoable)
    if way == "mark":
        return mark(run)
    if way == "first":
        return go_on_first(run, now, number)
    error = None
    if not run.ended:
        losses = run.losses, run.unrecorded_losses
        error = may_have_acted(*losses, run.status, traces.running, traces.last, run.waiting_for)
    told = run if error is None else replace(run, error=error)
    return begin_undo(told, now, number) if way == "undo" else end(told, traces.between, now)


def end_open_step(step: Standing, traces: Traces, now: int, number: int = 0) -> Standing:
    """A dag run begins to fail, and this step of it is not settled. If it has not begun it never will; if it waits, it
    is cancelled; if a worker holds it, it is marked. What it has completed of its own, and can be undone, is undone."""
    if step.held:
        return mark(step)
    if goes_on_first(step.losses, step.unrecorded_losses, step.status, step.waiting_for):
        return go_on_first(step, now, number)
    if step.begun and traces.undoable:
        return begin_undo(step, now, number)
    return end(step, traces.between, now) if step.begun else skip(step, now)


def mark(run: Standing) -> Standing:
    """A run that a worker holds, for its owner to end."""
    return replace(run, asked=status.ASK_CANCEL, wakes=run.wakes + 1)


def go_on_first(run: Standing, now: int, number: int = 0) -> Standing:
    """A run that lost a worker since its last record is ready, marked, to come to a record first."""
    return replace(
        _free(run),
        status=status.QUEUED,
        asked=status.ASK_CANCEL,
        place=place_at(now, number) if run.place is None else run.place,
        visible_at=run.deadline_at,
        wakes=run.wakes + 1,
    )


def begin_undo(run: Standing, now: int, number: int = 0) -> Standing:
    """A run that was cancelled is ready, to be undone. Its deadline has nothing left to do."""
    return replace(
        _free(run),
        status=status.COMPENSATING,
        undoing=True,
        reason=status.REASON_CANCELLED,
        place=place_at(now, number),
        deadline_at=None,
        completed_at=None,
        losses=0 if run.ended else run.losses,
        wakes=run.wakes + 1,
    )


def end(run: Standing, between: bool, now: int) -> Standing:
    """A run that was cancelled, and that was it. An attempt that it only waited for is not counted."""
    return replace(
        _free(run),
        status=status.CANCELLED,
        reason=status.REASON_CANCELLED,
        attempt=run.attempt - between,
        completed_at=now,
        wakes=run.wakes + 1,
    )


def skip(step: Standing, now: int) -> Standing:
    """A step of a dag run that has not begun, and never will."""
    return replace(_free(step), status=status.SKIPPED, completed_at=now)


def _free(run: Standing) -> Standing:
    """A run that has no place in its queue any more, and waits for nothing."""
    return replace(
        run,
        asked=None,
        place=None,
        visible_at=None,
        waiting_for=None,
        awaits=None,
        held_due=None,
        paused_at=None,
    )
