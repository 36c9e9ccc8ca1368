"""Callbacks: a token for someone outside, and the outcome that its holder gives."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Generic, NamedTuple, TypeVar

import msgspec

from ..errors import CallbackFailed, CallbackTimeout, RecordedError
from ..model import status
from ..model.ids import callback_id, callback_token
from ..model.payload import json_schema
from ..model.records import Mail, NewCallback, StepRecord, StepWith
from ..model.rows import CallbackRow, callback_due
from ..model.stored import read_json
from ..settings import FORMAT
from .call import DurableCall, call_line, refuse_in_step
from .children import CALLBACK_RESULT, end_on_record, recall_ends
from .history import Cursor
from .host import current_cursor
from .observers import ids_of
from .outcomes import encode_error
from .signals import LARGEST_SCHEMA, problem_with

if TYPE_CHECKING:
    from .execution import Execution

T = TypeVar("T")

CALLBACK = "callback"
_ASK_AGAIN_MS = 500
"""How long after a question about a callback the next one is asked at the earliest."""


class CallbackPlan(NamedTuple):
    """What a callback waits for."""

    type: Any
    timeout_ms: int | None
    heartbeat_ms: int | None


class Callback(Generic[T]):
    """A callback that a run has made: hand out its ``token``, then ``await callback.result()``."""

    __slots__ = ("_execution", "_id", "_opened_at", "_plan", "name", "token")

    def __init__(self, execution: Execution, name: str, token: str, plan: CallbackPlan, opened_at: int) -> None:
        self._execution = execution
        self._id = callback_id(token) or ""
        self._plan = plan
        self._opened_at = opened_at
        self.name = name
        self.token = token
        if execution.tokens is None:
            execution.tokens = {}
        execution.tokens[token] = self._id

    def __repr__(self) -> str:
        return f"Callback({self.name!r})"

    def result(self) -> CallbackResultCall[T]:
        """Wait for the value that the holder of the token gives. CallbackFailed, CallbackTimeout."""
        return self.wait(call_line(2))

    def wait(self, where: str) -> CallbackResultCall[T]:
        """The call that waits for it."""
        execution = self._execution
        refuse_in_step("callback.result", execution)
        cursor = current_cursor.get() or execution.main
        execution.check_caller(cursor)
        return CallbackResultCall(execution, cursor, self, where)


class CallbackCall(DurableCall[Callback[T]]):
    """A call of ``ctx.callback``: the callback is made in the transaction of its record."""

    __slots__ = ("_plan_of",)

    def __init__(self, execution: Execution, cursor: Cursor, name: str, plan: CallbackPlan, where: str) -> None:
        self._plan_of = plan
        super().__init__(execution, cursor, CALLBACK, name, where)

    def _token(self) -> str:
        execution = self._execution
        secret, run_id = execution.drawn_by(self.branch, self.position)
        return callback_token(secret, run_id, self.branch, self.position, self.name)

    async def _go(self) -> Callback[T]:
        execution, plan = self._execution, self._plan_of
        schema = json_schema(plan.type)
        made = NewCallback(
            callback_id(self._token()) or "", execution.run_id, self.name,
            schema if schema is not None and len(schema) <= LARGEST_SCHEMA else None,
            plan.timeout_ms, plan.heartbeat_ms, execution.claimed.attempt,
        )  # fmt: skip
        kept = {"id": made.id, "for": plan.timeout_ms, "heartbeat": plan.heartbeat_ms}
        output = msgspec.json.encode({key: value for key, value in kept.items() if value is not None}).decode()
        return await self._record_outcome(
            StepWith(self._entry(status.COMPLETED, output, format_=FORMAT), callbacks=[made])
        )

    def _value(self, record: StepRecord) -> Callback[T]:
        kept: dict[str, Any] = read_json(record.output, dict[str, Any], {})
        plan = self._plan_of._replace(timeout_ms=kept.get("for"), heartbeat_ms=kept.get("heartbeat"))
        return Callback(self._execution, self.name, self._token(), plan, record.completed_at)

    def _failure(self, error: dict[str, Any]) -> RecordedError:
        raise NotImplementedError  # that a callback was made is never recorded as failed


class CallbackResultCall(DurableCall[T]):
    """A call of ``callback.result``: the outcome is taken from the mailbox and recorded in one transaction."""

    __slots__ = ("_callback", "group")

    def __init__(self, execution: Execution, cursor: Cursor, callback: Callback[T], where: str) -> None:
        self._callback = callback
        self.group: object | None = None
        """Set where several have to end before the code continues."""
        super().__init__(execution, cursor, CALLBACK_RESULT, callback.name, where)

    async def _go(self) -> T:
        execution, id_ = self._execution, self._callback._id
        if not execution.inbox.recalled:
            recall_ends(execution)
        mail = await self._outcome_of_callback()
        while mail.error is None and not self._fits(mail):
            execution.inbox.forget(id_)  # another value comes by the same id
            reject = execution.recorder.queries.reject_callback
            if not await reject(execution.run_id, execution.claim, id_, mail.value):
                break  # it is on record already, by code with another annotation
            self._tell_misfit()
            await execution.waits.reader.look_afresh()  # a look that was under way may have brought the same again
            mail = await self._outcome_of_callback()
        if not self._has_won():
            await self._lost(mail)
        execution.inbox.share(mail)
        payloads = execution.recorder.payloads
        which = payloads.encode_own(id_) if mail.format == payloads.format else msgspec.json.encode(id_).decode()
        if mail.error is None:
            entry = self._entry(status.COMPLETED, mail.value, arguments=which, format_=mail.format)
        else:
            entry = self._waited_in_vain(mail.error, which, mail.format)
        return await self._record_outcome(StepWith(entry, takes=[id_]))

    async def _replay(self, record: StepRecord) -> T:
        if self.has_outcome:
            self._execution.inbox.share(end_on_record(self._execution, self._callback._id, record))
        return await super()._replay(record)

    async def _outcome_of_callback(self) -> Mail:
        """The outcome, from the mailbox. Where time decides, or an earlier attempt had it, the row of the callback says
        its state."""
        execution, callback = self._execution, self._callback
        id_, plan, opened_at = callback._id, callback._plan, callback._opened_at
        mail = execution.inbox.take(status.MAIL_CALLBACK, id_)
        due_at = callback_due(opened_at, opened_at, plan.timeout_ms, plan.heartbeat_ms)
        ask = execution.claimed.attempt > 1
        while mail is None:
            if ask:
                row = await execution.recorder.queries.callback(id_, execution.claim, execution.claimed.attempt)
                if row is None or row.state != status.OPEN:
                    return self._end_of(row)
                due_at = row.due_at
                if due_at is not None:  # another transaction may hold it, and its time be up
                    due_at = max(due_at, execution.database_now() + _ASK_AGAIN_MS)
            what = f"{status.WAITING_CALLBACK}:{self.name}"
            mail = await execution.waits.mail(status.MAIL_CALLBACK, id_, due_at, what, self.group)
            ask = True
        return mail

    def _end_of(self, row: CallbackRow | None) -> Mail:
        """What the row of a callback says that is open no more, as mail."""
        execution, id_ = self._execution, self._callback._id
        if row is not None and row.state != status.TIMED_OUT:
            return Mail(execution.run_id, id_, status.MAIL_CALLBACK, row.state, row.value, row.error, row.format)
        payloads = execution.recorder.payloads
        error = encode_error(self._too_late(row), payloads)
        return Mail(execution.run_id, id_, status.MAIL_CALLBACK, status.FAILED, None, error, payloads.format)

    def _too_late(self, row: CallbackRow | None) -> CallbackTimeout:
        if row is None:
            return CallbackTimeout(f"callback {self.name!r} is gone from the database")
        if row.heartbeat_ms is not None and row.due_at == row.beat_at + row.heartbeat_ms:
            return CallbackTimeout(f"no heartbeat of callback {self.name!r} came within {row.heartbeat_ms / 1000:g} s")
        return CallbackTimeout(f"callback {self.name!r} was not completed within {(row.timeout_ms or 0) / 1000:g} s")

    def _fits(self, mail: Mail) -> bool:
        """Whether a value fits, whose type may not have been checked when it was given."""
        payloads, what = self._execution.recorder.payloads, f"the value of callback {self.name!r}"
        return problem_with(mail, self._callback._plan.type, payloads, what) is None

    def _tell_misfit(self) -> None:
        execution = self._execution
        execution.recorder.logger.warning(
            "run %s: callback %r was completed with a value that does not fit the type that is waited for, and is open "
            "again", execution.run_id, self.name, extra=ids_of(execution, self.name),
        )  # fmt: skip

    def _value(self, record: StepRecord) -> T:
        payloads = self._execution.recorder.payloads
        what = f"the value of callback {self.name!r}"
        value: T = payloads.decode(record.output or "null", self._callback._plan.type, record.format, what)
        return value

    def _failure(self, error: dict[str, Any]) -> RecordedError:
        if error["type"] == CallbackTimeout.__name__:
            return CallbackTimeout(error["message"])
        return CallbackFailed(self.name, error["message"])
