"""An operator pauses a run, and lets it go on."""

from __future__ import annotations

from msgspec.structs import replace

from . import status
from .standing import Standing, place_at, sooner


def may_be_paused(run: Standing) -> bool:
    """What has ended, is to be cancelled, or is being undone, is not paused."""
    return not (run.ended or run.undoing or run.failing or run.asked == status.ASK_CANCEL)


def pause(run: Standing, now: int) -> Standing | None:
    """A run stands still until somebody resumes it. It remembers when it would have been due and what it waited for;
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


def resume(run: Standing, now: int, number: int = 0) -> Standing | None:
    """A paused run goes on: at once, if nothing keeps it or what it waited for has happened meanwhile, else when it
    would have been due; a dag run with its steps. A check that somebody waits for is made at once. A mark for the owner
    of a run is taken back. None: nothing changes."""
    if run.status != status.PAUSED and run.asked == status.ASK_PAUSE:
        return replace(run, asked=None, wakes=run.wakes + 1)
    checks = run.status == status.WAITING and run.waiting_for == status.WAITING_CHECK
    if run.status != status.PAUSED and not checks:
        return None
    freed = replace(run, asked=None, held_due=None, paused_at=None, wakes=run.wakes + 1)
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


def _may_go_on(run: Standing, now: int) -> bool:
    """Whether a paused run is ready when it is let go: it waits for nothing, or for what has come meanwhile."""
    due = run.held_due is not None and run.held_due <= now
    if run.waiting_for is None:
        return due or run.held_due is None
    enough_ended = run.awaits is not None and run.ends >= run.awaits
    return due or enough_ended or run.waiting_for == status.WAITING_CHECK
