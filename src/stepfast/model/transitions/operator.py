"""What operators request of runs: cancel, pause, resume, reschedule and retry."""

from __future__ import annotations

from typing import Literal, NamedTuple

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from ...settings import SUSPECT_LOSSES
from .. import status
from ..graph import RetriedStep
from ..run_state import RunState, place_at, sooner
from ..stored import LAST_TIME, after, more, next_claim

DispatchRoute = Literal["refused", "fail", "mark", "first", "undo", "end"]


class Traces(NamedTuple):
    """What other rows tell of a run that is about to be cancelled."""

    undoable: bool = False
    """Whether it has completed something that can be undone."""
    between: bool = False
    """Whether its last attempt failed and no worker has claimed it since: the attempt it waits for is not counted."""
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


def way_to_cancel(run: RunState, undoable: bool = False) -> DispatchRoute:
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


def cancel(run: RunState, traces: Traces, now: int, number: int = 0) -> RunState:
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


def end_open_step(step: RunState, traces: Traces, now: int, number: int = 0) -> RunState:
    """A dag run begins to fail, and this step of it is not settled. If it has not begun it never will; if it waits, it
    is cancelled; if a worker holds it, it is marked. What it has completed of its own, and can be undone, is undone."""
    if step.held:
        return mark(step)
    if goes_on_first(step.losses, step.unrecorded_losses, step.status, step.waiting_for):
        return go_on_first(step, now, number)
    if step.begun and traces.undoable:
        return begin_undo(step, now, number)
    return end(step, traces.between, now) if step.begun else skip(step, now)


def mark(run: RunState) -> RunState:
    """A run that a worker holds, for its owner to end."""
    return replace(run, asked=status.ASK_CANCEL, wakes=more(run.wakes))


def go_on_first(run: RunState, now: int, number: int = 0) -> RunState:
    """A run that lost a worker since its last record is ready, marked, to come to a record first."""
    return replace(
        _free(run),
        status=status.QUEUED,
        asked=status.ASK_CANCEL,
        place=place_at(now, number) if run.place is None else run.place,
        visible_at=run.deadline_at,
        wakes=more(run.wakes),
    )


def begin_undo(run: RunState, now: int, number: int = 0) -> RunState:
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
        wakes=more(run.wakes),
    )


def end(run: RunState, between: bool, now: int) -> RunState:
    """A run that was cancelled, and that was it. An attempt that it only waited for is not counted."""
    return replace(
        _free(run),
        status=status.CANCELLED,
        reason=status.REASON_CANCELLED,
        attempt=more(run.attempt, -between),
        completed_at=now,
        wakes=more(run.wakes),
    )


def skip(step: RunState, now: int) -> RunState:
    """A step of a dag run that has not begun, and never will."""
    return replace(_free(step), status=status.SKIPPED, completed_at=now)


def _free(run: RunState) -> RunState:
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


def may_be_paused(run: RunState) -> bool:
    """What has ended, is to be cancelled, or is being undone, is not paused; nor is what waits for a name."""
    return run.waiting_for != status.WAITING_NAME and not (
        run.ended or run.undoing or run.failing or run.asked == status.ASK_CANCEL
    )


def pause(run: RunState, now: int) -> RunState | None:
    """A run stands still until an operator resumes it. It remembers when it would have been due and what it waited for;
    its deadline goes on. One that a worker holds is marked, for its owner to see; that is no wake. None: nothing
    changes. A step of a dag run that waits for others stays so: it is paused when it becomes ready."""
    if run.ended or run.undoing or run.blocked or run.status == status.PAUSED:
        return None
    if run.held:
        return replace(run, asked=status.ASK_PAUSE)
    sleeps = run.place is None and (run.status == status.QUEUED or run.visible_at != run.deadline_at)
    waits = run.status == status.WAITING
    return replace(
        run,
        status=status.PAUSED,
        paused_at=now,
        asked=None,
        held_due=run.visible_at if sleeps else None,
        visible_at=run.deadline_at,
        place=None,
        waiting_for=run.waiting_for if waits else None,
        awaits=run.awaits if waits else None,
    )


def resume(run: RunState, now: int, number: int = 0) -> RunState | None:
    """A paused run goes on: at once, if nothing keeps it or what it waited for has happened since, else when it
    would have been due; a dag run with its steps. A check that is waited for is made at once. A mark for the owner
    of a run is taken back. None: nothing changes."""
    if run.status != status.PAUSED and run.asked == status.ASK_PAUSE:
        return replace(run, asked=None, wakes=more(run.wakes))
    checks = run.status == status.WAITING and run.waiting_for == status.WAITING_CHECK
    if run.status != status.PAUSED and not checks:
        return None
    freed = replace(run, asked=None, held_due=None, paused_at=None, wakes=more(run.wakes))
    if run.is_dag and run.pending > 0:
        return replace(freed, status=status.RUNNING, waiting_for=None, awaits=None, visible_at=run.late_at)
    if checks or _may_go_on(run, now):
        return replace(
            freed,
            status=run.at_rest,
            place=place_at(now, number),
            visible_at=run.late_at,
            waiting_for=None,
            awaits=None,
        )
    return replace(
        freed,
        status=status.QUEUED if run.waiting_for is None else status.WAITING,
        visible_at=sooner(run.held_due, run.deadline_at),
    )


def _may_go_on(run: RunState, now: int) -> bool:
    """Whether a paused run is ready when it is let go: it waits for nothing, or for what has come since."""
    due = run.held_due is not None and run.held_due <= now
    if run.waiting_for is None:
        return due or run.held_due is None
    enough_ended = run.awaits is not None and run.ends >= run.awaits
    return due or enough_ended or run.waiting_for == status.WAITING_CHECK


class NewTime(Struct, frozen=True):
    """What is asked for. The time is one of ``delay_ms`` and ``due_at``; without either it stays as it is."""

    delay_ms: int | None = None
    due_at: int | None = None
    """A time of the database."""
    priority: int | None = None

    def due(self, now: int) -> int | None:
        """When the run is to be due."""
        due = self.due_at if self.delay_ms is None else now + self.delay_ms
        return None if due is None else max(0, min(due, LAST_TIME))


NOW = NewTime(delay_ms=0)
_LONGEST = 1 << 53


def from_mail(value: str | None) -> NewTime | None:
    """What a piece of mail asks for; nothing said is due now. None: it makes no sense, and moves nothing."""
    if value is None:
        return NOW
    try:
        found = msgspec.json.decode(value, type=NewTime)
    except (msgspec.DecodeError, RecursionError):
        return None
    times = (found.delay_ms, found.due_at)
    possible = all(time is None or abs(time) < _LONGEST for time in times) and abs(found.priority or 0) < 1 << 31
    return found if possible else None


def waits_for_retry(run: RunState) -> bool:
    """Whether a step, or an undo, waits for its next try."""
    resting = run.status in (status.WAITING, status.COMPENSATING) and not run.ready
    return resting and status.WAITING_RETRY in (run.waiting_for or "").split(", ")


def may_be_rescheduled(run: RunState) -> bool:
    """Whether a run waits for nothing but its turn, or for the next try of a step. One that is to be cancelled is not
    kept from that."""
    if run.held or run.asked is not None:
        return False
    return run.status == status.QUEUED or waits_for_retry(run)


def reschedule(run: RunState, wanted: NewTime, now: int, number: int = 0) -> RunState | None:
    """The run is due at another time, or has another priority. If it expires, then as long after it is due as before.
    None: it is not a run that can be moved."""
    if not may_be_rescheduled(run):
        return None
    due = wanted.due(now)
    moved = replace(run, priority=run.priority if wanted.priority is None else wanted.priority)
    if due is None or (due <= now and run.ready):
        return moved
    moved = replace(moved, expires_at=_expiry(run, max(due, now)))
    if due <= now:
        return replace(
            moved,
            status=run.at_rest,
            place=place_at(now, number),
            visible_at=moved.late_at,
            waiting_for=None,
            awaits=None,
        )
    alone = run.waiting_for in (None, status.WAITING_RETRY)
    wakes_at = due if alone else sooner(run.visible_at, due)
    return replace(moved, place=None, visible_at=sooner(wakes_at, moved.late_at))


def why_not(run_status: str | None, waiting_for: str | None) -> str:
    """Why a run cannot be moved, as the end of a sentence that begins with the run."""
    rule = "only a run that is queued, or waits for the next try of a step, can be rescheduled"
    hint = ""
    if run_status == status.PAUSED:
        hint = "; resume it first"
    elif run_status == status.WAITING and waiting_for == status.WAITING_CHECK:
        hint = "; resume makes its next check at once"
    elif run_status == status.WAITING and waiting_for == status.WAITING_TIME:
        hint = (
            ". How long a sleep lasts is recorded when it begins; a wait that others may end is "
            "ctx.wait_signal(…, timeout=…)"
        )
    return f"is {run_status}; {rule}{hint}"


def _expiry(run: RunState, due: int) -> int | None:
    """When a run expires that is due at another time."""
    was_due = run.visible_at if run.place is None else run.place // 1000
    if run.expires_at is None or was_due is None or run.begun:
        return run.expires_at
    return after(due, max(0, run.expires_at - was_due))


def may_be_retried(run: RunState) -> bool:
    """Whether a run ended without a result, and no undo has begun: the steps that it would build on may be undone. A
    step of a dag is retried with its dag run."""
    return run.status in (status.FAILED, status.CANCELLED) and not run.undoing and run.dag_id is None


def retry(run: RunState, now: int, number: int = 0) -> RunState:
    """A run is ready again. Its claim number moves on, so that no worker trusts what it remembers of it."""
    return replace(
        _from_the_start(run, now),
        status=status.QUEUED,
        place=place_at(now, number),
        claim=next_claim(run.claim),
        attempt=more(run.attempt),
        first_attempt=more(run.attempt),
        visible_at=_deadline(run, now),
    )


def retry_dag(run: RunState, reopened: int, now: int) -> RunState:
    """A dag run goes on with the steps that were opened again; with none it is to be finished."""
    return replace(
        _from_the_start(run, now),
        status=status.RUNNING,
        failing=False,
        pending=reopened,
        ready_at=now,
        place=place_at(now, 0) if reopened == 0 else None,
        claim=next_claim(run.claim),
        attempt=more(run.attempt),
        first_attempt=more(run.attempt),
        visible_at=_deadline(run, now),
    )


def reopen(step: RunState, again: RetriedStep, now: int, number: int = 0) -> RunState:
    """A step of a dag run that is retried: ready, or waiting for others again. One that has begun sees the outputs that
    it saw, and no worker trusts what it remembers of it. Its next attempt counts when it is claimed: until then the run
    may fail again."""
    return replace(
        _from_the_start(step, now),
        status=status.QUEUED if again.ready else status.WAITING,
        waiting_for=None if again.ready else status.WAITING_STEPS,
        place=place_at(now, number) if again.ready else None,
        pending=again.pending,
        met=again.met,
        ready_at=(step.ready_at if step.begun else now) if again.ready else None,
        claim=next_claim(step.claim) if step.begun else step.claim,
        first_attempt=more(step.attempt),
        visible_at=_deadline(step, now) if again.ready else None,
    )


def _from_the_start(run: RunState, now: int) -> RunState:
    return replace(
        run,
        reason=None,
        error=None,
        output=None,
        forget=None,
        completed_at=None,
        waiting_for=None,
        awaits=None,
        losses=0,
        deadline_at=_deadline(run, now),
        expires_at=None,
        asked=None,
        held_due=None,
    )


def _deadline(run: RunState, now: int) -> int | None:
    return None if run.deadline_ms is None else after(now, run.deadline_ms)
