"""Questions to a run: waited for like signals, and answered once, in the transaction that records the answer."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any, Generic, TypeVar

import msgspec

from ..cancellation import seen
from ..errors import ContextMisuse, QuestionTimeout, RecordedError
from ..model import status
from ..model.names import QUESTION
from ..model.records import Mail, QuestionAnswer, StepRecord, StepWith
from .call import DurableCall, call_line, refuse_in_step
from .history import Cursor
from .host import TURNS, current_cursor
from .observers import ids_of
from .outcomes import step_failed
from .signals import SignalCall

if TYPE_CHECKING:
    from .execution import Execution

T = TypeVar("T")

ANSWERED, REFUSED = "answered", "refused"


class Question(Generic[T]):
    """A question that a run has taken, to be answered or refused, once."""

    __slots__ = ("_answered", "_execution", "id", "name", "value")

    def __init__(self, execution: Execution, question_id: str, name: str, value: T) -> None:
        self._execution = execution
        self._answered = False
        self.id = question_id
        self.name = name
        self.value = value

    def __repr__(self) -> str:
        return f"Question({self.name!r}, {self.id!r})"

    def answer(self, value: Any = None) -> AnswerCall:
        """Answer it: ``await question.answer(total)``. Recorded, so that it is answered once, also after a crash."""
        return self.end_by("question.answer", ANSWERED, value, call_line(2))

    def refuse(self, why: str) -> AnswerCall:
        """Refuse to answer: ``run.ask`` raises QuestionRefused with this text."""
        return self.end_by("question.refuse", REFUSED, why, call_line(2))

    def end_by(self, what: str, state: str, value: Any, where: str) -> AnswerCall:
        """The call that gives it its end."""
        if state == REFUSED and not (isinstance(value, str) and value):
            raise ContextMisuse(f"question.refuse takes a text that says why, not {value!r}")
        execution = self._execution
        refuse_in_step(what, execution)
        cursor = current_cursor.get() or execution.main
        execution.check_caller(cursor)
        if self._answered:
            raise ContextMisuse(f"{what}: question {self.name!r} has been answered or refused; it has one answer")
        self._answered = True
        payloads = execution.recorder.payloads
        text = payloads.encode(value, f"the answer to question {self.name!r}")
        return AnswerCall(execution, cursor, self.name, QuestionAnswer(self.id, state, text, payloads.format), where)


class QuestionCall(SignalCall[T]):
    """A call of ``ctx.wait_question``: its record has the value, and the id of the question among its arguments."""

    __slots__ = ()

    _kind = status.WAITING_QUESTION
    _prefix = QUESTION

    def _late(self) -> RecordedError:
        return QuestionTimeout(f"no question {self.name!r} came within {(self._timeout_ms or 0) / 1000:g} s")

    def _which(self, mail: Mail) -> str | None:
        """The id. It is written as the value is, by the codec or not, because a record has one format."""
        payloads, id_ = self._execution.recorder.payloads, {"id": mail.id}
        return payloads.encode_own(id_) if mail.format == payloads.format else msgspec.json.encode(id_).decode()

    async def _leave(self, mail: Mail, problem: str) -> None:
        """Refuse a question whose value does not fit, because its sender waits; unless another branch waits for a
        question of this name, whose type it may fit."""
        execution = self._execution
        try:
            for _ in range(TURNS):  # it may be about to wait: mail comes to all at once
                await asyncio.sleep(0)
        except asyncio.CancelledError:
            execution.inbox.give_back(mail)
            raise
        if execution.inbox.hand_over(mail):
            return
        payloads = execution.recorder.payloads
        text = payloads.encode_own(f"the value does not fit the type that is waited for: {problem}")
        refusal = QuestionAnswer(mail.id, REFUSED, text, payloads.format)
        execution.recorder.logger.warning(
            "run %s: a question %r was refused, because its value does not fit the type that is waited for",
            execution.run_id, self.name, extra=ids_of(execution, self.name),
        )  # fmt: skip
        work = execution.recorder.queries.refuse_question(execution.run_id, execution.claim, refusal)
        refusing = asyncio.ensure_future(work)
        refusing.add_done_callback(seen)
        await asyncio.shield(refusing)  # to the end, also if the code gives this wait up: it is in no mailbox any more
        execution.inbox.gone([mail.id])

    def _value(self, record: StepRecord) -> Any:
        execution, value = self._execution, super()._value(record)
        payloads = execution.recorder.payloads
        found = payloads.plain(record.arguments, record.format, f"the id of question {self.name!r}") or {}
        return Question(execution, found["id"], self.name, value)

    def _failure(self, error: dict[str, Any]) -> RecordedError:
        if error["type"] == QuestionTimeout.__name__:
            return QuestionTimeout(error["message"])
        return step_failed(self.name, error, (self.branch, self.position))


class AnswerCall(DurableCall[None]):
    """A call of ``question.answer`` or ``question.refuse``."""

    __slots__ = ("_given",)

    def __init__(self, execution: Execution, cursor: Cursor, name: str, given: QuestionAnswer, where: str) -> None:
        self._given = given
        super().__init__(execution, cursor, "answer", name, where)

    async def _go(self) -> None:
        given = self._given
        arguments = self._execution.recorder.payloads.encode_own({"id": given.id, "as": given.state})
        entry = self._entry(status.COMPLETED, given.answer, arguments=arguments)
        await self._record_outcome(StepWith(entry, answers=[given]))

    def _value(self, record: StepRecord) -> None:
        return None

    def _failure(self, error: dict[str, Any]) -> RecordedError:
        raise NotImplementedError  # an answer is never recorded as failed
