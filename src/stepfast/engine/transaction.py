"""``ctx.transaction``: a function that writes to the same database, committed with the record of its result."""

from __future__ import annotations

import contextvars
from collections.abc import Awaitable
from typing import Any, TypeVar

from ..errors import LeaseLost
from ..model import status
from ..model.records import StepDone, StepRecord
from .heeding import heed
from .step_call import StepCall

T = TypeVar("T")


class TransactionCall(StepCall[T]):
    """A step whose function is given a connection, and whose record is the last word of its transaction."""

    __slots__ = ("_context",)

    _kind = "transaction"

    def _call(self) -> Awaitable[Any]:
        return self._transact()

    async def _transact(self) -> StepRecord:
        execution = self._execution
        address = (self.branch, self.position)
        self._context = contextvars.copy_context()
        try:
            return await execution.recorder.errands.transact(
                execution, address, self._inside, self._record_of, self._work.options.timeout
            )
        except LeaseLost:
            execution.lose()
            raise

    def _inside(self, connection: Any) -> Any:
        """Called where the database wants it, perhaps in another thread: the code is still inside this step."""
        assert self._context is not None
        return self._context.run(self._work.function, connection, *self._args, **self._kwargs)

    def _record_of(self, result: Any) -> StepDone:
        output, _ = self._execution.recorder.payloads.round_trip(result, self._work.shape.returns, self)
        return self._made(status.COMPLETED, output)

    async def _done(self, result: Any) -> T:
        """It is recorded already."""
        execution, record = self._execution, result
        execution.ledger.add(self._as_entry(record), record.completed_at)
        if execution.asked is not None:
            await heed(execution)
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
