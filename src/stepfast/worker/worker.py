"""A worker: registers, claims, executes, records, beats and sweeps, until it is told to stop."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any

from ..engine.host import current_execution
from ..errors import StepfastError, WorkerBroken, sentence
from ..model.health import Vitals
from .carriage import Carriage
from .cleaning_up import bounded, ended, to_the_end
from .collector import collector, threshold_for
from .duties import Duties
from .errands import NewChild
from .kit import Kit
from .patience import patiently
from .scheduler import Planning
from .wakeups import Switchboard

_PATIENCE = 5.0
"""Seconds a worker rides out trouble before it has begun; from then on it rides out any."""
_GIVE_BACK = 3.0
"""Seconds for giving runs back when a worker stops."""
_SIGN_OFF = 3.0
"""Seconds for the last word to the database."""
_CLOSE = 2.0
"""Seconds for each of those who have to end with the worker."""


class Worker:
    """One worker in this process. Use it as ``async with app.worker(): …``."""

    def __init__(
        self, kit: Kit, switchboard: Switchboard, new_child: NewChild, planning: Planning, carriage: Carriage
    ) -> None:
        self._kit = kit
        self._store, self._settings, self._logger = kit.store, kit.settings, kit.logger
        self._planning = planning
        self.duties = Duties(kit, switchboard, new_child, planning, carriage, self._break)
        self._tasks: list[asyncio.Task[None]] = []
        """The duties that are under way."""
        self.left = asyncio.Event()
        """Set when a stop has come to its end."""
        self._body: asyncio.Task[Any] | None = None
        """The task whose ``async with`` block this worker serves."""
        self._body_ended = False
        """Whether we have cancelled it, because we are of no use to it any more."""
        self._cancelled_before = 0
        self._cause: tuple[str, BaseException] | None = None
        self._hurried = asyncio.Event()
        self.broken = asyncio.Event()
        """Set if a duty ended by an error, which is a bug: the worker is of no use any more, and leaves."""

    @property
    def id(self) -> str:
        """The id of the worker; another one, if it was declared dead and went on."""
        return self._kit.me.id

    # -- life ------------------------------------------------------------------------------------------------------

    async def __aenter__(self) -> Worker:
        await self.start()
        self._body = asyncio.current_task()
        self._cancelled_before = 0 if self._body is None else self._body.cancelling()
        return self

    async def __aexit__(self, _kind: object, error: BaseException | None, _traceback: object) -> None:
        """Leave. If a duty broke, that is what comes out of the block, whatever the body raised; unless somebody else
        has cancelled the body, which must hear of it."""
        body, self._body = self._body, None
        ours = body if self._body_ended and body is asyncio.current_task() else None
        if ours is not None:
            ours.uncancel()
        try:
            await self.stop()
        except asyncio.CancelledError:
            if ours is None or ours.cancelling() > self._cancelled_before:
                raise
            await self.stop()  # it was our own, and came when the body had ended by itself
        cancelled = body is not None and body.cancelling() > self._cancelled_before
        if self.broken.is_set() and not (cancelled and isinstance(error, asyncio.CancelledError)):
            raise self.breakage()

    async def start(self) -> None:
        """Register and begin all duties."""
        try:
            await self._register()
        except StepfastError:
            raise
        except BaseException:
            await to_the_end(self._sign_off)  # the row may be there although its answer was not waited for
            raise
        try:
            await self._declare()
        except BaseException:
            await to_the_end(self._sign_off)
            raise
        self._logger.info("worker %s started: %s", self.id, ", ".join(self._kit.me.served()) or "no workflows")
        collector.ease(self, threshold_for(self._settings))
        duties = self.duties
        duties.listen()
        duties.heartbeat.start()
        others = (duties.scheduler, duties.courier, duties.janitor)
        for duty in (duties.journal, duties.claimer, duties.limited, duties.sweeper, *others):
            task = asyncio.create_task(duty.run(), name=f"stepfast-{type(duty).__name__.lower()}")
            task.add_done_callback(self._duty_ended)
            self._tasks.append(task)

    async def _register(self) -> None:
        await self._patiently(lambda: self._store.register(self._kit.me.info(self._settings)))

    async def _declare(self) -> None:
        """The schedules, when the worker is known to live: from then on they are awake. Without any there is nothing
        that the caller would have to wait for, and the scheduler does it."""
        if self._kit.me.schedules:
            await self._patiently(lambda: self._planning.declare(self.id))

    async def _patiently(self, call: Callable[[], Awaitable[None]]) -> None:
        clock = self._kit.clock
        until = clock.now() + _PATIENCE
        await patiently(call, "register", self._logger, 1.0, lambda: clock.now() > until, clock=clock)

    async def stop(self, grace: float | None = None) -> None:
        """Stop claiming, wait up to the grace time for handlers, give the rest back at once, leave. If the call is
        cancelled, it waits for no handler any more, but leaves nothing behind. A second call waits for the first."""
        if self.duties.stopping:
            await self.left.wait()
            return
        self.duties.stopping = True
        self.duties.claimer.stopped = True
        self.duties.scheduler.stop()
        if self.broken.is_set():
            grace = 0
        try:
            await self._finish(self._settings.grace if grace is None else grace)
        finally:
            try:
                await to_the_end(self._clean_up)
            finally:
                self.left.set()
        self._logger.info("worker %s stopped", self.id)

    async def _finish(self, grace: float) -> None:
        """Let handlers come to their end."""
        await self._end_claim()
        if self.duties.executor.running and grace > 0:
            self._logger.info(
                "worker %s waits up to %g s for %d runs", self.id, grace, len(self.duties.executor.running)
            )
            state = self._store.worker_state(self.id, "stopping")
            self.duties.chore(self._bounded(state, _GIVE_BACK, "saying that this worker stops"))
            await self._wait_idle(grace)

    async def _clean_up(self) -> None:
        """Leave no beat, no task, no run and no row behind; each with a bound, because the database may be away. What
        cannot be given back now is reaped after the lease. Safe to repeat."""
        self.duties.heartbeat.tell_to_stop()  # first: whatever comes next, nobody must take us for alive any more
        self.duties.listen_no_more()
        collector.restore(self)
        await self._end_claim()  # a claim that is cut off may still be carried out, for a worker that has left by then
        await self._bounded(self._hand_over(), _GIVE_BACK, "giving runs back")
        self.duties.journal.give_up()
        self.duties.sweeper.stopped = self.duties.courier.stopped = True
        await ended((*self._tasks, *self.duties.chores), self._kit.clock)
        for closing in (self.duties.mailman.close, self.duties.graphs.close, self.duties.executor.close):
            await self._bounded(closing(), _CLOSE, "closing")
        await self._sign_off()
        await self._bounded(self.duties.heartbeat.stop(), _CLOSE, "the last heartbeat")

    async def _hand_over(self) -> None:
        """What is in the slots is made ready again, and what is in the journal is committed."""
        await self.duties.executor.give_back()
        await self.duties.journal.flush_all()
        await self.duties.executor.progress.written()

    async def _end_claim(self) -> None:
        """Let a claim that is under way bring its runs, so that they go back at once. Not for long: what it brings too
        late goes back when we sign off."""
        clock = self._kit.clock
        until = clock.now() + 1
        while (self.duties.claimer.busy or self.duties.limited.busy) and clock.now() < until:
            await clock.sleep(0.005)  # a few times, once in a life

    async def _wait_idle(self, grace: float) -> None:
        idle = asyncio.ensure_future(self.duties.executor.idle.wait())
        hurry = asyncio.ensure_future(self._hurried.wait())
        try:
            await self._kit.clock.wait((idle, hurry), grace, asyncio.FIRST_COMPLETED)
        finally:
            idle.cancel()
            hurry.cancel()

    def _bounded(self, work: Coroutine[Any, Any, Any], seconds: float, what: str) -> Coroutine[Any, Any, bool]:
        return bounded(work, seconds, what, self._logger, self._kit.clock)

    @property
    def at_work(self) -> bool:
        """Whether it has begun and has not left."""
        return bool(self._tasks) and not self.left.is_set()

    def executes_caller(self) -> bool:
        """Whether the code that asks is that of a run which this worker holds, and must not wait for it."""
        execution = current_execution.get()
        return execution is not None and self.duties.executor.running.get(execution.run_id) is execution

    @property
    def running(self) -> int:
        """How many runs it holds."""
        return len(self.duties.executor.running)

    def vitals(self) -> Vitals:
        """How it is doing, as far as it knows itself. May be asked from any thread; asks nobody else."""
        heartbeat = self.duties.heartbeat
        return Vitals(
            self.id, self.at_work and not self.duties.claimer.paused, self.duties.stopping, self.broken.is_set(),
            heartbeat.alive, heartbeat.age, self._settings.lease,
        )  # fmt: skip

    @property
    def grace(self) -> float:
        """Seconds for which a stop waits for them."""
        return self._settings.grace

    def hurry(self) -> None:
        """A second signal: do not wait for handlers any longer."""
        self._hurried.set()

    async def _sign_off(self) -> None:
        """Take our row away; whatever still names us is made ready again with it."""
        if not await self._bounded(self._store.unregister(self.id), _SIGN_OFF, "signing off"):
            told = "worker %s could not take itself off the list of workers; others do so after its lease"
            self._logger.warning(told, self.id)

    async def until_drained(self) -> None:
        """Until nothing is runnable: nothing in the slots, ready, or due soon."""
        ahead = max(self._settings.drain, self._settings.moment) * 1000
        executor, claimer, limited = self.duties.executor, self.duties.claimer, self.duties.limited
        while True:
            await executor.idle.wait()
            await (
                self.duties.journal.flush_all()
            )  # what has just left its slot is neither due nor ready before its commit
            before = claimer.last_found
            tick = await self.duties.sweeper.tick(ask_for_lanes=True)
            soon = tick.next_due_ms is not None and tick.next_due_ms <= ahead
            served = any(self._kit.me.serves(lane) for lane in tick.lanes)
            soon = soon or limited.allowed_in() * 1000 <= ahead
            quiet = executor.idle.is_set() and claimer.idle and limited.idle and claimer.last_found == before
            fires = tick.schedule_ms is not None and tick.schedule_ms <= 0
            moved = tick.remote and await self.duties.courier.drained()
            if quiet and not (served or soon or fires or tick.suspects or tick.mail or moved):
                return
            await self._kit.clock.sleep(min(max(tick.next_due_ms or 0, 5), 100) / 1000)

    # -- what can go wrong with the worker itself ------------------------------------------------------------------

    def _duty_ended(self, task: asyncio.Task[None]) -> None:
        """A duty ends only with the worker. (A worker that stops during an outage gives up what its duties were waiting
        for.)"""
        if not task.cancelled() and (error := task.exception()) is not None:
            self._break(task.get_name(), error)

    def _break(self, duty: str, error: BaseException) -> None:
        """A duty broke: the worker is of no use without it. It leaves at once, so that others get its runs, and ends
        the block that it serves, so that somebody hears of it."""
        if self.duties.stopping:
            return
        self._logger.critical("%s broke", duty, exc_info=error)
        self._cause = (duty, error)
        self.broken.set()
        self._leaving = asyncio.create_task(self.stop(), name="stepfast-leave")
        if self._body is not None and not self._body.done():
            self._body_ended = self._body.cancel()

    def breakage(self) -> WorkerBroken:
        """What to raise where somebody relies on this worker."""
        duty, error = self._cause or ("a duty", None)
        broken = WorkerBroken(self.id, duty, "" if error is None else sentence(error))
        broken.__cause__ = error
        return broken
