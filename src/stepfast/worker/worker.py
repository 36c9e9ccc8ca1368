"""A worker: registers, claims, executes, records, beats and sweeps, until it is told to stop."""

from __future__ import annotations

import asyncio
import logging
import os
import socket
import time
from collections.abc import Iterable, Sequence
from typing import Any

from ..engine.workflow import DAG_STEP, Workflow
from ..errors import DatabaseUnavailable
from ..model.ids import new_id
from ..model.payload import Payloads
from ..model.records import BeatAnswer, Claimed, FlushAnswer, StepWith, Transition, WorkerInfo
from ..model.status import COMPENSATING, TERMINAL
from ..settings import Settings
from ..store import Store
from ..store.protocol import Wakeups
from .claimer import Claimer
from .collector import collector
from .errands import Errands, NewChild
from .executor import Executor
from .graphs import Graphs
from .heartbeat import Heartbeat
from .journal import Journal
from .mailman import Mailman
from .patience import dutifully, patiently
from .sweeper import Sweeper
from .wakeups import Switchboard, started_lanes

_PATIENCE = 5.0
"""Seconds a worker rides out trouble before it has begun; from then on it rides out any."""


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
        self._stopping = False
        self._hurried = asyncio.Event()
        self.broken = asyncio.Event()
        """Set if a duty ended by an error, which is a bug: the worker is of no use any more."""
        self._journal = Journal(store, settings, logger, self._my_id, self._flush_answered, self._flushed, self._joined)
        self._mailman = Mailman(store, settings, logger)
        self._graphs = Graphs(store, settings, logger, payloads)
        self._errands = Errands(store, settings, logger, self._my_id, new_child, switchboard.ready)
        self._executor = Executor(
            settings, settings.concurrency, payloads, logger, self._workflows, self._journal,
            self._slots_freed, self._fetch_history, self._has_code, self._mailman, self._errands, self._graphs,
        )  # fmt: skip
        self._claimer = Claimer(
            store, settings, logger, self._my_id, self._versions, queues,
            self._free_slots, lambda: self._executor.suspect_running, self._accept,
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

    # -- life ------------------------------------------------------------------------------------------------------

    async def __aenter__(self) -> Worker:
        await self.start()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.stop()

    async def start(self) -> None:
        """Register and begin all duties."""
        until = time.monotonic() + _PATIENCE
        await patiently(
            lambda: self._store.register(self._info()), "register", self._logger, 1.0, lambda: time.monotonic() > until
        )
        names = [name for name, workflow in self._workflows.items() if workflow.kind != DAG_STEP]
        self._logger.info("worker %s started: %s", self.id, ", ".join(names) or "no workflows")
        collector.ease(self, self._settings.gc_threshold)
        self._switchboard.subscribe(self._woken)
        self._heartbeat.start()
        for duty in (self._journal, self._claimer, self._sweeper):
            task = asyncio.create_task(duty.run(), name=f"stepfast-{type(duty).__name__.lower()}")
            task.add_done_callback(self._duty_ended)
            self._duties.append(task)

    async def stop(self, grace: float | None = None) -> None:
        """Stop claiming, wait up to the grace time for handlers, give the rest back at once, leave."""
        if self._stopping:
            return
        self._stopping = True
        self._claimer.stopped = True
        grace = self._settings.grace if grace is None else grace
        try:
            await self._finish(grace)
        finally:
            self._switchboard.unsubscribe(self._woken)
            for task in self._duties:
                task.cancel()
            await asyncio.gather(*self._duties, return_exceptions=True)
            await self._mailman.close()
            await self._graphs.close()
            await self._executor.close()
            await self._heartbeat.stop()
            collector.restore(self)
            await self._unregister()
        self._logger.info("worker %s stopped", self.id)

    async def _finish(self, grace: float) -> None:
        await self._end_claim()
        if self._executor.running and grace > 0:
            self._logger.info("worker %s waits up to %g s for %d runs", self.id, grace, len(self._executor.running))
            try:
                await self._store.worker_state(self.id, "stopping")
            except DatabaseUnavailable:
                pass
            await self._wait_idle(grace)
        # The database may be away; what cannot be given back now is reaped after the lease.
        asyncio.get_running_loop().call_later(5, self._journal.give_up)
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
        await asyncio.wait((idle, hurry), timeout=grace, return_when=asyncio.FIRST_COMPLETED)
        idle.cancel()
        hurry.cancel()

    def hurry(self) -> None:
        """A second signal: do not wait for handlers any longer."""
        self._hurried.set()

    async def _unregister(self) -> None:
        try:
            await self._store.unregister(self.id)
        except DatabaseUnavailable:
            self._logger.warning("worker %s could not sign off; it is forgotten after its lease", self.id)

    async def until_drained(self) -> None:
        """Until nothing is runnable: nothing in the slots, in line, or due within a moment."""
        while True:
            await self._executor.idle.wait()
            await self._journal.settle()  # what has just left its slot is not due, nor in line, before its commit
            before = self._claimer.last_found
            tick = await self._sweeper.tick(look_for_lanes=True)
            soon = tick.next_due_ms is not None and tick.next_due_ms <= self._settings.moment * 1000
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
            modules={name: code.module for name, code in self._workflows.items() if code.kind != DAG_STEP},
        )

    def _free_slots(self) -> int:
        return 0 if self._stopping else self._executor.free

    def _may_reap(self) -> bool:
        """Only after a whole lease of one's own unbroken heartbeats: after an outage the first to come back must not
        take everybody else for dead."""
        return not self._stopping and self._heartbeat.unbroken >= self._settings.lease

    async def _has_code(self, workflow: str, version: str) -> bool:
        """Whether a living worker has this version of a workflow."""
        workers = await dutifully(self._store.workers, "workers", self._logger, self._settings.outage_backoff_max)
        return any(w.state == "live" and w.workflows.get(workflow) == version and w.id != self.id for w in workers)

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
            self._duties.append(asyncio.create_task(self._give_back([(run.id, run.claim) for run in runs])))
        else:
            self._executor.accept(runs)

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

    def _flush_answered(self, lost: dict[str, int], asked: dict[str, str]) -> None:
        for run_id, claim in lost.items():
            self._executor.lose(run_id, claim)
        for run_id, what in asked.items():
            self._executor.ask(run_id, what)
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
            self._duties.append(asyncio.create_task(self._give_back(strays)))

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
        except DatabaseUnavailable:
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
        self._duties.append(asyncio.create_task(self._register_again()))

    async def _register_again(self) -> None:
        await dutifully(
            lambda: self._store.register(self._info()), "register", self._logger, self._settings.outage_backoff_max
        )
        self._claimer.paused = False
        self._sweeper.look_now()

    def _duty_ended(self, task: asyncio.Task[None]) -> None:
        """A duty ends only with the worker. If one breaks, say so loudly: the worker is of no use without it. (A worker
        that stops during an outage gives up what its duties were waiting for.)"""
        if not task.cancelled() and task.exception() is not None and not self._stopping:
            self._logger.critical("%s broke", task.get_name(), exc_info=task.exception())
            self.broken.set()
