"""Children: runs that a run starts. Started with the record of their start, and waited for without holding a slot."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Generic, TypeVar

import msgspec

from ..errors import ChildFailed, ContextMisuse, RecordedError
from ..model import status
from ..model.forks import is_copied
from ..model.records import Mail, NewRun, Parent, StepRecord, StepWith
from ..model.rows import Outcome
from ..model.stored import read_json
from ..settings import FORMAT
from .call import DurableCall, call_line
from .history import Cursor
from .host import current_cursor
from .observers import child_starts
from .workflow import Workflow

if TYPE_CHECKING:
    from .execution import Execution

O = TypeVar("O")  # noqa: E741

RESULT = "result"
CALLBACK_RESULT = "callback_result"
_OUTCOMES = (status.COMPLETED, status.FAILED)
_ENDS = {RESULT: status.MAIL_CHILD, CALLBACK_RESULT: status.MAIL_CALLBACK}
"""Kinds of records of ends that may be asked for again, and the mail that brings these."""

_LOOK_MS, _LONGEST_LOOK_MS = 500, 60_000
"""Milliseconds between two looks at a child that another run has started: half as long as it has waited by then."""

STARTS = ("start", "call")
"""Kinds of records that start a child, whose id is made from their address."""


class _Child:
    """What the calls about children have in common: which child it is, and what of."""

    def __init__(self, workflow: Workflow[Any, Any] | str, run_id: str, output_type: Any = Any) -> None:
        self.workflow = workflow if isinstance(workflow, str) else workflow.name
        self.name = self.workflow
        """Under which it is recorded."""
        self.output_type = output_type if isinstance(workflow, str) else workflow.output_type
        self.run_id = run_id
        self.of_another = False
        """Whether the run that this one is a fork of has started it, and is told of its end."""

    def started_by(self, record: StepRecord, text: str | None) -> None:
        """Be the child that a record tells of."""
        self.run_id = read_json(text, str, self.run_id)
        self.of_another = is_copied(record.undo)


class ChildRun(Generic[O]):
    """The handle of a child: ``await child.result()`` waits for it without holding a slot."""

    def __init__(self, execution: Execution, child: _Child) -> None:
        self._execution = execution
        self._child = child
        self.id = child.run_id

    def __repr__(self) -> str:
        return f"ChildRun({self.id!r})"

    def result(self) -> ResultCall[O]:
        """The result of the child, recorded in this run; ChildFailed if the child has none."""
        cursor = current_cursor.get() or self._execution.main
        self._execution.check_caller(cursor)
        return ResultCall(self._execution, cursor, self._child, call_line(2))


class StartCall(DurableCall[ChildRun[O]]):
    """``ctx.start``: the child and the record of its start are written in one transaction."""

    __slots__ = ("_child", "_input", "_options", "_workflow")

    def __init__(
        self,
        execution: Execution,
        cursor: Cursor,
        workflow: Workflow[Any, Any] | str,
        input: Any,
        options: dict[str, Any],
        where: str,
        name: str | None = None,
    ) -> None:
        self._workflow = workflow
        self._input = input
        self._options = options
        self._child = _Child(workflow, execution.child_at(cursor.branch, cursor.position))
        self._child.name = name or self._child.name
        super().__init__(execution, cursor, "start", self._child.name, where)
        if self._record is not None:
            self._child.started_by(self._record, self._record.output)
        execution.calls_child(self)

    async def _go(self) -> ChildRun[O]:
        runs = await new_child(self, self._workflow, self._input, self._options, self._child)
        output = msgspec.json.encode(self._child.run_id).decode()
        return await self._record_outcome(StepWith(self._entry(status.COMPLETED, output, format_=FORMAT), starts=runs))

    def _value(self, record: StepRecord) -> ChildRun[O]:
        return ChildRun(self._execution, self._child)

    def _failure(self, error: dict[str, Any]) -> RecordedError:
        raise NotImplementedError  # a start is never recorded as failed


class StartManyCall(DurableCall[list[ChildRun[O]]]):
    """``ctx.start_many``: children and the one record of their start are written in one transaction."""

    __slots__ = ("_inputs", "_options", "_workflow")

    def __init__(
        self, execution: Execution, cursor: Cursor, workflow: Workflow[Any, Any] | str, inputs: list[Any],
        options: dict[str, Any], where: str, name: str | None = None,
    ) -> None:  # fmt: skip
        self._workflow = workflow
        self._inputs = inputs
        self._options = options
        super().__init__(execution, cursor, "start_many", name or _Child(workflow, "").name, where)
        execution.calls_child(self)

    async def _go(self) -> list[ChildRun[O]]:
        ids, runs = list[str](), list[NewRun]()
        for number, value in enumerate(self._inputs):
            place = f"{self.branch}:{self.position}"  # no branch is called so
            child = _Child(self._workflow, self._execution.child_at(place, number))
            runs += await new_child(self, self._workflow, value, self._options, child)
            ids.append(child.run_id)
        output = msgspec.json.encode(ids).decode()
        return await self._record_outcome(StepWith(self._entry(status.COMPLETED, output, format_=FORMAT), starts=runs))

    def _value(self, record: StepRecord) -> list[ChildRun[O]]:
        """The children that were started, also if the code would start others now."""
        ids = read_json(record.output, list[str], [])
        children = [_Child(self._workflow, run_id) for run_id in ids]
        for child in children:
            child.name, child.of_another = self.name, is_copied(record.undo)
        return [ChildRun(self._execution, child) for child in children]

    def _failure(self, error: dict[str, Any]) -> RecordedError:
        raise NotImplementedError  # a start is never recorded as failed


class ResultCall(DurableCall[O]):
    """The end of a child, taken from the mailbox and recorded in one transaction."""

    __slots__ = ("_child", "group")

    def __init__(self, execution: Execution, cursor: Cursor, child: _Child, where: str, kind: str = RESULT) -> None:
        self._child = child
        self.group: object | None = None
        """Set where several have to end before the code continues."""
        super().__init__(execution, cursor, kind, child.name, where)
        execution.calls_child(self)

    async def _go(self) -> O:
        mail = await self._end_of_child()
        if not self._has_won():
            await self._lost(mail)
        self._share(mail)
        payloads = self._execution.recorder.payloads
        whose = payloads.encode_own(self._child.run_id) if mail.format == payloads.format else None
        if mail.name == status.COMPLETED:
            entry = self._entry(status.COMPLETED, mail.value, arguments=whose, format_=mail.format)
        elif mail.error is not None:
            entry = self._waited_in_vain(mail.error, whose, mail.format)
        else:
            text = payloads.encode_own({"type": "RunCancelled", "message": f"it was {mail.name}"})
            entry = self._waited_in_vain(text, payloads.encode_own(self._child.run_id))
        return await self._record_outcome(StepWith(entry, takes=[mail.id]))

    async def _replay(self, record: StepRecord) -> O:
        if self.has_outcome:
            self._share(end_on_record(self._execution, self._child.run_id, record))
        return await super()._replay(record)

    def _share(self, mail: Mail) -> None:
        """A child ends once, but a handle may be asked more than once."""
        if self.kind == RESULT:
            self._execution.inbox.share(mail)

    async def _end_of_child(self) -> Mail:
        execution, run_id = self._execution, self._child.run_id
        if not execution.inbox.recalled:
            recall_ends(execution)
        if self._child.of_another:
            return await self._end_of_foreign_child()
        if execution.claimed.attempt > 1:
            mail = await self._end_of_old_child()
            if mail is not None:
                return mail
        mail = await execution.waits.mail(status.MAIL_CHILD, run_id, None, status.WAITING_CHILD, self.group)
        assert mail is not None
        return mail

    async def _end_of_foreign_child(self) -> Mail:
        """Another run has started the child, and is told of its end: this one looks."""
        execution, run_id = self._execution, self._child.run_id
        began = execution.database_now() if self._record is None else self._record.started_at
        while True:
            outcome = await self._last_outcome(run_id)
            if outcome is not None:
                return _as_mail(execution.run_id, run_id, outcome)
            if not await execution.recorder.queries.exists(run_id):
                return self._removed()
            now = execution.database_now()
            pause = min(max(_LOOK_MS, (now - began) // 2), _LONGEST_LOOK_MS)
            await execution.waits.until(now + pause, status.WAITING_CHILD)

    async def _end_of_old_child(self) -> Mail | None:
        """After a new attempt or a retry the child may have ended long ago, and its mail been taken. A result is taken
        again; one that failed is retried with its parent, unless it was undone. The row is read first: mail is never
        older than it. A run that had completed, and is rewound, needed its children no more: they may be removed."""
        execution, run_id = self._execution, self._child.run_id
        outcome = await self._last_outcome(run_id)
        gone = outcome is None and not await execution.recorder.queries.exists(run_id)
        if outcome is None and not gone:
            return None
        mail = await execution.waits.mail_at_hand(status.MAIL_CHILD, run_id)
        if mail is not None:
            return mail
        if outcome is None:
            return self._removed()
        if outcome.status != status.COMPLETED:
            if await execution.recorder.queries.retry(outcome.id):
                return None
            outcome = await execution.recorder.queries.outcome(outcome.id)
        return None if outcome is None else _as_mail(execution.run_id, run_id, outcome)

    def _removed(self) -> Mail:
        """The end of a child that is not there any more, and can tell of none."""
        execution, run_id = self._execution, self._child.run_id
        text = execution.recorder.payloads.encode_own(
            {"type": "RunNotFound", "message": f"child {run_id} was removed", "traceback": None}
        )
        return Mail(execution.run_id, run_id, status.MAIL_CHILD, status.FAILED, None, text)

    async def _last_outcome(self, run_id: str) -> Outcome | None:
        """How it ended; a child that continues as another has not."""
        while True:
            outcome = await self._execution.recorder.queries.outcome(run_id)
            if outcome is None or outcome.reason != status.REASON_CONTINUED:
                return outcome
            run_id = msgspec.json.decode(outcome.output or "null")

    def _value(self, record: StepRecord) -> O:
        what = f"the result of child {self.name!r}"
        payloads = self._execution.recorder.payloads
        value: O = payloads.decode(record.output or "null", self._child.output_type, record.format, what)
        return value

    def _failure(self, error: dict[str, Any]) -> RecordedError:
        failure = ChildFailed(
            self._child.workflow,
            self._child.run_id,
            error_type=error["type"],
            message=error["message"],
            traceback=error["traceback"],
        )
        self._execution.was_given([failure], self._cursor)
        return failure


class ChildCall(ResultCall[O]):
    """``ctx.call``: start and wait, as one record that is replaced by the outcome."""

    __slots__ = ("_input", "_options", "_workflow")

    def __init__(
        self,
        execution: Execution,
        cursor: Cursor,
        workflow: Workflow[Any, Any] | str,
        input: Any,
        options: dict[str, Any],
        where: str,
        name: str | None = None,
    ) -> None:
        self._workflow = workflow
        self._input = input
        self._options = options
        child = _Child(workflow, execution.child_at(cursor.branch, cursor.position))
        child.name = name or child.name
        super().__init__(execution, cursor, child, where, "call")
        if (record := self._record) is not None:
            named, text = record.output if record.status == status.WAITING else record.arguments, None
            if named is not None:
                text = execution.recorder.payloads.text(named, record.format, "the id of a child")
            child.started_by(record, text)

    async def _go(self) -> O:
        if self._record is None:
            runs = await new_child(self, self._workflow, self._input, self._options, self._child)
            output = msgspec.json.encode(self._child.run_id).decode()
            await self._open(StepWith(self._opening(output), starts=runs))
        return await super()._go()


def recall_ends(execution: Execution) -> None:
    """The ends of children and callbacks that are on record; a branch that lost a race since has taken them, and is not
    replayed."""
    execution.inbox.recalled = True
    payloads = execution.recorder.payloads
    for record in execution.history.records.values():
        if record.kind in _ENDS and record.arguments is not None and record.status in _OUTCOMES:
            ended = payloads.plain(record.arguments, record.format, "the id of what ended")
            execution.inbox.share(end_on_record(execution, ended, record))


async def new_child(
    call: DurableCall[Any], workflow: Workflow[Any, Any] | str, input: Any, options: dict[str, Any], child: _Child
) -> list[NewRun]:
    """The run to be started, with its steps if it is a dag. Its id is made from its address in the code, so that
    starting it twice starts one."""
    if "key" in options:
        raise ContextMisuse(
            "ctx.start and ctx.call take no key: a child is started exactly once as it is. A run that others start too "
            "is started by app.start(…, key=…) inside a step"
        )
    execution = call._execution
    options = _with_deadline(options, execution)
    parent = Parent(execution.run_id, call.branch, call.position, child.run_id)
    runs, child.output_type = await execution.recorder.queries.new_child(workflow, input, options, parent)
    if execution.recorder.observers is not None:
        child_starts(execution.recorder.observers, execution, runs)
    return runs


def _with_deadline(options: dict[str, Any], execution: Execution) -> dict[str, Any]:
    """The options of a child; of one that inherits the deadline of its parent what is left of that."""
    if not options.get("inherit_deadline"):
        return {name: value for name, value in options.items() if name != "inherit_deadline"}
    if options.get("deadline") is not None:
        raise ContextMisuse("a child takes deadline or inherit_deadline, not both")
    claimed, rest = execution.claimed, {name: value for name, value in options.items() if name != "inherit_deadline"}
    if claimed.deadline_in_ms is None:
        return rest
    left = claimed.now_ms + claimed.deadline_in_ms - execution.database_now()
    return {**rest, "deadline": max(left, 1) / 1000}


def _as_mail(run_id: str, child: str, outcome: Outcome) -> Mail:
    return Mail(run_id, child, status.MAIL_CHILD, outcome.status, outcome.output, outcome.error, outcome.format)


def end_on_record(execution: Execution, ended: str, record: StepRecord) -> Mail:
    """The end of a child or a callback, as the mail that had brought it."""
    how = status.COMPLETED if record.error is None else status.FAILED
    kind = _ENDS.get(record.kind, status.MAIL_CHILD)
    return Mail(execution.run_id, ended, kind, how, record.output, record.error, record.format)
