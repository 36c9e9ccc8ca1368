"""The journal: group commit. All runs of a worker share it.

Whatever is waiting when the last commit returns goes out as the next transaction. There is no timer: a lonely entry
leaves at once, and under load one commit carries hundreds. A step returns to its caller only after the commit
that holds it.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Callable

from ..errors import DatabaseRefused, LeaseLost
from ..model.records import Batch, Entry, FlushAnswer, StepDone, StepRunning, Transition
from ..settings import Settings
from ..store import Store
from .patience import patiently


class Receipt(asyncio.Future[int]):
    """Comes when an entry is committed, with the database's time. It cannot be cancelled: an entry that is in the
    journal will be decided by the commit, not by somebody's timeout."""

    def cancel(self, msg: object = None) -> bool:
        """Refused; the waiting task is cancelled once the receipt has come."""
        return False


Item = tuple[Entry, Receipt | None]


class Journal:
    """Collects entries and flushes them, one transaction after the other."""

    def __init__(
        self,
        store: Store,
        settings: Settings,
        logger: logging.Logger,
        worker_id: Callable[[], str],
        heard: Callable[[FlushAnswer], None],
        flushed: Callable[[list[Transition]], None],
    ) -> None:
        self._store = store
        self._settings = settings
        self._logger = logger
        self._worker_id = worker_id
        self._heard = heard
        self._flushed = flushed
        self._waiting: deque[Item] = deque()
        self._bell = asyncio.Event()
        self._idle = asyncio.Event()
        self._idle.set()
        self._giving_up = False
        self.loop = asyncio.get_running_loop()

    # -- for those who write -----------------------------------------------------------------------------------

    def record(self, entry: Entry) -> Receipt:
        """Put an entry in; the receipt comes with its commit."""
        receipt = Receipt(loop=self.loop)
        self._waiting.append((entry, receipt))
        self._bell.set()
        return receipt

    def note(self, entry: Entry) -> None:
        """Put an entry in that nobody waits for."""
        self._waiting.append((entry, None))
        self._bell.set()

    async def settle(self) -> None:
        """Wait until everything put in so far is decided."""
        while self._waiting or not self._idle.is_set():
            await self._idle.wait()
            await asyncio.sleep(0)

    def give_up(self) -> None:
        """Stop riding out an outage: whatever is still waiting is lost to this worker (not to the run)."""
        self._giving_up = True

    # -- the flusher -------------------------------------------------------------------------------------------

    async def run(self) -> None:
        """Flush for ever."""
        try:
            while True:
                await self._bell.wait()
                self._bell.clear()
                self._idle.clear()
                while self._waiting:
                    await self._flush(self._take())
                self._idle.set()
        finally:
            self._abandon()

    def _take(self) -> list[Item]:
        """The next batch. A large crowd goes in two halves, so that one half computes while the other commits."""
        waiting, limit = self._waiting, self._settings.flush_records
        count = min(len(waiting), limit)
        items: list[Item] = []
        size = 0
        while len(items) < count:
            item = waiting.popleft()
            items.append(item)
            size += _size(item[0])
            if size > self._settings.flush_bytes:
                break
        return items

    async def _flush(self, items: list[Item]) -> None:
        batch = Batch()
        for entry, _ in items:
            batch.add(entry)
        try:
            answer = await patiently(
                lambda: self._store.flush(self._worker_id(), batch),
                "journal",
                self._logger,
                self._settings.outage_backoff_max,
                lambda: self._giving_up,
            )
        except DatabaseRefused as error:
            await self._halve(items, error)
            return
        except BaseException:
            self._waiting.extendleft(reversed(items))
            raise
        await self._deliver(items, batch, answer)

    async def _halve(self, items: list[Item], error: DatabaseRefused) -> None:
        """The database refuses something in the batch: find it, so that the others do not hang on it."""
        if len(items) > 1:
            middle = len(items) // 2
            await self._flush(items[:middle])
            await self._flush(items[middle:])
            return
        entry, receipt = items[0]
        self._logger.error("journal: the database refused a record of run %s", entry.run_id)
        if receipt is not None and not receipt.done():
            receipt.set_exception(error)

    async def _deliver(self, items: list[Item], batch: Batch, answer: FlushAnswer) -> None:
        if not (answer.lost or answer.busy):
            for _, receipt in items:
                if receipt is not None:
                    receipt.set_result(answer.now_ms)
            self._flushed(batch.transitions)
        else:
            self._deliver_some(items, batch, answer)
        if answer.lost or answer.asked:
            self._heard(answer)
        if answer.busy and len(answer.busy) == len(self._waiting):
            await asyncio.sleep(0.005)  # only held rows are left: give their holder time to commit

    def _deliver_some(self, items: list[Item], batch: Batch, answer: FlushAnswer) -> None:
        again: list[Item] = []
        for entry, receipt in items:
            if entry.run_id in answer.busy:
                again.append((entry, receipt))
            elif receipt is None or receipt.done():
                continue
            elif entry.run_id in answer.lost:
                receipt.set_exception(LeaseLost(f"run {entry.run_id} is no longer this worker's (claim {entry.claim})"))
                receipt.exception()  # seen: the handler may be gone already
            else:
                receipt.set_result(answer.now_ms)
        self._waiting.extendleft(reversed(again))
        refused = answer.lost | answer.busy
        self._flushed([move for move in batch.transitions if move.run_id not in refused])

    def _abandon(self) -> None:
        """The flusher ends: nobody may wait for it any more."""
        while self._waiting:
            entry, receipt = self._waiting.popleft()
            if receipt is not None and not receipt.done():
                receipt.set_exception(LeaseLost(f"the worker stopped before run {entry.run_id} could be recorded"))
                receipt.exception()
        self._idle.set()


def _size(entry: Entry) -> int:
    """About how many bytes an entry brings along."""
    if isinstance(entry, StepDone):
        return len(entry.output or "") + len(entry.arguments or "") + len(entry.error or "")
    if isinstance(entry, Transition):
        return len(entry.output or "") + len(entry.error or "")
    if isinstance(entry, StepRunning):
        return len(entry.data or "")
    return len(entry.error)
