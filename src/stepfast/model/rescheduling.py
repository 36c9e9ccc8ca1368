"""An operator moves the time at which a run is due, or its priority: of a run that waits in its queue, for its start,
for its next attempt or for the next try of a step.

What the code itself waits for is not moved: how long a sleep lasts is recorded, and other code may rely on it.
"""

from __future__ import annotations

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from . import status
from .standing import Standing, place_at, sooner


class NewTime(Struct, frozen=True):
    """What is asked for. The time is one of ``delay_ms`` and ``due_at``; without either it stays as it is."""

    delay_ms: int | None = None
    due_at: int | None = None
    """A time of the database."""
    priority: int | None = None

    def due(self, now: int) -> int | None:
        """When the run is to be due."""
        return self.due_at if self.delay_ms is None else now + self.delay_ms


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


def waits_for_retry(run: Standing) -> bool:
    """Whether a step, or an undo, waits for its next try."""
    resting = run.status in (status.WAITING, status.COMPENSATING) and not run.ready
    return resting and status.WAITING_RETRY in (run.waiting_for or "").split(", ")


def may_be_rescheduled(run: Standing) -> bool:
    """Whether a run waits for nothing but its turn, or for the next try of a step. One that is to be cancelled is not
    kept from that."""
    if run.held or run.asked is not None:
        return False
    return run.status == status.QUEUED or waits_for_retry(run)


def reschedule(run: Standing, wanted: NewTime, now: int, number: int = 0) -> Standing | None:
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


def _expiry(run: Standing, due: int) -> int | None:
    """When a run expires that is due at another time."""
    was_due = run.visible_at if run.place is None else run.place // 1000
    if run.expires_at is None or was_due is None or run.begun:
        return run.expires_at
    return due + max(0, run.expires_at - was_due)
