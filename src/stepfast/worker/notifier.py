"""The switchboard: who wants to be woken in this process, and what to tell other processes.

Outgoing notifications are coalesced: all that came up while the last one was sent goes out as the next, in a
transaction of its own, after the data was committed. None of it is required: polling alone is correct.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable, Sequence

from ..engine.host import Clock
from ..errors import StepfastError, sentence
from ..model.bulk_actions import BatchOutcome
from ..model.records import Lane, NewRun, Transition
from ..store import Store
from ..store.answers import Wakeups

Listener = Callable[[Wakeups], None]
_STREAMED = Wakeups(frozenset(), False, streams=True)


def started_lanes(runs: Iterable[NewRun]) -> tuple[set[Lane], bool]:
    """Where runs that were just started are ready; and whether some are not yet, because of their time."""
    begin = (run.shape for run in runs if not run.steps and (run.dag_step is None or run.dag_step.pending == 0))
    shapes = set({id(shape): shape for shape in begin}.values())  # most are one and the same, and large to compare
    ready = {shape for shape in shapes if not shape.delay_ms and shape.at_ms is None}
    return {Lane(s.queue, s.workflow, s.priority) for s in ready}, len(ready) < len(shapes)


class Switchboard:
    """Passes wake-ups on, inside the process at once and to other processes by the store."""

    def __init__(self, store: Store, logger: logging.Logger, clock: Clock) -> None:
        self._clock = clock
        self._store = store
        self._logger = logger
        self._listeners: list[Listener] = []
        self._lanes: set[Lane] = set()
        self._ended = False
        self._look = False
        self._streams = False
        self._sender: asyncio.Task[None] | None = None
        self._ear: asyncio.Task[None] | None = None
        self._over = False
        self.outcomes: list[Callable[[Sequence[Transition]], None]] = []
        """Called with the ends of runs of this process, so that waiting callers here need not query the database."""

    def subscribe(self, listener: Listener) -> None:
        """Tell a listener of every wake-up from now on."""
        self._listeners.append(listener)
        if self._ear is None and not self._over:
            self._ear = asyncio.create_task(self._store.listen(self._heard), name="stepfast-listen")

    def unsubscribe(self, listener: Listener) -> None:
        """Tell a listener of no wake-up any more."""
        if listener in self._listeners:
            self._listeners.remove(listener)

    @property
    def hears(self) -> bool:
        """Whether wake-ups of other processes are known to arrive."""
        return self._store.can_wake

    def stop_unless_heard(self) -> None:
        """Stop listening to other processes if there are no listeners here; the next one begins again."""
        if not self._listeners and self._ear is not None:
            self._ear.cancel()
            self._ear = None

    def ready(self, lanes: Iterable[Lane]) -> None:
        """Runs were made ready: workers should claim them."""
        new = frozenset(lanes)
        self._lanes |= new
        self._heard(Wakeups(new, False))
        self._send_soon()

    def tick_soon(self) -> None:
        """Something has a time that may come before the next tick."""
        self._heard(Wakeups(frozenset(), False, True))

    def tick_everywhere(self) -> None:
        """Something is asked of, or sent to, a run that a worker holds, here or elsewhere."""
        self.tick_soon()
        self.tell_others()

    def tell_others(self) -> None:
        """Make workers of other processes tick; those here are not woken."""
        self._look = True
        self._send_soon()

    def ended(self, moves: Sequence[Transition] = ()) -> None:
        """Runs have ended; how, where it is known here."""
        self._ended = True
        if moves:
            for told in self.outcomes:
                told(moves)
        else:
            self._heard(Wakeups(frozenset(), True))
        self._send_soon()

    def streamed(self) -> None:
        """Items of streams, or answers to questions, were committed."""
        self._streams = True
        self._heard(_STREAMED)
        self._send_soon()

    def values_set(self) -> None:
        """Values were committed: notify readers of this process only."""
        self._heard(_STREAMED)

    def bulk_applied(self, outcome: BatchOutcome) -> None:
        """Wake what a batch of a bulk action concerns."""
        if outcome.lanes:
            self.ready(outcome.lanes)
        if outcome.ended:
            self.ended()
        if outcome.done:
            self.tick_everywhere()

    async def send_all(self, patience: float) -> None:
        """Wait until pending notifications were sent."""
        if self._sender is not None:
            await self._clock.wait((self._sender,), patience)

    def drop(self) -> list[asyncio.Task[None]]:
        """Send and listen no more. The tasks, to be cancelled."""
        self._over = True
        return [task for task in (self._sender, self._ear) if task is not None]

    def _heard(self, wakeups: Wakeups) -> None:
        for listener in list(self._listeners):
            listener(wakeups)

    def _send_soon(self) -> None:
        if not self._over and (self._sender is None or self._sender.done()):
            self._sender = asyncio.create_task(self._send(), name="stepfast-notify")

    async def _send(self) -> None:
        while self._lanes or self._ended or self._look or self._streams:
            wakeups = Wakeups(frozenset(self._lanes), self._ended, self._look, self._streams)
            self._lanes, self._ended, self._look, self._streams = set(), False, False, False
            try:
                await self._store.notify(wakeups)
            except StepfastError as error:
                self._logger.debug("notify: %s", sentence(error))
                return
