"""Sleeping: the time to wake is decided once, and recorded; nobody holds a worker until then."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from ..errors import PayloadError
from ..model import status
from ..model.records import StepRecord
from ..model.stored import read_json
from .cursor import Cursor
from .durable_call import DurableCall

if TYPE_CHECKING:
    from .execution import Execution


SLEEP = "sleep"


class SleepCall(DurableCall[None]):
    """``ctx.sleep``: one record, made when the sleep begins. It holds when the sleep ends, and so says all there is."""

    __slots__ = ("_for_ms", "_until_ms")

    def __init__(self, execution: Execution, cursor: Cursor, for_ms: int, until_ms: int | None, where: str) -> None:
        self._for_ms = for_ms
        self._until_ms = until_ms
        super().__init__(execution, cursor, SLEEP, SLEEP, where)

    async def _go(self) -> None:
        execution = self._execution
        wake_at = wakes_at(self._record or await self._decide())
        if wake_at > execution.database_now():
            await execution.waits.until(wake_at, status.WAITING_TIME)
        execution.ledger.saw(self.branch, wake_at)

    async def _perform(self) -> None:
        execution = self._execution
        record = self._record
        if record is not None and wakes_at(record) <= execution.database_now():
            execution.ledger.saw(self.branch, wakes_at(record))  # slept already
        else:
            await super()._perform()

    async def _decide(self) -> StepRecord:
        plan = {"for": self._for_ms} if self._until_ms is None else {"until": self._until_ms}
        return await self._open(self._opening(msgspec.json.encode(plan).decode()))


def wakes_at(record: StepRecord) -> int:
    """When a recorded sleep ends."""
    until = planned_end(record)
    if until is None:
        raise PayloadError(f"the record of a sleep at {record.line} does not say when it ends")
    return until


def planned_end(record: StepRecord) -> int | None:
    """When a recorded sleep ends; None: its record does not say, because a hand has damaged it."""
    plan = read_json(record.output, dict[str, int], {})
    return plan["until"] if "until" in plan else record.completed_at + plan["for"] if "for" in plan else None
