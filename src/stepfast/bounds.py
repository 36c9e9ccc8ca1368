"""Which queues take no more than so many ready runs (``max_ready``), as far as a process that starts runs knows.

It is asked once before the first start, and again in the background at most once a second: a start costs a look into a
dictionary, unless its queue is bounded.
"""

from __future__ import annotations

import asyncio

from .engine.host import Clock
from .errors import StepfastError
from .model.records import NewRun
from .store import Store

_FRESH = 0.5
"""Seconds for which an answer is taken as it is: with the next start after them, a change is known within a second."""


class Bounds:
    """The bounds of queues; made with the connection."""

    def __init__(self, store: Store, clock: Clock) -> None:
        self._store = store
        self._clock = clock
        self._bounds: dict[str, int] = {}
        self._asked_at = float("-inf")
        self._asks = self._answered = self._outdated = 0
        """How often it was asked; the last question that was answered; the last one before something was said here."""
        self._asking: asyncio.Task[None] | None = None
        self.known = False
        """Whether there was an answer yet."""

    async def learn(self) -> None:
        """Ask, and wait for the answer. An answer that a younger question has overtaken is of no use, and one to a
        question that is older than what was said here makes nothing known."""
        self._asks += 1
        this, asked_at = self._asks, self._clock.now()
        bounds = await self._store.queue_bounds()
        if this > self._answered:
            self._bounds, self._answered, self._asked_at = bounds, this, asked_at
        if this > self._outdated:
            self.known = True

    def forget(self) -> None:
        """Something was said about a queue here: the next start asks first, also if a question is under way."""
        self._outdated, self.known = self._asks, False

    def of(self, queue: str) -> int | None:
        """How many runs of a queue may be ready; None: as many as are started. The answer may be a second old."""
        if self._clock.now() - self._asked_at > _FRESH and (self._asking is None or self._asking.done()):
            self._asking = asyncio.create_task(self._ask_again(), name="stepfast-bounds")
        return self._bounds.get(queue)

    async def _ask_again(self) -> None:
        try:
            await self.learn()
        except StepfastError:
            self._asked_at = self._clock.now()  # what was known holds until the database is back

    def drop(self) -> list[asyncio.Task[None]]:
        """The task that asks, to be cancelled."""
        return [] if self._asking is None else [self._asking]


def begins_ready(run: NewRun) -> bool:
    """Whether a start makes a run ready at once: not one that was put off, nor a dag run, whose first steps do."""
    later = run.shape.delay_ms or run.shape.at_ms is not None
    return not (later or run.steps or (run.dag_step is not None and run.dag_step.pending))
