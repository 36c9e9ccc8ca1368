"""Whether a result belongs to the attempt that is waited for.

A result row does not say of which attempt it is. A worker that was taken for dead may still write the failure of an
attempt that was given up long ago, and it would end the one that runs now. What can be known: a step that was completed
is completed, whoever did it; the first attempt has nothing before it; and a failure that began before its attempt was
sent out is an old one. When it began is told by the clock of somebody else's machine, so there is a tolerance.
"""

from __future__ import annotations

from .messages import COMPLETED, Result

TOLERANCE_MS = 5_000
"""How far the clock of a worker may be behind the database's before its failures are taken for old ones."""


def is_stale(result: Result, attempt: int, dispatched_at: int, tolerance_ms: int = TOLERANCE_MS) -> bool:
    """Whether a result is left over from an earlier attempt, so that the present one has to be sent once more."""
    if result.status == COMPLETED or attempt <= 1 or result.started_at is None:
        return False
    return result.started_at < dispatched_at - tolerance_ms
