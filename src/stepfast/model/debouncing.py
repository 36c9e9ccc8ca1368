"""Debounced starts: further starts of a key, while its run waits, give it another input and put it off."""

from __future__ import annotations

from typing import NamedTuple

from msgspec.structs import replace

from . import status
from .standing import Standing, place_at, sooner


class Debounce(NamedTuple):
    """How long a run waits after the last start of its key; and after the first at most (None: however long)."""

    wait_ms: int
    max_ms: int | None = None

    def due_at(self, first_at: int, now: int) -> int:
        """When the run is due, if its key was started now, and for the first time then."""
        due = now + self.wait_ms
        return due if self.max_ms is None else min(due, first_at + self.max_ms)


def put_off(run: Standing, first_at: int, now: int, debounce: Debounce, expires_ms: int | None) -> Standing:
    """A run that no worker has claimed yet, started once more. One that is ready already is not any more, unless its
    time is up. For how long it may stay unclaimed is counted anew."""
    due = debounce.due_at(first_at, now)
    late = None if expires_ms is None else max(due, now) + expires_ms
    if run.status == status.PAUSED:
        return replace(run, held_due=due, expires_at=late)
    late_at = sooner(late, run.deadline_at)
    if due > now:
        return replace(run, place=None, visible_at=sooner(due, late_at), expires_at=late)
    place = place_at(now, 1) if run.place is None else run.place
    return replace(run, place=place, visible_at=late_at, expires_at=late)
