"""Waiting until something outside is so: asked again and again, and only the final answer is a record."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Any, TypeVar

import msgspec

from ..errors import RecordedError, WaitTimeout
from ..model import status
from .calls import StepCall, exited
from .failure import encode_error
from .line import Line
from .scope import current_call
from .signature import Shape
from .step import StepOptions

if TYPE_CHECKING:
    from .execution import Execution

T = TypeVar("T")


class UntilCall(StepCall[T]):
    """``ctx.wait_until``: a step whose function is called until it answers with something true. The slot is free
    between two calls; a resume or a signal makes the next one due at once."""

    __slots__ = ("_every_ms", "_timeout_ms", "_wakes")

    def __init__(
        self,
        execution: Execution,
        line: Line,
        name: str,
        function: Callable[..., Any],
        shape: Shape,
        options: StepOptions,
        where: str,
        args: tuple[Any, ...],
        every_ms: int,
        timeout_ms: int | None,
    ) -> None:
        self._every_ms = every_ms
        self._timeout_ms = timeout_ms
        self._wakes = 0
        """The count of wakes that was known when the last check began."""
        super().__init__(execution, line, name, function, shape, options, where, args, {}, "wait_until")

    async def _done(self, result: Any) -> T:
        due_at = await self._time_is_up_at()
        while not result:
            execution = self._execution
            now = execution.database_now()
            if due_at is not None and now >= due_at:
                late = WaitTimeout(f"{self.name!r} was not so within {(self._timeout_ms or 0) / 1000:g} s")
                return await self._settle(
                    self._made(status.FAILED, None, encode_error(late, execution.recorder.payloads))
                )
            if execution.asked is not None:
                await execution.heed()
            if execution.inbox.wakes == self._wakes:  # else it was woken during the check, which may have missed why
                next_at = now + self._every_ms if due_at is None else min(now + self._every_ms, due_at)
                await execution.waits.until_woken(next_at, status.WAITING_CHECK)
            result = await self._ask_again()
        return await super()._done(result)

    def _call(self) -> Awaitable[Any]:
        self._wakes = self._execution.inbox.wakes
        return super()._call()

    async def _ask_again(self) -> Any:
        if self._execution.closed is not None:
            raise self._execution.closed
        self.draws = 0
        token = current_call.set(self)
        self._execution.at_work += 1
        try:
            return await self._call()
        except SystemExit as error:
            raise exited(error) from None
        finally:
            self._execution.at_work -= 1
            current_call.reset(token)

    async def _time_is_up_at(self) -> int | None:
        if self._timeout_ms is None:
            return None
        if self._record is None:
            self._record = await self._open(msgspec.json.encode({"for": self._timeout_ms}).decode())
        return self._record.completed_at + int(msgspec.json.decode(self._record.output or "{}")["for"])

    def _failure(self, error: dict[str, Any]) -> RecordedError:
        if error["type"] == WaitTimeout.__name__:
            return WaitTimeout(error["message"])
        return super()._failure(error)
