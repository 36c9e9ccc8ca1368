"""Waiting for time: ``ctx.sleep``, whose end is decided once and recorded, and ``ctx.wait_until``, which polls a
condition.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable
from random import Random
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

import msgspec

from ..errors import PayloadError, RecordedError, WaitTimeout
from ..model import status
from ..model.backoff import NO_STATE, Again, Backoff, Done, seconds
from ..model.names import CHECKS
from ..model.payload import check_type
from ..model.records import StepDone, StepRecord, ValueSet
from ..model.stored import read_json
from ..settings import FORMAT
from .call import DurableCall, time_given
from .function_spec import first_type
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
    checks: int = 0
    """How many checks have answered."""
    state: str | None = None
    """What the last Again gave for the next check, as it is stored."""
    format: int = FORMAT


class CheckPace(NamedTuple):
    """How often to ask, for how many milliseconds at most, and how many times."""

    every: int | Backoff
    """Milliseconds, or pauses that grow."""
    timeout_ms: int | None
    max_checks: int | None = None

    def pause_ms(self, answer: Any, checks: int, random: Random) -> int:
        """The milliseconds until the next check, after so many."""
        if isinstance(answer, Again) and answer.after is not None:
            return int(seconds(answer.after, "after of Again") * 1000)
        return self.every if isinstance(self.every, int) else int(self.every.delay(checks, random) * 1000)


class UntilCall(StepCall[T]):
    """``ctx.wait_until``: a step whose function is called until it answers with something true, or a Done. The slot is
    free between two calls; a resume or a signal makes the next one due at once."""

    __slots__ = (
        "_checks", "_forgiven", "_given", "_next_at", "_pace", "_raised", "_since", "_state", "_state_type", "_wakes",
    )  # fmt: skip

    _kind = "wait_until"
    _looks_back = True

    def __init__(
        self, execution: Execution, cursor: Cursor, work: Work, where: str, args: tuple[Any, ...], pace: CheckPace
    ) -> None:
        self._pace = pace
        self._checks = 0
        """How many checks have answered in this attempt."""
        self._given = args
        """The arguments in the code; the first one may have been replaced by a state since."""
        self._state: str | None = None
        self._state_type: Any = None
        """The type of the argument that a state replaces, once it was needed."""
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
        """The run was claimed again: if not for this check, the check waits on."""
        execution = self._execution
        kept = await execution.recorder.queries.value(execution.run_id, self._key)
        if kept is None:
            return
        last = msgspec.json.decode(kept, type=Checked)
        if last.attempt != execution.claimed.attempt:
            return
        self._next_at, self._wakes, self._forgiven = last.due_at, last.wakes, last.failures
        self._checks, self._state = last.checks, last.state
        if last.state is not None:
            kind, payloads = self._type_of_state(), execution.recorder.payloads
            self._go_on_with(payloads.decode(last.state, kind, last.format, self._what_state))
        self._since = execution.clock.now() - max(0, execution.database_now() - last.began_at) / 1000
        tries = execution.claimed.tries.get((self.branch, self.position))
        if tries is not None and tries.failures > last.failures:
            return  # a check has failed since: what it waits for is its next try
        if execution.inbox.wakes == last.wakes and last.due_at > execution.database_now():
            await self._wait_for_next()

    async def _done(self, result: Any) -> T:
        # An answer is the outcome, and the next thing that is recorded: at any other record the run could be cancelled
        # or paused, and what the check has done would be unknown.
        due_at = None if _is_last(result) else await self._time_is_up_at()
        while not _is_last(result):
            await self._not_yet(result, due_at)
            result = await self._ask_again()
        self._args = self._given
        self._began = self._since  # what is recorded is the whole wait, not its last check
        return await super()._done(result.value if isinstance(result, Done) else result)

    async def _not_yet(self, answer: Any, due_at: int | None) -> None:
        """Wait for the next check, if there is to be another."""
        execution, pace = self._execution, self._pace
        now = execution.database_now()
        self._checks += 1
        if (due_at is not None and now >= due_at) or self._checks == pace.max_checks:
            self._began = self._since
            within = f"{self._checks} check{'s' * (self._checks != 1)}"
            if self._checks != pace.max_checks:
                within = f"{(pace.timeout_ms or 0) / 1000:g} s"
            # To be recorded as the last failure, which no further try follows.
            raise WaitTimeout(f"check {self.name!r} did not become true within {within}")
        next_at = now + max(1, pace.pause_ms(answer, self._checks, execution.clock.random))
        self._next_at = next_at if due_at is None else min(next_at, due_at)
        known, self._forgiven = self._forgiven, self._calls - 1
        if isinstance(answer, Again) and answer.state is not NO_STATE:
            kind, payloads = self._type_of_state(), execution.recorder.payloads
            self._state, state = payloads.round_trip(answer.state, kind, self._what_state)
            self._go_on_with(state)
            await execution.journal(self._last_check())  # before the next check, which may act on it
        elif known != self._forgiven or pace.max_checks is not None or not isinstance(pace.every, int):
            self._keep()  # now: if the worker dies, the next one must not count them
        if execution.asked is not None:
            await execution.apply_pending_request()
        if execution.inbox.wakes == self._wakes:  # else it was woken during the check, which may have missed why
            await self._wait_for_next()

    def _go_on_with(self, state: Any) -> None:
        self._args = (state, *self._args[1:])

    @property
    def _what_state(self) -> str:
        return f"the state of {self.kind} {self.name!r}"

    def _type_of_state(self) -> Any:
        if self._state_type is None:
            self._state_type = first_type(self._work.function)
            check_type(self._state_type, self._what_state)
        return self._state_type

    def _encoded_arguments(self) -> str | None:
        called_with, self._args = self._args, self._given
        try:
            return super()._encoded_arguments()
        finally:
            self._args = called_with

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
        self._execution.journal_note(self._last_check())

    def _last_check(self) -> ValueSet:
        execution = self._execution
        began_at = execution.database_now() - int((execution.clock.now() - self._since) * 1000)
        last = Checked(
            execution.claimed.attempt, self._next_at, self._wakes, self._forgiven, began_at,
            self._checks, self._state, execution.recorder.payloads.format,
        )  # fmt: skip
        return ValueSet(execution.run_id, execution.claim, self._key, msgspec.json.encode(last).decode())

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
            return await (self.call() if observers is None else observers.call(self))
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
        timeout_ms = self._pace.timeout_ms
        if timeout_ms is None:
            return None
        record = self._record or await self._open(self._opening(msgspec.json.encode({"for": timeout_ms}).decode()))
        return record.completed_at + time_given(record, timeout_ms)

    def _failure(self, error: dict[str, Any]) -> RecordedError:
        if error["type"] == WaitTimeout.__name__:
            return WaitTimeout(error["message"])
        return super()._failure(error)


def _is_last(answer: Any) -> bool:
    """Whether a check has said that what is waited for is so."""
    return not isinstance(answer, Again) and (isinstance(answer, Done) or bool(answer))
