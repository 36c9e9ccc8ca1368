"""Waiting for a signal: kept if sent before, first in first out per name, taken and recorded in one transaction."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, TypeVar

import msgspec

from ..errors import RecordedError, SignalTimeout, StepfastError
from ..model import status
from ..model.records import Mail, StepRecord, StepWith
from .call import DurableCall, time_given
from .failure import encode_error, step_failed
from .line import Line

if TYPE_CHECKING:
    from .execution import Execution

T = TypeVar("T")


class SignalCall(DurableCall[T]):
    """``ctx.wait_signal``."""

    __slots__ = ("_timeout_ms", "_type")

    def __init__(
        self, execution: Execution, line: Line, name: str, type_: Any, timeout_ms: int | None, where: str
    ) -> None:
        self._type = type_
        self._timeout_ms = timeout_ms
        super().__init__(execution, line, "signal", name, where)

    async def _go(self) -> T:
        mail = await self._arrival()
        if not self._has_won():
            await self._lost(mail)
        if mail is None:
            late = SignalTimeout(f"no signal {self.name!r} came within {(self._timeout_ms or 0) / 1000:g} s")
            text = encode_error(late, self._execution.recorder.payloads)
            return await self._settle(self._waited_in_vain(text))
        return await self._take(mail)

    async def _arrival(self) -> Mail | None:
        due_at = None
        if self._timeout_ms is not None:
            if self._record is None:
                plan = msgspec.json.encode({"for": self._timeout_ms}).decode()
                self._record = await self._open(plan)
            due_at = self._record.completed_at + time_given(self._record, self._timeout_ms)
        what = f"{status.WAITING_SIGNAL}:{self.name}"
        return await self._execution.waits.mail(status.MAIL_SIGNAL, self.name, due_at, what)

    async def _take(self, mail: Mail) -> T:
        """Taken and recorded in one transaction. A value of another type is a recorded failure, and taken too: else it
        would be met again and again."""
        payloads = self._execution.recorder.payloads
        try:
            payloads.take_in(mail.value or "null", self._type, mail.format, f"the value of signal {self.name!r}")
        except StepfastError as error:
            entry = self._waited_in_vain(encode_error(error, payloads))
        else:
            entry = self._entry(status.COMPLETED, mail.value, format_=mail.format)
        return await self._settle(StepWith(entry, takes=[mail.id]))

    def _value(self, record: StepRecord) -> T:
        what = f"the value of signal {self.name!r}"
        payloads = self._execution.recorder.payloads
        value: T = payloads.decode(record.output or "null", self._type, record.format, what)
        return value

    def _failure(self, error: dict[str, Any]) -> RecordedError:
        if error["type"] == SignalTimeout.__name__:
            return SignalTimeout(error["message"])
        return step_failed(self.name, error, (self.branch, self.position))
