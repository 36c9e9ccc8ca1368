"""Callbacks: made with a record of their run, and given one outcome, under the lock of the run."""

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
    if not (yield from _takes(row, run, now)):
        return CallbackAnswer((yield from _callback(id_)) or row)
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
    if not (yield from _takes(row, run, now)):
        return CallbackAnswer((yield from _callback(id_)) or row)
    yield from put("beat_callback", [(id_, now)])
    return CallbackAnswer(row, done=True)


def look(run_id: str, id_: str, claim: int, attempt: int) -> Flow[CallbackRow | None]:
    """A callback as it stands for its run, which waits for it: its time may be up. For a later attempt one that had no
    value is open again, with its whole time; that it failed is taken from the mailbox first."""
    run, now = yield from lock_run(run_id)
    row = yield from _callback(id_)
    if run is None or row is None or run.claim != claim or row.state == COMPLETED:
        return row
    late = row.is_late(now)
    if attempt > row.attempt and (late or row.state != OPEN) and not (yield from ask("is_there", run_id, id_)):
        yield from put("open_callback", [(id_, attempt, now, now)])
        return (yield from _callback(id_))
    if late:
        yield from put("end_callback", [(id_, *_TOO_LATE, now)])
        return row._replace(state=TIMED_OUT)
    return row


def reject(run_id: str, id_: str) -> Flow[bool]:
    """Open a callback again whose value does not fit, and take that out of the mailbox. False: its run has taken it."""
    _, now = yield from lock_run(run_id)
    row = yield from _callback(id_)
    if row is None or not (yield from put("take_mail", [(run_id, id_)])):
        return False
    yield from put("open_callback", [(id_, row.attempt, row.opened_at, now)])
    return True


_TOO_LATE = CallbackOutcome(TIMED_OUT, None, None, 1)


def _callback(id_: str) -> Flow[CallbackRow | None]:
    rows = yield from ask("callback", id_)
    return CallbackRow(*rows[0]) if rows else None


def _locked(id_: str) -> Flow[tuple[CallbackRow, RunState, int] | None]:
    """A callback and its run, which is locked before the callback is read."""
    row = yield from _callback(id_)
    if row is None:
        return None
    run, now = yield from lock_run(row.run_id)
    row = yield from _callback(id_)
    return None if row is None or run is None else (row, run, now)


def _takes(row: CallbackRow, run: RunState, now: int) -> Flow[bool]:
    """Whether a callback takes an outcome, or a heartbeat. One whose time is up is ended by this."""
    if row.state != OPEN or way_to_signal(run.status, run.reason) != "take" or run.undoing:
        return False
    if row.is_late(now):
        yield from put("end_callback", [(row.id, *_TOO_LATE, now)])
        return False
    return True
