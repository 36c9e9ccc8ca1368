"""The errors that SQL writes into rows by itself: what ends a run that no code is executing."""

from __future__ import annotations

import msgspec


def _error(kind: str, message: str) -> str:
    return msgspec.json.encode({"type": kind, "message": message, "retryable": False}).decode()


DEADLINE_ERROR = _error("DeadlineExceeded", "the run did not end before its deadline")
EXPIRED_ERROR = _error("Expired", "no worker picked the run up within its expires_in")
LOST_ERROR = _error(
    "WorkersLost", "too many workers died while executing this run, without a new record or a wait between them"
)
