"""A worker: registers, claims, executes, records, beats and sweeps, until it is stopped."""

from __future__ import annotations

import asyncio
import gc
import sys
import threading
from collections.abc import Awaitable, Callable, Coroutine, Iterable, Mapping, Sequence
from typing import Any

from ..engine.host import current_execution
from ..engine.observers import tell_each
from ..engine.run_log import HANDLER
from ..errors import DatabaseRefused, StepfastError, WorkerBroken, sentence
from ..model.health import Vitals
from ..model.records import BeatAnswer, Claimed, FlushAnswer, HasRecordCount, Lane, NewRun, StepWith, Tick, Transition
from ..model.status import COMPENSATING, TERMINAL
from ..settings import Settings
from ..store.answers import Wakeups
from .claimer import Claimer, LimitedClaimer, Sharing
from .context import WorkerContext
from .dag_cache import DagCache
from .db_retry import patiently
from .event_dispatcher import EventDispatcher, StartsOfEvents
from .executor import Executor
from .heartbeat import Heartbeat
from .journal import Journal, UnverifiedWrites
from .notifier import Switchboard, started_lanes
from .pruner import Pruner
from .queries import MailboxPoller, NewChild, StoreQueries
from .reaper import OrphanedClaims
from .remote_dispatcher import RemoteDispatcher, TransportHandle
from .scheduler import Planning, Scheduler
from .shutdown import bounded, ended, to_the_end
from .sweeper import Sweeper

_USUAL_SLOTS = 100
"""So many runs at once the setting is meant for."""


class Interpreter:
    """What workers change of this process's Python while they work: how often it looks for garbage, and how often its
    threads take turns."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._workers: set[object] = set()
        self._threshold: tuple[int, int, int] | None = None
        self._interval: float | None = None
        """What they were before, if they were changed."""

    def ease(self, worker: object, threshold: int, interval: float = 0) -> None:
        """A worker starts. An application that has chosen a higher threshold itself, or none, is left alone, and so is
        one with a shorter interval."""
        with self._lock:
            self._workers.add(worker)
            before = gc.get_threshold()
            if 0 < before[0] < threshold:
                self._threshold = self._threshold or before
                gc.set_threshold(threshold, *before[1:])
            if 0 < interval < (usual := sys.getswitchinterval()):
                self._interval = self._interval or usual
                sys.setswitchinterval(interval)

    def restore(self, worker: object) -> None:
        """A worker has stopped; after the last one everything is as it was."""
        with self._lock:
            self._workers.discard(worker)
            if self._workers:
                return
            if self._threshold is not None:
                gc.set_threshold(*self._threshold)
                self._threshold = None
            if self._interval is not None:
                sys.setswitchinterval(self._interval)
                self._interval = None


def threshold_for(settings: Settings) -> int:
    """How many new objects there may be between two looks. Runs that are claimed together come and go together: the
    objects of five hundred would be looked at with each round of them, and cost a tenth of the speed."""
    return settings.gc_threshold * max(_USUAL_SLOTS, settings.concurrency) // _USUAL_SLOTS


interpreter = Interpreter()


class WorkerRuntime:
    """The duties of one worker: made with it, and begun and ended by it."""

    def __init__(
        self,
        context: WorkerContext,
        switchboard: Switchboard,
        new_child: NewChild,
        planning: Planning,
        starts_of_events: StartsOfEvents,
        transport: TransportHandle,
        broke: Callable[[str, BaseException], None],
    ) -> None:
        self._context = context
        self._me = context.me
        self._switchboard = switchboard
        self._planning = planning
        self._broke = broke
        """Told of a duty that ended by an error."""
        self._orphaned = OrphanedClaims()
        self.chores: set[asyncio.Task[Any]] = set()
        """What is done once, beside the duties."""
        self.stopping = False
        """The worker stops: it claims nothing any more, and takes no worker for dead."""
        self.unverified = UnverifiedWrites(context.clock, self._held)
        self.journal = Journal(context, self.unverified, self)
        self.mailbox_poller = MailboxPoller(context)
        self.dag_cache = DagCache(context)
        self.queries = StoreQueries(context, new_child, transport, self.unverified, self)
        self.remote_dispatcher = RemoteDispatcher(context, transport, self)
        self.executor = Executor(
            context, self.journal, self.mailbox_poller, self.queries, self.dag_cache, self.slots_freed
        )
        self.remembered: Mapping[str, int] = self.executor.cache
        self.claimer = Claimer(context, self)
        self.limited = LimitedClaimer(context, self.claimer, self)
        self._limited_queues: frozenset[str] = frozenset()
        self._sharing = Sharing()
        self.sweeper = Sweeper(context, self.claimer, self)
        self.scheduler = Scheduler(context, planning, self)
        self.event_dispatcher = EventDispatcher(context, starts_of_events, self)
        self.heartbeat = Heartbeat(context, self)
        self._unheard = False
        """Whether a claim was put off until the next beat."""
        self.pruner = Pruner(context)

    def listen(self) -> None:
        """Subscribe to wake-ups and broken connections."""
        self._switchboard.subscribe(self._woken)
        self._context.store.breaks.subscribe(self._connection_broke)

    def unsubscribe(self) -> None:
        """Unsubscribe from all that comes from outside the worker. Safe to repeat."""
        self._switchboard.unsubscribe(self._woken)
        self._context.store.breaks.unsubscribe(self._connection_broke)

    def chore(self, work: Coroutine[Any, Any, Any]) -> None:
        """Do something once, beside the duties."""
        task = asyncio.create_task(work)
        self.chores.add(task)
        task.add_done_callback(self.chores.discard)

    # -- from outside ----------------------------------------------------------------------------------------------

    def _woken(self, wakeups: Wakeups) -> None:
        if wakeups.lanes:
            self.claimer.woken(wakeups.lanes)
            if self.claimer.gated:
                self.limited.woken(lane for lane in wakeups.lanes if lane.queue in self._limited_queues)
        if wakeups.anything:
            self.limited.hurry()
            self.sweeper.tick_now()
            self.mailbox_poller.notified()
            self.heartbeat.hurry()

    def _connection_broke(self) -> None:
        """What was acknowledged may be gone, as after a failover to a server that lagged behind: remembered histories
        are read again, and what is held is compared before anything more is written of it."""
        self.executor.cache.clear()
        self.dag_cache.forget_outputs()
        self.unverified.broke()

    def _held(self) -> Mapping[str, HasRecordCount]:
        """All runs of which something may still be written."""
        return {**self.journal.left, **self.executor.running}

    # -- the claimer's room ----------------------------------------------------------------------------------------

    def free_slots(self) -> int:
        """How many runs may be claimed."""
        free = 0 if self.stopping or self._must_beat_first() else self.executor.slots.free
        limited = self.limited
        if limited.wanted is None and not limited.expected:
            return free
        return self._sharing.for_usual(max(0, free - limited.expected), limited.wanted, self.claimer.wanted)

    def limited_slots(self) -> int:
        """How many runs of limited queues may be claimed."""
        free = 0 if self.stopping or self._must_beat_first() else self.executor.slots.free - self.claimer.expected
        free = max(0, free)
        return self._sharing.for_limited(free, self.limited.wanted, self.claimer.wanted)

    def is_unheard(self) -> bool:
        """Whether no beat has come through for a whole lease, as after the process was stopped: others may have
        declared us dead, and would take away what we claim. The next beat tells."""
        return self.heartbeat.unheard > self._context.settings.lease and self.heartbeat.alive

    def _must_beat_first(self) -> bool:
        """Whether a claim is put off until the next beat, which is sent at once."""
        if not self.is_unheard():
            return False
        self._unheard = True
        self.heartbeat.hurry()
        return True

    def suspect_room(self) -> list[int]:
        """How many more runs that workers have died with may come in, by their losses."""
        return self.executor.slots.suspect_room()

    def accept(self, runs: list[Claimed], asked_at: float) -> None:
        """Put them into the slots; or make them ready again, if we stopped while the claim was under way."""
        if self.stopping:
            self.chore(self._give_back([(run.id, run.claim) for run in runs]))
        else:
            self._sharing.took(runs[0].limited)
            self.executor.accept(runs)
            self._check_breaks(runs, asked_at)

    def slots_freed(self) -> None:
        """There is room for more runs."""
        self.claimer.slots_freed()
        self.limited.slots_freed()

    def _check_breaks(self, runs: list[Claimed], asked_at: float) -> None:
        """Runs that were just claimed are known from the database itself: nothing of them is in doubt, unless a
        connection broke while they were claimed."""
        if self.unverified.open:
            undecided = self.journal.undecided()
            for run in runs:
                # What the claim before has still to say under the same number, its claim having vanished, is refused.
                if (run.id, run.claim) not in undecided:
                    self.unverified.drop(run.id)
        if self.unverified.last_break >= asked_at:
            self.unverified.broke()

    # -- what the sweeper tells ------------------------------------------------------------------------------------

    def may_reap(self) -> bool:
        """Only after a whole lease of one's own unbroken heartbeats: after an outage the first to come back must not
        take all other workers for dead."""
        return not self.stopping and self.heartbeat.unbroken >= self._context.settings.lease

    def gates_are(self, tick: Tick) -> None:
        """Which queues are paused or limited, and what is ready in those that are limited."""
        self.claimer.gates_are(tick.gated)
        self._limited_queues = tick.gated - tick.paused
        if tick.limited or tick.limited_suspects:
            self.limited.found(tick.limited, tick.limited_suspects)

    def ready(self, lanes: Iterable[Lane]) -> None:
        """Runs were made ready: workers should claim them."""
        self._switchboard.ready(lanes)

    def ended(self) -> None:
        """Runs have ended: notify those that wait for them."""
        self._switchboard.ended()

    def mail_came(self) -> None:
        """Mail was delivered to runs that workers hold: to ours, or to those of others."""
        self.mailbox_poller.notified()
        self._switchboard.tell_others()

    def steps_asked(self) -> None:
        """Something is asked of runs that workers hold."""
        self._switchboard.tick_everywhere()

    def schedules_due(self) -> None:
        """The time of a schedule has come."""
        self.scheduler.due()

    def started(self, runs: Sequence[NewRun]) -> None:
        """The scheduler has started runs; some may be put off by a jitter."""
        ready, later = started_lanes(runs)
        if ready:
            self._switchboard.ready(ready)
        if later:
            self.sweeper.tick_now()
        if self._context.observers is not None:
            self._context.observers.starts(runs)

    def remote_steps_wait(self) -> None:
        """There are remote steps to be sent, or results to be looked for."""
        self.remote_dispatcher.needed()

    def each_tick(self) -> None:
        """What is looked at once a tick."""
        self.executor.list_running_steps()
        self.mailbox_poller.look_again()
        self.limited.forget_unheld(self.executor.running)
        if self.unverified.open:
            self.unverified.forget_unheld()

    # -- what the journal tells ------------------------------------------------------------------------------------

    def flushed(self, moves: list[Transition]) -> None:
        """Transitions are committed: notify those that wait for these runs, and claim what was given back."""
        if not moves:
            return
        self.limited.left(moves)
        ended = [move for move in moves if move.status in TERMINAL]
        if ended:
            self._switchboard.ended(ended)
        if len(ended) < len(moves):
            self.sweeper.tick_now()  # something has a time now; it may come before the next tick
        for move in moves:
            if move.status == COMPENSATING or move.successor is not None:
                self.sweeper.ask_for_lanes()
                break

    def joined(self, entries: list[StepWith], answer: FlushAnswer) -> None:
        """Children were started, mail was left, steps of dags became ready or are to end: all committed."""
        if self._context.observers is not None:
            self._context.observers.starts(run for entry in entries for run in entry.starts)
        ready, later = started_lanes(run for entry in entries for run in entry.starts)
        if ready or answer.lanes:
            self._switchboard.ready(ready | answer.lanes)
        if answer.undelivered or later:
            self.sweeper.tick_now()
        if any(entry.sends for entry in entries):
            self.remote_dispatcher.hurry()
        if answer.asked_elsewhere:
            self._switchboard.tick_everywhere()
        if any(entry.answers for entry in entries):
            self.answered()

    def answered(self) -> None:
        """Questions have an answer, which other processes may wait for."""
        self._switchboard.streamed()

    def values_set(self) -> None:
        """Values are committed that code of this process may wait for."""
        self._switchboard.values_set()

    def streamed(self, answer: FlushAnswer) -> None:
        """Items of streams are committed, but for those that had no room."""
        self._switchboard.streamed()
        for run_id, stream in answer.full:
            self.executor.stream_full(run_id, stream)

    def flush_answered(self, lost: dict[str, int], answer: FlushAnswer) -> None:
        """Runs were refused, or something is asked of them."""
        for run_id, claim in lost.items():
            self.executor.lose(run_id, claim)
            self.executor.cache.drop(run_id)  # what went out with its release is not stored
        for run_id, what in answer.asked.items():
            self.executor.ask(run_id, what)
        if answer.vanished:
            self.vanished((run_id, lost[run_id]) for run_id in answer.vanished)
        if lost:
            # Perhaps not lost at all: their end was written before, and only the reply was lost. Then a caller may be
            # waiting for it, or a retry may be due sooner than the next tick.
            self._switchboard.ended()
            self.sweeper.tick_now()

    def vanished(self, held: Iterable[tuple[str, int]]) -> None:
        """Less is stored of these runs than was acknowledged. They still name us: they are made ready again, and
        continue with what is left."""
        held = sorted(held)
        for run_id, _ in held:
            self._context.logger.error(
                "run %s: the database has lost records of it that were committed; it goes on from what is left", run_id,
                extra={"run_id": run_id},
            )  # fmt: skip
            self.executor.cache.drop(run_id)
        self.chore(self._give_back(held))

    # -- what the remote dispatcher reports ----------------------------------------------------------------------

    def outcomes_left(self) -> None:
        """Outcomes of remote steps are in mailboxes: they are delivered now."""
        self.sweeper.deliver_now()

    # -- what the heartbeat tells ----------------------------------------------------------------------------------

    def holding(self) -> dict[str, int]:
        """Run id → claim number of all that is held. Called from the heartbeat's thread."""
        return self.executor.slots.holding()

    def beat_answered(self, answer: BeatAnswer, before: dict[str, int]) -> None:
        """Compare what the database says we hold with what we know."""
        if not answer.alive:
            self._register_as_new_worker()
            return
        if self._unheard:
            self._unheard = False
            self.slots_freed()
        held = {run.id: run.claim for run in answer.held}
        for run_id, claim in before.items():
            if held.get(run_id) != claim and self.executor.works_on(run_id, claim):
                self.executor.lose(run_id, claim)
        for run in answer.held:
            if run.asked is not None:
                self.executor.ask(run.id, run.asked, run.claim)
        undecided = self.journal.undecided()  # by now hundreds of those held may be on their way out

        def is_known(run_id: str, claim: int) -> bool:
            return self.executor.slots.find(run_id, claim) is not None or (run_id, claim) in undecided

        orphaned = self._orphaned.find(held, is_known, self.claimer.queries)
        if orphaned and not self.stopping:
            told = "stored as ours, but not executed here; given back"
            tell_each(self._context.logger, told, [{"run_id": run_id} for run_id, _ in orphaned])
            self.chore(self._give_back(orphaned))

    async def _give_back(self, held: Iterable[tuple[str, int]]) -> None:
        given = list(held)
        try:
            await self._context.store.give_back(self._me.id, given)
            self.sweeper.ask_for_lanes()
        except DatabaseRefused:
            middle = len(given) // 2  # one that cannot be given back keeps none of the others
            for half in (given[:middle], given[middle:]) if middle else ():
                await self._give_back(half)
        except StepfastError:
            pass  # the next two beats find them again

    def lease_expired(self) -> None:
        """No beat has come through for a whole lease: others may own our runs by now."""
        if self.executor.running:
            told = "worker %s: no heartbeat for a whole lease; stopping its handlers"
            self._context.logger.error(told, self._me.id)
            self.executor.lose_all()

    def heartbeat_broke(self, error: BaseException) -> None:
        """The thread itself ended by an error, which is a bug."""
        self._broke("stepfast-heartbeat", error)

    def _register_as_new_worker(self) -> None:
        """We were declared dead. Nothing we hold is ours; continue under a new id."""
        if self.stopping:
            return
        old = self._me.renew()
        self._context.logger.error("worker %s was declared dead; going on as %s", old, self._me.id)
        self.claimer.paused = True  # until the new id is known
        self.executor.lose_all()
        self.journal.disown()
        self.executor.cache.clear()  # what was to be written of those that it remembers is not
        self._orphaned.forget()
        self.chore(self._register_again())

    async def _register_again(self) -> None:
        store, settings, me = self._context.store, self._context.settings, self._me.id
        await self._context.ask(lambda: store.register(self._me.info(settings)), "register")
        if self._me.id != me:
            return  # declared dead once more: the next id is registered by itself
        self._me.registered = True
        # It may have been the only worker with its schedules.
        await self._context.ask(lambda: self._planning.declare(self._me.id), "register", lambda: self.stopping)
        if self._me.id != me:
            return
        self.claimer.paused = False
        self.sweeper.tick_now()


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
        self,
        context: WorkerContext,
        switchboard: Switchboard,
        new_child: NewChild,
        planning: Planning,
        starts_of_events: StartsOfEvents,
        transport: TransportHandle,
    ) -> None:
        self._context = context
        self._store, self._settings, self._logger = context.store, context.settings, context.logger
        self._planning = planning
        self.duties = WorkerRuntime(context, switchboard, new_child, planning, starts_of_events, transport, self._break)
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
        """The id of the worker; another one, if it was declared dead and continued."""
        return self._context.me.id

    # -- life ------------------------------------------------------------------------------------------------------

    async def __aenter__(self) -> Worker:
        await self.start()
        self._body = asyncio.current_task()
        self._cancelled_before = 0 if self._body is None else self._body.cancelling()
        return self

    async def __aexit__(self, _kind: object, error: BaseException | None, _traceback: object) -> None:
        """Leave. If a duty broke, that is what comes out of the block, whether or not the body raised; unless the body
        was cancelled from outside: then it gets the cancellation."""
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
        """Enter the lifespan of the application, register, and begin all duties."""
        lifespan = self._context.lifespan
        if lifespan is None:
            await self._begin()
            return
        await lifespan.enter(self._break)
        try:
            await self._begin()
        except BaseException:
            await to_the_end(lifespan.leave)
            raise

    async def _begin(self) -> None:
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
        self._logger.info("worker %s started: %s", self.id, ", ".join(self._context.me.served()) or "no workflows")
        interpreter.ease(self, threshold_for(self._settings), self._settings.switch_interval)
        if self._context.run_logs is not None:
            HANDLER.begin(self)
        duties = self.duties
        duties.listen()
        duties.heartbeat.start()
        others = (duties.scheduler, duties.remote_dispatcher, duties.pruner, duties.event_dispatcher)
        for duty in (duties.journal, duties.claimer, duties.limited, duties.sweeper, *others):
            task = asyncio.create_task(duty.run(), name=f"stepfast-{type(duty).__name__.lower()}")
            task.add_done_callback(self._duty_ended)
            self._tasks.append(task)

    async def _register(self) -> None:
        await self._patiently(lambda: self._store.register(self._context.me.info(self._settings)))

    async def _declare(self) -> None:
        """The schedules, when the worker is known to live: from then on they are awake. Without any there is nothing
        that the caller would have to wait for, and the scheduler does it."""
        if self._context.me.schedules:
            await self._patiently(lambda: self._planning.declare(self.id))

    async def _patiently(self, call: Callable[[], Awaitable[None]]) -> None:
        await patiently(call, "register", self._logger, self._context.clock, _PATIENCE)

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
            await self._finish(self._settings.shutdown_grace if grace is None else grace)
        finally:
            try:
                await to_the_end(self._clean_up)
            finally:
                HANDLER.end(self)
                try:
                    if self._context.lifespan is not None:
                        await self._context.lifespan.leave()
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
        self.duties.heartbeat.tell_to_stop()  # first: from here on we must not be taken for alive any more
        self.duties.unsubscribe()
        interpreter.restore(self)
        await self._end_claim()  # a claim that is cut off may still be carried out, for a worker that has left by then
        await self._bounded(self._hand_over(), _GIVE_BACK, "giving runs back")
        self.duties.journal.give_up()
        self.duties.sweeper.stopped = self.duties.remote_dispatcher.stopped = True
        await ended((*self._tasks, *self.duties.chores), self._context.clock)
        for closing in (self.duties.mailbox_poller.close, self.duties.dag_cache.close, self.duties.executor.close):
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
        clock = self._context.clock
        until = clock.now() + 1
        while (self.duties.claimer.busy or self.duties.limited.busy) and clock.now() < until:
            await clock.sleep(0.005)  # a few times, once in a life

    async def _wait_idle(self, grace: float) -> None:
        idle = asyncio.ensure_future(self.duties.executor.idle.wait())
        hurry = asyncio.ensure_future(self._hurried.wait())
        try:
            await self._context.clock.wait((idle, hurry), grace, asyncio.FIRST_COMPLETED)
        finally:
            idle.cancel()
            hurry.cancel()

    def _bounded(self, work: Coroutine[Any, Any, Any], seconds: float, what: str) -> Coroutine[Any, Any, bool]:
        return bounded(work, seconds, what, self._logger, self._context.clock)

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
        """How it is doing, as far as it knows itself. May be called from any thread; queries nothing."""
        heartbeat = self.duties.heartbeat
        return Vitals(
            self.id, self.at_work and not self.duties.claimer.paused, self.duties.stopping, self.broken.is_set(),
            heartbeat.alive, heartbeat.age, self._settings.lease,
        )  # fmt: skip

    @property
    def shutdown_grace(self) -> float:
        """Seconds for which a stop waits for them."""
        return self._settings.shutdown_grace

    def hurry(self) -> None:
        """A second signal: do not wait for handlers any longer."""
        self._hurried.set()

    async def _sign_off(self) -> None:
        """Remove our row; all that still names us is made ready again with it."""
        if not await self._bounded(self._store.unregister(self.id), _SIGN_OFF, "signing off"):
            told = "worker %s could not take itself off the list of workers; others do so after its lease"
            self._logger.warning(told, self.id)

    async def until_drained(self) -> None:
        """Until nothing is runnable: nothing in the slots, ready, or due soon."""
        ahead = max(self._settings.drain, self._settings.inline_wait) * 1000
        executor, claimer, limited = self.duties.executor, self.duties.claimer, self.duties.limited
        while True:
            await executor.idle.wait()
            await (
                self.duties.journal.flush_all()
            )  # what has just left its slot is neither due nor ready before its commit
            before = claimer.last_found
            tick = await self.duties.sweeper.tick(ask_for_lanes=True)
            soon = tick.next_due_ms is not None and tick.next_due_ms <= ahead
            served = any(self._context.me.serves(lane) for lane in tick.lanes)
            soon = soon or limited.allowed_in() * 1000 <= ahead
            quiet = executor.idle.is_set() and claimer.idle and limited.idle and claimer.last_found == before
            fires = tick.schedule_ms is not None and tick.schedule_ms <= 0
            moved = tick.remote and await self.duties.remote_dispatcher.drained()
            moved = moved or tick.events or self.duties.event_dispatcher.moved
            if quiet and not (served or soon or fires or tick.suspects or tick.mail or tick.names or moved):
                return
            await self._context.clock.sleep(min(max(tick.next_due_ms or 0, 5), 100) / 1000)

    # -- what can go wrong with the worker itself ------------------------------------------------------------------

    def _duty_ended(self, task: asyncio.Task[None]) -> None:
        """A duty ends only with the worker. (A worker that stops during an outage gives up what its duties were waiting
        for.)"""
        if not task.cancelled() and (error := task.exception()) is not None:
            self._break(task.get_name(), error)

    def _break(self, duty: str, error: BaseException) -> None:
        """A duty broke: the worker is of no use without it. It leaves at once, so that others get its runs, and ends
        the block that it serves, so that its caller gets the error."""
        if self.duties.stopping:
            return
        self._logger.critical("%s broke", duty, exc_info=error)
        self._cause = (duty, error)
        self.broken.set()
        self._leaving = asyncio.create_task(self.stop(), name="stepfast-leave")
        if self._body is not None and not self._body.done():
            self._body_ended = self._body.cancel()

    def breakage(self) -> WorkerBroken:
        """The error for callers that rely on this worker."""
        duty, error = self._cause or ("a duty", None)
        broken = WorkerBroken(self.id, duty, "" if error is None else sentence(error))
        broken.__cause__ = error
        return broken
