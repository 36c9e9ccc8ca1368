"""``ctx.transaction``: a function that writes to the same database, committed with the record of its result."""

from __future__ import annotations

import asyncio
import contextvars
from collections.abc import Awaitable
from typing import Any, TypeVar

from ..caller_thread import in_transaction
from ..cancellation import seen
from ..errors import DatabaseRefused, LeaseLost
from ..model import status
from ..model.records import StepDone, StepRecord
from .history import as_record
from .step import TRANSACTION, StepCall, being_cancelled

T = TypeVar("T")


class TransactionCall(StepCall[T]):
    """A step whose function is given a connection, and whose record is the last word of its transaction."""

    __slots__ = ("_context",)

    _own_arguments = 1
    _kind = TRANSACTION

    def _call(self) -> Awaitable[Any]:
        return self._transact()

    async def _transact(self) -> StepRecord:
        self._context = contextvars.copy_context()
        try:
            await self._execution.store_notes()
            return await self._committed()
        except LeaseLost:
            self._execution.lose()
            raise

    async def _committed(self) -> StepRecord:
        """The record, once it is committed. A timeout of the code's own, or a group of tasks, may end this call while
        the commit comes through all the same. Then it was too late for this call: the code sees the record, as a replay
        will see it, and its next call is stopped."""
        execution = self._execution
        address = (self.branch, self.position)
        try:
            return await execution.recorder.queries.transact(
                execution, address, self._inside, self._record_of, self._timeout
            )
        except asyncio.CancelledError:
            if execution.closed is not None or not being_cancelled():
                raise
            record = await self._decided()
            if record is None:
                raise
            if record.status != status.COMPLETED:
                self._record = record
                execution.ledger.add(self._as_entry(record), record.completed_at)
                raise
            execution.tasks.was_cancelled_late()
            return record

    async def _decided(self) -> StepRecord | None:
        """What is on record in the end, however often the waiting task is cancelled; None if the database refuses to
        record that it was given up."""
        execution, deciding = self._execution, asyncio.ensure_future(self._decide())
        deciding.add_done_callback(seen)  # no task may wait for it
        while not deciding.done() and execution.closed is None:
            try:
                await asyncio.wait((deciding,))
            except asyncio.CancelledError:  # ends here: the first one is raised again, or both came too late
                continue
        if execution.closed is not None:
            raise execution.closed
        return None if isinstance(deciding.exception(), DatabaseRefused) else deciding.result()

    async def _decide(self) -> StepRecord:
        """Record that it was given up, and read what is on record then. An outcome is final, and the two cannot pass
        each other: once this entry is committed, either it is on record, or what the transaction committed before."""
        execution, entry = self._execution, self._given_up()
        now = await execution.journal(entry)
        found = await execution.recorder.queries.outcome_at(execution, (self.branch, self.position))
        return found or as_record(entry, now)

    async def _record_cancelled(self) -> None:
        """Record that the step was cancelled, unless that is on record already."""
        if self._record is None or self._record.status != status.CANCELLED:
            await super()._record_cancelled()
        elif self._execution.asked is not None:
            await self._execution.apply_pending_request()

    def _cancelled_itself(self) -> bool:
        """Never: what is on record of it was read when it was given up."""
        return False

    def _inside(self, connection: Any) -> Any:
        """Called where the database wants it, perhaps in another thread: the code is still inside this step."""
        assert self._context is not None
        return self._context.run(self._call_inside, connection)

    def _call_inside(self, connection: Any) -> Any:
        with in_transaction(self.name):
            return self._work.function(connection, *self._args, **self._kwargs)

    def _record_of(self, result: Any) -> StepDone:
        output, _ = self._execution.recorder.payloads.round_trip(result, self._work.shape.returns, self)
        return self._execution.marked(self._made(status.COMPLETED, output))

    async def _done(self, result: Any) -> T:
        """The transaction has recorded its outcome already: take it into the history of the run."""
        execution, record = self._execution, result
        execution.ledger.add(self._as_entry(record), record.completed_at)
        if execution.asked is not None:
            await execution.apply_pending_request()
        return self._value(record)

    def _as_entry(self, record: StepRecord) -> StepDone:
        execution = self._execution
        return StepDone(
            execution.run_id,
            execution.claim,
            record.branch,
            record.position,
            record.seq,
            record.name,
            record.kind,
            record.status,
            record.output,
            record.error,
            record.arguments,
            record.attempts,
            record.completed_at - record.started_at,
            record.line,
            record.format,
            record.undo,
        )
