"""Callbacks: made with a record of their run, and given one outcome."""

from __future__ import annotations

from collections.abc import Sequence

from ...model.records import CallbackOutcome, Lane, NewCallback
from ...model.rows import CallbackRow
from ...model.run_state import RunState
from ...model.status import COMPLETED, OPEN, TIMED_OUT
from ...model.transitions.signals import wake, way_to_signal
from ..answers import CallbackAnswer
from .base import Flow, ask, change, lock_run, put


def make(callbacks: Sequence[NewCallback], now: int) -> Flow[None]:
    """Make callbacks, with the records that make them."""
    yield from put("make_callbacks", [(*each, now) for each in callbacks])


def end(id_: str, outcome: CallbackOutcome, check: bool = False) -> Flow[CallbackAnswer | None]:
    """Give a callback its outcome, and wake its run. None: there is no such callback. With ``check``, if it names a
    type, nothing is done: the sender is to check the value."""
    found = yield from _locked(id_)
    if found is None:
        return None
    row, run, now = found
    if (refusal := (yield from _refusal(row, run, now))) is not None:
        return refusal
    if check and outcome.state == COMPLETED and row.expects is not None:
        return CallbackAnswer(row, to_check=True)
    yield from put("end_callback", [(id_, *outcome, now)])
    yield from put("tell_callback", [(run.id, id_, *outcome)])
    after = wake(run, 0, 1, now)
    yield from change([after])
    lane: Lane | None = run.lane if after.ready and not run.ready else None
    return CallbackAnswer(row, done=True, lane=lane)


def beat(id_: str) -> Flow[CallbackAnswer | None]:
    """Note a heartbeat of a callback."""
    found = yield from _locked(id_)
    if found is None:
        return None
    row, run, now = found
    if (refusal := (yield from _refusal(row, run, now))) is not None:
        return refusal
    yield from put("beat_callback", [(id_, now)])
    return CallbackAnswer(row, done=True)


def look(id_: str, claim: int, attempt: int) -> Flow[CallbackRow | None]:
    """The state of a callback for its run, which waits for it: its time may be up. For a later attempt one that had no
    value is open again, with its whole time; that it failed is taken from the mailbox first. While another transaction
    holds it, nothing is decided."""
    found = yield from _locked(id_, "lock_free_callback")
    if found is None:
        rows = yield from ask("callback", id_)
        other = CallbackRow(*rows[0]) if rows else None
        return other if other is None or other.state == COMPLETED else other._replace(state=OPEN)
    row, run, now = found
    late = row.is_late(now)
    if run.claim != claim or row.state == COMPLETED:
        return row
    if attempt > row.attempt and (late or row.state != OPEN) and not (yield from ask("is_there", run.id, id_)):
        yield from put("open_callback", [(id_, attempt, now, now)])
        return row._replace(state=OPEN, opened_at=now, beat_at=now)
    if late:
        return (yield from _time_out(row, now))
    return row


def reject(worker: str, claim: int, id_: str, value: str | None) -> Flow[bool | None]:
    """Open a callback again whose value does not fit, and take that out of the mailbox, unless that is done, and
    perhaps another value is there by now. False: its run has taken it. None: the worker does not hold the run under
    this claim any more, and the code that does may take the value."""
    found = yield from _locked(id_)
    if found is None:
        return False
    row, run, now = found
    if (run.worker, run.claim) != (worker, claim):
        return None
    if row.state != COMPLETED or row.value != value:
        return True
    if not (yield from put("take_mail", [(run.id, id_)])):
        return False
    yield from put("open_callback", [(id_, row.attempt, row.opened_at, now)])
    return True


def _locked(id_: str, by: str = "lock_callback") -> Flow[tuple[CallbackRow, RunState, int] | None]:
    """A callback and its run, locked in this order: the transaction of a caller may hold the callback for long, and is
    not waited for with the lock of the run in hand."""
    rows = yield from ask(by, id_)
    if not rows:
        return None
    row = CallbackRow(*rows[0])
    run, now = yield from lock_run(row.run_id)
    return None if run is None else (row, run, now)


def _refusal(row: CallbackRow, run: RunState, now: int) -> Flow[CallbackAnswer | None]:
    """The answer of a callback that takes neither an outcome nor a heartbeat. One whose time is up is ended by this."""
    if row.state != OPEN or way_to_signal(run.status, run.reason) != "take" or run.undoing:
        return CallbackAnswer(row)
    return CallbackAnswer((yield from _time_out(row, now))) if row.is_late(now) else None


def _time_out(row: CallbackRow, now: int) -> Flow[CallbackRow]:
    yield from put("end_callback", [(row.id, TIMED_OUT, None, None, row.format, now)])
    return row._replace(state=TIMED_OUT)
