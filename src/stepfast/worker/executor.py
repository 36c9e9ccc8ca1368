"""The executor: takes claimed runs, and has each of them attempted in a slot, within its time limits."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any

from msgspec.structs import replace

from ..engine import outcomes
from ..engine.execution import Execution, Stage, Suspect
from ..engine.host import Recorder
from ..engine.invocation import kind_of
from ..engine.observers import ids_of
from ..errors import AttemptEnded, AttemptTimeout, DatabaseRefused, DeadlineExceeded, LeaseLost, sentence
from ..model import status
from ..model.health import room_for_suspects
from ..model.records import Claimed, Entry, StepRunning
from ..settings import SUSPECT_LOSSES
from .attempt import Attempts, Divergence, Leaving
from .context import WorkerContext
from .dag_cache import DagCache
from .journal import Journal
from .queries import MailboxPoller, StoreQueries


class HandlerThreads:
    """Too many threads that do not return take slots: else they would only grow."""

    def __init__(self, context: WorkerContext, returned: Callable[[], None]) -> None:
        self._logger = context.logger
        self._allowed = context.settings.concurrency
        self._returned = returned
        """Told when a thread has come back late."""
        self._threads = context.clock.pool("handler")
        self._loop = asyncio.get_running_loop()
        self._at_work: set[Execution] = set()
        """Runs whose handler is in its thread, at hand or not. Changed by the threads themselves."""
        self._stuck: set[Execution] = set()
        """The runs with a thread that have left this worker."""
        self.submit = self._threads.submit

    @property
    def stuck(self) -> int:
        """How many threads are at work for runs that have left."""
        return len(self._stuck)

    def call(self, execution: Execution, function: Callable[[], Any]) -> Awaitable[Any]:
        """Call the handler of a run in a thread."""

        def call() -> Any:
            try:
                return function()
            finally:
                self._at_work.discard(execution)
                if execution in self._stuck:
                    self._loop.call_soon_threadsafe(self._came_back, execution)

        self._at_work.add(execution)
        return self._threads.submit(call)

    def left(self, execution: Execution) -> None:
        """The run has left this worker."""
        if execution not in self._at_work:
            return
        self._stuck.add(execution)
        if execution not in self._at_work:  # it has just returned, and did not find itself among them
            self._stuck.discard(execution)
        elif len(self._stuck) >= self._allowed:
            self._logger.error(
                "%d threads are at work on runs that have left this worker, on account of a timeout or a lost lease "
                "(%s was the last): a plain def cannot be stopped. From now on each takes a slot until it returns",
                len(self._stuck), execution.workflow.name, extra=ids_of(execution),
            )  # fmt: skip

    def _came_back(self, execution: Execution) -> None:
        self._stuck.discard(execution)
        self._returned()

    def close(self) -> None:
        """Let idle threads go; busy ones go when they are done."""
        self._threads.close()


class Slots:
    """Runs come in when they are claimed, and leave once."""

    def __init__(self, context: WorkerContext, threads: HandlerThreads, freed: Callable[[], None]) -> None:
        self._concurrency = context.settings.concurrency
        self._max_losses = context.settings.max_losses
        self._threads = threads
        self._observers = context.observers
        self._freed = freed
        """Told when there is room for more."""
        self.running: dict[str, Execution] = {}
        """All runs that are this worker's, those whose end is being committed among them."""
        self._ending: set[Execution] = set()
        """Those that have given their slot back: what becomes of them is decided, and only to be committed."""
        self._lingering: dict[Execution, None] = {}
        """Runs that wait in memory because slots are free, in the order in which they began to."""
        self.idle = asyncio.Event()
        self.idle.set()

    # -- how much room there is ------------------------------------------------------------------------------------

    @property
    def free(self) -> int:
        """How many slots may be filled by a claim."""
        held = len(self.running)
        most = 2 * self._concurrency - held
        return min(self._concurrency - held + len(self._ending), most, most - self._threads.stuck)

    @property
    def has_room(self) -> bool:
        """Whether a slot is free, not counting what is on its way out."""
        return len(self.running) - len(self._ending) < self._concurrency

    def suspect_room(self) -> list[int]:
        """How many more runs that workers have died with may come in. Those that have made a new record have cleared
        themselves (those that came to a wait have left), and those whose handler is done can do no harm any more."""
        unproved = [
            execution.claimed.losses
            for execution in self.running.values()
            if execution.claimed.losses >= SUSPECT_LOSSES
            and not (execution.ledger.recorded or execution in self._ending)
        ]
        return room_for_suspects(unproved, self._max_losses, self._concurrency)

    def holding(self) -> dict[str, int]:
        """Run id → claim number of all that is held. Called from the heartbeat's thread."""
        while True:
            try:
                return {run_id: execution.claim for run_id, execution in self.running.items()}
            except RuntimeError:  # changed while we looked
                continue

    def find(self, run_id: str, claim: int | None = None) -> Execution | None:
        """A run that is at hand, by this claim or by whichever."""
        execution = self.running.get(run_id)
        return None if execution is None or (claim is not None and execution.claim != claim) else execution

    # -- coming and going ------------------------------------------------------------------------------------------

    def take(self, execution: Execution) -> None:
        """A run takes a slot."""
        self.running[execution.run_id] = execution
        self.idle.clear()

    def give_back(self, execution: Execution) -> None:
        """Free the slot of a run whose handler is done, or given up: another may come. The run is held until its end is
        committed."""
        if execution not in self._ending and self.running.get(execution.run_id) is execution:
            self._ending.add(execution)
            self._freed()

    def is_ending(self, execution: Execution) -> bool:
        """Whether the run of this execution has given its slot back."""
        return execution in self._ending

    def leave(self, execution: Execution) -> None:
        """The run is no longer this worker's: forget it, once."""
        if self.running.get(execution.run_id) is not execution:
            return
        del self.running[execution.run_id]
        self._ending.discard(execution)
        self._threads.left(execution)
        # They know each other through the task's context; let go, or only the garbage collector could free them.
        execution.main.owner = execution.task = None
        self._lingering.pop(execution, None)
        if execution.timer is not None:
            execution.timer.cancel()
            execution.timer = None
        if self._observers is not None:
            self._observers.forgets(execution)
        if not self.running:
            self.idle.set()
        self._freed()

    # -- waiting in memory -----------------------------------------------------------------------------------------

    def may_linger(self, execution: Execution) -> bool:
        """Whether a run may wait in memory: as long as its slot is not wanted. In a limited queue it counts over
        all workers, and is released at once. So is a run that workers have died with: its first wait clears it, while
        the death of this worker for another reason would count as one more loss."""
        claimed = execution.claimed
        if self.has_room and not claimed.limited and not claimed.losses:
            self._lingering[execution] = None
            return True
        return False

    def release_lingering(self) -> None:
        """Slots are wanted: those who wait in memory give theirs back, if there is no other."""
        if not self._lingering or self.has_room:
            return
        lingering, self._lingering = self._lingering, {}
        for execution in lingering:
            if execution.closed is None:
                execution.waits.release()


class TimeLimits:
    """One timer for each run that has a limit; it ends the attempt even if the handler ignores being cancelled."""

    def __init__(self, context: WorkerContext, attempts: Attempts, slots: Slots) -> None:
        self._clock = context.clock
        self._default: Any = context.settings.timeout
        self._default_of_step: Any = context.settings.step_timeout
        self._attempts = attempts
        self._slots = slots
        self._loop = asyncio.get_running_loop()
        self.late: set[asyncio.Task[Any]] = set()
        """Handlers without a run, and the ends that are made apart from them."""

    def begin(self, execution: Execution) -> None:
        """An attempt begins. Undos have no limit; nor has a dag run whose steps are all settled."""
        claimed, timeout = execution.claimed, execution.workflow.options.timeout
        if claimed.timeout_ms is not None:
            timeout = claimed.timeout_ms / 1000
        elif timeout is None:
            timeout = self._default if claimed.dag_step is None else self._default_of_step
        if timeout is None and claimed.deadline_in_ms is None:
            return
        if not claimed.undoing and kind_of(execution.workflow).bounded:
            self._set(execution, timeout)

    def _set(self, execution: Execution, timeout: float | None) -> None:
        """Whichever comes first: the timeout of this stretch, or the deadline of the whole run."""
        left, now = execution.claimed.deadline_in_ms, self._clock.now()
        deadline = None if left is None else max(0.0, execution.began + left / 1000 - now)
        if deadline is not None and (timeout is None or deadline <= timeout):
            execution.timer = self._clock.alarm(deadline, self._is_over, execution, status.REASON_DEADLINE)
        elif timeout is not None:
            execution.timer = self._clock.alarm(timeout, self._is_over, execution, status.REASON_TIMEOUT)

    def _is_over(self, execution: Execution, reason: str) -> None:
        """End the attempt; unless some of the time was spent waiting, which does not count for a timeout."""
        if execution.closed is not None:
            return
        waited = execution.waits.take_waited()
        if reason == status.REASON_TIMEOUT and waited > 0:
            self._set(execution, waited)
            return
        if reason == status.REASON_DEADLINE:
            error: Exception = DeadlineExceeded(f"run {execution.run_id} did not end before its deadline")
            end = self._attempts.fail
        else:
            error = AttemptTimeout(f"the attempt took longer than its timeout ({execution.workflow.name})")
            end = self._attempts.retry
        self._slots.give_back(execution)  # from here on its handler has no say, and is not waited for
        execution.close(AttemptEnded(str(error)))
        if execution.task is not None:
            self._keep(execution.task)  # it may run for as long as it likes: its run is not ours any more
        self._keep(self._loop.create_task(self._end(execution, end(execution, error, reason))))

    async def _end(self, execution: Execution, ending: Coroutine[Any, Any, None]) -> None:
        try:
            await ending
        except Exception as bug:
            await self._attempts.end_by_bug(execution, bug)

    def _keep(self, task: asyncio.Task[Any]) -> None:
        self.late.add(task)
        task.add_done_callback(self.late.discard)


_LONGEST = 5.0
"""Seconds that one write may take. A lock on the table must not keep a connection of the pool for longer."""

_CHANCE = 0.5
"""Seconds for the last words when a worker leaves."""


class Progress:
    """Collects the latest word of each step of a worker and writes it, one statement at a time."""

    def __init__(self, context: WorkerContext) -> None:
        self._context = context
        self._waiting: dict[tuple[str, str, int], StepRunning] = {}
        self._writer: asyncio.Task[None] | None = None
        self._failing = False
        """Whether the last write has failed, which was logged."""
        self._over = False

    def note(self, entry: StepRunning) -> None:
        """Take the word of a step, in place of an earlier one that is not written yet. What it leaves out is kept of
        that one."""
        if self._over:
            return
        address = (entry.run_id, entry.branch, entry.position)
        before = self._waiting.get(address)
        if before is not None:
            detail = before.detail if entry.detail is None else entry.detail
            data, format_ = (before.data, before.format) if entry.data is None else (entry.data, entry.format)
            entry = replace(entry, detail=detail, data=data, format=format_, since_ms=before.since_ms)
        self._waiting[address] = entry
        if self._writer is None or self._writer.done():
            self._writer = asyncio.create_task(self._write(), name="stepfast-progress")

    async def _write(self) -> None:
        await asyncio.sleep(0)  # what is noted in the same turn goes along
        while self._waiting:
            entries, self._waiting = list(self._waiting.values()), {}
            try:
                async with self._context.clock.timeout(_LONGEST):
                    await self._context.store.tell_progress(entries)
            except Exception as error:
                self._failed(error)
            else:
                self._failing = False

    def _failed(self, error: Exception) -> None:
        """Log the first of several failures in a row."""
        if not self._failing:
            self._context.logger.warning(
                "the progress of steps cannot be written, and is dropped until it can: %s", sentence(error)
            )
        self._failing = True

    async def written(self) -> None:
        """Give what was noted a chance to be written before the worker leaves, but no more."""
        if self._writer is not None and not self._failing:
            await self._context.clock.wait((self._writer,), _CHANCE)

    async def close(self) -> None:
        """Stop writing; what is noted from now on is dropped."""
        self._over = True
        if self._writer is not None:
            self._writer.cancel()
            await asyncio.gather(self._writer, return_exceptions=True)


class WorkerHost(Recorder):
    """The worker as an execution sees it."""

    def __init__(
        self,
        context: WorkerContext,
        journal: Journal,
        mailbox_poller: MailboxPoller,
        queries: StoreQueries,
        slots: Slots,
        progress: Progress,
    ) -> None:
        super().__init__(context.settings, context.payloads, context.logger, context.clock)
        self.loop = asyncio.get_running_loop()
        self.loop_thread = threading.get_ident()
        self.queries = queries
        self.observers = context.observers
        self.step_observers = None if context.observers is None else context.observers.of_steps
        self.run_logs = context.run_logs
        self.lifespan = context.lifespan
        self.gathered = None if context.observers is None else context.observers.gather()
        self._journal = journal
        self._progress = progress
        self._steps = context.clock.pool("step")
        # Not methods, so that what is called at each step is called without another call around it.
        self.record = journal.record  # type: ignore[method-assign]
        self.run_in_thread = self._steps.submit  # type: ignore[method-assign]
        self.look = mailbox_poller.look  # type: ignore[method-assign]
        self.watch = mailbox_poller.watch  # type: ignore[method-assign]
        self.may_linger = slots.may_linger  # type: ignore[method-assign]

    def note(self, entry: Entry) -> None:
        """Journal an entry that is not waited for, from any thread. Progress is written beside the journal."""
        note = self._progress.note if isinstance(entry, StepRunning) else self._journal.note
        if threading.get_ident() == self.loop_thread:
            note(entry)  # type: ignore[arg-type]
        else:
            self.loop.call_soon_threadsafe(note, entry)  # type: ignore[arg-type]

    def close(self) -> None:
        """Let idle threads go; busy ones go when they are done."""
        self._steps.close()
        if self.gathered is not None and self.observers is not None:
            self.observers.gather_no_more(self.gathered)


class Executor:
    """Brings runs into the slots of one worker, and takes them out on request."""

    def __init__(
        self,
        context: WorkerContext,
        journal: Journal,
        mailbox_poller: MailboxPoller,
        queries: StoreQueries,
        dag_cache: DagCache,
        slots_freed: Callable[[], None],
    ) -> None:
        self._workflows = context.me.workflows
        self._logger, self._clock = context.logger, context.clock
        self._running_after = context.settings.running_after
        self._slots_freed = slots_freed
        self._loop = asyncio.get_running_loop()
        self._threads = HandlerThreads(context, slots_freed)
        self._me = context.me
        self.slots = Slots(context, self._threads, slots_freed)
        self.running, self.idle = self.slots.running, self.slots.idle
        self.progress = Progress(context)
        self._host = WorkerHost(context, journal, mailbox_poller, queries, self.slots, self.progress)
        self._leaving = Leaving(context, journal, dag_cache, self.slots)
        self.cache = self._leaving.cache
        divergence = Divergence(context, queries, journal)
        self._attempts = Attempts(context, self._leaving, queries, dag_cache, self._threads, divergence)
        self._limits = TimeLimits(context, self._attempts, self.slots)

    # -- runs come in ----------------------------------------------------------------------------------------------

    def accept(self, runs: list[Claimed]) -> None:
        """Fill slots with claimed runs."""
        for claimed in runs:
            known = self.running.get(claimed.id)
            if known is not None:
                known.lose()  # claimed again: what we held of it is not ours any more
                self.slots.leave(known)
            if claimed.claim > 1:
                self._remember(claimed)
            execution = self._execution(claimed)
            self.slots.take(execution)
            execution.main.owner = execution.task = self._clock.task(self._attempts.drive(execution))
            self._limits.begin(execution)
        self.slots.release_lingering()

    def _execution(self, claimed: Claimed) -> Execution:
        workflow = self._workflows[claimed.workflow]
        claimed.worker = self._me.id
        if claimed.losses < SUSPECT_LOSSES and not claimed.unrecorded_losses:
            return Execution(claimed, workflow, self._host)
        return Suspect(claimed, workflow, self._host, self._slots_freed)

    def _remember(self, claimed: Claimed) -> None:
        """A run that was here before may have its records here still."""
        records = self.cache.take(claimed.id, claimed.claim)
        if records is not None and not claimed.records:
            claimed.records, claimed.complete = records, True

    def list_running_steps(self) -> None:
        """Called about once a second: steps that take long are listed as running."""
        now = self._clock.now()
        for execution in list(self.running.values()):
            if execution.active and execution.closed is None:
                execution.list_running(now, self._running_after)

    def stream_full(self, run_id: str, stream: str) -> None:
        """A stream of a run has no room for what was sent to it."""
        execution = self.slots.find(run_id)
        if execution is not None:
            execution.streams.had_no_room(stream)

    # -- what operators ask ----------------------------------------------------------------------------------------

    def ask(self, run_id: str, what: str, claim: int | None = None) -> None:
        """An operator wants a run cancelled or paused: at once if no step is being executed, else after it."""
        execution = self.slots.find(run_id, claim)
        if execution is None or execution.claimed.undoing:
            return
        execution.asked = what
        known = execution.claimed.complete  # what there is to undo is known from its whole history only
        between = kind_of(execution.workflow).is_between_steps(execution)
        if execution.closed is None and between and known and not execution.must_record_first():
            execution.leave_as_requested()

    # -- losing and giving back ------------------------------------------------------------------------------------

    def works_on(self, run_id: str, claim: int) -> bool:
        """Whether this claim of the run is at hand, and nothing that ends it is in the journal yet."""
        execution = self.slots.find(run_id, claim)
        return execution is not None and execution.stage is not Stage.LEAVING

    def lose(self, run_id: str, claim: int | None = None) -> None:
        """The run is not ours any more."""
        execution = self.slots.find(run_id, claim)
        if execution is not None:
            told = "run %s: lost its lease (claim %d)"
            self._logger.warning(told, run_id, execution.claim, extra=ids_of(execution))
            self._leaving.lost(execution)

    def lose_all(self) -> None:
        """The worker's own lease is over."""
        for run_id in list(self.running):
            self.lose(run_id)

    async def give_back(self) -> None:
        """Stop every handler and make its run ready again at once."""
        receipts = []
        for execution in list(self.running.values()):
            if execution.closed is None:
                execution.close(AttemptEnded("the worker stops"))
                receipts.append((execution, execution.leave(outcomes.given_back(execution))))
        for execution, receipt in receipts:
            try:
                await receipt
            except (LeaseLost, DatabaseRefused):
                pass
            self.slots.leave(execution)

    async def close(self) -> None:
        """Let go of threads and of handlers that ignored being cancelled."""
        await self.progress.close()
        self._threads.close()
        self._host.close()
        tasks = self._limits.late | {e.task for e in self.running.values() if e.task is not None}
        for task in tasks:
            task.cancel()
        if tasks:
            await self._clock.wait(tasks, 1)
