"""An operator's retry of what has ended: a new budget of attempts, and a new deadline of the old length."""

from __future__ import annotations

from msgspec.structs import replace

from . import status
from .graph import Reopened
from .standing import Standing, place_at


def may_be_retried(run: Standing) -> bool:
    """Whether a run ended without a result, and no undo has begun: the steps that it would build on may be undone. A
    step of a dag is retried with its dag run."""
    return run.status in (status.FAILED, status.CANCELLED) and not run.undoing and run.dag_id is None


def retry(run: Standing, now: int, number: int = 0) -> Standing:
    """A run is ready again. Its claim number moves on, so that no worker trusts what it remembers of it."""
    return replace(
        _anew(run, now),
        status=status.QUEUED,
        place=place_at(now, number),
        claim=run.claim + 1,
        attempt=run.attempt + 1,
        first_attempt=run.attempt + 1,
        visible_at=_deadline(run, now),
    )


def retry_dag(run: Standing, reopened: int, now: int) -> Standing:
    """A dag run goes on with the steps that were opened again; with none it is to be finished."""
    return replace(
        _anew(run, now),
        status=status.RUNNING,
        failing=False,
        pending=reopened,
        ready_at=now,
        place=place_at(now, 0) if reopened == 0 else None,
        claim=run.claim + 1,
        attempt=run.attempt + 1,
        first_attempt=run.attempt + 1,
        visible_at=_deadline(run, now),
    )


def reopen(step: Standing, again: Reopened, now: int, number: int = 0) -> Standing:
    """A step of a dag run that is retried: ready, or waiting for others again. One that has begun sees the outputs that
    it saw, and no worker trusts what it remembers of it. Its next attempt counts when it is claimed: until then the run
    may fail again."""
    return replace(
        _anew(step, now),
        status=status.QUEUED if again.ready else status.WAITING,
        waiting_for=None if again.ready else status.WAITING_STEPS,
        place=place_at(now, number) if again.ready else None,
        pending=again.pending,
        met=again.met,
        ready_at=(step.ready_at if step.begun else now) if again.ready else None,
        claim=step.claim + step.begun,
        first_attempt=step.attempt + 1,
        visible_at=_deadline(step, now) if again.ready else None,
    )


def _anew(run: Standing, now: int) -> Standing:
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


def _deadline(run: Standing, now: int) -> int | None:
    return None if run.deadline_ms is None else now + run.deadline_ms
