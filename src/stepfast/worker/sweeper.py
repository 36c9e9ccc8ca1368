"""The sweeper: asks which duties have work, and does what is due.

Makes sleepers ready when their time has come, tells the claimer what it saw, and lets the reaper look for dead workers.
One combined question per tick, so that an idle worker costs next to nothing.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, TypeVar

from ..engine.observers import tell_each
from ..model.events import RunsSwept
from ..model.records import Tick
from ..store.answers import Delivery, MailId, Promotion
from .claimer import Claimer
from .context import WorkerContext
from .db_retry import Halves, Sweep
from .reaper import Reaper, tell_swept

if TYPE_CHECKING:
    from .worker import WorkerRuntime


T = TypeVar("T")

_SLOW_LOOK = 0.1
"""Seconds beyond which the look for ready lanes is made less often."""
_LONGEST_UNLOOKED = 15.0
_BATCH = 1000
"""Rows moved by one statement: bounds how long they stay locked."""


class Sweeper:
    """Asks the database at every tick what has to be done, and does it."""

    def __init__(self, context: WorkerContext, claimer: Claimer, runtime: WorkerRuntime) -> None:
        self._context = context
        self._store, self._settings, self._logger = context.store, context.settings, context.logger
        self._me, self._clock = context.me, context.clock
        self._names = list(context.me.workflows)
        self._claimer = claimer
        self._runtime = runtime
        self._bell = asyncio.Event()
        self._only_mail = False
        """Whether the bell was rung for mail alone."""
        self.reaper = Reaper(context, runtime, lambda: self.stopped)
        store = self._store
        self._promotions: Halves[str, Promotion] = Halves(
            context,
            lambda: self.stopped,
            Sweep(
                lambda: store.promote(_BATCH),
                lambda: store.due_runs(_BATCH),
                lambda ids: store.promote(_BATCH, ids),
                store.set_aside,
                lambda run_id: run_id,
            ),
        )
        self._deliveries: Halves[MailId, Delivery] = Halves(
            context,
            lambda: self.stopped,
            Sweep(
                lambda: store.deliver(_BATCH),
                lambda: store.undelivered(_BATCH),
                lambda mail: store.deliver(_BATCH, mail),
                store.leave_undelivered,
                lambda mail: mail[0],
            ),
        )
        self._ask_lanes_at = 0.0
        self._lanes_wanted = False
        self._slow_before = False
        self._wait = context.settings.min_poll_interval
        self._stuck = False
        """Whether something is due, or to be delivered, that could not be moved because its row is locked."""
        self.ticks = 0
        self.stopped = False
        """The worker stops: no further tick."""

    def tick_now(self) -> None:
        """Something changed: do not wait for the tick."""
        self._only_mail = False
        self._bell.set()

    def deliver_now(self) -> None:
        """There is mail, and nothing else is known to have changed: deliver it without a tick."""
        self._only_mail = self._only_mail or not self._bell.is_set()
        self._bell.set()

    def ask_for_lanes(self) -> None:
        """Something was made ready again, and no wake-up tells of it: the next tick looks, however slow looks are."""
        self._lanes_wanted = True
        self.tick_now()

    async def run(self) -> None:
        """Tick until the worker stops."""
        while not self.stopped:
            self._rewind()
            tick = await self.tick()
            self._runtime.each_tick()
            await self._pause(tick)

    def _rewind(self) -> None:
        self._bell.clear()
        self._only_mail = False

    async def tick(self, ask_for_lanes: bool = False) -> Tick:
        """Ask once and act on the answer."""
        lanes = ask_for_lanes or self._lanes_wanted or self._clock.now() >= self._ask_lanes_at
        self._lanes_wanted = False
        tick = await self._ask(lambda: self._timed_tick(lanes))
        self._claimer.time_is(tick.now_ms)
        self._runtime.gates_are(tick)
        self._stuck = tick.due and not await self._promote()
        if tick.mail and not (await self._deliver())[0]:
            self._stuck = True
        if tick.names:
            await self._hand_on_names()
        await self._see_to_events(tick)
        if tick.remote:
            self._runtime.remote_steps_wait()
        if tick.lanes or tick.suspects:
            self._claimer.found(tick.lanes, tick.suspects)
        if tick.schedule_ms is not None and tick.schedule_ms <= 0:
            self._runtime.schedules_due()
        if await self.reaper.look():
            self.tick_now()  # suspects among them are in no lane: the next tick finds these
        self.ticks += 1
        return tick

    async def _see_to_events(self, tick: Tick) -> None:
        """See to a batch of events; the next tick comes at once if there may be more."""
        dispatcher = self._runtime.event_dispatcher
        dispatcher.moved = False
        if not tick.events and (tick.start_ms is None or tick.start_ms > 0):
            return
        if await dispatcher.round(tick):
            await self._deliver()
        if dispatcher.moved:
            self.tick_now()
        elif tick.events:
            self._stuck = True  # another worker has them in hand

    async def _timed_tick(self, lanes: bool) -> Tick:
        """Under a long snapshot elsewhere, entries of runs that were claimed cannot be removed from the index of ready
        runs, and have to be walked past. Wake-ups tell of new ones in between; looking for others must take only its
        share."""
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
            batch = await self._promotions.done()
            for done in batch:
                self._announce_promoted(done)
                moved += done.moved
            if sum(done.moved for done in batch) < _BATCH:
                return moved

    def _announce_promoted(self, done: Promotion) -> None:
        if done.lanes:
            self._runtime.ready(done.lanes)
        if done.ended:
            told = "expired, or past the deadline"
            tell_each(self._logger, told, [{"run_id": run_id} for run_id in done.ended])
            self._runtime.ended()
            tell_swept(self._context, RunsSwept(expired=len(done.ended)))
        if done.asked:
            self._runtime.steps_asked()

    async def _deliver(self) -> tuple[int, bool]:
        """Deliver mail, and return how much there was, and whether runs have another time because of it."""
        moved, timed, names = 0, False, False
        while True:
            batch = await self._deliveries.done()
            for done in batch:
                self._announce_delivered(done)
                moved += done.moved
                timed = timed or done.timed
                names = names or done.names
            ended = any(done.ended for done in batch)  # who was cancelled may have children
            if sum(done.moved for done in batch) < _BATCH and not ended:
                break
        if names:
            await self._hand_on_names()
        return moved, timed

    async def _hand_on_names(self) -> None:
        """Hand on the names of runs that have ended, each in a transaction of its own."""
        for run_id in await self._ask(lambda: self._store.handing_on(_BATCH)):
            self._announce_delivered(await self._ask(lambda: self._store.hand_on(run_id)))  # noqa: B023

    def _announce_delivered(self, done: Delivery) -> None:
        if done.lanes:
            self._runtime.ready(done.lanes)
        if done.running:
            self._runtime.mail_came()
        if done.asked:
            self._runtime.steps_asked()
        if done.ended:
            self._runtime.ended()

    async def _pause(self, tick: Tick) -> None:
        """Until the next tick: the poll interval, but no longer than a sweep; less when a sleeper or
        a schedule is due sooner, or when there are no wake-ups and there was work a short while ago."""
        longest = min(self._settings.poll_interval, self._settings.sweep_interval)
        if not self._store.can_wake:
            busy = self._clock.now() - self._claimer.last_found < longest
            self._wait = self._settings.min_poll_interval if busy else min(self._wait * 2, longest)
            longest = self._wait
        if self._stuck:
            longest = min(longest, self._settings.min_poll_interval)
        if tick.next_due_ms is not None:
            soonest = self._settings.min_poll_interval if self._stuck else 0.001
            longest = min(longest, max(tick.next_due_ms / 1000, 0.0) + soonest)
        if tick.schedule_ms is not None:
            soonest = (
                self._settings.min_poll_interval if tick.schedule_ms <= 0 else 0.001
            )  # another process may have it in hand
            longest = min(longest, max(tick.schedule_ms / 1000, 0.0) + soonest)
        until = self._clock.now() + longest
        while await self._rung(until - self._clock.now()) and self._only_mail and not self.stopped:
            self._rewind()
            moved, timed = await self._deliver()
            if timed or not moved:
                return

    async def _rung(self, seconds: float) -> bool:
        """Wait for the bell, and return whether it was rung in time."""
        try:
            async with self._clock.timeout(max(seconds, 0.0)):
                await self._bell.wait()
        except TimeoutError:
            return False
        return True

    async def _ask(self, call: Callable[[], Awaitable[T]]) -> T:
        return await self._context.ask(call, "sweep", lambda: self.stopped)
