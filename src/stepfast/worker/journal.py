"""The journal: group commit. All runs of a worker share it.

All that is waiting when the last commit returns goes out as the next transaction. There is no timer: a single entry
leaves at once, and under load one commit carries hundreds. A step returns to its caller only after the commit
that contains it.
"""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Awaitable, Callable, Mapping
from operator import itemgetter
from typing import TYPE_CHECKING, Any

from ..engine.host import Clock, Promise, keep_all, wake_all
from ..errors import AttemptEnded, DatabaseRefused, LeaseLost, StepfastError, sentence
from ..model.events import JournalFlushed
from ..model.records import (
    Batch,
    Entry,
    EventWait,
    FlushAnswer,
    HasRecordCount,
    StepDone,
    StepRunning,
    StepWith,
    StreamItems,
    Transition,
    ValueSet,
)
from .context import WorkerContext

if TYPE_CHECKING:
    from .worker import WorkerRuntime


class UnverifiedWrites:
    """Open doubts, resolved run by run. While nothing breaks there are none."""

    def __init__(self, clock: Clock, held: Callable[[], Mapping[str, HasRecordCount]]) -> None:
        self._clock = clock
        self._held = held
        self.open: dict[str, HasRecordCount] = {}
        self.last_break = float("-inf")
        """When the doubt was noticed (monotonic)."""
        self._breaks = 0
        self._asked_at = 0

    def broke(self) -> None:
        """From here on nothing is sure that was believed before."""
        self._breaks += 1
        self.last_break = self._clock.now()
        self.open.update(self._held())

    def asking(self) -> None:
        """A flush is sent: it ends the doubts about its runs, but not those that come while it is under way."""
        self._asked_at = self._breaks

    def compared(self, batch: Batch, answer: FlushAnswer) -> None:
        """What was compared, and found to be as believed, is doubted no more. What was refused may be a late word of an
        older claim than the one that is doubted; a run that is lost is forgotten with those that are not held."""
        if self._asked_at == self._breaks:
            for run_id in batch.claims:
                if run_id not in answer.busy and run_id not in answer.lost:
                    self.open.pop(run_id, None)

    def forget_unheld(self) -> None:
        """A run that was lost, and of which nothing is left to be written, will never be compared."""
        held = self._held()
        for run_id in [run_id for run_id, believer in self.open.items() if held.get(run_id) is not believer]:
            del self.open[run_id]

    def drop(self, run_id: str) -> None:
        """The run was compared elsewhere, or is not held any more."""
        self.open.pop(run_id, None)


class Receipt(Promise[int]):
    """Comes when an entry is committed, with the database's time. It cannot be cancelled: an entry that is in the
    journal is decided by the commit, not by a timeout of a task that waits."""

    __slots__ = ()

    def cancel(self, msg: object = None) -> bool:
        """Refused; the waiting task is cancelled once the receipt has come."""
        return False


Item = tuple[Entry, Receipt | None]

_PATIENT_ROUNDS = 3
"""So many flushes in a row may meet a locked row before its run is set aside for a while."""
_ASIDE, _LONGEST_ASIDE = 0.02, 0.5
"""Seconds for which it is, the first time and at most. A transaction may hold the row for hours; each flush that meets
it is an error in the server's log, and the other entries of the flush are written at a second try."""

_HALF_FROM = 50
"""Crowds below this go in one batch: two would cost more than they overlap."""


class Undecidable(DatabaseRefused):
    """Where a run goes could not be decided from its row; the cause is the error that came of it."""


class Journal:
    """Collects entries and flushes them, one transaction after the other."""

    def __init__(self, context: WorkerContext, unverified: UnverifiedWrites, runtime: WorkerRuntime) -> None:
        self._context = context
        self._settings = context.settings
        self._unverified = unverified
        self._runtime = runtime
        self._waiting: list[Item] = []
        self._under_way: list[Item] = []
        """What the flush that is under way carries."""
        self._met_locked: dict[str, int] = {}
        """How often in a row the rows of runs were found locked."""
        self._aside: dict[str, list[Item]] = {}
        """What is set aside of each of them, in order."""
        self._bell = asyncio.Event()
        self._resting = True
        """Whether the flusher has to be rung; while it is at work it looks by itself."""
        self._idle = asyncio.Event()
        self._idle.set()
        self.left: dict[str, HasRecordCount] = {}
        """Runs that are not at hand any more, but of which something is still to be written."""
        self._bug: BaseException | None = None
        """What no row can be blamed for."""
        self._giving_up = False
        self._over = False
        self._flusher: asyncio.Task[Any] | None = None
        self.loop = asyncio.get_running_loop()

    # -- for those who write -----------------------------------------------------------------------------------

    def record(self, entry: Entry) -> Receipt:
        """Put an entry in; the receipt comes with its commit."""
        receipt = Receipt.__new__(Receipt)  # half of the time of Receipt(…): there is one for each step
        Receipt.__init__(receipt, self.loop)
        if self._over:
            _refuse((entry, receipt))
            return receipt
        self._waiting.append((entry, receipt))
        if self._resting:
            self._bell.set()
        return receipt

    def note(self, entry: Entry) -> None:
        """Put in an entry that is not waited for."""
        if self._over:
            return  # a handler that ends after its worker
        self._waiting.append((entry, None))
        if self._resting:
            self._bell.set()

    def has(self, run_id: str, claim: int) -> bool:
        """Whether anything of this claim is not decided yet."""
        for items in (self._under_way, self._waiting, self._aside.get(run_id, ())):
            if any(entry.run_id == run_id and entry.claim == claim for entry, _ in items):
                return True
        return False

    def undecided(self) -> set[tuple[str, int]]:
        """The claims of which anything is not decided yet: to ask for many of them, in one pass."""
        waiting = itertools.chain(self._under_way, self._waiting, *self._aside.values())
        return {(entry.run_id, entry.claim) for entry, _ in waiting}

    def is_doubted(self, run_id: str, believer: HasRecordCount) -> bool:
        """Whether a connection broke, and no flush has compared since what is stored of this claim."""
        return self._unverified.open.get(run_id) is believer

    @property
    def busy(self) -> bool:
        """Whether anything that was put in is not decided yet."""
        return not self._over and bool(self._waiting or self._aside or not self._idle.is_set())

    @property
    def ends(self) -> bool:
        """Whether nothing more will be written: the worker has stopped, or every task of the event loop is cancelled
        because the program ends."""
        return self._over or (self._flusher is not None and self._flusher.cancelling() > 0)

    async def flush_all(self) -> None:
        """Wait until everything put in so far is decided; once the flusher has ended, everything is."""
        while self.busy:
            await self._idle.wait()
            await self._context.clock.sleep(_ASIDE if self._aside else 0)

    def break_by(self, bug: BaseException) -> None:
        """End the flusher by an error that came of the plainest entry there is, too: no odd row explains it."""
        self._bug = bug
        self._bell.set()

    def give_up(self) -> None:
        """Stop riding out an outage: all that is still waiting is lost to this worker (not to the run)."""
        self._giving_up = True

    # -- the flusher -------------------------------------------------------------------------------------------

    async def run(self) -> None:
        """Flush until the worker stops."""
        self._flusher = asyncio.current_task()
        try:
            while True:
                self._resting = True
                await self._bell.wait()
                if self._bug is not None:
                    raise self._bug
                self._resting = False
                self._bell.clear()
                self._idle.clear()
                while self._waiting:
                    self._under_way = self._take()
                    await self._flush(self._under_way)
                    self._under_way = []
                    if self.left:
                        self._forget_left()
                self._idle.set()
        finally:
            self._abandon()

    def _forget_left(self) -> None:
        """Forget the runs that are not at hand any more, but for those of which something is still to be written: a
        connection may break before that, and then it has to be compared."""
        undecided = {entry.run_id for entry, _ in self._waiting} | self._aside.keys()
        for run_id in self.left.keys() - undecided:
            del self.left[run_id]

    def _take(self) -> list[Item]:
        """The next batch. A large crowd goes in two halves, so that one half computes while the other commits."""
        if self._aside:
            self._leave_aside()
        waiting = self._waiting
        crowd = max(self._settings.concurrency, len(waiting))
        limit = min(self._settings.flush_records, max(_HALF_FROM, crowd // 2))
        if len(waiting) > limit and isinstance(first := waiting[0][0], StepWith) and first.sends:
            limit = self._settings.flush_records  # a crowd that goes out waits for others, and computes nothing
        if len(waiting) <= limit:
            items, self._waiting = waiting, []
        else:
            items, self._waiting = waiting[:limit], waiting[limit:]
        return items

    async def _flush(self, items: list[Item]) -> None:
        worker, batch = self._context.me.id, Batch(unverified=self._unverified.open)
        items = self._sort(items, batch)
        if not items:
            return
        began = self._context.clock.now()
        try:
            answer = await self._write(worker, batch)
        except DatabaseRefused as error:
            await self._halve(items, error)
            return
        except Exception as error:
            if isinstance(error, StepfastError) or not any(isinstance(entry, Transition) for entry, _ in items):
                self._waiting = items + self._waiting
                raise
            # Where runs go is decided from their rows, and a hand may have damaged one of these.
            refusal = Undecidable(f"nothing can be decided from its row ({sentence(error)})")
            refusal.__cause__ = error
            await self._halve(items, refusal)
            return
        except BaseException:
            self._waiting = items + self._waiting
            raise
        if (observers := self._context.observers) is not None and observers.flushed:
            took = self._context.clock.now() - began
            observers.tell(observers.flushed, JournalFlushed(took, len(items), len(answer.lost)))
        await self._deliver(items, batch, answer)

    def _sort(self, items: list[Item], batch: Batch) -> list[Item]:
        """Put the entries where they belong in the batch, and leave for the next one what would make it too large; one
        entry always goes. Two claims of one run never share a batch: a late word of the older attempt must not slip
        through the fence of the newer."""
        entries = [entry for entry, _ in items]
        steps = [entry for entry in entries if type(entry) is StepDone]
        others = [entry for entry in entries if type(entry) is not StepDone]
        size = sum(map(len, filter(None, map(_OUTPUT, steps)))) + sum(map(len, filter(None, map(_ARGUMENTS, steps))))
        if size + sum(map(_size, others)) > (most := self._settings.flush_bytes) and len(items) > 1:
            room = most - _size(entries[0])
            fits = 1
            while room >= (size := _size(entries[fits])):
                room -= size
                fits += 1
            self._waiting = items[fits:] + self._waiting
            return self._sort(items[:fits], batch)
        claims = [*map(_CLAIM, steps), *[(entry.run_id, entry.claim) for entry in others]]
        batch.claims = dict(claims)
        if len(batch.claims) < len(set(claims)):
            return self._sort(_newest(items), batch)
        batch.steps = steps
        for entry in others:
            batch.add(entry)
        return items

    async def _write(self, worker: str, batch: Batch) -> FlushAnswer:
        def ask() -> Awaitable[FlushAnswer]:
            self._unverified.asking()
            return self._context.store.flush(worker, batch)

        return await self._context.ask(ask, "journal", lambda: self._giving_up, refusable=True)

    async def _halve(self, items: list[Item], error: DatabaseRefused) -> None:
        """The database refuses something in the batch: find it, so that the others do not hang on it."""
        if len(items) > 1:
            middle = len(items) // 2
            await self._flush(items[:middle])
            await self._flush(items[middle:])
            return
        entry, receipt = items[0]
        told = "journal: the database refused a record of run %s"
        self._context.logger.error(
            told,
            entry.run_id,
            exc_info=error.__cause__ if isinstance(error, Undecidable) else None,
            extra={"run_id": entry.run_id},
        )
        if receipt is not None:
            receipt.fail(error)

    def _leave_aside(self) -> None:
        """Later entries of a run that is set aside go behind its earlier ones."""
        waiting, self._waiting = self._waiting, []
        for item in waiting:
            self._aside.get(item[0].run_id, self._waiting).append(item)

    def _set_aside(self, busy: set[str]) -> None:
        """Other transactions hold these rows. One that is held for long is tried less and less often; the others
        are not kept waiting by it."""
        for run_id in busy:
            met = self._met_locked[run_id] = self._met_locked.get(run_id, 0) + 1
            if met > _PATIENT_ROUNDS and run_id not in self._aside:
                self._aside[run_id] = []
                wait = min(_LONGEST_ASIDE, _ASIDE * 2 ** min(met - _PATIENT_ROUNDS - 1, 10))
                self._context.clock.after(wait, self._bring_back, run_id)
        if self._aside:
            self._leave_aside()

    def _bring_back(self, run_id: str) -> None:
        self._waiting = self._aside.pop(run_id, []) + self._waiting
        if self._resting and self._waiting:
            self._bell.set()

    async def _deliver(self, items: list[Item], batch: Batch, answer: FlushAnswer) -> None:
        if self._unverified.open:
            self._unverified.compared(batch, answer)
        if not (answer.lost or answer.busy or answer.barred or answer.earlier):
            self._hand_out([receipt for _, receipt in items if receipt is not None], answer.now_ms)
            self._runtime.flushed(batch.transitions)
        else:
            self._deliver_some(items, batch, answer)
        if batch.joint or answer.undelivered or answer.lanes or answer.asked_elsewhere:
            refused = answer.lost | answer.busy | answer.barred
            joint = [entry for entry in batch.joint if entry.run_id not in refused]
            self._runtime.joined(joint, answer)
        if batch.streams:
            self._runtime.streamed(answer)
        if batch.values:
            self._runtime.values_set()
        if self._met_locked:
            for run_id in batch.claims.keys() - answer.busy:
                self._met_locked.pop(run_id, None)
        if answer.busy:
            self._set_aside(answer.busy)
        if answer.lost or answer.asked:
            self._runtime.flush_answered({run_id: batch.claims[run_id] for run_id in answer.lost}, answer)
        if answer.busy and all(entry.run_id in answer.busy for entry, _ in self._waiting):
            await self._context.clock.sleep(0.005)  # only held rows are left: give their holder time to commit

    def _deliver_some(self, items: list[Item], batch: Batch, answer: FlushAnswer) -> None:
        again: list[Item] = []
        receipts: list[Receipt] = []
        for entry, receipt in items:
            if entry.run_id in answer.busy:
                again.append((entry, receipt))
            elif entry.run_id in answer.lost:
                _refuse((entry, receipt))
            elif entry.run_id in answer.barred and isinstance(entry, StepWith) and (entry.starts or entry.sends):
                _bar((entry, receipt))
            elif receipt is not None:
                receipt.keep(answer.time_of(entry))
                receipts.append(receipt)
        self._hand_out(receipts, answer.now_ms)
        self._waiting = again + self._waiting
        refused = answer.lost | answer.busy
        self._runtime.flushed([move for move in batch.transitions if move.run_id not in refused])

    def _hand_out(self, receipts: list[Receipt], now: int) -> None:
        """One commit, and one turn of the event loop in which all that waited for it continue."""
        keep_all(receipts, now)
        self.loop.call_soon(wake_all, self.loop, iter(receipts))

    def disown(self) -> None:
        """The worker continues under a new id: what was put in under the old one is not its to write."""
        items, self._waiting = [*self._waiting, *(item for items in self._aside.values() for item in items)], []
        self._aside.clear()
        self.left.clear()
        for item in items:
            _refuse(item)

    def _abandon(self) -> None:
        """The flusher ends: all that is waited for is ended."""
        self._over = True
        self.disown()
        for item in self._under_way:  # of a batch that was being halved only the part at hand was put back
            _refuse(item)
        self._idle.set()


def _newest(items: list[Item]) -> list[Item]:
    """The items of the newest claim of each run; the others are refused."""
    newest: dict[str, int] = {}
    for entry, _ in items:
        newest[entry.run_id] = max(entry.claim, newest.get(entry.run_id, 0))
    kept: list[Item] = []
    for item in items:
        if item[0].claim == newest[item[0].run_id]:
            kept.append(item)
        else:
            _refuse(item)
    return kept


def _refuse(item: Item) -> None:
    entry, receipt = item
    if receipt is not None:
        receipt.fail(LeaseLost(f"run {entry.run_id} is no longer this worker's (claim {entry.claim})"))


def _bar(item: Item) -> None:
    """The run is being cancelled: it starts no children any more."""
    entry, receipt = item
    if receipt is not None:
        receipt.fail(AttemptEnded(f"run {entry.run_id} is being cancelled"))


_CLAIM = itemgetter(StepDone._fields.index("run_id"), StepDone._fields.index("claim"))
_OUTPUT, _ARGUMENTS = (itemgetter(StepDone._fields.index(name)) for name in ("output", "arguments"))


def _size(entry: Entry) -> int:
    """About how many bytes an entry brings along."""
    if isinstance(entry, StepDone):
        return len(entry.output or "") + len(entry.arguments or "")
    if isinstance(entry, Transition):
        return len(entry.output or "") + len(entry.error or "")
    if isinstance(entry, StepRunning):
        return len(entry.data or "")
    if isinstance(entry, StepWith):
        sent = sum(len(run.input) for run in entry.starts) + sum(len(send.input) for send in entry.sends)
        sent += sum(len(given.answer or "") for given in entry.answers)
        sent += sum(len(made.expects or "") for made in entry.callbacks)
        return len(entry.step.output or "") + sent
    if isinstance(entry, ValueSet):
        return len(entry.value)
    if isinstance(entry, StreamItems):
        return entry.size
    if isinstance(entry, EventWait):
        return 0
    return len(entry.error or "")
