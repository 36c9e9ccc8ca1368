"""What the contexts for ``async def`` and for ``def`` have in common: facts about the run, and how calls are made."""

from __future__ import annotations

import hashlib
import uuid
from collections.abc import Generator, Iterable
from datetime import UTC, datetime, timedelta
from typing import (
    Any,
    ClassVar,
    NoReturn,
    Self,
    Unpack,
)

from ..errors import AttemptEnded, ConfigurationError, ContextMisuse
from ..model import status
from ..model.attributes import encode_attributes
from ..model.backoff import Backoff, seconds, to_milliseconds
from ..model.forks import secret_of
from ..model.ids import successor_id
from ..model.names import OWN_KEYS, check_callback, check_event, check_name, check_question, check_signal
from ..model.payload import check_type
from ..model.records import RUN_ITSELF, NewRun, RunShape, StepDone, StepRunning, ValueSet
from ..store.alchemy import with_session
from .attributes import AttributesCall
from .call import UnplacedCall, call_line, refuse_in_step, step_key
from .callbacks import CallbackCall, CallbackPlan
from .children import ChildCall, StartCall, StartManyCall
from .events import EventCall
from .execution import Execution
from .function_spec import check_called, check_undo_call, shape_of
from .history import PATCH, UNDO, Cursor
from .host import current_call
from .observers import OfRun
from .options import RemoteKeywords, StepKeywords, shows_options
from .questions import QuestionCall
from .remote_step import RemoteCall, remote_order
from .run_log import ContextLog
from .signals import SendCall, SignalCall, SignalCount
from .step import NO_OPTIONS, AtMostOnceCall, StepCall, StepFunction, StepOptions, Work, check_once, step_options
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
        execution, call = self._execution, current_call.get()
        if call is not None and call._execution is execution:
            # A step draws for itself: a replay does not call it, so it must not move what the workflow draws.
            call.draws += 1
            secret, drawn = secret_of(execution.claimed.seed, "", None)[0], f"{call.step_key}/step/{call.draws}"
        else:
            cursor = self._cursor
            cursor.draws += 1
            secret, run_id = execution.drawn_by(cursor.branch, cursor.position)
            drawn = f"{run_id}/{cursor.branch}/{cursor.position}/{cursor.draws}"
        return hashlib.blake2b(drawn.encode(), key=secret.encode(), digest_size=16).digest()

    # -- living with changes of the code -----------------------------------------------------------------------

    def patched(self, change: str) -> bool:
        """Whether a run takes the new way at a change of the code: True for runs that come here for the first time,
        False for those that continued from here by the old code. It stays what it was on every replay. Where the code
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
        """End this run and continue as a new one, with an empty history, for endless work. Mail that was not taken
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
            call: StepCall[Any] = StepCall.__new__(StepCall)  # as StepCall(…), in less time: most calls come here
            StepCall.__init__(call, execution, cursor, target.work, where, args, kwargs)
            return call
        work, args = self._described("ctx.step", target, args)
        self._check_undo(work, args, kwargs)
        if work.options.at_most_once:
            check_once(work.options)
            return AtMostOnceCall(execution, cursor, work, where, args, kwargs)
        return StepCall(execution, cursor, work, where, args, kwargs)

    def _make_transaction(
        self, target: Any, args: tuple[Any, ...], kwargs: dict[str, Any], where: str
    ) -> TransactionCall[Any]:
        work, args = self._described("ctx.transaction", target, args)
        if work.options.session:
            work = Work(work.name, with_session(work.function), work.shape, work.options)
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
        if options.session is not None and what != "ctx.transaction":
            raise ContextMisuse(f"{what} takes no session=: write ctx.options(session=True).transaction(…)")
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
        if options.at_most_once and what != "ctx.step":
            raise ContextMisuse(f"{what} takes no at_most_once=: it is for ctx.step")
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

    def _make_attributes(self, given: dict[str, Any], where: str) -> AttributesCall:
        self._check("ctx.set_attributes")
        attributes = encode_attributes(given, self._execution.recorder.settings.max_attributes)
        if not attributes:
            raise ContextMisuse('ctx.set_attributes takes at least one attribute: ctx.set_attributes(region="eu")')
        return AttributesCall(self._execution, self._cursor, attributes, where)

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
        most = None if max_checks is None else check_count(max_checks, "max_checks of ctx.wait_until")
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
        return  # the code has been here before, and continued: what it set then may be newer
    execution.begin(cursor)
    try:
        await execution.journal(entry)
    finally:
        execution.end(cursor)


def check_count(value: int, what: str) -> int:
    """Refuse what is no positive whole number."""
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
