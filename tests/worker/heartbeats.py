"""Which workers of a test still beat. Others may live in the same process for longer, such as the one behind the pages
that a browser tries."""

from __future__ import annotations

import threading

_others: set[threading.Thread] = set()


def _all() -> set[threading.Thread]:
    return {thread for thread in threading.enumerate() if thread.name == "stepfast-heartbeat"}


def begin() -> None:
    """Whoever beats now does not belong to the test."""
    _others.clear()
    _others.update(_all())


def beating() -> set[threading.Thread]:
    """The heartbeats of workers that have come since the test began."""
    return _all() - _others
