"""Waiting for time: ``ctx.sleep``, whose end is decided once and recorded, and ``ctx.wait_until``, which polls a
condition.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

import msgspec

from ..errors import PayloadError, RecordedError, WaitTimeout
from ..model import status
from ..model.names import CHECKS
from ..model.records import StepDone, StepRecord, ValueSet
from ..model.stored import read_json
from ..settings import FORMAT
from .call import DurableCall, time_given
from .history import Cursor, behind
from .host import current_call
from .step import StepCall, Work, exited

if TYPE_CHECKING:
    from .execution import Execution


SLEEP = "sleep"


class SleepCall(DurableCall[None]):
    """``ctx.sleep``: one record, made when the sleep begins. It holds when the sleep ends, and so says all there is."""

    __slots__ = ("_for_ms", "_until_ms")

    def __init__(
        self, execution: Execution, cursor: Cursor, for_ms: int, until_ms: int | None, where: str,
        name: str | None = None,
    ) -> None:  # fmt: skip
        self._for_ms = for_ms
        self._until_ms = until_ms
        super().__init__(execution, cursor, SLEEP, name or SLEEP, where)

    async def _go(self) -> None:
        execution = self._execution
        wake_at = wakes_at(self._record or await self._decide())
        if wake_at > execution.database_now():
            await execution.waits.until(wake_at, status.WAITING_TIME)
        execution.ledger.saw(self.branch, wake_at)

    async def _perform(self) -> None:
        execution = self._execution
        record = self._record
        if record is not None and self._is_over(record):
            execution.ledger.saw(self.branch, wakes_at(record))  # slept already
        else:
            await super()._perform()

    def _is_over(self, record: StepRecord) -> bool:
        """Whether the time has come, or had come before the database's clock stepped back. That is known by a record of
        a later time; or, if the clock is behind some record, by what the code has called from here on. The latter is
        enough for a replay that does nothing new."""
        execution, wake_at = self._execution, wakes_at(record)
        now = execution.database_now()
        if wake_at <= now or wake_at <= (known_until := execution.history.known_until):
            return True
        may_tell = execution.replaying is not None or now < known_until
        return may_tell and execution.knows_task(self._cursor) and behind(execution, self._cursor) is not None

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


T = TypeVar("T")


class Checked(msgspec.Struct):
    """What a later claim has to know of the last check that answered: not yet."""

    attempt: int
    due_at: int
    """When the next one is due."""
    wakes: int
    """The count of wakes that was known when it began."""
    failures: int
    """How many tries of this attempt had failed before it answered."""
    began_at: int = 0
    """When the waiting began."""


class CheckPace(NamedTuple):
    """How often to ask, and for how long at most, in milliseconds."""

    every_ms: int
    timeout_ms: int | None


class UntilCall(StepCall[T]):
    """``ctx.wait_until``: a step whose function is called until it answers with something true. The slot is free
    between two calls; a resume or a signal makes the next one due at once."""

    __slots__ = ("_every_ms", "_forgiven", "_next_at", "_raised", "_since", "_timeout_ms", "_wakes")

    _kind = "wait_until"
    _looks_back = True

    def __init__(
        self, execution: Execution, cursor: Cursor, work: Work, where: str, args: tuple[Any, ...], pace: CheckPace
    ) -> None:
        self._every_ms, self._timeout_ms = pace
        self._raised: BaseException | None = None
        self._wakes = 0
        """The count of wakes that was known when the last check began."""
        self._next_at = 0
        self._since = 0.0
        """When the waiting began, on this process's clock."""
        self._forgiven = 0
        """How many tries had failed before the last answer: each check has its own retries."""
        super().__init__(execution, cursor, work, where, args, {})

    async def _before_first_try(self) -> int:
        self._since = self._waits_since()
        if self._execution.claimed.claim > 1:
            await self._wait_as_before()
        return await super()._before_first_try()

    async def _wait_as_before(self) -> None:
        """The run was claimed again, for whatever reason: if not for this check, the check waits on."""
        execution = self._execution
        kept = await execution.recorder.queries.value(execution.run_id, self._key)
        if kept is None:
            return
        last = msgspec.json.decode(kept, type=Checked)
        if last.attempt != execution.claimed.attempt:
            return
        self._next_at, self._wakes, self._forgiven = last.due_at, last.wakes, last.failures
        self._since = execution.clock.now() - max(0, execution.database_now() - last.began_at) / 1000
        tries = execution.claimed.tries.get((self.branch, self.position))
        if tries is not None and tries.failures > last.failures:
            return  # a check has failed since: what it waits for is its next try
        if execution.inbox.wakes == last.wakes and last.due_at > execution.database_now():
            await self._wait_for_next()

    async def _done(self, result: Any) -> T:
        # An answer is the outcome, and the next thing that is recorded: at any other record the run could be cancelled
        # or paused, and what the check has done would be unknown.
        due_at = None if result else await self._time_is_up_at()
        while not result:
            execution = self._execution
            now = execution.database_now()
            if due_at is not None and now >= due_at:
                late = WaitTimeout(
                    f"check {self.name!r} did not become true within {(self._timeout_ms or 0) / 1000:g} s"
                )
                self._began = self._since
                raise late  # to be recorded as the last failure, which no further try follows
            self._next_at = now + self._every_ms if due_at is None else min(now + self._every_ms, due_at)
            if self._forgiven != self._calls - 1:
                self._forgiven = self._calls - 1
                self._keep()  # now: if the worker dies, the next one must not count them
            if execution.asked is not None:
                await execution.apply_pending_request()
            if execution.inbox.wakes == self._wakes:  # else it was woken during the check, which may have missed why
                await self._wait_for_next()
            result = await self._ask_again()
        self._began = self._since  # what is recorded is the whole wait, not its last check
        return await super()._done(result)

    async def _record_cancelled(self) -> None:
        """Given up, with the whole time that it has waited."""
        self._began = self._since
        await super()._record_cancelled()

    async def _wait_for_next(self) -> None:
        await self._execution.waits.until_woken(self._next_at, status.WAITING_CHECK, self._keep)

    @property
    def _key(self) -> str:
        return f"{CHECKS}{self.branch}:{self.position}"

    def _keep(self) -> None:
        """Journal what is known of the last check; with the release, or before it."""
        execution = self._execution
        began_at = execution.database_now() - int((execution.clock.now() - self._since) * 1000)
        last = Checked(execution.claimed.attempt, self._next_at, self._wakes, self._forgiven, began_at)
        text = msgspec.json.encode(last).decode()
        execution.journal_note(ValueSet(execution.run_id, execution.claim, self._key, text))

    def _call(self) -> Awaitable[Any]:
        self._wakes = self._execution.inbox.wakes
        return super()._call()

    async def _ask_again(self) -> Any:
        if self._execution.closed is not None:
            raise self._execution.closed
        self.draws = 0
        token, observers = current_call.set(self), self._execution.recorder.step_observers
        self._execution.at_work += 1
        try:
            return await (self._call() if observers is None else observers.call(self))
        except (asyncio.CancelledError, GeneratorExit):
            raise
        except Exception as error:
            self._raised = error
            raise
        except BaseException as error:
            raise self._execution.closed or exited(error) from None
        finally:
            self._execution.at_work -= 1
            current_call.reset(token)

    def open_entry(self) -> StepDone | None:
        """The record that the call waits until something is so, and since when."""
        if self._record is not None:
            return None
        self._began = self._since
        return self._entry(status.WAITING, "{}", calls=self._calls, format_=FORMAT)

    async def _time_is_up_at(self) -> int | None:
        if self._timeout_ms is None:
            return None
        plan = {"for": self._timeout_ms}
        record = self._record or await self._open(self._opening(msgspec.json.encode(plan).decode()))
        return record.completed_at + time_given(record, self._timeout_ms)

    def _failure(self, error: dict[str, Any]) -> RecordedError:
        if error["type"] == WaitTimeout.__name__:
            return WaitTimeout(error["message"])
        return super()._failure(error)
