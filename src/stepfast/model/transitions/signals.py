"""How messages reach a run: signals and ends of children and remote steps are counted, and wake a run that waits."""

from __future__ import annotations

from typing import Literal

from msgspec.structs import replace

from .. import status
from ..run_state import RunState, place_at, sooner
from ..stored import after, more


def wanted_mail(run: RunState) -> frozenset[str]:
    """The kinds of mail that a run has a use for. One that can be retried keeps its signals for that; of the answers of
    its children it is told again."""
    if run.status in (status.COMPLETED, status.COMPENSATED):
        return frozenset()
    return _SIGNALS if run.ended else _ALL


_SIGNALS = frozenset({status.MAIL_SIGNAL})
_ALL = _SIGNALS | status.MAIL_ENDS | {status.MAIL_EVENT}


def way_to_signal(run_status: str, reason: str | None = None) -> Literal["take", "forward", "refused"]:
    """What becomes of a signal to a run: it is put into its mailbox, or it is for the run that this one went on as, or
    it is refused, because the run has ended. For a dag run that goes on, its step of that name is asked likewise."""
    if run_status not in status.TERMINAL:
        return "take"
    return "forward" if reason == status.REASON_CONTINUED else "refused"


def wake(run: RunState, signals: int, ends: int, now: int, number: int = 0) -> RunState:
    """Mail has come. What waits is woken by any signal: it looks into its box, and waits again for the rest. Ends of
    children wake it when there are as many as it waits for, at once or after gathering some more. What is paused acts
    on it when it goes on, and a step that waits for others when its turn has come."""
    reached = run.awaits is not None and run.ends + ends >= run.awaits
    counted = replace(run, wakes=more(run.wakes, signals), ends=more(run.ends, ends))
    if run.blocked or not (signals or reached):
        return counted
    rests = run.status == status.WAITING or (run.undoing and reached and not run.held and not run.ready)
    if rests and (signals or run.linger_ms <= 0):
        return replace(
            counted,
            status=run.at_rest,
            place=place_at(now, number),
            visible_at=run.deadline_at,
            waiting_for=None,
            awaits=None,
        )
    if rests:
        return replace(counted, visible_at=sooner(run.visible_at, after(now, run.linger_ms)))
    if run.status == status.PAUSED and run.waiting_for is not None:
        return replace(counted, waiting_for=None, awaits=None, held_due=None)
    return counted
