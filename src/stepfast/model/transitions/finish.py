"""How a run leaves its worker: what the worker reports meets what has reached the row since the claim."""

from __future__ import annotations

from typing import Literal

import msgspec
from msgspec import UNSET
from msgspec.structs import replace

from .. import status
from ..records import Transition
from ..run_state import RunState, place_at, sooner
from ..stored import more

DispatchRoute = Literal["ended", "ready", "paused", "later"]


def leave(run: RunState, move: Transition, now: int, number: int = 0) -> RunState:
    """Where a run goes that its worker lets go. A run that says it waits, but was woken since it looked, is ready
    at once; so is one that is to be cancelled, for its next owner to end it without another attempt, unless it has to
    come to a record first. One that an operator wants paused is paused, and remembers when it was due; but not if the
    operator has taken that back."""
    undoing = run.undoing or move.status == status.COMPENSATING
    asked = None if undoing else run.asked
    woken = _woken(run, move)
    aim, due = _aim(move), now + move.delay_ms if move.due_at is None and move.delay_ms is not None else move.due_at
    way = _way(move, aim, asked, woken, due, now)
    waits = way == "later" or (way == "paused" and aim == status.WAITING and not woken)
    deadline = None if move.status == status.COMPENSATING else run.deadline_at
    cleared = move.recorded or move.status == status.COMPLETED or survived(move)
    tried_again = asked != status.ASK_CANCEL or move.needs_new_record
    return replace(
        run,
        status=_status(move, way, aim, undoing),
        reason=(move.reason or run.reason) if undoing or run.failing else move.reason,
        waiting_for=move.waiting_for if waits else None,
        asked=asked if asked == status.ASK_CANCEL and way != "ended" else None,
        worker=None,
        place=place_at(now, number) if way == "ready" else None,
        visible_at={"ended": None, "later": sooner(due, deadline)}.get(way, deadline),
        deadline_at=deadline,
        held_due=due if way == "paused" and not woken and (aim == status.WAITING or (due or 0) > now) else None,
        paused_at=now if way == "paused" else None,
        awaits=move.awaits if way == "later" or (way == "paused" and not woken) else None,
        linger_ms=run.linger_ms if way == "ended" else move.linger_ms,
        attempt=more(run.attempt, move.next_attempt and tried_again),
        losses=0 if cleared else run.losses,
        unrecorded_losses=0 if move.recorded else run.unrecorded_losses,
        undoing=undoing,
        completed_at=now if way == "ended" else None,
        version=move.version or run.version,
        forget=kept_for_retry(move),
        output=move.output,
        output_format=move.format,
        error=UNSET if move.error is None and move.status != status.COMPLETED else move.error,
    )


def survived(move: Transition) -> bool:
    """Whether the code came by itself to a point where it needs no worker: a wait, or the end of an attempt that is
    followed by another. Then its worker has not died of this claim, and the losses before it no longer count. A worker
    that stops, or an operator who pauses, interrupts the code wherever it is, which proves nothing; nor does a step of
    a dag that waits for its graph: its code has not begun."""
    waits = move.status in (status.WAITING, status.COMPENSATING) and move.waiting_for is not None
    return move.next_attempt or (waits and move.waiting_for != status.WAITING_GRAPH)


def _woken(run: RunState, move: Transition) -> bool:
    """Whether something has come that the worker had not seen when it decided to wait."""
    if _rests_undoing(move):
        return run.ends >= (move.awaits or 0)
    if move.status not in (status.WAITING, status.PAUSED):
        return False
    signalled = move.wakes is not None and run.wakes != move.wakes
    return signalled or (move.awaits is not None and run.ends >= move.awaits)


def _rests_undoing(move: Transition) -> bool:
    """Whether an undo waits for the end of something, and not for a time."""
    return move.status == status.COMPENSATING and move.awaits is not None


def _aim(move: Transition) -> str:
    """Where it would go if no operator had asked for anything. A pause is only what its worker has heard of."""
    if _rests_undoing(move):
        return status.WAITING
    if move.status != status.PAUSED:
        return move.status
    return status.QUEUED if move.waiting_for is None else status.WAITING


def _way(move: Transition, aim: str, asked: str | None, woken: bool, due: int | None, now: int) -> DispatchRoute:
    if move.status in status.TERMINAL:
        return "ended"
    if asked == status.ASK_CANCEL:
        return "ready"
    if asked == status.ASK_PAUSE:
        return "paused"
    at_once = aim != status.WAITING and (due is None or due <= now)
    return "ready" if woken or at_once else "later"


def _status(move: Transition, way: DispatchRoute, aim: str, undoing: bool) -> str:
    if way == "ended":
        return move.status
    if undoing:
        return status.COMPENSATING
    return {"ready": status.QUEUED, "paused": status.PAUSED}.get(way, aim)


def kept_for_retry(move: Transition) -> str | None:
    """What an operator's retry would have to make again. What the next attempt makes again is forgotten at once."""
    return None if move.next_attempt or not move.forget else msgspec.json.encode(move.forget).decode()


def give_back(run: RunState, recorded: bool, now: int, number: int = 0) -> RunState:
    """A run is ready again at once: the claim is unknown to its worker, or the worker stops. It has neither an attempt
    nor a loss more; and if this claim made a record, the losses before it no longer count."""
    return replace(
        run,
        status=run.at_rest,
        worker=None,
        place=place_at(now, number),
        visible_at=run.deadline_at,
        losses=0 if recorded else run.losses,
        unrecorded_losses=0 if recorded else run.unrecorded_losses,
    )


def gone_with(move: Transition) -> list[tuple[str, int]]:
    """(branch, position) of the records that are deleted in the transaction of a transition: what the next attempt is
    to make again (if the run has ended, that is kept for an operator's retry), and what diverging code has made."""
    return [*(move.forget if move.next_attempt else ()), *move.drop]
