"""One attempt of one run, in memory: its history, its position counters, and whether it is still ours."""

from __future__ import annotations

import asyncio
import threading
import time
from typing import TYPE_CHECKING, Any

from ..errors import ContextMisuse, LeaseLost, NonDeterminismError, RunSuspended, StepFailed
from ..model import status
from ..model.records import Claimed, Entry, StepDone, StepRecord, Transition
from .history import History
from .recorder import Recorder
from .workflow import Workflow

if TYPE_CHECKING:
    from .calls import StepCall

_CHANCE = 0.01
"""Seconds the code is given to go on after a step before the run counts as waiting."""


class Execution:
    """What a context works on. Created at each claim; closed once and for ever when the run leaves."""

    def __init__(self, claimed: Claimed, workflow: Workflow[Any, Any], recorder: Recorder) -> None:
        self.run_id = claimed.id
        self.claim = claimed.claim
        self.claimed = claimed
        self.workflow = workflow
        self.recorder = recorder
        self.history = History(claimed.records)
        self.closed: BaseException | None = None
        """Set when the run leaves this handler: every further call raises it again."""
        self.diverged: NonDeterminismError | None = None
        self.task: asyncio.Task[None] | None = None
        self.owner: asyncio.Task[Any] | int | None = None
        """The task (or thread, for a plain def) that may call the context."""
        self.performing: asyncio.Task[Any] | None = None
        """For a plain def: the task that performs the step its thread waits for."""
        self.recorded = False
        """Whether this claim has made a new record."""
        self.leaving = False
        """Whether the entry that ends this claim is already in the journal."""
        self.handler_done = False
        """Whether the handler has given its slot back."""
        self.began = time.monotonic()
        self._loop = recorder.loop
        self._loop_thread = recorder.loop_thread
        self.seq = self.history.last_seq
        self.taken: list[tuple[str, int]] = []
        """The positions taken so far, over all branches, in the order they were taken."""
        self.unawaited: set[StepCall[Any]] = set()
        self.newest: dict[str, int] = {}
        """The database time of each branch's newest record that the code has seen."""
        self.live: list[tuple[StepDone, int]] | None = []
        """New records, kept for the cache while they are few."""
        self.active: dict[StepCall[Any], float] = {}
        """Calls under way, and when their function was called."""
        self._waits: Waits | None = None

    # -- who may call ------------------------------------------------------------------------------------------

    def check_caller(self) -> None:
        """A context belongs to one task; interleaved steps of two tasks could swap results on replay."""
        if self.closed is not None:
            raise self.closed
        here = threading.get_ident()
        if self.owner != here and (here != self._loop_thread or asyncio.current_task(self._loop) is not self.owner):
            raise ContextMisuse(
                f"the context of run {self.run_id} was called from another task or thread than the one that runs the "
                "workflow. Call ctx.step(…) in the workflow itself (its result may be awaited anywhere, also by "
                "asyncio.gather), or give each concurrent line of work a ctx.branch of its own"
            )

    def close(self, why: BaseException) -> None:
        """The run leaves: stop the handler, and refuse whatever it still says."""
        if self.closed is None:
            self.closed = why
            if isinstance(self.owner, asyncio.Task):
                self.owner.cancel()
            if self.performing is not None:
                self.performing.cancel()
            self.close_waits()

    @property
    def waits(self) -> Waits:
        """Its waits. Made when first needed: most runs have none, and the two know each other, which only the garbage
        collector could undo."""
        if self._waits is None:
            self._waits = Waits(self)
        return self._waits

    def close_waits(self) -> None:
        """Nothing is waited for any more."""
        if self._waits is not None:
            self._waits.close()

    def load(self, records: list[StepRecord]) -> None:
        """The whole history, where the claim brought only its beginning."""
        self.history = History(records)
        self.seq = self.history.last_seq

    # -- positions and records ---------------------------------------------------------------------------------

    def take(self, call: StepCall[Any]) -> StepRecord | None:
        """Take the call's position; its record, if the step was done before."""
        limit = self.recorder.settings.max_records
        if call.position >= limit:
            raise ContextMisuse(
                f"run {self.run_id} has reached {limit} records (setting max_records); let it go on as a new run"
            )
        self.taken.append((call.branch, call.position))
        self.unawaited.add(call)
        if not self.history.untaken:
            return None
        try:
            return self.history.take(call.branch, call.position, call.kind, call.name, call.line)
        except NonDeterminismError as error:
            self.diverge(error)
            raise

    def diverge(self, error: NonDeterminismError) -> None:
        """The code is not the recorded one. Kept, so that catching it changes nothing."""
        self.diverged = error
        if self.closed is None:
            self.closed = error
            self.close_waits()

    def journal(self, entry: Entry) -> asyncio.Future[int]:
        """Put an entry in the journal, unless the run has left: a handler that comes back late records nothing."""
        if self.closed is not None:
            raise self.closed
        return self.recorder.record(entry)

    def journal_note(self, entry: Entry) -> None:
        """The same for an entry that nobody waits for: it goes out with the next one."""
        if self.closed is None:
            self.recorder.note(entry)

    async def record(self, entry: StepDone) -> int:
        """Journal an outcome and wait for its commit; the database's time of it."""
        if self.closed is not None:
            raise self.closed
        receipt = self.recorder.record(entry)
        try:
            now = await receipt
        except asyncio.CancelledError:
            # A receipt cannot be cancelled, so it has come: the outcome is decided, and a timeout of the code around
            # it is too late. What the code sees now is what a replay will see.
            if self.closed is not None or not receipt.done():
                raise
            now = receipt.result()
        self.recorded = True
        if now > self.newest.get(entry.branch, 0):
            self.newest[entry.branch] = now
        if self.live is not None:
            self.live.append((entry, now))
            if len(self.live) > self.recorder.settings.history_records:
                self.live = None
        return now

    def saw(self, branch: str, recorded_at: int) -> None:
        """The code sees a record: ``ctx.now()`` moves on, never back, in whatever order parallel records are read."""
        if recorded_at > self.newest.get(branch, 0):
            self.newest[branch] = recorded_at

    def raised(self, error: StepFailed) -> StepFailed:
        """Remember how far the code was when it saw this error; what it did after is forgotten on a new attempt."""
        error.taken = len(self.taken)
        return error

    def to_forget(self, error: StepFailed | None) -> list[tuple[str, int]]:
        """The records a new attempt makes anew: the failed one, and what was recorded after it was raised."""
        if error is None:
            return []
        return [error.place, *(place for place in self.taken[error.taken :] if place != error.place)]

    def cacheable(self) -> list[StepRecord] | None:
        """The whole history as it would be read back, if it is small enough to be kept."""
        if self.live is None:
            return None
        old = list(self.history.records.values())
        return old + [_as_record(entry, now) for entry, now in self.live]

    def list_running(self, now: float, after: float) -> None:
        """Tell of steps that have been running for longer than a moment; quick ones cost no write."""
        for call, began in list(self.active.items()):
            if began and now - began >= after:
                self.active[call] = 0.0  # told
                call.note_progress(None, None, int((now - began) * 1000))

    # -- leaving -----------------------------------------------------------------------------------------------

    def suspend(self, delay_ms: int | None, waiting_for: str) -> None:
        """Give the slot back until the wait is over."""
        if self.closed is None:
            self.leave(
                Transition(
                    self.run_id,
                    self.claim,
                    status.WAITING,
                    delay_ms=delay_ms,
                    waiting_for=waiting_for,
                    wakes=self.claimed.wakes,
                    recorded=self.recorded,
                )
            )
            self.close(RunSuspended(f"run {self.run_id} waits for {waiting_for}"))

    def leave(self, transition: Transition) -> asyncio.Future[int]:
        """Journal the entry that ends this claim."""
        self.leaving = True
        return self.recorder.record(transition)

    def lose(self) -> None:
        """The fence refused us, or our lease is over."""
        self.close(LeaseLost(f"run {self.run_id} is no longer this worker's (claim {self.claim})"))


class Waits:
    """The waits of one run that are kept in memory; when nothing else is under way, the run is released instead."""

    def __init__(self, execution: Execution) -> None:
        self._execution = execution
        self._due: dict[asyncio.Future[None], tuple[float, str]] = {}
        self._since: float | None = None
        """Since when everything under way has been waiting."""
        self._waited = 0.0

    async def wait(self, seconds: float, waiting_for: str) -> None:
        """Wait for a time: in memory if it is a moment, else by giving the slot back."""
        loop = asyncio.get_running_loop()
        future: asyncio.Future[None] = loop.create_future()
        self._due[future] = (loop.time() + seconds, waiting_for)
        timer = loop.call_later(seconds, _wake, future)
        self.look()
        try:
            await future
        finally:
            timer.cancel()
            self._due.pop(future, None)
            self._waited, self._since = self.take_waited(), None

    def take_waited(self) -> float:
        """Seconds spent only waiting since this was last asked: they do not count for the timeout of an attempt."""
        now = time.monotonic()
        waited, self._waited = self._waited, 0.0
        if self._since is not None:
            waited, self._since = waited + now - self._since, now
        return waited

    def look_soon(self) -> None:
        """Look when the code has had a chance to go on: a step that just ended may be followed by another."""
        if self._due:
            asyncio.get_running_loop().call_later(_CHANCE, self.look)

    def look(self) -> None:
        """Release the run if all that is under way is waiting, and longer than a moment."""
        if not self._due or len(self._due) < len(self._execution.active) or self._execution.closed is not None:
            return
        due, waiting_for = min(self._due.values())
        left = due - asyncio.get_running_loop().time()
        recorder = self._execution.recorder
        if left > recorder.settings.moment or not recorder.has_free_slots():
            self._execution.suspend(max(0, int(left * 1000)), waiting_for)
        elif self._since is None:
            self._since = time.monotonic()

    def close(self) -> None:
        """Nothing is waited for any more."""
        for future in list(self._due):
            if not future.done():
                future.cancel()


def _wake(future: asyncio.Future[None]) -> None:
    if not future.done():
        future.set_result(None)


def _as_record(entry: StepDone, now: int) -> StepRecord:
    return StepRecord(
        entry.branch,
        entry.position,
        entry.seq,
        entry.name,
        entry.kind,
        entry.status,
        entry.output,
        entry.error,
        entry.arguments,
        entry.attempts,
        now - entry.duration_ms,
        now,
        entry.line,
        entry.format,
    )
