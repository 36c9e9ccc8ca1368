"""Steps: ``@step``, and the call of one, replayed from its record or tried until it has an outcome."""

from __future__ import annotations

import asyncio
import contextlib
import copy
import functools
import inspect
import sys
from collections.abc import Awaitable, Callable
from contextvars import Token
from dataclasses import dataclass
from types import GeneratorType
from typing import TYPE_CHECKING, Any, Generic, NamedTuple, NoReturn, ParamSpec, TypeVar, Unpack, overload

import msgspec

from ..cancellation import seen
from ..errors import (
    ConfigurationError,
    DatabaseRefused,
    PayloadError,
    RecordedError,
    StepInterrupted,
    StepTimeout,
    sentence,
)
from ..model import status
from ..model.backoff import (
    Backoff,
    Errors,
    check_backoff,
    check_errors,
    default_backoff,
    is_permanent,
    retry_delay,
    seconds,
)
from ..model.forks import is_copied
from ..model.ids import without_tokens
from ..model.names import CHECKS, check_name, refuse_unknown
from ..model.payload import Payloads, same_arguments
from ..model.records import StepDone, StepRecord, StepRunning, ValueSet
from ..settings import FORMAT
from .call import DurableCall
from .function_spec import (
    ParameterNames,
    Shape,
    by_name,
    check_function,
    check_types,
    check_undo,
    is_async,
    located,
    mark_async,
    name_of,
    parameter_names,
    return_type,
    warn_if_types_are_lost,
)
from .history import STEP, Cursor
from .host import BlockingTry, RunTask, current_call, wake
from .observers import tell_try
from .options import StepKeywords, shows_options
from .outcomes import encode_error, step_failed, type_name

if TYPE_CHECKING:
    from .execution import Execution


P = ParamSpec("P")
R = TypeVar("R")


@dataclass(frozen=True, slots=True)
class StepOptions:
    """What can be set for a step; None: not said here."""

    name: str | None = None
    retries: int | None = None
    backoff: Backoff | None = None
    timeout: float | None = None
    record_arguments: bool | None = None
    compensate: Callable[..., Any] | None = None
    """What undoes the step when the run fails for good or is cancelled: called with the output and the arguments."""
    retry_on: Errors | None = None
    give_up_on: Errors | None = None
    session: bool | None = None
    at_most_once: bool | None = None

    def over(self, other: StepOptions) -> StepOptions:
        """These options, and the other's where these say nothing."""
        return StepOptions(
            *(getattr(other, f) if getattr(self, f) is None else getattr(self, f) for f in self.__dataclass_fields__)
        )


NO_OPTIONS = StepOptions()


class Work:
    """What a step does: the function, under which name, what is known of it, and its options."""

    __slots__ = ("_parameters", "function", "name", "options", "shape")

    def __init__(self, name: str, function: Callable[..., Any], shape: Shape, options: StepOptions) -> None:
        self.name = name
        self.function = function
        self.shape = shape
        self.options = options
        self._parameters: ParameterNames | None = None

    def arguments(self, args: tuple[Any, ...], kwargs: dict[str, Any], given: int) -> dict[str, Any]:
        """Arguments by the names of the function's parameters, of which it is given the first ones by the engine."""
        parameters = self._parameters
        if parameters is None:
            parameters = self._parameters = parameter_names(self.function)
        if len(args) == 1 and not kwargs and not given and (names := parameters[0]):
            return {names[0]: args[0]}
        return by_name(parameters, args, kwargs, given)


class Undoable(NamedTuple):
    """A completed step that can be undone."""

    seq: int
    step: str
    undo: Callable[..., Any]
    args: tuple[Any, ...]
    """The step's output, then its arguments."""
    kwargs: dict[str, Any]
    line: str


def step_options(said_by: str, **given: Unpack[StepKeywords]) -> StepOptions:
    """Checked options, as given to ``@step`` or ``ctx.options``. How long a name may be is known where it is called."""
    refuse_unknown(said_by, given, StepKeywords.__annotations__)
    name, retries, compensate = given.get("name"), given.get("retries"), given.get("compensate")
    if name is not None:
        check_name(name, "the name of a step")
    if retries is not None and (isinstance(retries, bool) or not isinstance(retries, int) or not 0 <= retries < 2**31):
        raise ConfigurationError(f"retries must be a whole number of zero or more, not {retries!r}")
    if compensate is not None and not callable(compensate):
        raise ConfigurationError(f"compensate must be a function, not {compensate!r}")
    check_recorded_undo(compensate)
    timeout = given.get("timeout")
    limit = None if timeout is None else seconds(timeout, "the timeout of a step")
    backoff = check_backoff(given.get("backoff"))
    retry_on = check_errors(given.get("retry_on"), "retry_on")
    give_up_on = check_errors(given.get("give_up_on"), "give_up_on")
    session, once = given.get("session"), given.get("at_most_once")
    for option, value in (("session", session), ("at_most_once", once)):
        if value not in (None, True, False):
            raise ConfigurationError(f"{option} must be True or False, not {value!r}")
    return StepOptions(
        name, retries, backoff, limit, given.get("record_arguments"), compensate, retry_on, give_up_on, session, once
    )


def check_once(options: StepOptions) -> None:
    """Refuse options that ask for further calls of a step that is called at most once."""
    if not options.at_most_once:
        return
    given = [name for name in ("retries", "backoff", "retry_on", "give_up_on") if getattr(options, name) is not None]
    if given:
        raise ConfigurationError(
            f"at_most_once=True calls a step no second time, and takes no {', '.join(given)}: leave one of them out"
        )


class StepFunction(Generic[P, R]):
    """A function declared with ``@step``."""

    def __init__(self, function: Callable[P, R], options: StepOptions, scope: dict[str, Any] | None = None) -> None:
        check_function(function, "step")
        if options.session is not None:
            raise ConfigurationError(
                "@step takes no session=: it is for ctx.transaction. Write ctx.options(session=True).transaction(…)"
            )
        functools.update_wrapper(self, function)
        self.function = function
        self.options = options
        self.shape = Shape(options.name or name_of(function), is_async(function), return_type(function, scope))
        self.work = Work(self.shape.name, function, self.shape, options)
        """As a plain call of it takes it; made once, because most calls are plain."""
        if self.shape.is_async:
            mark_async(self, function)
        check_types({"the result": self.shape.returns}, "step", function)
        warn_if_types_are_lost(function)

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> R:
        """Call the function directly: nothing is recorded."""
        return self.function(*args, **kwargs)

    def __repr__(self) -> str:
        return f"<step {self.shape.name}>"


def under_step(function: Any, what: str) -> Any:
    """The function itself, where one declared with ``@step`` is declared as something else too. Options of the step
    would have no effect there, and are refused by name."""
    if not isinstance(function, StepFunction):
        return function
    options = function.options
    given = [name for name in options.__dataclass_fields__ if getattr(options, name) is not None]
    if given:
        raise ConfigurationError(
            f"{what} {located(function.function)} is declared over @step with {', '.join(given)}, which only "
            f"ctx.step(…) applies. Give these to the {what} by options of its own and leave out @step; or, if it is a "
            f"step elsewhere, declare the {what} with its function, {name_of(function)}.function"
        )
    return function.function


class AtMostOnceStep(StepFunction[P, R]):
    """One that is called at most once. A class of its own, so that calls of all others need not ask."""


class UndoableStep(StepFunction[P, R]):
    """One that says how it is undone. A class of its own, so that calls of all others need not ask."""

    def __init__(self, function: Callable[P, R], options: StepOptions, scope: dict[str, Any] | None = None) -> None:
        super().__init__(function, options, scope)
        check_undo(options.compensate, function)


def recorded_name(function: Callable[..., Any]) -> str:
    """The name under which a function is recorded as a step, or as the undo of one."""
    return function.shape.name if isinstance(function, StepFunction) else name_of(function)


def check_recorded_undo(undo: Callable[..., Any] | None) -> None:
    """Refuse an undo that would not be called as it says: by a name that marks records of another run, or at most
    once."""
    if undo is None:
        return
    name = recorded_name(undo)
    if is_copied(name):
        raise ConfigurationError(
            f"compensate={name!r}: the name of an undo cannot begin with a tilde, which marks records of forks. Give "
            "it another name"
        )
    if isinstance(undo, StepFunction) and undo.options.at_most_once:
        raise ConfigurationError(
            f"compensate={name!r}: an undo is called again after a failure, and takes no at_most_once=. Leave it out"
        )


@overload
def step(function: Callable[P, R], /) -> StepFunction[P, R]: ...
@overload
def step(**options: Unpack[StepKeywords]) -> Callable[[Callable[P, R]], StepFunction[P, R]]: ...
@shows_options
def step(function: Callable[..., Any] | None = None, /, **options: Any) -> Any:
    """Declare a function as a step: ``@step`` or ``@step(retries=5, timeout=10, backoff=Backoff(…))``."""
    scope = sys._getframe(1).f_locals
    chosen = step_options("@step", **options)
    check_once(chosen)
    kind: type[StepFunction[Any, Any]] = StepFunction
    if chosen.at_most_once or chosen.compensate is not None:
        kind = AtMostOnceStep if chosen.compensate is None else UndoableStep
    if function is not None:
        return kind(function, chosen, scope)
    return lambda wrapped: kind(wrapped, chosen, scope)


T = TypeVar("T")

TRANSACTION = "transaction"
EXITS = (SystemExit, KeyboardInterrupt)
"""What asyncio does not keep within a task, but lets out of the event loop, and so out of the worker."""


class StepCall(DurableCall[T]):
    """A call of ``ctx.step``: a function, tried until it has an outcome, which is then recorded."""

    __slots__ = ("_args", "_arguments", "_calls", "_kwargs", "_last_error", "_work", "draws")

    _looks_back = False
    """Whether something is to be done before the first try, also if no try has failed before this claim."""
    _own_arguments = 0
    """How many arguments the function is given before those of the caller."""
    _kind = STEP
    """What its record says it is."""
    _last_error: str
    """What the last try ended with, if one has failed."""
    _forgiven = 0
    """How many of its failures do not count any more."""
    _once = False
    """Whether no error leads to another call."""
    _raised: BaseException | None = None
    """What its function raised when it was called once more for the same try."""

    def __init__(
        self,
        execution: Execution,
        cursor: Cursor,
        work: Work,
        where: str,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
    ) -> None:
        self._work = work
        self._args = args
        self._kwargs = kwargs
        self._calls = 0
        self.draws = 0
        """What the function has drawn of ``ctx.random()`` and ``ctx.uuid()`` in this try."""
        self._arguments: str | None = None
        DurableCall.__init__(self, execution, cursor, self._kind, work.name, where)  # super() takes time

    def __str__(self) -> str:
        return f"the result of {self.kind} {self.name!r}"

    # -- replay or perform -----------------------------------------------------------------------------------

    # A try that completes is called, recorded and answered within this one coroutine: another one around any of
    # these costs about as much as the record.
    async def _perform(self) -> T:
        execution, cursor, failures = self._execution, self._cursor, 0
        if execution.replaying:
            raise execution.replaying.ends_at(self)
        execution.begin(cursor)
        execution.active[self] = 0.0
        try:
            if execution.history.untaken or execution.own_tasks or execution.claimed.tries or self._looks_back:
                failures = await self._prepare()
            while True:
                theirs: Exception | None = None
                token = self._begin_try(failures + 1)
                try:
                    try:
                        if (observers := execution.recorder.step_observers) is not None and observers.step_called:
                            observers.step_begins(self)  # a lab lets the try fail by this
                        result = await (self._call() if execution.middleware is None else self.call())
                        if execution.own_streams is not None and self.kind != TRANSACTION:  # that is recorded by now
                            await execution.own_streams.settle()
                    except BaseException as error:
                        theirs = self._raised_by_function(error)
                        raise
                    else:
                        if observers is not None:
                            observers.step_ends(self, self._began)
                    finally:
                        execution.at_work -= 1
                        execution.active[self] = 0.0
                        current_call.reset(token)
                    if type(self) is not StepCall:
                        return await self._done(result)
                    entry, value = self._returned(result)
                    receipt = execution.send(entry)
                    try:
                        now = await receipt
                    except asyncio.CancelledError as late:  # ends here: too late, or raised again
                        now = execution.committed_anyway(receipt, late)
                    finally:
                        execution.at_work -= 1
                    execution.ledger.add(entry, now)
                    if execution.asked is not None:
                        await execution.apply_pending_request()
                    if self._work.options.compensate is not None:
                        self._can_be_undone(value, entry.seq)
                    return value
                except (Exception, asyncio.CancelledError) as error:  # ends here: a failed try, or raised again
                    failures += 1
                    due_at = await self._try_failed(error, theirs, failures)
                await execution.waits.until(due_at, status.WAITING_RETRY)
        except asyncio.CancelledError:
            await self._was_cancelled()
            raise
        finally:
            del execution.active[self]
            if cursor.calls > 1:
                execution.end(cursor)
            else:
                cursor.calls = 0

    async def _prepare(self) -> int:
        """What comes before the first try; how many tries have failed before this claim."""
        execution = self._execution
        if execution.history.untaken:
            await execution.hold_back(self, self._cursor)
        execution.stop_if_late()
        return await self._before_first_try() if self._looks_back or execution.claimed.tries else 0

    def _value(self, record: StepRecord) -> T:
        what = f"the recorded result of {self.kind} {self.name!r}"
        payloads = self._execution.recorder.payloads
        value: T = payloads.decode(record.output or "null", self._work.shape.returns, record.format, what)
        if self._execution.replaying and record.arguments is not None and record.format == FORMAT:
            self._compare_arguments(record.arguments)
        if self._work.options.compensate is not None and not is_copied(record.undo):
            self._can_be_undone(value, record.seq)
        return value

    def _compare_arguments(self, recorded: str) -> None:
        """Other arguments than those recorded come of something that is not recorded. They are only reported: the step
        is not called again, and the change of the code may be meant."""
        now, replaying = self._encoded_arguments(), self._execution.replaying
        if replaying is not None and now is not None and not same_arguments(now, recorded):
            replaying.other_arguments += (f"{self.kind} {self.name!r} (at {self.line})",)

    def _failure(self, error: dict[str, Any]) -> RecordedError:
        return step_failed(self.name, error, (self.branch, self.position))

    def _can_be_undone(self, value: Any, seq: int) -> None:
        undo = self._work.options.compensate
        assert undo is not None
        args, kwargs = (value, *self._args), self._kwargs
        if self._execution.replaying:  # the undo will be called when the code has gone on, and may have changed them
            args, kwargs = tuple(map(self._as_given, args)), {key: self._as_given(arg) for key, arg in kwargs.items()}
        self._execution.undoable.append(Undoable(seq, self.name, undo, args, kwargs, self.line))

    def _as_given(self, argument: Any) -> Any:
        """A copy, if it is data; a client or a lock must be the very same."""
        with contextlib.suppress(Exception):  # its class may have a word in either, and is no reason to undo nothing
            self._execution.recorder.payloads.encode(argument, "argument")
            return copy.deepcopy(argument)
        return argument

    def _begin_try(self, number: int) -> Token[StepCall[Any] | None]:
        """Note that a try begins; the token ends its part of the context."""
        execution = self._execution
        if execution.closed is not None:
            raise execution.closed  # the attempt ended while this step waited: no further try
        self._began = execution.active[self] = execution.clock.now()
        self._calls = number
        self.draws = 0
        execution.at_work += 1
        return current_call.set(self)

    def _raised_by_function(self, error: BaseException) -> Exception | None:
        """Tell observers what a try has raised, and journal what it has sent: the error, if a step may raise it."""
        execution = self._execution
        if execution.recorder.step_observers is not None:
            execution.recorder.step_observers.step_raised(self, self._began, error)
        if execution.own_streams is not None:
            execution.own_streams.journal()
        if isinstance(error, Exception):
            return error
        if isinstance(error, (asyncio.CancelledError, GeneratorExit)):
            return None
        raise execution.closed or exited(error) from None

    async def _try_failed(self, error: BaseException, theirs: Exception | None, failures: int) -> int:
        """A try failed, or was ended: when the next one is due. Raises what ends the call instead."""
        if self._execution.closed is not None:
            raise self._execution.closed from None
        if isinstance(error, asyncio.CancelledError) and being_cancelled():
            if not self._cancelled_itself():
                raise error
            error = theirs = cancelled_by_code(error, f"step {self.name!r}")
        return await self._failed_once(error, theirs, failures)

    def _cancelled_itself(self) -> bool:
        """Whether nothing but the code of this step has cancelled the task: then a try has failed."""
        task = asyncio.current_task()
        return isinstance(task, RunTask) and task.withdraw(self)

    async def _failed_once(self, error: BaseException, theirs: Exception | None, failures: int) -> int:
        """A try failed, by what its function raised (theirs) or by its record: when the next one is due. If there is
        none, the failure is recorded, and raised as the code sees it."""
        execution, options = self._execution, self._work.options
        settings = execution.recorder.settings
        if isinstance(error, DatabaseRefused) and error is not theirs and error is not self._raised:
            error = PayloadError(f"the database refused {self}: {error}")
        if execution.recorder.observers is not None and error is not theirs and error is not self._raised:
            execution.recorder.observers.refused(self, failures, error)
        allowed = 1 + (settings.retries if options.retries is None else options.retries)
        backoff = options.backoff or default_backoff(settings)
        permanent = self._once or is_permanent(error, options.retry_on, options.give_up_on)
        tried, random = failures - self._forgiven, execution.clock.random
        delay = None if permanent else retry_delay(error, tried, allowed, backoff, random)
        tell_try(self, error, failures, delay)
        if execution.recorder.observers is not None:
            execution.recorder.observers.try_fails(self, failures, error, delay)
        if delay is None:
            await self._record_failed(error, failures, permanent)
        return await self._record_try(error, failures, int(delay * 1000))

    async def _before_first_try(self) -> int:
        """Tries that failed before the run came here; the next one is not made before its time."""
        tries = self._execution.claimed.tries.get((self.branch, self.position))
        if tries is None:
            return 0
        if tries.due_at > self._execution.database_now():
            await self._execution.waits.until(tries.due_at, status.WAITING_RETRY)
        return tries.failures

    @property
    def number_of_try(self) -> int:
        """Which try of the step is under way, from 1."""
        return self._calls

    @property
    def execution(self) -> Execution:
        """The attempt that it belongs to."""
        return self._execution

    # -- calling the function --------------------------------------------------------------------------------

    def call(self) -> Awaitable[Any]:
        """Call the function once, within the middleware of the application."""
        around = self._execution.middleware
        return self._call() if around is None else around.around_step(self)

    def _call(self) -> Awaitable[Any]:
        work = self._work
        if not work.shape.is_async:
            return self._call_in_thread()
        if work.options.timeout is None and self._execution.recorder.settings.step_timeout is None:
            return work.function(*self._args, **self._kwargs)  # type: ignore[no-any-return]
        return self._in_own_task()

    def _in_own_task(self) -> Awaitable[Any]:
        return self._bounded(self._execution.clock.task(_no_exit(self._call_function, self)))

    def _call_function(self) -> Awaitable[Any]:
        call: Awaitable[Any] = self._work.function(*self._args, **self._kwargs)
        return call

    @property
    def _timeout(self) -> Any:
        """Seconds that one try may take."""
        own = self._work.options.timeout
        return self._execution.recorder.settings.step_timeout if own is None else own

    async def _call_in_thread(self) -> Any:
        work = self._work
        blocking = BlockingTry(work.function, self._args, self._kwargs)
        try:
            call = self._execution.recorder.run_in_thread(blocking)
            result = await (call if self._timeout is None else self._bounded(asyncio.ensure_future(call)))
        except BaseException:
            blocking.abandoned = True
            raise
        return await result if is_awaitable(result) else result

    async def _bounded(self, future: asyncio.Future[Any]) -> Any:
        """Wait for a try no longer than its timeout, even if it ignores being cancelled."""
        waited, timer, timeout = {future}, None, self._timeout
        if timeout is not None:
            late = asyncio.get_running_loop().create_future()
            waited.add(late)
            timer = self._execution.clock.alarm(timeout, wake, late)
        try:
            await asyncio.wait(waited, return_when=asyncio.FIRST_COMPLETED)
        except BaseException:
            future.cancel()
            raise
        finally:
            if timer is not None:
                timer.cancel()
        if future.done():
            if isinstance(future, asyncio.Task) and future.cancelled() and future.cancelling():
                raise cancelled_by_code(asyncio.CancelledError(), f"step {self.name!r}")
            return future.result()
        future.cancel()
        future.add_done_callback(seen)  # its error has been replaced
        raise StepTimeout(f"step {self.name!r} took longer than its timeout of {timeout:g} s")

    def note_progress(self, detail: str | None, data: str | None, since_ms: int) -> None:
        """Note the progress of the step; the entry is not waited for."""
        execution = self._execution
        execution.recorder.note(
            StepRunning(
                execution.run_id, execution.claim, self.branch, self.position, self.name, detail, data, since_ms,
                execution.recorder.payloads.format,
            )
        )  # fmt: skip

    # -- recording -------------------------------------------------------------------------------------------

    def _returned(self, result: Any) -> tuple[StepDone, T]:
        """The record of a result, and the value as a replay will see it, which is what the code gets."""
        execution, work = self._execution, self._work
        payloads, undo = execution.recorder.payloads, work.options.compensate
        output, value = payloads.round_trip(result, work.shape.returns, self)
        arguments = self._encoded_arguments()
        execution.seq = seq = execution.seq + 1
        # As _made(COMPLETED, output) makes it, with two calls less.
        return tuple.__new__(StepDone, (
            execution.run_id, execution.claim, self.branch, self.position, seq, self.name, self.kind, status.COMPLETED,
            output, None, arguments, self._calls, int((execution.clock.now() - self._began) * 1000), self.line,
            payloads.format, None if undo is None else recorded_name(undo), None,
        )), value  # fmt: skip

    async def _done(self, result: Any) -> T:
        """What is done with a result where the call is more than a plain step."""
        entry, value = self._returned(result)
        await self._execution.record(entry)
        if self._work.options.compensate is not None:
            self._can_be_undone(value, entry.seq)
        return value

    async def _record_failed(self, error: BaseException, calls: int, permanent: bool = False) -> NoReturn:
        execution = self._execution
        text = encode_error(error, execution.recorder.payloads, execution.tokens, permanent)
        execution.journal_note(self._failed_try(text, calls, 0, self._encoded_arguments()))
        await self._record_outcome(self._made(status.FAILED, None, text))
        raise AssertionError("the record of a failure raises it")

    async def _record_cancelled(self) -> None:
        """The workflow's own timeout gave this step up; it must do so again on replay."""
        await self._record_to_the_end(self._given_up())

    def _given_up(self) -> StepDone:
        """The record of a step that was given up. Its time counts from the first try, or at least not from a later
        one."""
        if self._calls != 1:
            self._began = self._execution.began
        return self._made(status.CANCELLED, None)

    def open_entry(self) -> StepDone | None:
        """The record that the step waits for its next try, and what the last one ended with."""
        return self._made(status.WAITING, None, getattr(self, "_last_error", None)) if self._record is None else None

    def _made(self, outcome: str, output: str | None, error: str | None = None) -> StepDone:
        undo = self._work.options.compensate
        return self._entry(
            outcome,
            output,
            error,
            self._calls,
            self._encoded_arguments(),
            None,
            None if undo is None or outcome != status.COMPLETED else recorded_name(undo),
        )

    async def _record_try(self, error: BaseException, failures: int, retry_ms: int) -> int:
        """Journal a failed try before the next one; when that is due."""
        execution = self._execution
        self._last_error = text = encode_error(error, execution.recorder.payloads, execution.tokens)
        now = await execution.journal(self._failed_try(text, failures, retry_ms, self._encoded_arguments()))
        if execution.asked is not None:
            await execution.apply_pending_request()
        return now + retry_ms

    def _encoded_arguments(self) -> str | None:
        """The arguments for the activity log by the names of the parameters, where they are JSON: a log is no reason to
        fail a step."""
        recorder = self._execution.recorder
        wanted = self._work.options.record_arguments
        if wanted is False or (wanted is None and not recorder.settings.record_arguments):
            return None
        if self._arguments is None and (self._args or self._kwargs):
            named = self._work.arguments(self._args, self._kwargs, self._own_arguments)
            tokens = self._execution.tokens
            try:
                if tokens is None:
                    self._arguments = recorder.payloads.encode_arguments(named)
                else:
                    self._arguments = encode_arguments(recorder.payloads, tokens, named)
            except PayloadError:
                encode = functools.partial(encode_arguments, recorder.payloads, tokens)
                self._arguments = _encoded_where_json(encode, named)
        return self._arguments


def encode_arguments(payloads: Payloads, tokens: dict[str, str] | None, value: Any) -> str:
    """Arguments as they are recorded, with what is stored of tokens of callbacks in place of these."""
    if tokens is None:
        return payloads.encode_arguments(value)
    return payloads.encode_arguments(value, functools.partial(without_tokens, tokens=tokens))


def _encoded_where_json(encode: Callable[[Any], str], named: dict[str, Any]) -> str | None:
    """Encode the arguments that are JSON; None, if none is, or they are too large."""
    kept = {}
    for name, value in named.items():
        with contextlib.suppress(PayloadError):
            encode(value)
            kept[name] = value
    with contextlib.suppress(PayloadError):
        return encode(kept) if kept else None
    return None


class AtMostOnceCall(StepCall[T]):
    """A step whose function is called at most once: that it begins is recorded before, so that a later claim knows."""

    __slots__ = ()

    _looks_back = True
    _once = True

    async def _before_first_try(self) -> int:
        execution = self._execution
        key, mark = f"{CHECKS}{self.branch}:{self.position}", [execution.claimed.first_attempt, self.name]
        if execution.claimed.claim > 1:
            kept = await execution.recorder.queries.value(execution.run_id, key)
            if kept is not None and msgspec.json.decode(kept) == mark:
                self._began, self._calls = execution.clock.now(), 1
                error = StepInterrupted(
                    f"step {self.name!r} was called before, by a worker that ended in its middle: whether it has acted "
                    "is not known. It is called again only if an operator retries the run"
                )
                await self._failed_once(error, error, 1)
        execution.at_work += 1  # what an operator requests meets the run here, where the mark can be taken back
        try:
            await execution.journal(self._mark(key, mark))
        except asyncio.CancelledError:
            execution.journal_note(self._mark(key, None))
            raise
        finally:
            execution.at_work -= 1
        if execution.asked is not None and not execution.must_record_first():
            execution.journal_note(self._mark(key, None))
            await execution.apply_pending_request()
        return 0

    def _mark(self, key: str, value: list[Any] | None) -> ValueSet:
        """Journal entry: the function is called next; None: it was not called after all."""
        execution = self._execution
        return ValueSet(execution.run_id, execution.claim, key, msgspec.json.encode(value).decode())


def exited(error: BaseException) -> RuntimeError:
    """What a handler's attempt to end the process becomes: the process is the worker's, not the handler's. The same for
    what only the engine may raise: a function that does it by itself has failed, like any other."""
    said = f"the code raised {sentence(error, type_name(error))}; a handler cannot end its worker with it"
    if isinstance(error, SystemExit):
        said = f"sys.exit({error.code!r}) was called; a handler cannot end its worker"
    return RuntimeError(said).with_traceback(error.__traceback__)


def cancelled_by_code(error: BaseException, what: str, step: str | None = None) -> RuntimeError:
    """What it means that a task of a run was cancelled, although its worker did not cancel it: by its code, or that of
    one of its steps."""
    whose = "its own code" if step is None else f"the code of its step {step!r}"
    return RuntimeError(
        f"{what}: its task was cancelled by {whose}, by asyncio.current_task().cancel(), or by a timeout, a cancel "
        "scope or a task that it left behind"
    ).with_traceback(error.__traceback__)


def is_awaitable(result: Any) -> bool:
    """Whether a plain function gave something that is to be awaited. Most give data, of which the class tells."""
    kind = type(result)
    return (hasattr(kind, "__await__") or kind is GeneratorType) and inspect.isawaitable(result)


async def _no_exit(call: Callable[[], Awaitable[Any]], step: StepCall[Any]) -> Any:
    """SystemExit or KeyboardInterrupt in a task of its own would end the event loop. The function is called here, so
    that a task that ends before it begins leaves no coroutine behind. The step is passed for readers of the stack
    of a blocked loop."""
    try:
        return await call()
    except EXITS as error:
        raise exited(error) from None


def being_cancelled() -> bool:
    """Whether a cancellation comes from outside (a timeout of the code), rather than from what was awaited."""
    task = asyncio.current_task()
    return task is not None and task.cancelling() > 0
