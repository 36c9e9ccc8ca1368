"""The contexts of workflows: facts about the run, and the calls that make steps durable."""

from __future__ import annotations

import contextlib
import hashlib
import uuid
from collections.abc import Awaitable, Callable, Coroutine, Generator, Iterable
from datetime import UTC, datetime, timedelta
from typing import (
    Any,
    ClassVar,
    Concatenate,
    Literal,
    Never,
    NoReturn,
    ParamSpec,
    Self,
    TypeVar,
    Unpack,
    cast,
    overload,
)

from ..errors import AttemptEnded, ConfigurationError, ContextMisuse, SignalTimeout
from ..model import status
from ..model.backoff import Again, Backoff, Done, seconds, to_milliseconds
from ..model.ids import successor_id
from ..model.names import OWN_KEYS, check_callback, check_event, check_name, check_question, check_signal
from ..model.payload import check_type
from ..model.records import RUN_ITSELF, NewRun, RunShape, StepDone, StepRunning, ValueSet
from .call import DurableCall, UnplacedCall, call_line, refuse_in_step, step_key
from .callbacks import CallbackCall, CallbackPlan
from .children import ChildCall, StartCall, StartManyCall
from .concurrency import BranchCall, BranchGroup, FirstCall, check_runners, to_await
from .events import EventCall
from .execution import Execution
from .function_spec import check_called, check_undo_call, name_of, shape_of
from .history import PATCH, UNDO, Cursor
from .host import current_call
from .maps import GatherCall, Many, MapCall, Results, Share, check_items, gather, goal_of
from .observers import OfRun
from .options import CheckKeywords, ChildKeywords, RemoteKeywords, RemoteOptions, StepKeywords, shows_options
from .questions import Question, QuestionCall
from .remote_step import RemoteCall, remote_order
from .run_log import ContextLog
from .signals import SendCall, SignalCall, SignalCount
from .step import NO_OPTIONS, StepCall, StepFunction, StepOptions, Work, step_options
from .streams import Stream, open_stream
from .timers import CheckPace, SleepCall, UntilCall
from .transaction import TransactionCall
from .workflow import Workflow


class Noted:
    """Nothing to wait for; may be awaited all the same."""

    def __await__(self) -> Generator[Any, None, None]:
        return
        yield


_NOTED = Noted()


@shows_options
class ContextBase:
    """What the contexts for ``async def`` and for ``def`` have in common: positions, facts about the run."""

    _written_with: ClassVar[str] = "any"
    """The kind of function that is given such a context."""
    _options: StepOptions = NO_OPTIONS
    """What ``ctx.options`` was given, in the context that it gave."""

    def __init__(self, execution: Execution, cursor: Cursor | None = None) -> None:
        self._execution: Execution = execution
        self._cursor = execution.main if cursor is None else cursor

    def options(self, **options: Unpack[StepKeywords]) -> Self:
        """This context with options for what is called by it, because every other argument belongs to the function:
        ``await ctx.options(retries=3).step(charge, order)``. They are for steps: ``step``, ``transaction`` and
        ``wait_until``, where they hold for each check. ``name`` alone is also for calls that have no name of their own:
        sleeps, children, branches, maps and races."""
        given = step_options("ctx.options", **options)
        chosen = object.__new__(type(self))  # as copy.copy does, in a tenth of its time
        chosen.__dict__.update(self.__dict__)
        chosen._options = given if self._options is NO_OPTIONS else given.over(self._options)
        return chosen

    # -- facts ---------------------------------------------------------------------------------------------------

    @property
    def run_id(self) -> str:
        """The id of this run."""
        return self._execution.run_id

    @property
    def attempt(self) -> int:
        """Which try of the code this is, from 1. A worker's death or a wait does not count."""
        return self._execution.claimed.attempt

    @property
    def workflow(self) -> str:
        """The name of this workflow."""
        return self._execution.workflow.name

    @property
    def step_key(self) -> str:
        """Inside a step: its key, the same on every try. Outside: the key of the step called next."""
        call = current_call.get()
        if call is not None and call._execution is self._execution:
            return call.step_key
        return step_key(self._execution.run_id, self._cursor.branch, self._cursor.position)

    def now(self) -> datetime:
        """The database's time of the newest record seen here; the same on every replay."""
        execution = self._execution
        milliseconds = execution.ledger.newest.get(self._cursor.branch) or execution.claimed.started_at
        return datetime.fromtimestamp(milliseconds / 1000, UTC)

    def random(self) -> float:
        """A number from 0 up to 1; the same on every replay."""
        return int.from_bytes(self._draw()[:7], "big") / 2**56

    def uuid(self) -> uuid.UUID:
        """A random UUID; the same on every replay."""
        return uuid.UUID(bytes=self._draw()[:16], version=4)

    def progress(self, detail: str, data: Any = None) -> Noted:
        """Say how far a step is; outside of steps, how far the run is. Fire and forget; the latest word wins."""
        execution = self._execution
        if execution.closed is not None:
            raise execution.closed
        payloads = execution.recorder.payloads
        text = str(detail)[:1000].encode("utf-8", "backslashreplace").decode().replace("\0", "\\0")
        encoded = None if data is None else payloads.encode(data, "the data of ctx.progress")
        call = current_call.get()
        if call is not None and call._execution is execution:
            call.note_progress(text, encoded, 0)
        else:
            execution.has_said_progress = True
            execution.recorder.note(
                StepRunning(
                    execution.run_id,
                    execution.claim,
                    "",  # the run has one word, whichever branch says it: a branch leaves no record of its end
                    RUN_ITSELF,
                    self.workflow,
                    text,
                    encoded,
                    0,
                    payloads.format,
                )
            )
        return _NOTED

    @property
    def log(self) -> ContextLog:
        """A logger with the ids of the run, silent on replay: ``ctx.log.info("charging %s", card)``. With
        ``Stepfast(run_logs="INFO")`` its lines are kept with the run."""
        return ContextLog(self._execution, self._cursor)

    def stream(self, name: str) -> Stream:
        """A stream of this run, for readers outside: ``ctx.stream("thoughts").send(value)``. An item leaves with the
        next commit. One sent by the workflow is sent once, also when it is replayed; one sent in a step again with each
        try."""
        self._refuse_options("ctx.stream")
        return open_stream(self._execution, self._cursor, name)

    def _draw(self) -> bytes:
        """Random bytes that are alike whenever the code comes to the same address. Only who knows the secret of the run
        can work them out."""
        secret = self._execution.claimed.seed
        call = current_call.get()
        if call is not None and call._execution is self._execution:
            # A step draws for itself: a replay does not call it, so it must not move what the workflow draws.
            call.draws += 1
            drawn = f"{call.step_key}/step/{call.draws}"
        else:
            cursor = self._cursor
            cursor.draws += 1
            drawn = f"{self._execution.run_id}/{cursor.branch}/{cursor.position}/{cursor.draws}"
        return hashlib.blake2b(drawn.encode(), key=secret.encode(), digest_size=16).digest()

    # -- living with changes of the code -----------------------------------------------------------------------

    def patched(self, change: str) -> bool:
        """Whether a run takes the new way at a change of the code: True for runs that come here for the first time,
        False for those that went on from here by the old code. It stays what it was on every replay. Where the code
        comes by several times, in a loop say, a run may be old at first; once it is new, it is from there on."""
        execution, cursor = self._execution, self._cursor
        self._check("ctx.patched")
        check_name(change, "the name of a change", execution.recorder.settings.max_name)
        patch = f"{PATCH}:{change}@{cursor.branch}"
        since = execution.history.patched_from(patch)
        if patch in execution.patches or (since is not None and cursor.position >= since):
            return True
        if execution.history.goes_on(cursor.branch, cursor.position):
            return False
        execution.patches.add(patch)
        if not execution.replaying:
            if execution.history.untaken:
                execution.ledger.made_early((patch, cursor.position))
            execution.note_record(patch_entry(execution, (patch, cursor.position), change, call_line(2)))
        return True

    def continue_as(self, input: Any = None) -> NoReturn:
        """End this run and go on as a new one, with an empty history: for work without an end. Mail that was not taken
        goes along, and so does a deadline given at the start; ``run.result()`` waits for the last of the chain."""
        self._check("ctx.continue_as")
        execution = self._execution
        workflow, claimed = execution.workflow, execution.claimed
        text = execution.recorder.payloads.check_input(input, workflow.input_type, workflow.name)
        shape = RunShape(
            workflow.name,
            workflow.version,
            claimed.queue,
            claimed.priority,
            deadline_ms=_rest_of_deadline(execution),
            max_attempts=claimed.max_attempts,
            timeout_ms=claimed.timeout_ms,
            format=execution.recorder.payloads.format,
        )
        execution.successor = NewRun(successor_id(execution.run_id), shape, text, origin=execution.run_id)
        ended = AttemptEnded(f"run {execution.run_id} goes on as a new one")
        execution.closed = ended
        execution.stop_branches()
        raise ended

    # -- making calls ------------------------------------------------------------------------------------------

    def _check(self, what: str) -> None:
        """A call that takes no options of steps, and belongs to the workflow."""
        self._refuse_options(what)
        self._check_caller(what)

    def _check_named(self, what: str) -> str | None:
        """The same for a call that may be given a name."""
        name = self._options.name
        if self._options is not NO_OPTIONS and self._options != StepOptions(name):
            raise ContextMisuse(
                f"{what} takes a name, and no other options of steps: ctx.options(…) is for ctx.step, ctx.transaction "
                f"and ctx.wait_until. Write ctx.options(name=…).{what.removeprefix('ctx.')}(…)"
            )
        self._check_caller(what)
        if name is not None:
            check_name(name, "the name of a call", self._execution.recorder.settings.max_name)
        return name

    def _refuse_options(self, what: str) -> None:
        if self._options is not NO_OPTIONS:
            raise ContextMisuse(
                f"{what} takes no options of steps: ctx.options(…) is for ctx.step, ctx.transaction and "
                f"ctx.wait_until. Call {what} by the context itself"
            )

    def _check_caller(self, what: str) -> None:
        """A call belongs to the workflow: to the branch it is made in, and to no step."""
        call = current_call.get()
        if call is not None and call._execution is self._execution and self._execution.closed is None:
            if call.kind == UNDO and what == "ctx.set":
                return  # setting a value again is harmless, and only this code can say that a step was undone
            refuse_in_step(what, self._execution)
        self._execution.check_caller(self._cursor)

    def _make_call(self, target: Any, args: tuple[Any, ...], kwargs: dict[str, Any], where: str) -> StepCall[Any]:
        execution, cursor = self._execution, self._cursor
        if type(target) is StepFunction and self._options is NO_OPTIONS and current_call.get() is None:
            execution.check_caller(cursor)
            if len(target.work.name) > execution.recorder.settings.max_name:
                check_name(target.work.name, "the name of a step", execution.recorder.settings.max_name)
            return StepCall(execution, cursor, target.work, where, args, kwargs)
        work, args = self._described("ctx.step", target, args)
        self._check_undo(work, args, kwargs)
        return StepCall(execution, cursor, work, where, args, kwargs)

    def _make_transaction(
        self, target: Any, args: tuple[Any, ...], kwargs: dict[str, Any], where: str
    ) -> TransactionCall[Any]:
        work, args = self._described("ctx.transaction", target, args)
        self._check_undo(work, args, kwargs)
        return TransactionCall(self._execution, self._cursor, work, where, args, kwargs)

    def _check_undo(self, work: Work, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        """An undo that cannot take what it will be given is refused before the step is done. A replay only reads."""
        undo = work.options.compensate
        if undo is not None and not self._execution.replaying:
            check_undo_call(undo, work.name, args, kwargs)

    def _described(self, what: str, target: Any, args: tuple[Any, ...]) -> tuple[Work, tuple[Any, ...]]:
        """What is to be called, under which name, and how; and the arguments that are left for it."""
        execution, options = self._execution, self._options
        if current_call.get() is not None:
            self._check_caller(what)
        execution.check_caller(self._cursor)
        label = options.name
        if isinstance(target, str):
            if not args:
                raise ContextMisuse(f"{what}({target!r}, …) names a step but gives no function to call")
            label, target, args = target, args[0], args[1:]
        if isinstance(target, StepFunction):
            shape, function = target.shape, target.function
            options = target.options if options is NO_OPTIONS else options.over(target.options)
        elif callable(target):
            shape, function = shape_of(target, check_called), target
        else:
            raise ContextMisuse(f"{what} takes a function, or a label and a function, not {target!r}")
        name = label or shape.name
        if label is not None:
            check_name(label, "the label of a step", execution.recorder.settings.max_name)
        elif len(name) > execution.recorder.settings.max_name:
            check_name(name, "the name of a step", execution.recorder.settings.max_name)
        elif name == "<lambda>":
            raise ContextMisuse(f'a lambda has no name to be recorded under; write {what}("a label", lambda: …)')
        return Work(name, function, shape, options), args

    def _make_sleep(self, duration: float | timedelta, where: str) -> SleepCall:
        name = self._check_named("ctx.sleep")
        lasts_ms = int(seconds(duration, "the duration of ctx.sleep") * 1000)
        return SleepCall(self._execution, self._cursor, lasts_ms, None, where, name)

    def _make_sleep_until(self, when: datetime, where: str) -> SleepCall:
        name, until_ms = self._check_named("ctx.sleep_until"), to_milliseconds(when, "the time of ctx.sleep_until")
        return SleepCall(self._execution, self._cursor, 0, until_ms, where, name)

    def _make_signal(self, name: str, type_: Any, timeout: float | timedelta | None, where: str) -> SignalCall[Any]:
        self._check("ctx.wait_signal")
        check_signal(name, self._execution.recorder.settings.max_name)
        check_type(type_, f"the value of signal {name!r}")
        limit = _span(timeout, "the timeout of ctx.wait_signal")
        return SignalCall(self._execution, self._cursor, name, type_, limit, where)

    def _make_count(self, name: str, type_: Any, where: str) -> SignalCount:
        self._check("ctx.take_signals")
        check_signal(name, self._execution.recorder.settings.max_name)
        check_type(type_, f"the value of signal {name!r}")
        return SignalCount(self._execution, self._cursor, name, type_, where)

    def _make_taking(self, counted: SignalCount, where: str) -> SignalCall[Any]:
        """The next of the signals that were counted."""
        call = self._make_signal(counted.name, counted.type, 0, where)
        if counted.found:
            call.give(counted.found.pop(0))
        return call

    def _make_send(self, run_id: str, name: str, value: Any, where: str) -> SendCall:
        self._check("ctx.signal")
        check_signal(name, self._execution.recorder.settings.max_name)
        return SendCall(self._execution, self._cursor, run_id, name, value, where)

    def _make_question(self, name: str, type_: Any, timeout: float | timedelta | None, where: str) -> QuestionCall[Any]:
        self._check("ctx.wait_question")
        check_question(name, self._execution.recorder.settings.max_name)
        check_type(type_, f"the value of question {name!r}")
        limit = _span(timeout, "the timeout of ctx.wait_question")
        return QuestionCall(self._execution, self._cursor, name, type_, limit, where)

    def _make_callback(
        self,
        name: str,
        type_: Any,
        timeout: float | timedelta | None,
        heartbeat: float | timedelta | None,
        where: str,
    ) -> CallbackCall[Any]:
        self._check("ctx.callback")
        check_callback(name, self._execution.recorder.settings.max_name)
        check_type(type_, f"the value of callback {name!r}")
        beat_ms = _span(heartbeat, "the heartbeat of ctx.callback")
        if beat_ms is not None and beat_ms < 1:
            raise ConfigurationError(f"the heartbeat of ctx.callback must be more than zero, not {heartbeat!r}")
        plan = CallbackPlan(type_, _span(timeout, "the timeout of ctx.callback"), beat_ms)
        return CallbackCall(self._execution, self._cursor, name, plan, where)

    def _make_event(
        self, name: str, key: str | None, since: str, type_: Any, timeout: float | timedelta | None, where: str
    ) -> EventCall[Any]:
        self._check("ctx.wait_event")
        longest = self._execution.recorder.settings.max_name
        check_event(name, longest)
        if key is not None:
            check_name(key, "the key of an event", longest)
        if since not in ("start", "now"):
            raise ContextMisuse(f'since must be "start" (of the run) or "now", not {since!r}')
        check_type(type_, f"the data of event {name!r}")
        limit = _span(timeout, "the timeout of ctx.wait_event")
        return EventCall(self._execution, self._cursor, name, key or "", since == "now", type_, limit, where)

    def _make_until(
        self,
        target: Any,
        args: tuple[Any, ...],
        every: float | timedelta | Backoff,
        timeout: float | timedelta | None,
        max_checks: int | None,
        where: str,
    ) -> UntilCall[Any]:
        work, args = self._described("ctx.wait_until", target, args)
        self._check_undo(work, args, {})
        pauses = every if isinstance(every, Backoff) else max(1, _span(every, "every of ctx.wait_until") or 0)
        most = None if max_checks is None else _count(max_checks, "max_checks of ctx.wait_until")
        pace = CheckPace(pauses, _span(timeout, "the timeout of ctx.wait_until"), most)
        return UntilCall(self._execution, self._cursor, work, where, args, pace)

    def _make_start(self, workflow: Any, input: Any, options: dict[str, Any], where: str) -> StartCall[Any]:
        name = self._check_named("ctx.start")
        return StartCall(self._execution, self._cursor, _target(workflow), input, options, where, name)

    def _make_start_many(
        self, workflow: Any, inputs: Iterable[Any], options: dict[str, Any], where: str
    ) -> StartManyCall[Any]:
        name = self._check_named("ctx.start_many")
        return StartManyCall(self._execution, self._cursor, _target(workflow), list(inputs), options, where, name)

    def _make_child_call(self, workflow: Any, input: Any, options: dict[str, Any], where: str) -> ChildCall[Any]:
        name = self._check_named("ctx.call")
        return ChildCall(self._execution, self._cursor, _target(workflow), input, options, where, name)

    def _make_remote(self, name: str, input: Any, options: RemoteKeywords, where: str) -> RemoteCall[Any]:
        self._check("ctx.remote")
        order = remote_order(name, input, options, self._execution.recorder.settings.max_name)
        return RemoteCall(self._execution, self._cursor, order, where)

    def _make_set(self, key: str, value: Any) -> UnplacedCall[None]:
        self._check("ctx.set")
        execution, cursor = self._execution, self._cursor
        check_name(key, "the key of a value", execution.recorder.settings.max_name)
        if key.startswith(OWN_KEYS):
            own = " or ".join(map(repr, OWN_KEYS))
            raise ContextMisuse(f"a key must not begin with {own}, under which Stepfast keeps its own: {key!r}")
        payloads = execution.recorder.payloads
        text = payloads.encode(value, OfRun(execution, "the value of", key))
        entry = ValueSet(execution.run_id, execution.claim, key, text, payloads.format)
        return UnplacedCall(execution, cursor, f"ctx.set({key!r}, …)", lambda: _write(execution, cursor, entry))


async def _write(execution: Execution, cursor: Cursor, entry: ValueSet) -> None:
    if execution.replaying or execution.history.goes_on(cursor.branch, cursor.position):
        return  # the code has been here before, and went on: what it set then may be newer
    execution.begin(cursor)
    try:
        await execution.journal(entry)
    finally:
        execution.end(cursor)


def _count(value: int, what: str) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or value < 1:
        raise ContextMisuse(f"{what} must be a whole number of at least 1, not {value!r}")
    return value


def _span(value: float | timedelta | None, what: str) -> int | None:
    return None if value is None else int(seconds(value, what) * 1000)


def _rest_of_deadline(execution: Execution) -> int | None:
    """A deadline that the workflow declares is one for each run; one that was given at the start, for the whole chain:
    the next run has what is left of it."""
    claimed, declared = execution.claimed, execution.workflow.options.deadline
    if declared is not None:
        return int(declared * 1000)
    if claimed.deadline_in_ms is None:
        return None
    return max(1, claimed.deadline_in_ms - (execution.database_now() - claimed.now_ms))


def _target(workflow: Any) -> Workflow[Any, Any] | str:
    if not isinstance(workflow, (Workflow, str)):
        raise ContextMisuse(f"a child is a workflow or the name of one, not {workflow!r}")
    return workflow


def patch_entry(execution: Execution, address: tuple[str, int], change: str, where: str) -> StepDone:
    """The record that a run took the new way at a change, from this position of its branch on."""
    execution.seq = seq = execution.seq + 1
    return StepDone(
        execution.run_id, execution.claim, address[0], address[1], seq, change, PATCH, status.COMPLETED, None, None,
        None, 1, 0, where,
    )  # fmt: skip


P = ParamSpec("P")
T = TypeVar("T")
T1 = TypeVar("T1")
T2 = TypeVar("T2")
T3 = TypeVar("T3")
T4 = TypeVar("T4")
A = TypeVar("A")
I = TypeVar("I")  # noqa: E741
O = TypeVar("O")  # noqa: E741


@shows_options
class Context(ContextBase):
    """The context of an ``async def`` workflow."""

    _written_with = "async def"

    @overload
    def step(self, function: Callable[P, Awaitable[T]], /, *args: P.args, **kwargs: P.kwargs) -> StepCall[T]: ...
    @overload
    def step(self, function: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs) -> StepCall[T]: ...
    @overload
    def step(
        self, label: str, function: Callable[P, Awaitable[T]], /, *args: P.args, **kwargs: P.kwargs
    ) -> StepCall[T]: ...
    @overload
    def step(self, label: str, function: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs) -> StepCall[T]: ...
    def step(self, target: Any, /, *args: Any, **kwargs: Any) -> StepCall[Any]:
        """Do a piece of work once: its result is recorded, and a replay gets it from the record.

        ``await ctx.step(charge, order)``, or with a label: ``await ctx.step("add tax", add_tax, order, 1.2)``.
        """
        return self._make_call(target, args, kwargs, call_line(2))

    # -- waiting -------------------------------------------------------------------------------------------------

    def sleep(self, duration: float | timedelta) -> SleepCall:
        """Sleep for so many seconds, or a timedelta. The time to wake is decided once; no worker is held until then."""
        return self._make_sleep(duration, call_line(2))

    def sleep_until(self, when: datetime) -> SleepCall:
        """Sleep until a point in time (with a time zone)."""
        return self._make_sleep_until(when, call_line(2))

    @overload
    def wait_signal(self, name: str, *, type: type[T], timeout: float | timedelta | None = None) -> SignalCall[T]: ...
    @overload
    def wait_signal(
        self, name: str, *, type: Any = Any, timeout: float | timedelta | None = None
    ) -> SignalCall[Any]: ...
    def wait_signal(self, name: str, *, type: Any = Any, timeout: float | timedelta | None = None) -> SignalCall[Any]:
        """Wait for ``run.signal(name, value)``; one that was sent before counts. SignalTimeout after ``timeout``."""
        return self._make_signal(name, type, timeout, call_line(2))

    @overload
    def take_signals(self, name: str, *, type: type[T]) -> Coroutine[Any, Any, list[T]]: ...
    @overload
    def take_signals(self, name: str, *, type: Any = Any) -> Coroutine[Any, Any, list[Any]]: ...
    def take_signals(self, name: str, *, type: Any = Any) -> Coroutine[Any, Any, list[Any]]:
        """Take all signals of a name that are in the mailbox, without waiting: the oldest first, at most a thousand.
        What does not fit ``type`` stays."""
        return self._take_signals(self._make_count(name, type, call_line(2)), call_line(2))

    async def _take_signals(self, counted: SignalCount, where: str) -> list[Any]:
        taken = list[Any]()
        try:
            for _ in range(await counted):
                with contextlib.suppress(SignalTimeout):  # another branch took it before a crash
                    taken.append(await self._make_taking(counted, where))
        finally:
            counted.give_back()
        return taken

    def signal(self, run_id: str, name: str, value: Any = None) -> SendCall:
        """Send a signal to another run, exactly once despite crashes. StepFailed if that run has ended, is missing, or
        waits for a value of another type."""
        return self._make_send(run_id, name, value, call_line(2))

    @overload
    def wait_question(
        self, name: str, *, type: type[T], timeout: float | timedelta | None = None
    ) -> QuestionCall[Question[T]]: ...
    @overload
    def wait_question(
        self, name: str, *, type: Any = Any, timeout: float | timedelta | None = None
    ) -> QuestionCall[Question[Any]]: ...
    def wait_question(
        self, name: str, *, type: Any = Any, timeout: float | timedelta | None = None
    ) -> QuestionCall[Question[Any]]:
        """Wait for ``run.ask(name, value)``, and answer by ``await question.answer(…)`` or ``question.refuse(…)``. One
        that was asked before counts. QuestionTimeout after ``timeout``."""
        return self._make_question(name, type, timeout, call_line(2))

    @overload
    def callback(
        self,
        name: str,
        *,
        type: type[T],
        timeout: float | timedelta | None = None,
        heartbeat: float | timedelta | None = None,
    ) -> CallbackCall[T]: ...
    @overload
    def callback(
        self,
        name: str,
        *,
        type: Any = Any,
        timeout: float | timedelta | None = None,
        heartbeat: float | timedelta | None = None,
    ) -> CallbackCall[Any]: ...
    def callback(
        self,
        name: str,
        *,
        type: Any = Any,
        timeout: float | timedelta | None = None,
        heartbeat: float | timedelta | None = None,
    ) -> CallbackCall[Any]:
        """A token for someone outside: ``callback = await ctx.callback("payment")``, give ``callback.token`` to them,
        then ``await callback.result()``. Who has the token ends it by ``app.complete(token, value)`` or ``app.fail``.
        ``timeout`` counts from here; with a ``heartbeat`` no longer than that may pass between two ``app.beat``."""
        return self._make_callback(name, type, timeout, heartbeat, call_line(2))

    @overload
    def wait_event(
        self, name: str, *, key: str | None = None, since: Literal["start", "now"] = "start", type: type[T],
        timeout: float | timedelta | None = None,
    ) -> EventCall[T]: ...  # fmt: skip
    @overload
    def wait_event(
        self, name: str, *, key: str | None = None, since: Literal["start", "now"] = "start", type: Any = Any,
        timeout: float | timedelta | None = None,
    ) -> EventCall[Any]: ...  # fmt: skip
    def wait_event(
        self, name: str, *, key: str | None = None, since: Literal["start", "now"] = "start", type: Any = Any,
        timeout: float | timedelta | None = None,
    ) -> EventCall[Any]:  # fmt: skip
        """Wait for an event that ``app.publish`` publishes: the next of its name (and key) that the run has not taken,
        since its start, or from now on. EventTimeout after ``timeout``."""
        return self._make_event(name, key, since, type, timeout, call_line(2))

    @overload
    def wait_until(
        self, check: Callable[..., Awaitable[Done[T] | Again | None]], /, *args: Any, **pace: Unpack[CheckKeywords]
    ) -> UntilCall[T]: ...
    @overload
    def wait_until(
        self, check: Callable[..., Done[T] | Again | None], /, *args: Any, **pace: Unpack[CheckKeywords]
    ) -> UntilCall[T]: ...
    @overload
    def wait_until(
        self, check: Callable[..., Awaitable[T | Again | None]], /, *args: Any, **pace: Unpack[CheckKeywords]
    ) -> UntilCall[T]: ...
    @overload
    def wait_until(
        self, check: Callable[..., T | Again | None], /, *args: Any, **pace: Unpack[CheckKeywords]
    ) -> UntilCall[T]: ...
    @overload
    def wait_until(
        self,
        label: str,
        check: Callable[..., Awaitable[Done[T] | Again | None]],
        /,
        *args: Any,
        **pace: Unpack[CheckKeywords],
    ) -> UntilCall[T]: ...
    @overload
    def wait_until(
        self, label: str, check: Callable[..., Done[T] | Again | None], /, *args: Any, **pace: Unpack[CheckKeywords]
    ) -> UntilCall[T]: ...
    @overload
    def wait_until(
        self,
        label: str,
        check: Callable[..., Awaitable[T | Again | None]],
        /,
        *args: Any,
        **pace: Unpack[CheckKeywords],
    ) -> UntilCall[T]: ...
    @overload
    def wait_until(
        self, label: str, check: Callable[..., T | Again | None], /, *args: Any, **pace: Unpack[CheckKeywords]
    ) -> UntilCall[T]: ...
    def wait_until(
        self,
        target: Any,
        /,
        *args: Any,
        every: float | timedelta | Backoff = timedelta(minutes=1),
        timeout: float | timedelta | None = None,
        max_checks: int | None = None,
    ) -> UntilCall[Any]:
        """Wait until ``check(*args)`` answers with something true, and get that. ``Done(value)`` ends it with any
        value; ``Again(state)`` gives the next check its first argument. The slot is free between two checks, ``every``
        so many seconds or as a Backoff grows; a resume or a signal makes the next check due at once. WaitTimeout after
        ``timeout``, or after ``max_checks`` checks."""
        return self._make_until(target, args, every, timeout, max_checks, call_line(2))

    # -- children ------------------------------------------------------------------------------------------------

    @overload
    def start(self, workflow: Workflow[I, O], input: I = ..., **options: Unpack[ChildKeywords]) -> StartCall[O]: ...
    @overload
    def start(self, workflow: str, input: Any = None, **options: Unpack[ChildKeywords]) -> StartCall[Any]: ...
    def start(self, workflow: Any, input: Any = None, **options: Any) -> StartCall[Any]:
        """Start a child run, exactly once despite crashes; ``await child.result()`` waits for it."""
        return self._make_start(workflow, input, options, call_line(2))

    @overload
    def start_many(
        self, workflow: Workflow[I, O], inputs: Iterable[I], **options: Unpack[ChildKeywords]
    ) -> StartManyCall[O]: ...
    @overload
    def start_many(
        self, workflow: str, inputs: Iterable[Any], **options: Unpack[ChildKeywords]
    ) -> StartManyCall[Any]: ...
    def start_many(self, workflow: Any, inputs: Iterable[Any], **options: Any) -> StartManyCall[Any]:
        """Start a child for each input, with one record: ``children = await ctx.start_many(mail, people)``."""
        return self._make_start_many(workflow, inputs, options, call_line(2))

    @overload
    def call(self, workflow: Workflow[I, O], input: I = ..., **options: Unpack[ChildKeywords]) -> ChildCall[O]: ...
    @overload
    def call(self, workflow: str, input: Any = None, **options: Unpack[ChildKeywords]) -> ChildCall[Any]: ...
    def call(self, workflow: Any, input: Any = None, **options: Any) -> ChildCall[Any]:
        """Start a child run and wait for its result. ChildFailed if it has none."""
        return self._make_child_call(workflow, input, options, call_line(2))

    # -- remote steps --------------------------------------------------------------------------------------------

    @overload
    def remote(
        self, name: str, input: Any = None, *, type: type[T], **options: Unpack[RemoteOptions]
    ) -> RemoteCall[T]: ...
    @overload
    def remote(self, name: str, input: Any = None, **options: Unpack[RemoteKeywords]) -> RemoteCall[Any]: ...
    def remote(self, name: str, input: Any = None, **options: Any) -> RemoteCall[Any]:
        """A step that a worker elsewhere serves, in any language: ``await ctx.remote("pipeline.extract", {…})``. No
        worker is held while it is waited for. RemoteStepError if it fails for good."""
        return self._make_remote(name, input, cast(RemoteKeywords, options), call_line(2))

    # -- branches ------------------------------------------------------------------------------------------------

    def branch(
        self, function: Callable[Concatenate[Context, P], Awaitable[T]], /, *args: P.args, **kwargs: P.kwargs
    ) -> BranchCall[T]:
        """A branch beside this one: ``async def g(ctx, order)`` with steps of its own."""
        name = self._check_named("ctx.branch")
        execution = self._execution
        return BranchCall(
            execution,
            self._cursor,
            name or name_of(function),
            lambda cursor: to_await(function, function(Context(execution, cursor), *args, **kwargs)),
            call_line(2),
        )

    def branches(self) -> Branches:
        """A place here for branches that other tasks begin, each under a key: for tools that a framework calls side by
        side, in tasks of its own. ``place = ctx.branches()``, then in any task of the run
        ``await place.branch(call_id, run_tool, call)`` with ``async def run_tool(ctx, call)``."""
        self._check("ctx.branches")
        return Branches(BranchGroup(self._execution, self._cursor, call_line(2)), self._execution, self._cursor)

    @overload
    def map(
        self,
        function: Callable[[Context, A], Awaitable[T]],
        items: Iterable[A],
        *,
        limit: int | None = None,
        return_errors: Literal[False] = False,
    ) -> MapCall[T]: ...
    @overload
    def map(
        self,
        function: Callable[[Context, A], Awaitable[T]],
        items: Iterable[A],
        *,
        limit: int | None = None,
        return_errors: bool,
    ) -> MapCall[T | Exception]: ...
    @overload
    def map(
        self,
        function: Callable[[Context, A], Awaitable[T]],
        items: Iterable[A],
        *,
        limit: int | None = None,
        min_successful: Share | None,
        max_failures: Share | None = None,
        return_errors: bool = False,
    ) -> DurableCall[Results[T]]: ...
    @overload
    def map(
        self,
        function: Callable[[Context, A], Awaitable[T]],
        items: Iterable[A],
        *,
        limit: int | None = None,
        max_failures: Share | None,
        return_errors: bool = False,
    ) -> DurableCall[Results[T]]: ...
    def map(
        self,
        function: Callable[[Context, Any], Awaitable[Any]],
        items: Iterable[Any],
        *,
        limit: int | None = None,
        min_successful: Share | None = None,
        max_failures: Share | None = None,
        return_errors: bool = False,
    ) -> DurableCall[Any]:
        """A branch for each item, at most ``limit`` at once; the results in the order of the items. All come
        to their end before an error is raised; ``return_errors=True`` gives the errors among the results instead. It
        ends with ``min_successful`` results, or by MapFailed with more errors than ``max_failures``: an int is a count,
        a float below 1 a share of the items."""
        name = self._check_named("ctx.map")
        if limit is not None:
            _count(limit, "the limit of ctx.map")
        given = list(items)
        goal = goal_of("ctx.map", len(given), min_successful, max_failures)
        execution = self._execution
        return MapCall(
            execution,
            self._cursor,
            name or name_of(function),
            lambda cursor, item: to_await(function, function(Context(execution, cursor), item)),
            given,
            Many(limit, return_errors, goal),
            call_line(2),
        )

    @overload
    def gather(self, a: Awaitable[T1], /) -> UnplacedCall[tuple[T1]]: ...  # pyright: ignore[reportOverlappingOverload]
    @overload
    def gather(self, a: Awaitable[T1], b: Awaitable[T2], /) -> UnplacedCall[tuple[T1, T2]]: ...
    @overload
    def gather(self, a: Awaitable[T1], b: Awaitable[T2], c: Awaitable[T3], /) -> UnplacedCall[tuple[T1, T2, T3]]: ...
    @overload
    def gather(
        self, a: Awaitable[T1], b: Awaitable[T2], c: Awaitable[T3], d: Awaitable[T4], /
    ) -> UnplacedCall[tuple[T1, T2, T3, T4]]: ...
    @overload
    def gather(self, *calls: Awaitable[T]) -> UnplacedCall[list[T]]: ...
    @overload
    def gather(self, *calls: Awaitable[T], return_errors: bool) -> UnplacedCall[list[T | Exception]]: ...
    @overload
    def gather(
        self,
        *calls: DurableCall[T],
        limit: int | None,
        min_successful: Share | None = None,
        max_failures: Share | None = None,
        return_errors: bool = False,
    ) -> DurableCall[Results[T]]: ...
    @overload
    def gather(
        self,
        *calls: DurableCall[T],
        min_successful: Share | None,
        max_failures: Share | None = None,
        return_errors: bool = False,
    ) -> DurableCall[Results[T]]: ...
    @overload
    def gather(
        self,
        *calls: DurableCall[T],
        max_failures: Share | None,
        return_errors: bool = False,
    ) -> DurableCall[Results[T]]: ...
    def gather(
        self,
        *calls: Any,
        limit: int | None = None,
        min_successful: Share | None = None,
        max_failures: Share | None = None,
        return_errors: bool = False,
    ) -> UnplacedCall[Any] | DurableCall[Any]:
        """All of these at once, their results in the order given. All come to their end before an error is raised;
        ``return_errors=True`` gives the errors among the results instead. ``limit``, ``min_successful`` and
        ``max_failures`` are those of ``ctx.map``."""
        self._refuse_options("ctx.gather")
        execution, cursor = self._execution, self._cursor
        execution.check_caller(cursor)
        goal = goal_of("ctx.gather", len(calls), min_successful, max_failures)
        if limit is None and goal is None:
            perform = lambda: gather(execution, cursor, calls, return_errors)
            return UnplacedCall(execution, cursor, "ctx.gather(…)", perform)
        if limit is not None:
            _count(limit, "the limit of ctx.gather")
        check_items(calls)
        return GatherCall(execution, cursor, calls, Many(limit, return_errors, goal), call_line(2))

    def first(self, *unnamed: Never, **calls: DurableCall[Any]) -> FirstCall:
        """A race: ``winner, value = await ctx.first(paid=ctx.wait_signal("paid"), late=ctx.sleep(3600))``. Who won is
        recorded; the others are given up, and a signal they waited for stays in the mailbox."""
        name = self._check_named("ctx.first")
        check_runners(unnamed, calls)
        return FirstCall(self._execution, self._cursor, calls, call_line(2), name)

    # -- data ----------------------------------------------------------------------------------------------------

    @overload
    def transaction(
        self, function: Callable[Concatenate[Any, P], Awaitable[T]], /, *args: P.args, **kwargs: P.kwargs
    ) -> TransactionCall[T]: ...
    @overload
    def transaction(
        self, function: Callable[Concatenate[Any, P], T], /, *args: P.args, **kwargs: P.kwargs
    ) -> TransactionCall[T]: ...
    @overload
    def transaction(
        self, label: str, function: Callable[Concatenate[Any, P], Awaitable[T]], /, *args: P.args, **kwargs: P.kwargs
    ) -> TransactionCall[T]: ...
    @overload
    def transaction(
        self, label: str, function: Callable[Concatenate[Any, P], T], /, *args: P.args, **kwargs: P.kwargs
    ) -> TransactionCall[T]: ...
    def transaction(self, target: Any, /, *args: Any, **kwargs: Any) -> TransactionCall[Any]:
        """``await ctx.transaction(write_rows, order)`` calls ``write_rows(connection, order)`` inside a transaction
        that also holds the record of its result: both happen, once, or neither."""
        return self._make_transaction(target, args, kwargs, call_line(2))

    def set(self, key: str, value: Any) -> UnplacedCall[None]:
        """Let others read a value: ``await run.get(key)``. Committed when it was awaited; the latest wins."""
        return self._make_set(key, value)


class Branches:
    """What ``ctx.branches`` gives: begins branches in any task of the run, and replays them by their keys."""

    def __init__(self, group: BranchGroup, execution: Execution, cursor: Cursor) -> None:
        self._group = group
        self._execution = execution
        self._cursor = cursor

    def branch(
        self,
        key: str,
        function: Callable[Concatenate[Context, P], Awaitable[T]],
        /,
        *args: P.args,
        **kwargs: P.kwargs,
    ) -> UnplacedCall[T]:
        """A branch of this place: ``function(ctx, *args)`` with a context of its own, found again by its key. The keys
        must be the same on every replay, and differ from each other; the same key again begins another branch, in the
        order of these calls."""
        execution = self._execution
        refuse_in_step("Branches.branch", execution)
        if not isinstance(key, str) or not key:
            raise ContextMisuse(f"the key of a branch must be a text that is not empty, not {key!r}")
        if execution.closed is not None:
            raise execution.closed
        branch = self._group.name_for(key)

        def body(cursor: Cursor) -> Awaitable[Any]:
            return to_await(function, function(Context(execution, cursor), *args, **kwargs))

        perform = lambda: self._group.perform(branch, body)
        return UnplacedCall(execution, self._cursor, f"the branch {key!r} of ctx.branches()", perform)
