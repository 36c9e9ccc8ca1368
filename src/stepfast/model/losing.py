"""The worker of a run died. Losses count since the run last made a record or came to a wait, so that a month-long run
survives daily deploys, and one that mostly waits survives them too. Those since its last record are counted apart:
until there is a new one a step may have acted of which nothing is known."""

from __future__ import annotations

from msgspec.structs import replace

from . import status
from .standing import Standing, place_at


def lose(run: Standing, recorded: bool, max_losses: int, error: str, now: int, number: int = 0) -> Standing:
    """A run that names a dead worker is ready again, or, after too many of them, ends as a dead letter, which undoes
    nothing. ``recorded``: whether its last claim made a record."""
    losses = 1 if recorded else run.losses + 1
    unrecorded = 1 if recorded else run.unrecorded_losses + 1
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
