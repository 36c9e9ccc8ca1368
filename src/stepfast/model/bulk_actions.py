"""What an operator wishes of many runs at once, and what came of it."""

from __future__ import annotations

from msgspec import Struct, field

from .records import Lane

CANCEL, PAUSE, RESUME, RETRY = WISHES = ("cancel", "pause", "resume", "retry")


class Granted(Struct):
    """What came of a wish for some runs."""

    done: list[str] = field(default_factory=list)
    refused: dict[str, str] = field(default_factory=dict)
    """Runs that were in no state for it, each with its status."""
    apart: list[str] = field(default_factory=list)
    """Runs to be asked one by one: dag runs, whose steps are waited for; and those that somebody holds locked."""
    lanes: set[Lane] = field(default_factory=set)
    """Where runs are ready now."""
    ended: bool = False
