"""The sweeper: asks which duties have work, and does what is due.

Makes sleepers ready when their time has come, tells the claimer what it saw, and gives back what dead workers held. One
combined question per tick, so that an idle worker costs next to nothing.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable, Iterable
from typing import TypeVar

from ..model.records import Lane, Tick
from ..settings import Settings
from ..store import Store
from .claimer import Claimer
from .neighbours import gone
from .patience import dutifully
from .vigil import Vigil

T = TypeVar("T")

_SLOW_LOOK = 0.1
"""Seconds beyond which the look for ready lanes is made less often."""
_LONGEST_UNLOOKED = 15.0
_BATCH = 1000
"""Rows moved by one statement: bounds how long they stay locked."""


class Sweeper:
    """Ticks for ever."""

    def __init__(
        self,
        store: Store,
        settings: Settings,
        logger: logging.Logger,
        worker_id: Callable[[], str],
        workflows: list[str],
        queues: list[str] | None,
        claimer: Claimer,
        may_reap: Callable[[], bool],
        ready: Callable[[Iterable[Lane]], None],
        ended: Callable[[], None],
        each_tick: Callable[[], None],
        mail_came: Callable[[], None],
        steps_asked: Callable[[], None],
    ) -> None:
        self._store = store
        self._settings = settings
        self._logger = logger
        self._worker_id = worker_id
        self._workflows = workflows
        self._queues = queues
        self._claimer = claimer
        self._may_reap = may_reap
        self._ready = ready
        self._ended = ended
        self._each_tick = each_tick
        self._mail_came = mail_came
        self._steps_asked = steps_asked
        self._look = asyncio.Event()
        self._vigil = Vigil(settings.sweep)
        self._next_watch = 0.0
        self._next_sweep = 0.0
        self._next_look = 0.0
        self._slow_before = False
        self._wait = settings.busy_poll
        self._stuck = False
        """Whether something is due, or to be delivered, that could not be moved: somebody holds its row."""
        self.ticks = 0
        self.stopped = False
        """The worker stops: no further tick."""

    def look_now(self) -> None:
        """Something changed: do not wait for the tick."""
        self._look.set()

    def look_for_lanes(self) -> None:
        """Something was put back in line, and no wake-up tells of it."""
        self._next_look = 0.0
        self._look.set()

    async def run(self) -> None:
        """Tick until the worker stops."""
        while not self.stopped:
            self._look.clear()
            tick = await self.tick()
            self._each_tick()
            await self._pause(tick)

    async def tick(self, look_for_lanes: bool = False) -> Tick:
        """Ask once and act on the answer."""
        lanes = look_for_lanes or time.monotonic() >= self._next_look
        tick = await self._ask(lambda: self._timed_tick(lanes))
        self._claimer.time_is(tick.now_ms)
        self._stuck = tick.due and not await self._promote()
        if tick.mail and not await self._deliver():
            self._stuck = True
        if tick.lanes or tick.suspects:
            self._claimer.found(tick.lanes, tick.suspects)
        await self._sweep()
        self.ticks += 1
        return tick

    async def _timed_tick(self, lanes: bool) -> Tick:
        """Under a long snapshot elsewhere, entries that left the line cannot be removed from its index and have to be
        walked past. Wake-ups tell of new ones meanwhile; looking for others must not take more than its share."""
        began = time.monotonic()
        tick = await self._store.tick(self._worker_id(), self._workflows, lanes, self._queues)
        took = time.monotonic() - began
        if lanes:
            slow = took > _SLOW_LOOK
            if slow and self._slow_before:  # twice in a row: not a network that held its breath
                self._next_look = began + min(took * 20, _LONGEST_UNLOOKED)
            self._slow_before = slow
        return tick

    async def _promote(self) -> int:
        """Move what is due; how many there were."""
        moved = 0
        while True:
            done = await self._ask(lambda: self._store.promote(_BATCH))
            if done.lanes:
                self._ready(done.lanes)
            if done.ended:
                self._logger.warning("%d runs expired or passed their deadline", len(done.ended))
                self._ended()
            if done.asked:
                self._steps_asked()
            moved += done.moved
            if done.moved < _BATCH:
                return moved

    async def _deliver(self) -> int:
        """Take mail to its runs; how much there was."""
        moved = 0
        while True:
            done = await self._ask(lambda: self._store.deliver(_BATCH))
            if done.lanes:
                self._ready(done.lanes)
            if done.running:
                self._mail_came()
            if done.ended:
                self._ended()
            moved += done.moved
            if done.moved < _BATCH and not done.ended:  # who was cancelled may have children
                return moved

    async def _sweep(self) -> None:
        now = time.monotonic()
        if now >= self._next_watch:
            self._next_watch = now + self._settings.sweep
            beats = await self._ask(lambda: self._store.beats(self._worker_id()))
            self._vigil.saw(beats, time.monotonic())
            if dead := gone(beats):
                await self._bury(dead)
        if now >= self._next_sweep and self._may_reap():
            self._next_sweep = now + self._settings.sweep
            await self._reap(self._vigil.silent(time.monotonic()))

    async def _bury(self, dead: list[str]) -> None:
        """Workers of this machine whose processes are gone: nobody has to wait for their leases, nor for a lease of our
        own beats, because no outage can look like that."""
        self._logger.warning("workers whose processes on this machine are gone: %s", ", ".join(dead))
        await self._ask(lambda: self._store.expire(dead))
        await self._reap(dead)

    async def _reap(self, silent: list[str]) -> None:
        """Give back what dead workers held, in bounded batches; those of the silent whose leases are over are dead."""
        losses = self._settings.max_losses
        while True:
            done = await self._ask(lambda: self._store.reap(self._worker_id(), _BATCH, losses, silent))
            if done.buried:
                self._logger.warning("workers declared dead: %s", ", ".join(done.buried))
            if done.dead_letters:
                self._logger.error("dead letters after too many lost workers: %s", ", ".join(done.dead_letters))
                self._ended()
            if done.lanes:
                self._ready(done.lanes)
            if done.asked:
                self._steps_asked()
            if done.moved:
                self.look_now()  # suspects among them stand in no lane: the next tick tells of these
            if done.moved < _BATCH:
                return

    async def _pause(self, tick: Tick) -> None:
        """Until the next tick: the poll interval, but no longer than a sweep; less when a sleeper is due sooner, or
        when there are no wake-ups and there was work a short while ago."""
        longest = min(self._settings.poll, self._settings.sweep)
        if not self._store.can_wake:
            busy = time.monotonic() - self._claimer.last_found < longest
            self._wait = self._settings.busy_poll if busy else min(self._wait * 2, longest)
            longest = self._wait
        if self._stuck:
            longest = min(longest, self._settings.busy_poll)
        if tick.next_due_ms is not None:
            soonest = self._settings.busy_poll if self._stuck else 0.001
            longest = min(longest, max(tick.next_due_ms / 1000, 0.0) + soonest)
        try:
            async with asyncio.timeout(longest):
                await self._look.wait()
        except TimeoutError:
            pass

    async def _ask(self, call: Callable[[], Awaitable[T]]) -> T:
        return await dutifully(call, "sweep", self._logger, self._settings.outage_backoff_max, lambda: self.stopped)
