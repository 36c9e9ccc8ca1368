"""A worker: registers, claims, executes, records, beats and sweeps, until it is told to stop."""

from __future__ import annotations

import asyncio
import logging
import os
import socket
import threading
import time
from collections.abc import Coroutine, Iterable, Sequence
from typing import Any

from ..engine.workflow import DAG_STEP, Workflow
from ..errors import StepfastError, WorkerBroken, sentence
from ..model.ids import new_id
from ..model.payload import Payloads
from ..model.records import BeatAnswer, Claimed, FlushAnswer, StepWith, Transition, WorkerInfo
from ..model.status import COMPENSATING, TERMINAL
from ..settings import Settings
from ..store import Store
from ..store.protocol import Wakeups
from .blocked import LoopWatch
from .claimer import Claimer
from .collector import collector
from .doubts import Doubts
from .ending import bounded, ended, to_the_end
from .errands import Errands, NewChild
from .executor import Executor
from .graphs import Graphs
from .heartbeat import Heartbeat
from .journal import Journal
from .mailman import Mailman
from .neighbours import this_process
from .patience import dutifully, patiently
from .sweeper import Sweeper
from .wakeups import Switchboard, started_lanes

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
        store: Store,
        settings: Settings,
        payloads: Payloads,
        logger: logging.Logger,
        workflows: dict[str, Workflow[Any, Any]],
        switchboard: Switchboard,
        queues: Sequence[str] | None,
        new_child: NewChild,
    ) -> None:
        self.id = new_id()
        self._store = store
        self._settings = settings
        self._logger = logger
        self._workflows = dict(workflows)
        self._versions = {name: workflow.version for name, workflow in workflows.items()}
        self._switchboard = switchboard
        self._queues = None if queues is None else list(queues)
        self._strays: dict[tuple[str, int], int] = {}
        """(run, claim) that names us without our knowledge → how many claims we had asked for when first seen."""
        self._duties: list[asyncio.Task[None]] = []
        self._chores: set[asyncio.Task[Any]] = set()
        """What is done once, beside the duties."""
        self._stopping = False
        self._left = asyncio.Event()
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
        self._journal = Journal(store, settings, logger, self._my_id, self._flush_answered, self._flushed, self._joined)
        self._mailman = Mailman(store, settings, logger)
        self._graphs = Graphs(store, settings, logger, payloads)
        self._errands = Errands(store, settings, logger, self._my_id, new_child, switchboard.ready)
        self._executor = Executor(
            settings, settings.concurrency, payloads, logger, self._workflows, self._journal,
            self._slots_freed, self._fetch_history, self._peers, self._mailman, self._errands, self._graphs,
        )  # fmt: skip
        self._doubts = self._journal.doubts = self._errands.doubts = Doubts(
            lambda: {**self._journal.left, **self._executor.running}
        )
        self._errands.vanished = lambda run_id, claim: self._vanished([(run_id, claim)])
        self._claimer = Claimer(
            store, settings, logger, self._my_id, self._versions, queues,
            self._free_slots, self._executor.suspect_room, self._accept,
            self._executor.cache.claims,
        )  # fmt: skip
        self._sweeper = Sweeper(
            store, settings, logger, self._my_id, list(workflows), self._queues, self._claimer,
            self._may_reap, switchboard.ready, switchboard.ended, self._each_tick, self._mail_came,
            switchboard.look_everywhere,
        )  # fmt: skip
        self._heartbeat = Heartbeat(
            store, settings.beat, settings.lease, logger, self._my_id,
            self._executor.holding, self._beat_answered, self._lease_expired,
        )  # fmt: skip
        if settings.blocked_after > 0:
            self._heartbeat.watch = LoopWatch(settings.blocked_after, logger, threading.get_ident())
        self._heartbeat.broke = lambda error: self._break("stepfast-heartbeat", error)

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
        names = [name for name, workflow in self._workflows.items() if workflow.kind != DAG_STEP]
        self._logger.info("worker %s started: %s", self.id, ", ".join(names) or "no workflows")
        collector.ease(self, self._settings.gc_threshold)
        self._switchboard.subscribe(self._woken)
        self._store.breaks.subscribe(self._connection_broke)
        self._heartbeat.start()
        for duty in (self._journal, self._claimer, self._sweeper):
            task = asyncio.create_task(duty.run(), name=f"stepfast-{type(duty).__name__.lower()}")
            task.add_done_callback(self._duty_ended)
            self._duties.append(task)

    async def _register(self) -> None:
        until = time.monotonic() + _PATIENCE
        await patiently(
            lambda: self._store.register(self._info()), "register", self._logger, 1.0, lambda: time.monotonic() > until
        )

    async def stop(self, grace: float | None = None) -> None:
        """Stop claiming, wait up to the grace time for handlers, give the rest back at once, leave. If the call is
        cancelled, it waits for no handler any more, but leaves nothing behind. A second call waits for the first."""
        if self._stopping:
            await self._left.wait()
            return
        self._stopping = True
        self._claimer.stopped = True
        if self.broken.is_set():
            grace = 0
        try:
            await self._finish(self._settings.grace if grace is None else grace)
        finally:
            try:
                await to_the_end(self._clean_up)
            finally:
                self._left.set()
        self._logger.info("worker %s stopped", self.id)

    async def _finish(self, grace: float) -> None:
        """Let handlers come to their end."""
        await self._end_claim()
        if self._executor.running and grace > 0:
            self._logger.info("worker %s waits up to %g s for %d runs", self.id, grace, len(self._executor.running))
            state = self._store.worker_state(self.id, "stopping")
            self._chore(bounded(state, _GIVE_BACK, "telling that this worker stops", self._logger))
            await self._wait_idle(grace)

    async def _clean_up(self) -> None:
        """Leave no beat, no task, no run and no row behind; each with a bound, because the database may be away. What
        cannot be given back now is reaped after the lease. Safe to repeat."""
        self._heartbeat.tell_to_stop()  # first: whatever comes next, nobody must take us for alive any more
        self._switchboard.unsubscribe(self._woken)
        self._store.breaks.unsubscribe(self._connection_broke)
        collector.restore(self)
        await bounded(self._hand_over(), _GIVE_BACK, "giving runs back", self._logger)
        self._journal.give_up()
        self._sweeper.stopped = True
        await ended((*self._duties, *self._chores))
        for closing in (self._mailman.close, self._graphs.close, self._executor.close):
            await bounded(closing(), _CLOSE, "closing", self._logger)
        await self._sign_off()
        await bounded(self._heartbeat.stop(), _CLOSE, "the last heartbeat", self._logger)

    async def _hand_over(self) -> None:
        """What is in the slots goes back in line, and what is in the journal is committed."""
        await self._executor.give_back()
        await self._journal.settle()

    async def _end_claim(self) -> None:
        """Let a claim that is under way bring its runs, so that they go back at once. Not for long: what it brings too
        late goes back when we sign off."""
        until = time.monotonic() + 1
        while self._claimer.busy and time.monotonic() < until:  # noqa: ASYNC110 - a few turns, once in a life
            await asyncio.sleep(0.005)

    async def _wait_idle(self, grace: float) -> None:
        idle = asyncio.ensure_future(self._executor.idle.wait())
        hurry = asyncio.ensure_future(self._hurried.wait())
        try:
            await asyncio.wait((idle, hurry), timeout=grace, return_when=asyncio.FIRST_COMPLETED)
        finally:
            idle.cancel()
            hurry.cancel()

    @property
    def running(self) -> int:
        """How many runs it holds."""
        return len(self._executor.running)

    @property
    def grace(self) -> float:
        """Seconds for which a stop waits for them."""
        return self._settings.grace

    def hurry(self) -> None:
        """A second signal: do not wait for handlers any longer."""
        self._hurried.set()

    async def _sign_off(self) -> None:
        """Take our row away; whatever still names us goes back in line with it."""
        if not await bounded(self._store.unregister(self.id), _SIGN_OFF, "signing off", self._logger):
            self._logger.warning("worker %s could not sign off; it is forgotten after its lease", self.id)

    async def until_drained(self) -> None:
        """Until nothing is runnable: nothing in the slots, in line, or due soon."""
        ahead = max(self._settings.drain, self._settings.moment) * 1000
        while True:
            await self._executor.idle.wait()
            await self._journal.settle()  # what has just left its slot is not due, nor in line, before its commit
            before = self._claimer.last_found
            tick = await self._sweeper.tick(look_for_lanes=True)
            soon = tick.next_due_ms is not None and tick.next_due_ms <= ahead
            served = any(self._claimer.serves(lane) for lane in tick.lanes)
            quiet = self._executor.idle.is_set() and self._claimer.idle and self._claimer.last_found == before
            if quiet and not (served or soon or tick.suspects or tick.mail):
                return
            await asyncio.sleep(min(max(tick.next_due_ms or 0, 5), 100) / 1000)

    # -- facts -----------------------------------------------------------------------------------------------------

    def _my_id(self) -> str:
        return self.id

    def _info(self) -> WorkerInfo:
        return WorkerInfo(
            self.id,
            socket.gethostname(),
            os.getpid(),
            self._queues,
            self._versions,
            self._settings.concurrency,
            int(self._settings.lease * 1000),
            process=this_process(),
            modules={name: code.module for name, code in self._workflows.items() if code.kind != DAG_STEP},
        )

    def _free_slots(self) -> int:
        return 0 if self._stopping else self._executor.free

    def _may_reap(self) -> bool:
        """Only after a whole lease of one's own unbroken heartbeats: after an outage the first to come back must not
        take everybody else for dead."""
        return not self._stopping and self._heartbeat.unbroken >= self._settings.lease

    async def _peers(self, workflow: str) -> list[WorkerInfo]:
        """The other living workers that know a workflow."""
        workers = await dutifully(self._store.workers, "workers", self._logger, self._settings.outage_backoff_max)
        return [w for w in workers if w.state == "live" and workflow in w.workflows and w.id != self.id]

    async def _fetch_history(self, claimed: Claimed) -> None:
        """The rest of a long history, page by page."""
        claimed.records = []
        after = ("", -1)
        while True:
            page = await dutifully(
                lambda: self._store.steps(claimed.id, after),  # noqa: B023
                "history", self._logger, self._settings.outage_backoff_max,
            )  # fmt: skip
            claimed.records += page
            if len(page) < 1000:
                return
            after = (page[-1].branch, page[-1].position)

    # -- what the duties tell each other -------------------------------------------------------------------------

    def _woken(self, wakeups: Wakeups) -> None:
        if wakeups.lanes:
            self._claimer.woken(wakeups.lanes)
        if wakeups.look:
            self._sweeper.look_now()
            self._mailman.told()
            self._heartbeat.hurry()

    def _each_tick(self) -> None:
        self._executor.list_running_steps()
        self._mailman.look_again()

    def _mail_came(self) -> None:
        """Mail was delivered to runs that workers hold: to ours, or to those of others."""
        self._mailman.told()
        self._switchboard.tell_others()

    def _accept(self, runs: list[Claimed]) -> None:
        """Into the slots with them; or back in line, if we stopped while the claim was under way."""
        if self._stopping:
            self._chore(self._give_back([(run.id, run.claim) for run in runs]))
        else:
            self._executor.accept(runs)
            self._heed_breaks(runs)

    def _heed_breaks(self, runs: list[Claimed]) -> None:
        """These are new, and known from the database itself; unless a connection broke while they were claimed."""
        if self._doubts.open:
            for run in runs:
                # What the claim before has still to say under the same number, its claim having vanished, is refused.
                if not self._journal.has(run.id, run.claim):
                    self._doubts.drop(run.id)
        if self._doubts.last_break >= self._claimer.asked_at:
            self._doubts.broke()

    def _connection_broke(self) -> None:
        """What was acknowledged may be gone, as after a failover to a server that lagged behind: remembered histories
        are read again, and what is held is compared before anything more is written of it."""
        self._executor.cache.clear()
        self._graphs.forget_outputs()
        self._doubts.broke()

    def _vanished(self, held: Iterable[tuple[str, int]]) -> None:
        """Less is stored of these runs than we were told. They still name us: back in line with them, to go on from
        what is left."""
        held = sorted(held)
        for run_id, _ in held:
            self._logger.error(
                "run %s: the database has lost records of it that were committed; it goes on from what is left", run_id,
                extra={"run_id": run_id},
            )  # fmt: skip
            self._executor.cache.drop(run_id)
        self._chore(self._give_back(held))

    def _slots_freed(self) -> None:
        self._claimer.slots_freed()

    def _flushed(self, moves: list[Transition]) -> None:
        """Transitions are committed: whoever waits for these runs may look, and what went back in line is ready."""
        if not moves:
            return
        ended = [move for move in moves if move.status in TERMINAL]
        if ended:
            self._switchboard.ended(ended)
        if len(ended) < len(moves):
            self._sweeper.look_now()  # something has a time now; it may come before the next tick
        for move in moves:
            if move.status == COMPENSATING or move.successor is not None:
                self._sweeper.look_for_lanes()
                break

    def _joined(self, entries: list[StepWith], answer: FlushAnswer) -> None:
        """Children were started, mail was left, steps of dags were released or are to end: all committed."""
        ready, later = started_lanes(run for entry in entries for run in entry.starts)
        if ready or answer.lanes:
            self._switchboard.ready(ready | answer.lanes)
        if answer.undelivered or later:
            self._sweeper.look_now()
        if answer.asked_elsewhere:
            self._switchboard.look_everywhere()

    def _flush_answered(self, lost: dict[str, int], answer: FlushAnswer) -> None:
        for run_id, claim in lost.items():
            self._executor.lose(run_id, claim)
        for run_id, what in answer.asked.items():
            self._executor.ask(run_id, what)
        if answer.vanished:
            self._vanished((run_id, lost[run_id]) for run_id in answer.vanished)
        if lost:
            # Perhaps not lost at all: their end was written before, and only the reply was lost. Then somebody may be
            # waiting for it, or a retry may be due sooner than the next tick.
            self._switchboard.ended()
            self._sweeper.look_now()

    def _beat_answered(self, answer: BeatAnswer, before: dict[str, int]) -> None:
        """Compare what the database says we hold with what we know."""
        if not answer.alive:
            self._reborn()
            return
        held = {run.id: run.claim for run in answer.held}
        for run_id, claim in before.items():
            execution = self._executor.running.get(run_id)
            if (
                held.get(run_id) != claim
                and execution is not None
                and execution.claim == claim
                and not execution.leaving
            ):
                self._executor.lose(run_id, claim)
        for run in answer.held:
            if run.asked is not None:
                self._executor.ask(run.id, run.asked, run.claim)
        strays = self._find_strays(held)
        if strays and not self._stopping:
            self._logger.warning("giving back %d runs that name this worker without its knowledge", len(strays))
            self._chore(self._give_back(strays))

    def _find_strays(self, held: dict[str, int]) -> list[tuple[str, int]]:
        """What names us, but is neither in the slots nor on its way: into them by a claim that is not answered yet, or
        out of them by an entry in the journal. Seen twice, because the first sight may be older than our knowledge."""
        now, asked = self._executor.holding(), self._claimer.calls
        seen = {
            (run_id, claim): self._strays.get((run_id, claim), asked)
            for run_id, claim in held.items()
            if now.get(run_id) != claim and not self._journal.has(run_id, claim)
        }
        unanswered = asked if self._claimer.asking else -1
        again = [stray for stray, since in seen.items() if stray in self._strays and since != unanswered]
        self._strays = {stray: since for stray, since in seen.items() if stray not in again}
        return sorted(again)

    async def _give_back(self, held: Iterable[tuple[str, int]]) -> None:
        try:
            await self._store.give_back(self.id, list(held))
            self._sweeper.look_for_lanes()
        except StepfastError:
            pass  # the next two beats find them again

    def _lease_expired(self) -> None:
        """No beat has come through for a whole lease: others may own our runs by now."""
        if self._executor.running:
            self._logger.error("worker %s: no heartbeat for a whole lease; stopping its handlers", self.id)
            self._executor.lose_all()

    def _reborn(self) -> None:
        """We were declared dead. Nothing we hold is ours; go on under a new id."""
        if self._stopping:
            return
        old, self.id = self.id, new_id()
        self._logger.error("worker %s was declared dead; going on as %s", old, self.id)
        self._claimer.paused = True  # until the new id is known
        self._executor.lose_all()
        self._journal.disown()
        self._strays.clear()
        self._chore(self._register_again())

    async def _register_again(self) -> None:
        await dutifully(
            lambda: self._store.register(self._info()), "register", self._logger, self._settings.outage_backoff_max
        )
        self._claimer.paused = False
        self._sweeper.look_now()

    # -- what can go wrong with the worker itself ------------------------------------------------------------------

    def _chore(self, work: Coroutine[Any, Any, Any]) -> None:
        task = asyncio.create_task(work)
        self._chores.add(task)
        task.add_done_callback(self._chores.discard)

    def _duty_ended(self, task: asyncio.Task[None]) -> None:
        """A duty ends only with the worker. (A worker that stops during an outage gives up what its duties were waiting
        for.)"""
        if not task.cancelled() and (error := task.exception()) is not None:
            self._break(task.get_name(), error)

    def _break(self, duty: str, error: BaseException) -> None:
        """A duty broke: the worker is of no use without it. It leaves at once, so that others get its runs, and ends
        the block that it serves, so that somebody hears of it."""
        if self._stopping:
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
