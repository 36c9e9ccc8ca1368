"""``ctx.set_attributes``: attributes that a run has from a record on, written with it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from ..errors import InvalidInput, RecordedError
from ..model import status
from ..model.attributes import Attribute, decode
from ..model.records import StepRecord, StepWith
from .call import DurableCall
from .history import Cursor
from .outcomes import encode_error, step_failed

if TYPE_CHECKING:
    from .execution import Execution

ATTRIBUTES = "attributes"
"""The kind of the call, and the name of its record."""


class AttributesCall(DurableCall[None]):
    """A call of ``ctx.set_attributes``."""

    __slots__ = ("_attributes",)

    def __init__(self, execution: Execution, cursor: Cursor, attributes: Sequence[Attribute], where: str) -> None:
        self._attributes = tuple(attributes)
        super().__init__(execution, cursor, ATTRIBUTES, ATTRIBUTES, where)

    async def _go(self) -> None:
        execution, payloads = self._execution, self._execution.recorder.payloads
        given = payloads.encode_own({each.name: decode(each.value) for each in self._attributes})
        async with execution.setting_attributes:  # so that two branches do not pass the bound together
            try:
                await execution.recorder.queries.name_attributes(execution.run_id, self._attributes)
            except InvalidInput as error:
                return await self._record_outcome(self._waited_in_vain(encode_error(error, payloads), given))
            entry = self._entry(status.COMPLETED, "null", arguments=given, format_=payloads.format)
            return await self._record_outcome(StepWith(entry, attributes=self._attributes))

    def _value(self, record: StepRecord) -> None:
        return None

    def _failure(self, error: dict[str, Any]) -> RecordedError:
        return step_failed(self.name, error, (self.branch, self.position))
