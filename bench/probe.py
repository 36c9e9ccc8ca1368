"""What the handlers tell the measurement: when each run was entered and left.

One probe per process, shared by every engine's handlers. Appending to a list is atomic, so handlers may
run in any thread. Times are CLOCK_MONOTONIC nanoseconds, which all processes of one machine share.
"""

from __future__ import annotations

import asyncio
from time import perf_counter_ns

STEPS = 5
ITEMS = 1000
"""Items that a run of the kind `stream` sends from its one step."""
TRICKLE, PAUSE = 200, 0.01
"""Items that a run of the kind `trickle` sends, and seconds between two."""


class Probe:
    """Counters that the handlers fill and the scenarios read."""

    def __init__(self) -> None:
        self.entered: list[int] = []
        self.left: list[int] = []
        self.delays: list[int] = []
        self.spans: list[int] = []
        self.release = asyncio.Event()
        self.steps = STEPS
        """Of a workflow."""
        self.payload: str | None = None
        """What each step is given and returns; None: a small number."""

    def enter(self, sent: int) -> int:
        """A handler begins; `sent` is the moment its run was started, or 0 if nobody asks for the delay."""
        now = perf_counter_ns()
        self.entered.append(now)
        if sent:
            self.delays.append(now - sent)
        return now

    def leave(self, entered: int) -> None:
        """A handler ends."""
        now = perf_counter_ns()
        self.left.append(now)
        self.spans.append(now - entered)

    def reset(self) -> None:
        """Forget everything, before the next measurement."""
        for times in (self.entered, self.left, self.delays, self.spans):
            times.clear()
        self.release = asyncio.Event()


PROBE = Probe()


async def work(i: int) -> int:
    """The body of every step: nothing but a small value, so that only the engine is measured."""
    return i + 1


async def carry(text: str) -> str:
    """The body of a step that has a payload."""
    return text
