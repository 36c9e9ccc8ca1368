"""A worker takes a run. Claims are made in SQL, hundreds in one statement; this is what they do to a row."""

from __future__ import annotations

from msgspec.structs import replace

from . import status
from .standing import Standing


def claim(run: Standing, worker: str, version: str, now: int) -> Standing:
    """A run out of its queue, under a claim number that nobody had before."""
    return replace(
        run,
        status=status.COMPENSATING if run.undoing else status.RUNNING,
        worker=worker,
        version=version,
        claim=run.claim + 1,
        place=None,
        visible_at=None,
        waiting_for=None,
        attempt=max(run.attempt, run.first_attempt),
        started_at=now if run.started_at is None else run.started_at,
    )
