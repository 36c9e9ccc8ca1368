"""``ctx.remote`` and ``dag.remote``: steps and undos that workers elsewhere serve."""

from __future__ import annotations

import asyncio
import copy
from collections.abc import Awaitable, Callable, Iterable
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

import msgspec

from ..errors import ConfigurationError, PayloadError, RecordedError, RemoteStepError, RemoteTimeout
from ..model import status
from ..model.backoff import Backoff, check_backoff, default_backoff, seconds
from ..model.forks import is_copied
from ..model.ids import child_id
from ..model.names import check_name, refuse_unknown
from ..model.payload import check_type
from ..model.records import Mail, StepDone, StepRecord, StepWith
from ..model.remote_steps import Dispatch, backoff_text, error_text, read_label
from ..settings import FORMAT
from .call import DurableCall, time_given
from .function_spec import check_undo_call, name_of
from .history import UNDO, Cursor, as_record
from .observers import remote_trace
from .options import RemoteKeywords
from .step import Undoable, check_recorded_undo, encode_arguments

if TYPE_CHECKING:
    from .execution import Execution


T = TypeVar("T")

REMOTE = "remote"


class RemoteUndo:
    """The undo of a step that workers elsewhere serve."""

    def __init__(self, name: str, group: str, given: Callable[..., Any]) -> None:
        self.name = self.__name__ = name
        self.group = group
        self.given = given
        """Makes its input of what an undo is called with."""

    def __call__(self, *_: Any) -> Any:
        """Undos are called; this one is sent."""
        raise NotImplementedError


class Order(NamedTuple):
    """What is asked of a worker elsewhere, and how."""

    name: str
    group: str
    input: Any
    type: Any = Any
    retries: int = 0
    backoff: Backoff | None = None
    timeout_ms: int | None = None
    undo: Callable[..., Any] | None = None


class RemoteCall(DurableCall[T]):
    """A call of ``ctx.remote``."""

    __slots__ = ("_order", "group")

    def __init__(self, execution: Execution, cursor: Cursor, order: Order, where: str, kind: str = REMOTE) -> None:
        self._order = order
        self.group: object | None = None
        """Set where several have to end before the code continues."""
        super().__init__(execution, cursor, kind, order.name, where)

    async def _go(self) -> T:
        record = await self._sent()
        plan = msgspec.json.decode(record.output or "{}")
        limit, due_at = self._order.timeout_ms, None
        if limit is not None:
            due_at = record.completed_at + time_given(record, limit)
        what = f"{status.WAITING_REMOTE}:{self.name}"
        mail = await self._execution.waits.mail(status.MAIL_REMOTE, plan["id"], due_at, what, self.group)
        if not self._has_won():
            await self._lost(mail)
        entry = self._timed_out() if mail is None else self._came(mail)
        try:
            outcome = await self._record_outcome(StepWith(entry, takes=[plan["id"]]))
        except RecordedError:
            self._tell_end(entry)
            raise
        self._tell_end(entry)
        return outcome

    def _tell_end(self, entry: StepDone) -> None:
        observers = self._execution.recorder.observers
        if observers is not None:
            observers.remote_ends(self._execution, self._order.group, entry)

    # -- going out ---------------------------------------------------------------------------------------------

    async def _sent(self) -> StepRecord:
        """The record that it has begun. One of an earlier attempt may be of a step that was withdrawn since, as the run
        had ended: then the step is sent once more."""
        record = self._record
        if record is None:
            self._record = record = await self._send(self._new_id())
        elif self._execution.claimed.attempt > 1:
            known, alive = msgspec.json.decode(record.output or "{}")["id"], await self._alive()
            if known not in alive:
                return await self._send(known)
            if (sent_again_at := alive[known]) is not None:
                return msgspec.structs.replace(record, completed_at=sent_again_at)  # its timeout counts from there
        return record

    def _new_id(self) -> str:
        """Made from its address and the claim: sent out again by a later attempt it is another one."""
        execution = self._execution
        return child_id(execution.run_id, f"~remote/{execution.claim}/{self.branch}", self.position)

    async def _send(self, id_: str) -> StepRecord:
        execution, order = self._execution, self._order
        payloads, settings = execution.recorder.payloads, execution.recorder.settings
        text = payloads.bare(order.input, f"the input of remote step {self.name!r}")
        way = execution.recorder.queries.way or await execution.recorder.queries.find_way()
        plan: dict[str, Any] = {"id": id_} if order.timeout_ms is None else {"id": id_, "for": order.timeout_ms}
        kept = self._arguments() if payloads.format == FORMAT else None
        entry = self._entry(status.WAITING, msgspec.json.encode(plan).decode(), arguments=kept, format_=FORMAT)
        backoff = backoff_text(order.backoff or default_backoff(settings))
        send = Dispatch(
            id_, order.name, order.group, text, way.carrier, way.joined, order.retries, backoff,
            execution.claimed.attempt, int(settings.sweep_interval * 1000), self.kind != REMOTE,
        )  # fmt: skip
        if execution.recorder.observers is not None and not way.joined:
            send.trace = remote_trace(execution.recorder.observers, execution, order.name, order.group)
        now = await execution.record(StepWith(entry, sends=[send]))
        if execution.recorder.observers is not None:
            execution.recorder.observers.remote_goes(execution, order.group, self.name)
        execution.stop_if_late()
        return as_record(entry, now)

    async def _alive(self) -> dict[str, int | None]:
        """The remote steps of the run that still come to something: asked once for all calls of it."""
        inbox, execution = self._execution.inbox, self._execution
        if inbox.alive is None:
            inbox.alive = asyncio.ensure_future(execution.recorder.queries.alive_remote(execution.run_id))
        return await asyncio.shield(inbox.alive)

    # -- coming back -------------------------------------------------------------------------------------------

    def _came(self, mail: Mail) -> StepDone:
        """The record of an outcome. One that does not fit what was asked for is a failure."""
        execution, (outcome, attempts, sent_at) = self._execution, read_label(mail.name)
        payloads = execution.recorder.payloads
        if attempts > 1:  # as with any step, the time of the last try is recorded; the others are in the log
            self._began = execution.clock.now() - max(0, execution.database_now() - sent_at) / 1000
        if outcome != status.COMPLETED:
            return self._failed(payloads.take_over(mail.error or error_text("nothing is known of its error")), attempts)
        try:
            text = payloads.take_over(mail.value or "null", self._order.type, f"the output of {self.name!r}")
        except PayloadError as error:
            return self._failed(payloads.take_over(error_text(str(error), retryable=False)), attempts)
        return self._entry(status.COMPLETED, text, calls=attempts, arguments=self._arguments(), undo=self._undo_name())

    def _timed_out(self) -> StepDone:
        said = f"no result came within {(self._order.timeout_ms or 0) / 1000:g} s"
        return self._failed(
            self._execution.recorder.payloads.take_over(error_text(said, kind=RemoteTimeout.__name__)), 1
        )

    def _failed(self, error: str, attempts: int) -> StepDone:
        arguments = self._arguments()
        self._execution.journal_note(self._failed_try(error, attempts, 0, arguments))
        return self._entry(status.FAILED, None, error, calls=attempts, arguments=arguments)

    def _arguments(self) -> str | None:
        """What is kept for the log: its input, as it is stored."""
        payloads = self._execution.recorder.payloads
        if not payloads.settings.record_arguments:
            return None
        return encode_arguments(payloads, self._execution.tokens, self._order.input)

    def _undo_name(self) -> str | None:
        return None if self._order.undo is None else name_of(self._order.undo)

    def _value(self, record: StepRecord) -> T:
        what = f"the recorded result of remote step {self.name!r}"
        payloads = self._execution.recorder.payloads
        value: T = payloads.decode(record.output or "null", self._order.type, record.format, what)
        if self._order.undo is not None and not is_copied(record.undo):
            args = (value, copy.deepcopy(self._order.input) if self._execution.replaying else self._order.input)
            self._execution.undoable.append(Undoable(record.seq, self.name, self._order.undo, args, {}, self.line))
        return value

    def _failure(self, error: dict[str, Any]) -> RecordedError:
        kind = RemoteTimeout if error["type"] == RemoteTimeout.__name__ else RemoteStepError
        return kind(
            self.name,
            message=error["message"],
            code=error.get("code"),
            traceback=error["traceback"],
            retryable=error["retryable"],
        )


async def undo_elsewhere(execution: Execution, cursor: Cursor, item: Undoable, undo: RemoteUndo) -> str | None:
    """Undo one step by a worker elsewhere; what went wrong, in words. It is retried as any undo is."""
    order = Order(undo.name, undo.group, undo.given(*item.args), retries=execution.recorder.settings.undo_retries)
    try:
        await RemoteCall(execution, cursor, order, item.line, UNDO)
        return None
    except RemoteStepError as error:
        return f"undo {undo.name!r} of step {item.step!r}: {type(error).__name__}: {error.message}"


def of_input_and_output(output: Any, input: Any) -> dict[str, Any]:
    """What the undo of a remote step is given."""
    return {"input": input, "output": output}


def of_dag_step(given: Callable[[Any], Any]) -> Callable[[Any], dict[str, Any]]:
    """What the undo of a remote step of a dag is given: it is called with a context."""
    return lambda context: {"input": given(context), "output": context.output}


LONGEST = 191
"""Characters in a name and a group, where the application has no lower limit of its own (``max_name``)."""
NO_PARTITION = frozenset({None, "", "default"})
"""Partitions that leave the group as it is."""
_GROUP = "the group of a remote step"


def remote_order(name: str, input: Any, given: RemoteKeywords, max_name: int, said_by: str = "ctx.remote") -> Order:
    """What is to be done, by whom and how."""
    refuse_unknown(said_by, given, RemoteKeywords.__annotations__)
    _checked(name, "the name of a remote step", max_name)
    retries, timeout, type_ = given.get("retries", 0), given.get("timeout"), given.get("type", Any)
    if isinstance(retries, bool) or not isinstance(retries, int) or not 0 <= retries < 2**31:
        raise ConfigurationError(f"retries must be a whole number of zero or more, not {retries!r}")
    if type_ is not Any:
        check_type(type_, f"the output of remote step {name!r}")
    limit = None if timeout is None else int(seconds(timeout, f"the timeout of {said_by}") * 1000)
    group = _group(name, given, max_name)
    undo = _undo(name, input, given, max_name)
    return Order(name, group, input, type_, retries, check_backoff(given.get("backoff")), limit, undo)


def remote_undo(name: str, given: RemoteKeywords, make: Callable[..., Any], max_name: int) -> RemoteUndo:
    """The undo of a step, served by the same workers if the step names a group, and by its own group if not."""
    _checked(name, "the name of a remote undo", max_name)
    undo = RemoteUndo(name, _group(name, given, max_name), make)
    check_recorded_undo(undo)
    return undo


def _undo(name: str, input: Any, given: RemoteKeywords, max_name: int) -> Callable[..., Any] | None:
    undo = given.get("compensate")
    if undo is None:
        return None
    if isinstance(undo, str):
        return remote_undo(undo, given, of_input_and_output, max_name)
    if callable(undo):
        check_recorded_undo(undo)
    else:
        raise ConfigurationError(f"compensate must be a function, or the name of a remote step, not {undo!r}")
    check_undo_call(undo, name, (input,), {})
    return undo


def _group(name: str, given: RemoteKeywords, max_name: int) -> str:
    """As every engine of the contract spells it: the name of the step with a hyphen in place of each colon, and the
    partition behind it. A group that is named may have its partition with it already."""
    partition, named = given.get("partition"), given.get("group")
    base, at, behind = (name, "", "") if not named else _checked(named, _GROUP, max_name).partition("@")
    token = base.replace(":", "-") + at + behind
    if partition not in NO_PARTITION:
        token = f"{token}@{_checked(partition, 'the partition of a remote step', max_name)}"
    if token != token.strip():
        raise ConfigurationError(
            f"the group {token!r} begins or ends with blanks, which some databases ignore: leave them out"
        )
    return _checked(token, f"{_GROUP}, with its partition,", max_name)


def _checked(name: object, what: str, max_name: int) -> str:
    """A name that both the transport and the application keep whole."""
    return check_name(name, what, min(LONGEST, max_name))


Given = Callable[[Any], Any]

_ELSEWHERE = "stepfast_served_elsewhere"


class Served(NamedTuple):
    """The code of such a step: it sends the step out and waits for it; and its undo."""

    function: Callable[[Any], Awaitable[Any]]
    undo: RemoteUndo | None


def served_elsewhere(
    name: str, given: Given | None, before: Iterable[str], compensate: Any, options: RemoteKeywords, max_name: int
) -> Served:
    """A step by the name of its handler; ``given(ctx)`` makes its input, which otherwise is the input of the run and
    the outputs of the steps before it."""
    make = _usual(tuple(before)) if given is None else given
    remote_order(name, None, options, max_name, "dag.remote")  # errors in it are raised now
    if compensate is not None and not isinstance(compensate, str):
        raise ConfigurationError(f"compensate must be the name of a remote step here, not {compensate!r}")
    undo = None if compensate is None else remote_undo(compensate, options, of_dag_step(make), max_name)

    async def serve(ctx: Any) -> Any:
        return await ctx.remote(name, make(ctx), **options)

    setattr(serve, _ELSEWHERE, True)
    return Served(serve, undo)


def is_served_elsewhere(function: object) -> bool:
    """Whether the function of a step does nothing but send it out."""
    return getattr(function, _ELSEWHERE, False) is True


def _usual(before: tuple[str, ...]) -> Given:
    return lambda ctx: {
        "input": ctx.input,
        "outputs": {name: ctx.outputs[name] for name in before if name in ctx.outputs},
    }
