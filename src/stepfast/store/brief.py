"""How long a transaction waits for rows that others hold, where somebody waits for it who cannot wait for ever.

Workers skip rows that are locked, or wait for them: whoever holds one lets go. A person who has pressed a button is
told instead. It is said in a context, because between the button and the transaction is all that a verb does; and it
holds for the task that said so alone: one that it happens to start may work for others, and for long.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Iterator
from contextvars import ContextVar
from typing import Any

from ..errors import StepfastError

_longest: ContextVar[tuple[int, asyncio.Task[Any] | None] | None] = ContextVar("stepfast_longest_wait", default=None)


class RowsHeld(StepfastError):
    """Somebody else's transaction holds rows that this one needs, for longer than it may wait. It was rolled back. This
    is no trouble of the database that is ridden out: whoever is brief wants to know."""


@contextlib.contextmanager
def brief(seconds: float) -> Iterator[None]:
    """Let transactions that are begun here wait no longer than this for any row."""
    before = _longest.set((max(1, int(seconds * 1000)), asyncio.current_task()))
    try:
        yield
    finally:
        _longest.reset(before)


def longest_wait_ms() -> int | None:
    """How many milliseconds a transaction may wait here; None: as long as it takes."""
    said = _longest.get()
    return said[0] if said is not None and said[1] is asyncio.current_task() else None
