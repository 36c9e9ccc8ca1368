"""A call of the context: it takes its position when it is made, and begins its work when it is awaited."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Callable, Coroutine, Generator
from typing import TYPE_CHECKING, Any, NoReturn, TypeVar

from ..errors import ContextMisuse, NonDeterminismError, RecordedError
from ..model import status
from ..model.records import FailedTry, Mail, StepDone, StepRecord, StepWith
from ..model.stored import read_json
from ..settings import FORMAT
from .history import PAGE, Cursor, as_record, recorded_as
from .host import current_call, wake
from .observers import ids_of
from .outcomes import decode_error

if TYPE_CHECKING:
    from .execution import Execution


T_co = TypeVar("T_co", covariant=True)


class AsCoroutine(Coroutine[Any, Any, T_co]):
    """What Python asks of a coroutine, for an awaitable that knows whether it was awaited."""

    __slots__ = ("_awaited", "_iterator")

    _awaited: bool
    _iterator: Generator[Any, None, T_co]
    """The cursor of a task that goes through it; made when it is needed, because most calls are awaited instead."""

    def __await__(self) -> Generator[Any, None, T_co]:
        raise NotImplementedError

    def give_up(self) -> None:
        """Note that this call will not be awaited."""
        raise NotImplementedError

    def send(self, value: Any, /) -> Any:
        """Go on, as a task does it."""
        return self._begun().send(value)

    def throw(self, *error: Any) -> Any:
        """The task that goes through it is cancelled."""
        return self._begun().throw(*error)

    def close(self) -> None:
        """The task ended before the call did."""
        if not self._awaited:
            self.give_up()
        elif hasattr(self, "_iterator"):
            self._iterator.close()

    def _begun(self) -> Generator[Any, None, T_co]:
        try:
            return self._iterator
        except AttributeError:
            iterator = self._iterator = self.__await__()
            return iterator


T = TypeVar("T")

_PATIENCE = 10.0
"""Seconds, beside twice the time that it took before, within which code is expected to give up a call again."""
_LONGEST = 3600.0
_lines: dict[tuple[int, int], tuple[str, Any]] = {}
"""(id of a code object, place in it) → "file:line", and the code object itself, so that its id stays its own."""


class Race:
    """What several calls run for; the first wins, and the others take nothing."""

    def __init__(self, course: DurableCall[Any]) -> None:
        self._course = course
        """The call that holds the race; it may itself run in another."""
        self.winner: DurableCall[Any] | None = None

    def won_by(self, call: DurableCall[Any]) -> bool:
        """Whether this call has won; it has if no other had before, here and in the race around this one."""
        around = self._course.race
        if self.winner is None and (around is None or around.won_by(self._course)):
            self.winner = call
        return self.winner is call


class DurableCall(AsCoroutine[T]):
    """An awaitable of the context. Await it once; where and in which order is up to you."""

    __slots__ = (
        "_began", "_cursor", "_execution", "_record", "branch", "kind", "line", "name", "position", "race",
    )  # fmt: skip

    _is_held = True
    """Whether it has to wait until the code has asked for all that is recorded."""

    def __init__(self, execution: Execution, cursor: Cursor, kind: str, name: str, where: str) -> None:
        self._execution = execution
        self._cursor = cursor
        self.branch = cursor.branch
        self.position = cursor.position
        cursor.position += 1
        self.kind = kind
        self.name = name
        self.line = where
        self._awaited = False
        self._began = 0.0
        self.race: Race | None = None
        self._record: StepRecord | None = execution.take(self)

    @property
    def step_key(self) -> str:
        """Stable over every try of this step: use it as an idempotency key."""
        return step_key(self._execution.run_id, self.branch, self.position)

    def __await__(self) -> Generator[Any, None, T]:
        execution = self._execution
        if self._awaited:
            raise ContextMisuse(f"{self} was awaited twice; keep its result in a variable instead")
        self._awaited = True
        execution.unawaited.discard(self)
        if execution.closed is not None:
            raise execution.closed
        record = self._record
        if record is None or record.status == status.WAITING:
            return self._perform().__await__()
        return self._replay(record).__await__()

    def __str__(self) -> str:
        return f"{self.kind} {self.name!r}"

    def __repr__(self) -> str:
        return f"<{self.kind} {self.name!r} at position {self.position} of run {self._execution.run_id}>"

    @property
    def of_run(self) -> str:
        """The id of the run that it belongs to."""
        return self._execution.run_id

    @property
    def cursor(self) -> Cursor:
        """The branch that it was called in."""
        return self._cursor

    @property
    def ids(self) -> dict[str, Any]:
        """The ids that messages about this call are logged with."""
        return ids_of(self._execution, self.name)

    @property
    def has_outcome(self) -> bool:
        """Whether its outcome is recorded already."""
        return self._record is not None and self._record.status in (status.COMPLETED, status.FAILED)

    def give_up(self) -> None:
        """It will not be awaited: it lost a race."""
        self._awaited = True
        self._execution.unawaited.discard(self)

    # -- replay or perform -----------------------------------------------------------------------------------

    async def _perform(self) -> T:
        """Do what is not recorded yet."""
        execution = self._execution
        if execution.replaying:
            raise execution.replaying.ends_at(self)
        execution.begin(self._cursor)
        execution.active[self] = 0.0
        try:
            if execution.history.untaken and self._is_held:
                await execution.hold_back(self, self._cursor)
            self._began = self._waits_since()
            execution.stop_if_late()
            return await self._go()
        except asyncio.CancelledError:
            await self._was_cancelled()
            raise
        finally:
            del execution.active[self]
            execution.end(self._cursor)

    async def _was_cancelled(self) -> None:
        """Record that the code has given the call up. If the run has left, raise why."""
        execution = self._execution
        if execution.closed is not None:
            raise execution.closed from None
        try:
            await self._record_cancelled()
        finally:
            execution.gave_up(self)  # also if the code is cancelled once more while it is recorded

    def _go(self) -> Coroutine[Any, Any, T]:
        """The work itself; what it gives, a replay must give too."""
        raise NotImplementedError

    def _waits_since(self) -> float:
        """When it began, on this process's clock: now, or when an earlier claim opened its record. Time in which the
        run was released counts."""
        record = self._record
        waited = 0 if record is None else max(0, self._execution.database_now() - record.started_at)
        return self._execution.clock.now() - waited / 1000

    async def _replay(self, record: StepRecord) -> T:
        execution = self._execution
        execution.ledger.saw(self.branch, record.completed_at)
        if record.status == status.CANCELLED:
            if execution.replaying and execution.history.ends_with(record):
                raise execution.replaying.ends_at(self)
            await self._be_given_up(record)
        return self._outcome(record)

    async def _be_given_up(self, record: StepRecord) -> NoReturn:
        """The code's own timeout, or a group of tasks, ended this call before, and does so again; it only must not be
        done again. Code that does not give it up any more is not waited for without end."""
        execution, again = self._execution, asyncio.get_running_loop().create_future()
        patience = min(2 * max(0, record.completed_at - record.started_at) / 1000, _LONGEST) + _PATIENCE
        timer = execution.clock.alarm(patience, wake, again)
        try:
            await again
        except asyncio.CancelledError:
            if execution.closed is None:
                execution.gave_up(self)
            raise
        finally:
            timer.cancel()
        error = NonDeterminismError(
            f"{recorded_as(record)} and given up by the code's own timeout or cancellation, but now the code (at "
            f"{self.line}) has not given it up for {patience:.3g} s. Time or chance decides in code outside of steps: "
            f"bound a step by ctx.options(timeout=…), race waits by ctx.first. {PAGE} shows how"
        )
        execution.diverge(error)
        raise error

    def _outcome(self, record: StepRecord) -> T:
        """What a record means to the code: a value, or an error raised."""
        if record.status == status.COMPLETED:
            return self._value(record)
        error = decode_error(record.error, record.format, self._execution.recorder.payloads)
        failure = self._failure(error)
        failure.address = (self.branch, self.position)
        failure.error_bases = tuple(error.get("bases", ()))
        raise self._execution.raised(failure, self._cursor) from None

    def _value(self, record: StepRecord) -> T:
        raise NotImplementedError

    def _failure(self, error: dict[str, Any]) -> RecordedError:
        raise NotImplementedError

    def _has_won(self) -> bool:
        """Before a message is taken: False if another call has won the race of this one."""
        return self.race is None or self.race.won_by(self)

    async def _lost(self, mail: Mail | None) -> None:
        """Another call was first: leave the message for others, and wait to be stopped."""
        if mail is not None:
            self._execution.inbox.give_back(mail)
        await asyncio.get_running_loop().create_future()

    # -- recording -------------------------------------------------------------------------------------------

    def _entry(
        self,
        outcome: str,
        output: str | None,
        error: str | None = None,
        calls: int = 1,
        arguments: str | None = None,
        format_: int | None = None,
        undo: str | None = None,
    ) -> StepDone:
        execution = self._execution
        execution.seq = seq = execution.seq + 1  # outcomes are numbered in the order they are recorded
        # As StepDone(…) does it, in half the time: there is one for each step.
        return tuple.__new__(StepDone, (
            execution.run_id, execution.claim, self.branch, self.position, seq, self.name, self.kind, outcome, output,
            error, arguments, calls, int((execution.clock.now() - self._began) * 1000), self.line,
            execution.recorder.payloads.format if format_ is None else format_, undo, None,
        ))  # fmt: skip

    def _failed_try(
        self, error: str, number: int, retry_ms: int, arguments: str | None, format_: int | None = None
    ) -> FailedTry:
        """For the log, which keeps it when the record of the failure is forgotten."""
        execution = self._execution
        return FailedTry(
            execution.run_id,
            execution.claim,
            self.branch,
            self.position,
            execution.claimed.attempt,
            number,
            self.name,
            error,
            arguments,
            int((execution.clock.now() - self._began) * 1000),
            execution.recorder.payloads.format if format_ is None else format_,
            retry_ms,
        )

    def _waited_in_vain(self, error: str, arguments: str | None = None, format_: int | None = None) -> StepDone:
        """The record of a wait that failed, which also goes into the log."""
        self._execution.journal_note(self._failed_try(error, 1, 0, arguments, format_))
        return self._entry(status.FAILED, None, error, arguments=arguments, format_=format_)

    def open_entry(self) -> StepDone | None:
        """What is recorded of it if the run is released while it waits; None if it has a record already."""
        if self._record is not None:
            return None
        return self._opening(self._plan())

    def _plan(self) -> str | None:
        """What the next attempt, or an operator, has to know of it."""
        return None

    def _opening(self, plan: str | None) -> StepDone:
        """The entry that records the call as begun, with what is decided by then."""
        return self._entry(status.WAITING, plan, format_=FORMAT)

    async def _open(self, entry: StepDone | StepWith) -> StepRecord:
        """Record that the call has begun; the outcome will replace this record. From here on the call has a record, as
        it will have on a replay: without that, a release would open it a second time."""
        now = await self._execution.record(entry)
        self._record = record = as_record(entry.step if isinstance(entry, StepWith) else entry, now)
        self._execution.stop_if_late()  # nothing is decided yet but when to wait until
        return record

    async def _record_outcome(self, entry: StepDone | StepWith) -> T:
        """Record the outcome, and give the code what a replay would give it."""
        now = await self._execution.record(entry)
        if isinstance(entry, StepWith) and entry.takes:
            self._execution.inbox.gone(entry.takes)
        return self._outcome(as_record(entry.step if isinstance(entry, StepWith) else entry, now))

    async def _record_cancelled(self) -> None:
        """The workflow's own timeout gave this call up; it must do so again on replay."""
        self._began = self._began or self._execution.began  # it may have been held
        await self._record_to_the_end(self._entry(status.CANCELLED, None))

    async def _record_to_the_end(self, entry: StepDone) -> None:
        """Also if the task that waits for it is cancelled once more."""
        recording = asyncio.ensure_future(self._execution.record(entry))
        recording.add_done_callback(lambda done: done.cancelled() or done.exception())  # retrieved: no task may wait
        await asyncio.shield(recording)


def as_given_up(record: StepRecord, run_id: str, claim: int, seq: int, now: int) -> StepDone:
    """The end of a call that was under way and is not awaited any more. It lasted until now."""
    return StepDone(
        run_id, claim, record.branch, record.position, seq, record.name, record.kind, status.CANCELLED, None, None,
        record.arguments, record.attempts, max(0, now - record.started_at), record.line, record.format,
    )  # fmt: skip


def time_given(record: StepRecord, now_given: int) -> int:
    """Milliseconds that are left of a wait that has begun: what it was given then; if it had no limit, what the code
    gives it now."""
    given = read_json(record.output, dict[str, Any], {}).get("for")
    return given if isinstance(given, int) else now_given


def step_key(run_id: str, branch: str, position: int) -> str:
    """The key of the step at a position: the same on every try and every replay."""
    return f"{run_id}:{branch}:{position}" if branch else f"{run_id}:{position}"


def call_line(depth: int) -> str:
    """File and line of the call being made, for the message of a divergence."""
    frame = sys._getframe(depth)
    key = (id(frame.f_code), frame.f_lasti)  # of the place in the code: Python counts lines from its beginning
    try:
        return _lines[key][0]
    except KeyError:
        if len(_lines) > 10_000:  # code made at run time; keep it bounded
            _lines.clear()
        name = frame.f_code.co_filename.replace("\\", "/").rsplit("/", 1)[-1]
        line = f"{name}:{frame.f_lineno}"[:200]
        _lines[key] = (line, frame.f_code)
        return line


def refuse_in_step(what: str, execution: Execution) -> None:
    """Refuse a call that belongs to the workflow, where the function of a step makes it."""
    call = current_call.get()
    if call is not None and call._execution is execution:
        raise ContextMisuse(
            f"step {call.name!r} called {what} from inside; a step is one piece of work with one record. "
            f"Call {what} from the workflow, one step after the other"
        )


class UnplacedCall(AsCoroutine[T_co]):
    """A call that takes no position, and begins when it is awaited."""

    __slots__ = ("_execution", "_work", "branch", "name", "position")

    def __init__(
        self, execution: Execution, cursor: Cursor, name: str, work: Callable[[], Coroutine[Any, Any, T_co]]
    ) -> None:
        self._execution = execution
        self._work = work
        self._awaited = False
        self.name = name
        self.branch = cursor.branch
        self.position = cursor.position
        """Of the call that comes next in its branch: where the code stood."""
        execution.unawaited.add(self)

    def __await__(self) -> Generator[Any, None, T_co]:
        if self._awaited:
            raise ContextMisuse(f"{self.name} was awaited twice; keep its result in a variable instead")
        self.give_up()
        if self._execution.closed is not None:
            raise self._execution.closed
        return self._work().__await__()

    def __repr__(self) -> str:
        return f"<{self.name} in run {self._execution.run_id}>"

    def give_up(self) -> None:
        """Note that the call is awaited, or will never be, because what it belongs to was stopped."""
        self._awaited = True
        self._execution.unawaited.discard(self)
