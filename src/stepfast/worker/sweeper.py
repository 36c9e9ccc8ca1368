"""The sweeper: asks which duties have work, and does what is due.

Makes sleepers ready when their time has come, tells the claimer what it saw, and gives back what dead workers held. One
combined question per tick, so that an idle worker costs next to nothing.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable
from typing import Protocol, TypeVar

from ..model.events import RunsSwept
from ..model.records import Lane, Tick
from .claimer import Claimer
from .kit import Kit
from .neighbours import gone
from .vigil import Vigil

T = TypeVar("T")

_SLOW_LOOK = 0.1
"""Seconds beyond which the look for ready lanes is made less often."""
_LONGEST_UNLOOKED = 15.0
_BATCH = 1000
"""Rows moved by one statement: bounds how long they stay locked."""


class SweepPort(Protocol):
    """Whoever is told what a sweep has moved, and says whether this worker may bury others."""

    def may_reap(self) -> bool:
        """Whether a silent worker may be taken for dead."""
        ...

    def gates_are(self, tick: Tick) -> None:
        """Which queues are paused or limited, and what is ready in those that are limited."""

    def ready(self, lanes: Iterable[Lane]) -> None:
        """Runs were made ready: workers should claim them."""

    def ended(self) -> None:
        """Runs have ended: whoever waits for them is told."""

    def mail_came(self) -> None:
        """Mail was delivered to runs that workers hold."""

    def steps_asked(self) -> None:
        """Something is asked of runs that workers hold."""

    def schedules_due(self) -> None:
        """The time of a schedule has come."""

    def remote_steps_wait(self) -> None:
        """There are remote steps to be sent, or results to be looked for."""

    def each_tick(self) -> None:
        """Another tick is over."""


class Sweeper:
    """Asks the database at every tick what has to be done, and does it."""

    def __init__(self, kit: Kit, claimer: Claimer, port: SweepPort) -> None:
        self._kit = kit
        self._store, self._settings, self._logger = kit.store, kit.settings, kit.logger
        self._me, self._clock = kit.me, kit.clock
        self._names = list(kit.me.workflows)
        self._claimer = claimer
        self._port = port
        self._bell = asyncio.Event()
        self._vigil = Vigil(kit.settings.sweep)
        self._next_watch = 0.0
        self._next_sweep = 0.0
        self._ask_lanes_at = 0.0
        self._lanes_wanted = False
        self._slow_before = False
        self._wait = kit.settings.busy_poll
        self._stuck = False
        """Whether something is due, or to be delivered, that could not be moved: somebody holds its row."""
        self.ticks = 0
        self.stopped = False
        """The worker stops: no further tick."""

    def tick_now(self) -> None:
        """Something changed: do not wait for the tick."""
        self._bell.set()

    def ask_for_lanes(self) -> None:
        """Something was made ready again, and no wake-up tells of it: the next tick looks, however slow looks are."""
        self._lanes_wanted = True
        self._bell.set()

    async def run(self) -> None:
        """Tick until the worker stops."""
        while not self.stopped:
            self._bell.clear()
            tick = await self.tick()
            self._port.each_tick()
            await self._pause(tick)

    async def tick(self, ask_for_lanes: bool = False) -> Tick:
        """Ask once and act on the answer."""
        lanes = ask_for_lanes or self._lanes_wanted or self._clock.now() >= self._ask_lanes_at
        self._lanes_wanted = False
        tick = await self._ask(lambda: self._timed_tick(lanes))
        self._claimer.time_is(tick.now_ms)
        self._port.gates_are(tick)
        self._stuck = tick.due and not await self._promote()
        if tick.mail and not await self._deliver():
            self._stuck = True
        if tick.remote:
            self._port.remote_steps_wait()
        if tick.lanes or tick.suspects:
            self._claimer.found(tick.lanes, tick.suspects)
        if tick.schedule_ms is not None and tick.schedule_ms <= 0:
            self._port.schedules_due()
        await self._sweep()
        self.ticks += 1
        return tick

    async def _timed_tick(self, lanes: bool) -> Tick:
        """Under a long snapshot elsewhere, entries of runs that were claimed cannot be removed from the index of ready
        runs, and have to be walked past. Wake-ups tell of new ones meanwhile; looking for others must take no more than
        its share."""
        began = self._clock.now()
        tick = await self._store.tick(self._me.id, self._names, lanes, self._me.queues, self._me.schedules)
        took = self._clock.now() - began
        if lanes:
            slow = took > _SLOW_LOOK
            if slow and self._slow_before:  # twice in a row: not a network that held its breath
                self._ask_lanes_at = began + min(took * 20, _LONGEST_UNLOOKED)
            self._slow_before = slow
        return tick

    async def _promote(self) -> int:
        """Move what is due; how many there were."""
        moved = 0
        while True:
            done = await self._ask(lambda: self._store.promote(_BATCH))
            if done.lanes:
                self._port.ready(done.lanes)
            if done.ended:
                self._logger.warning("%d runs expired or passed their deadline", len(done.ended))
                self._port.ended()
                self._tell(RunsSwept(expired=len(done.ended)))
            if done.asked:
                self._port.steps_asked()
            moved += done.moved
            if done.moved < _BATCH:
                return moved

    async def _deliver(self) -> int:
        """Take mail to its runs; how much there was."""
        moved = 0
        while True:
            done = await self._ask(lambda: self._store.deliver(_BATCH))
            if done.lanes:
                self._port.ready(done.lanes)
            if done.running:
                self._port.mail_came()
            if done.asked:
                self._port.steps_asked()
            if done.ended:
                self._port.ended()
            moved += done.moved
            if done.moved < _BATCH and not done.ended:  # who was cancelled may have children
                return moved

    async def _sweep(self) -> None:
        now = self._clock.now()
        if now >= self._next_watch:
            self._next_watch = now + self._settings.sweep
            beats = await self._ask(lambda: self._store.beats(self._me.id))
            self._vigil.saw(beats, self._clock.now())
            if dead := gone(beats):
                await self._bury(dead)
        if now >= self._next_sweep and self._port.may_reap():
            self._next_sweep = now + self._settings.sweep
            await self._reap(self._vigil.silent(self._clock.now()))

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
            done = await self._ask(lambda: self._store.reap(self._me.id, _BATCH, losses, silent))
            if done.buried:
                self._logger.warning("workers declared dead: %s", ", ".join(done.buried))
            if done.dead_letters:
                for run_id in done.dead_letters:
                    told = "run %s: too many workers died with it; it has failed as a dead letter"
                    self._logger.error(told, run_id, extra={"run_id": run_id})
                self._port.ended()
            if done.lanes:
                self._port.ready(done.lanes)
            if done.asked:
                self._port.steps_asked()
            if done.moved:
                self._tell(
                    RunsSwept(recovered=done.moved - len(done.dead_letters), dead_letters=len(done.dead_letters))
                )
                self.tick_now()  # suspects among them stand in no lane: the next tick tells of these
            if done.moved < _BATCH:
                return

    def _tell(self, swept: RunsSwept) -> None:
        observers = self._kit.observers
        if observers is not None:
            observers.tell(observers.swept, swept)

    async def _pause(self, tick: Tick) -> None:
        """Until the next tick: the poll interval, but no longer than a sweep; less when a sleeper or
        a schedule is due sooner, or when there are no wake-ups and there was work a short while ago."""
        longest = min(self._settings.poll, self._settings.sweep)
        if not self._store.can_wake:
            busy = self._clock.now() - self._claimer.last_found < longest
            self._wait = self._settings.busy_poll if busy else min(self._wait * 2, longest)
            longest = self._wait
        if self._stuck:
            longest = min(longest, self._settings.busy_poll)
        if tick.next_due_ms is not None:
            soonest = self._settings.busy_poll if self._stuck else 0.001
            longest = min(longest, max(tick.next_due_ms / 1000, 0.0) + soonest)
        if tick.schedule_ms is not None:
            soonest = self._settings.busy_poll if tick.schedule_ms <= 0 else 0.001  # somebody may have it in hand
            longest = min(longest, max(tick.schedule_ms / 1000, 0.0) + soonest)
        try:
            async with self._clock.timeout(longest):
                await self._bell.wait()
        except TimeoutError:
            pass

    async def _ask(self, call: Callable[[], Awaitable[T]]) -> T:
        return await self._kit.ask(call, "sweep", lambda: self.stopped)
