"""How a run goes on without its worker: its worker died, or its timer is due."""

from __future__ import annotations

from typing import Literal, NamedTuple

from msgspec.structs import replace

from .. import status
from ..run_state import RunState, place_at
from ..stored import more


def lose(run: RunState, recorded: bool, max_losses: int, error: str, now: int, number: int = 0) -> RunState:
    """A run that names a dead worker is ready again, or, after too many of them, ends as a dead letter, which undoes
    nothing. ``recorded``: whether its last claim made a record."""
    losses = 1 if recorded else more(run.losses)
    unrecorded = 1 if recorded else more(run.unrecorded_losses)
    if losses < max_losses:
        return replace(
            run,
            status=run.at_rest,
            worker=None,
            losses=losses,
            unrecorded_losses=unrecorded,
            place=place_at(now, number),
            visible_at=run.deadline_at,
        )
    return replace(
        run,
        status=status.FAILED,
        reason=status.REASON_LOST,
        worker=None,
        losses=losses,
        unrecorded_losses=unrecorded,
        asked=None,
        place=None,
        visible_at=None,
        completed_at=now,
        error=error,
    )


Due = Literal["ready", "deadline", "expired", "no"]


class Causes(NamedTuple):
    """The errors of runs that end because of the time."""

    deadline: str
    expired: str


def due(run: RunState, now: int) -> Due:
    """What its timer means. A run that an operator holds can only be late."""
    if run.visible_at is None or run.visible_at > now or run.held or run.ended:
        return "no"
    if run.deadline_at is not None and run.deadline_at <= now:
        return "deadline"
    if not run.begun and run.expires_at is not None and run.expires_at <= now and run.status != status.PAUSED:
        return "expired"
    return "no" if run.status == status.PAUSED else "ready"


def awake(run: RunState, now: int, number: int = 0) -> RunState:
    """A sleeper that is due becomes ready."""
    return replace(
        run,
        status=run.at_rest,
        place=place_at(now, number),
        visible_at=run.late_at,
        waiting_for=None,
        awaits=None,
    )


def let_begin(run: RunState, now: int, number: int = 0) -> RunState:
    """A step of a dag run that was not picked up in time, while another step of that run was: it stays ready, or
    becomes so, and does not expire any more."""
    return replace(
        run,
        status=status.QUEUED,
        expires_at=None,
        visible_at=run.deadline_at,
        paused_at=None,
        place=place_at(now, number) if run.place is None else run.place,
    )


def end_late(run: RunState, undoable: bool, causes: Causes, now: int, number: int = 0) -> RunState:
    """A run that is late ends; where a deadline passed and there is something to undo, that begins."""
    late = run.deadline_at is not None and run.deadline_at <= now
    undoes = late and undoable
    return replace(
        run,
        status=status.COMPENSATING if undoes else status.FAILED,
        reason=status.REASON_DEADLINE if late else status.REASON_EXPIRED,
        error=causes.deadline if late else causes.expired,
        undoing=undoes,
        completed_at=None if undoes else now,
        place=place_at(now, number) if undoes else None,
        deadline_at=None if undoes else run.deadline_at,
        visible_at=None,
        waiting_for=None,
        awaits=None,
        held_due=None,
        paused_at=None,
        asked=None,
    )
