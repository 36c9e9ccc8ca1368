"""One attempt of one run, in memory: its history, its positions, and whether it is still held."""

from __future__ import annotations

import asyncio
from asyncio import current_task
from collections.abc import Callable, Sequence
from enum import Enum
from functools import cached_property
from threading import get_ident
from typing import TYPE_CHECKING, Any, TypeVar

from ..errors import AttemptEnded, ContextMisuse, LeaseLost, NonDeterminismError, RecordedError, RunSuspended
from ..model import status
from ..model.forks import depth, rewinds, secret_of
from ..model.ids import child_id
from ..model.records import Claimed, Entry, NewRun, StepDone, StepRecord, StepWith, StreamItems, Transition
from ..model.status import DAG_STEP, WORKFLOW
from ..model.transitions.operator import goes_on_first
from . import outcomes
from .call import DurableCall, UnplacedCall
from .events import EventReader
from .history import STEP, UNDO, UNDO_FIELD, AttemptHistory, Cursor, History, Holds, Ledger
from .host import Promise, Recorder, Tasks, Timer
from .run_log import RunLines
from .step import TRANSACTION
from .streams import RunStreams
from .waits import RunMailbox, Waits
from .workflow import Workflow

if TYPE_CHECKING:
    from ..model.graph import Graph
    from .dag import DagView
    from .invocation import Replaying
    from .middleware import AttemptMiddleware
    from .step import Undoable


E = TypeVar("E", bound=RecordedError)


class Stage(Enum):
    """The phase of an execution; it only changes to the next, or to one after it."""

    AT_WORK = "at work"
    """Its code is at work, or waits in memory."""
    CLOSED = "closed"
    """Its code has no say any more. What becomes of the run is being decided, or it was lost."""
    LEAVING = "leaving"
    """What becomes of the run is in the journal."""


class Execution:
    """What a context works on. Created at each claim; closed once and for ever when the run leaves."""

    # What each step reads has a slot of its own: a value that is said for the class is found in several times the time.
    # What few runs change is said for the class, and what few need is made when it is needed.
    __slots__ = (
        "__dict__", "_end", "_holds", "_trail", "_waits", "active", "asked", "at_work", "began", "busy", "claim",
        "claimed", "clock", "closed", "history", "ledger", "main", "middleware", "own_streams", "own_tasks", "parting",
        "recorder", "replaying", "run_id", "seq", "taken", "task", "timer", "tokens", "unawaited", "view", "workflow",
    )  # fmt: skip

    closed: BaseException | None
    """Set when the run leaves this handler: every further call raises it again. With ``parting`` it is the one state of
    the run at this worker, as ``stage`` tells."""
    parting: Promise[int] | None
    """The receipt for the entry that ends this claim, when that is in the journal."""
    diverged: NonDeterminismError | None = None
    task: asyncio.Task[None] | None
    timer: Timer | None
    """Rings when its time is up."""
    busy: int
    """How many branches and calls are at work rather than waiting; at none, the run may be released."""
    at_work: int
    """How many functions of steps are being executed, or their outcomes committed."""
    asked: str | None
    """What an operator requests of the run; applied between two steps."""
    successor: NewRun | None = None
    view: DagView | None
    """For a step of a dag run, or the run itself: what it sees of it."""
    replaying: Replaying | None
    """Set if this is only to see what is recorded: a call without a record stops its branch."""
    own_tasks: Tasks | None
    """The tasks that it has beside that of its handler, if it ever had any."""
    error_type: str | None = None
    """What the attempt has failed with, if it has: the class of the error."""
    departure: Transition | None = None
    """That entry, where there are observers: they hear of it when the run has left."""
    left_told = False
    """Whether observers were notified of how this claim ended."""
    tokens: dict[str, str] | None
    """The tokens of its callbacks, and what is stored in their place."""
    own_streams: RunStreams | None
    """What it sends to streams, if it ever asked for one."""
    middleware: AttemptMiddleware | None
    """Functions of the application around this attempt and its steps, if there are any."""
    own_lines: RunLines | None = None
    """What it logs, if its lines are kept."""
    has_said_progress = False
    """Whether its code has said how far the run is."""
    has_notes = False
    """Whether the journal may still hold entries of which no call waits for the commit, but that replays rely on."""
    _inbox: RunMailbox | None = None
    _trail: AttemptHistory | None
    _waits: Waits | None
    _holds: Holds | None
    _end: asyncio.Future[None] | None
    """Resolved when the run leaves, if anything waits for that alone."""

    def __init__(self, claimed: Claimed, workflow: Workflow[Any, Any], recorder: Recorder) -> None:
        self.run_id = claimed.id
        self.claim = claimed.claim
        self.claimed = claimed
        self.closed = self.parting = self.task = self.timer = self.asked = self.view = self.replaying = None
        self.own_tasks = self.own_streams = self.tokens = self.middleware = None
        self._trail = self._waits = self._holds = self._end = None
        self.busy, self.at_work = 1, 0
        self.workflow = workflow
        self.recorder = recorder
        self.history = History(claimed.records)
        self.ledger = self._ledger_for(self.history)
        self.main = Cursor()
        self.clock = recorder.clock
        self.began = self.clock.now()
        self.seq = self.history.last_seq
        self.taken: list[tuple[str, int]] = []
        """The positions taken so far, over all branches, in the order they were taken."""
        self.unawaited: set[DurableCall[Any] | UnplacedCall[Any]] = set()
        self.active: dict[Any, float] = {}
        """Calls under way; of a step, when its function was called, and 0 while it is not, or once it was listed."""

    @cached_property
    def patches(self) -> set[str]:
        """Changes of the code that this attempt met first, each in its branch."""
        return set()

    @cached_property
    def undoable(self) -> list[Undoable]:
        """Completed steps that can be undone, as far as the code has come."""
        return []

    # -- who may call ------------------------------------------------------------------------------------------

    def check_caller(self, cursor: Cursor) -> None:
        """A context belongs to one task; interleaved steps of two tasks could swap results on replay."""
        if self.closed is not None:
            raise self.closed
        here, owner, around = get_ident(), cursor.owner, self.recorder
        if (here != around.loop_thread or current_task(around.loop) is not owner) and owner != here:
            raise ContextMisuse(
                f"the context of run {self.run_id} was called from another task or thread than the one that runs the "
                "workflow. Call ctx.step(…) in the workflow itself (its result may be awaited anywhere, also by "
                "asyncio.gather), or give each concurrent part a ctx.branch of its own; ctx.branches() is for tasks "
                "that other code makes"
            )

    def close(self, why: BaseException) -> None:
        """The run leaves: stop the handler, and refuse all its further calls."""
        if self.closed is None:
            self.closed = why
            if isinstance(self.main.owner, asyncio.Task):
                self.main.owner.cancel()
            if self.own_tasks is not None:
                self.own_tasks.cancel()
            self.close_waits()

    def stop_branches(self) -> None:
        """The code has ended in one of its branches: stop the others, and what they wait for."""
        self.close_waits()
        self.tasks.cancel_other_branches()

    @property
    def stage(self) -> Stage:
        """The phase of the execution at this worker."""
        if self.parting is not None:
            return Stage.LEAVING
        return Stage.AT_WORK if self.closed is None else Stage.CLOSED

    @property
    def graph(self) -> Graph | None:
        """The graph that it follows, as far as it is known here."""
        return None if self.view is None else self.view.graph

    @property
    def streams(self) -> RunStreams:
        """What it sends to streams, made when first needed."""
        if self.own_streams is None:
            self.own_streams = RunStreams(self)
        return self.own_streams

    @cached_property
    def setting_attributes(self) -> asyncio.Lock:
        """Held by the call that sets attributes: their number is bounded."""
        return asyncio.Lock()

    @cached_property
    def events(self) -> EventReader:
        """What reads events for its waits."""
        return EventReader(self)

    @property
    def lines(self) -> RunLines:
        """What it logs, made when first needed."""
        if self.own_lines is None:
            self.own_lines = RunLines(self)
        return self.own_lines

    @property
    def inbox(self) -> RunMailbox:
        """The mail of the run, made when first needed."""
        if self._inbox is None:
            self._inbox = RunMailbox(self.claimed.wakes, self.claimed.ends)
        return self._inbox

    def database_now(self) -> int:
        """The database's time, as far as it is known here; never ahead of it."""
        return self.claimed.now_ms + int((self.clock.now() - self.began) * 1000)

    @property
    def waits(self) -> Waits:
        """The waits of the run. Made when first needed: most runs have none, and the two know each other, which only
        the garbage collector could undo."""
        if self._waits is None:
            self._waits = Waits(self)
        return self._waits

    def close_waits(self) -> None:
        """Nothing is waited for any more."""
        if self._waits is not None:
            self._waits.close()
        if self._holds is not None:
            self._holds.close()
        if self._end is not None and not self._end.done():
            self._end.set_result(None)

    def load(self, records: list[StepRecord]) -> None:
        """The whole history, where the claim brought only its beginning."""
        self.history = History(records)
        self.ledger = self._ledger_for(self.history)
        self.seq = self.history.last_seq

    def _ledger_for(self, history: History) -> Ledger:
        return Ledger(history, self.recorder.settings.history_records)

    # -- positions and records ---------------------------------------------------------------------------------

    def take(self, call: DurableCall[Any]) -> StepRecord | None:
        """Take the call's position; its record, if the step was done before."""
        if len(self.taken) >= self.recorder.settings.max_records:
            raise self._too_many()
        self.taken.append((call.branch, call.position))
        self.unawaited.add(call)
        if not self.history.untaken and not self.history.aside:
            return None
        return self._recorded_at(call.branch, call.position, call.kind, call.name, call.line)

    def take_place(self, cursor: Cursor, kind: str, name: str, where: str) -> int:
        """Take the next position of a branch for something that leaves no record itself."""
        if len(self.taken) >= self.recorder.settings.max_records:
            raise self._too_many()
        position = cursor.position
        cursor.position += 1
        self.taken.append((cursor.branch, position))
        if self.history.untaken:
            self._recorded_at(cursor.branch, position, kind, name, where)
        return position

    def _too_many(self) -> ContextMisuse:
        limit = self.recorder.settings.max_records
        return ContextMisuse(
            f"run {self.run_id} has reached {limit} records (setting max_records); let it go on as a new run with "
            "ctx.continue_as(input)"
        )

    def _recorded_at(self, branch: str, position: int, kind: str, name: str, where: str) -> StepRecord | None:
        try:
            record = self.history.take(branch, position, kind, name, where)
        except NonDeterminismError as error:
            self.diverge(error)
            raise
        if self._holds:
            self._holds.moved()
        return record

    async def hold_back(self, call: DurableCall[Any], cursor: Cursor) -> None:
        """Something is to be done, while the code has not asked for all that is recorded: first things first."""
        if self._holds is None and not self.claimed.undoing:
            self._holds = Holds(self)
        if self._holds is not None:
            await self._holds.wait(call, cursor)

    @property
    def holding(self) -> bool:
        """Whether calls are held until the code has asked for what is recorded."""
        return bool(self._holds)

    def knows_task(self, cursor: Cursor) -> bool:
        """Whether the current task is one of the engine's, or the one that a branch belongs to; so that the code of the
        branch is nowhere else at the same time."""
        task = current_task()
        return task is cursor.owner or (self.own_tasks is not None and self.own_tasks.knows(task))

    def diverge(self, error: NonDeterminismError) -> None:
        """The code is not the recorded one. Kept, so that catching it changes nothing."""
        self.diverged = error
        if self.closed is None:
            self.closed = error
            self.close_waits()

    def marked(self, entry: StepDone) -> StepDone:
        """The outcome of a call as it is recorded: of a run that workers have died with, with what is known of that."""
        return entry

    def journal(self, entry: Entry) -> Promise[int]:
        """Put an entry in the journal, unless the run has left: a handler that comes back late records nothing."""
        if self.closed is not None:
            raise self.closed
        return self.recorder.record(entry)

    def journal_note(self, entry: Entry) -> None:
        """Put an entry in the journal that is not waited for: it goes out with the next one."""
        if self.closed is None:
            self.recorder.note(entry)

    def note_record(self, entry: StepDone) -> None:
        """Journal a record that is not waited for. Whether and when it is stored is not known here, so that only the
        number of records is remembered of this run, and not the records themselves without this one."""
        self.ledger.keep_only_count()
        self.has_notes = True
        self.journal_note(entry)

    async def store_notes(self) -> None:
        """Wait for the commit of all that was journaled so far, before something is committed beside the journal: the
        record of a transaction says that what comes before it in the code is stored."""
        if self.has_notes:
            self.has_notes = False
            await self.journal(StreamItems(self.run_id, self.claim, 0, 0))

    def send(self, entry: StepDone | StepWith) -> Promise[int]:
        """Journal an outcome. The caller, which waits for the commit, lowers ``at_work`` after it: what an operator
        requests is not done before."""
        if self.closed is not None:
            raise self.closed
        done = entry if type(entry) is StepDone else entry.step  # type: ignore[union-attr]
        if done[UNDO_FIELD] is not None:
            self.ledger.undo_recorded = True
        receipt = self.recorder.record(entry)
        self.at_work += 1
        return receipt

    def committed_anyway(self, receipt: Promise[int], error: asyncio.CancelledError) -> int:
        """The time of a commit, where the wait for it was cancelled. A receipt cannot be cancelled, so it has come: the
        outcome is decided, and a timeout of the code around it is too late for this call. What the code sees now is
        what a replay will see. The next call is stopped."""
        if self.closed is not None or not receipt.done():
            raise error
        now = receipt.result()
        self.tasks.was_cancelled_late()
        return now

    async def record(self, entry: StepDone | StepWith) -> int:
        """Journal an outcome and wait for its commit; the database's time of it."""
        receipt = self.send(entry)
        now = None
        try:
            now = await receipt
        except asyncio.CancelledError as error:  # ends here: too late, or raised again
            now = self.committed_anyway(receipt, error)
        except AttemptEnded:
            pass  # it was to start a child, but the run is being cancelled
        finally:
            self.at_work -= 1
        if now is None:
            await self.apply_pending_request(even_unrecorded=True)
        assert now is not None
        self.ledger.add(entry if type(entry) is StepDone else entry.step, now)  # type: ignore[union-attr]
        if self.asked is not None:
            await self.apply_pending_request()
        return now

    def stop_if_late(self) -> None:
        """Stop the task that was to be stopped while an outcome was being recorded, before it does more."""
        if self.own_tasks is not None:
            self.own_tasks.stop_if_late()

    def leave_open(self) -> None:
        """The run is released: each call that is under way leaves an open record, if it has none. So the attempt that
        replays the run, by any code, knows that it was called, and what may not be called in its place."""
        if self.claimed.undoing:
            return
        entries = [entry for call in list(self.active) if (entry := call.open_entry()) is not None]
        for entry in entries:
            self.recorder.note(entry)
        now = self.database_now()
        self.ledger.leave([(entry, now) for entry in entries])

    def believed(self) -> int:
        """How much is stored of this run, if nothing that was acknowledged has vanished."""
        return self.ledger.believed()

    def raised(self, error: E, cursor: Cursor) -> E:
        """Remember how far the code was when it saw this error; what it did after is forgotten on a new attempt."""
        error.seen = {cursor.branch: cursor.position}
        return error

    def was_given(self, errors: Sequence[BaseException], cursor: Cursor, raised: bool = True) -> None:
        """The code of a branch is given errors, of which the first is raised, or all as results: what it does from here
        on comes of them."""
        self.trail.was_given(cursor.branch, cursor.position, errors, raised)

    def drawn_by(self, branch: str, position: int) -> tuple[str, str]:
        """The secret that random values are made from at a position, and the run that it is of: in a fork another one,
        where that has made the records which follow."""
        seed = self.claimed.seed
        return secret_of(seed, self.run_id, self.history.made_by(branch, position) if depth(seed) else None)

    def child_at(self, branch: str, position: int) -> str:
        """The id of the child that is started at an address: another one after each rewind."""
        number = rewinds(self.claimed.seed)
        return child_id(self.run_id, f"~{number}/{branch}" if number else branch, position)

    def calls_child(self, call: DurableCall[Any]) -> None:
        """The code starts a child, or waits for one."""
        if self._trail is not None:
            self._trail.calls_child((call.branch, call.position))

    def give_up(self, branch: str) -> None:
        """A branch was stopped: what is recorded of it does not count, and what it had not awaited is no misuse."""
        self.history.leave_out(branch)

    @property
    def trail(self) -> AttemptHistory:
        """What its code took and gave up; made when first needed."""
        if self._trail is None:
            self._trail = AttemptHistory(self.taken, self.history.records)
        return self._trail

    @property
    def has_given_up(self) -> bool:
        """Whether its code has ended calls by itself."""
        return self._trail is not None and bool(self._trail.given_up)

    def gave_up(self, call: DurableCall[Any]) -> None:
        """The code's own timeout, or a group of tasks, ended a call."""
        self.trail.gave_up((call.branch, call.position))

    def never_awaited(self) -> list[str]:
        """The names of calls that the code made and forgot, in the order of their positions."""
        if not self.unawaited:
            return []
        forgotten = [call for call in self.unawaited if not self.history.is_left_out(call.branch)]
        forgotten.sort(key=lambda call: call.position)
        return [call.name if isinstance(call, UnplacedCall) else repr(call.name) for call in forgotten]

    def to_forget(self, error: BaseException | None, by_operator: bool = False) -> list[tuple[str, int]]:
        """The records that a new attempt does again, or an operator's retry, if this is the error that ended the
        present one."""
        return self.trail.to_forget(error, by_operator)

    def list_running(self, now: float, after: float) -> None:
        """Tell of steps that have been running for longer than a moment; quick ones cost no write."""
        for call, began in list(self.active.items()):
            if began and now - began >= after:
                self.active[call] = 0.0  # reported
                call.note_progress(None, None, int((now - began) * 1000))

    # -- who is at work ----------------------------------------------------------------------------------------

    @property
    def tasks(self) -> Tasks:
        """The tasks that it has beside that of its handler, which end with it."""
        if self.own_tasks is None:
            self.own_tasks = Tasks()
        return self.own_tasks

    def begin(self, cursor: Cursor) -> None:
        """A call begins its work: the branch is at work by it rather than by itself."""
        if cursor.calls:
            self.busy += 1
        cursor.calls += 1

    def end(self, cursor: Cursor) -> None:
        """A call is done with its work; with others of its branch still under way the code may continue, or wait for
        them."""
        cursor.calls -= 1
        if cursor.calls:
            self.busy -= 1
            self.check_rest_soon()

    def check_rest_soon(self) -> None:
        """Something ended; perhaps all the rest is waiting."""
        if not self.busy and self.closed is None:
            if self._holds:
                self._holds.check_rest_soon()
            elif self._waits is not None:
                self._waits.release_soon()

    def wait_for_others(self, cursor: Cursor) -> None:
        """A branch waits for others of the run, which are counted themselves."""
        if not cursor.calls:
            self.busy -= 1
        cursor.calls += 1

    def go_on(self, cursor: Cursor) -> None:
        """A branch continues that had waited for others of the run."""
        cursor.calls -= 1
        if not cursor.calls:
            self.busy += 1

    # -- leaving -----------------------------------------------------------------------------------------------

    def suspend(self, due_at: int | None, waiting_for: str, awaits: int | None = None, linger_ms: int = 0) -> None:
        """Give the slot back until the wait is over. Who is to be cancelled, and went on only to see whether something
        was left to record, has come to the end of it."""
        if self.closed is None and self.must_record_first():
            self.leave_as_requested()
        elif self.closed is None:
            self.leave(outcomes.waiting(self, self.inbox.wakes, due_at, waiting_for, awaits, linger_ms))
            self.close(RunSuspended(f"run {self.run_id} waits for {waiting_for}"))

    @property
    def needs_new_record(self) -> bool:
        """Whether the run has to make a new record before it can be cancelled: its last worker died, perhaps after a
        step had acted, and only what is recorded can be undone. A task has neither records nor undos."""
        return (
            goes_on_first(self.claimed.losses, self.claimed.unrecorded_losses, status.RUNNING)
            and not self.ledger.recorded
            and self.workflow.kind in (WORKFLOW, DAG_STEP)
        )

    def must_record_first(self) -> bool:
        """Whether the run is to be cancelled, but has to make a new record first."""
        return self.asked == status.ASK_CANCEL and self.needs_new_record

    async def apply_pending_request(self, even_unrecorded: bool = False) -> None:
        """Between two steps: do what an operator requested, as soon as no other step is being executed. The code that
        calls this does not continue then. ``even_unrecorded``: also if the run had to make a record first."""
        if not even_unrecorded and self.must_record_first():
            return
        if self.at_work == 0:
            self.leave_as_requested()
        if self.closed is None:  # until the last step in flight is recorded, and the run leaves by that
            self._end = self._end or asyncio.get_running_loop().create_future()
            await asyncio.wait((self._end,))  # this task may be one that the run does not cancel when it leaves
        assert self.closed is not None
        raise self.closed

    def leave_as_requested(self) -> None:
        """Pause or cancel the run, as an operator requested: it leaves this worker."""
        if self.closed is not None or self.parting is not None:
            return
        if self.asked == status.ASK_PAUSE:
            self.leave(outcomes.paused(self))
            self.close(RunSuspended(f"run {self.run_id} is paused"))
        elif self.asked == status.ASK_CANCEL:
            self.leave(outcomes.cancelled(self))
            self.close(AttemptEnded(f"run {self.run_id} is cancelled"))

    def leave(self, transition: Transition) -> Promise[int]:
        """Journal the entry that ends this claim."""
        outcomes.settle(self, transition, self.graph)
        if self.recorder.observers is not None:
            self.recorder.observers.parts(self, transition)
        self.parting = parting = self.recorder.record(transition)
        if self._trail is not None:
            self._trail.let_go()
        return parting

    def lose(self) -> None:
        """The fence refused us, or our lease is over."""
        self.close(LeaseLost(f"run {self.run_id} is no longer this worker's (claim {self.claim})"))


_CALLS = frozenset({STEP, UNDO, TRANSACTION, "wait_until"})
"""Kinds of records whose calls call a function of the user's."""


class Suspect(Execution):
    """With its first new record it stops being a suspect, and its seat is free for another. A class of its own, so
    that recording costs all other runs nothing more."""

    def __init__(
        self, claimed: Claimed, workflow: Workflow[Any, Any], recorder: Recorder, cleared: Callable[[], None]
    ) -> None:
        self._cleared = cleared
        self._begun: set[tuple[str, int]] = set()
        """Calls that the code came to before this claim's first record: the claims that were lost may have come to them
        as well."""
        super().__init__(claimed, workflow, recorder)

    def take(self, call: DurableCall[Any]) -> StepRecord | None:
        """Take the call's position; its record, if the step was done before."""
        if not self.ledger.recorded:
            self._begun.add((call.branch, call.position))
        return super().take(call)

    def marked(self, entry: StepDone) -> StepDone:
        """With the number of workers that died while the call was under way, or may have been."""
        losses = self.claimed.unrecorded_losses
        if losses and entry.kind in _CALLS and (entry.branch, entry.position) in self._begun:
            return entry._replace(losses=losses)
        return entry

    def send(self, entry: StepDone | StepWith) -> Promise[int]:
        """Journal an outcome."""
        return super().send(self.marked(entry) if isinstance(entry, StepDone) else entry)

    def _ledger_for(self, history: History) -> Ledger:
        return _TellingLedger(history, self.recorder.settings.history_records, self._cleared)


class _TellingLedger(Ledger):
    """The ledger of a suspect, which tells of its first record."""

    __slots__ = ("_cleared",)

    def __init__(self, history: History, most: int, cleared: Callable[[], None]) -> None:
        super().__init__(history, most)
        self._cleared = cleared

    def add(self, entry: StepDone, now: int) -> None:
        """A record of this run is committed."""
        first = not self.recorded
        super().add(entry, now)
        if first:
            self._cleared()
