"""Waiting for a signal: kept if sent before, first in first out per name, taken and recorded in one transaction.

A value of another type is refused where it is sent, if the run is known to wait for something else; where it is met, it
is left in the mailbox, and reported.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any, TypeVar

import msgspec

from ..errors import InvalidInput, InvalidState, RecordedError, RunNotFound, SignalTimeout, StepfastError
from ..model import status
from ..model.ids import run_id_of
from ..model.payload import Payloads, json_schema
from ..model.payload_check import first_problem
from ..model.records import Mail, StepRecord, StepRunning, StepWith
from .call import DurableCall, time_given
from .history import Cursor
from .observers import OfRun, ids_of
from .outcomes import encode_error, step_failed

if TYPE_CHECKING:
    from .execution import Execution

T = TypeVar("T")

SEND = "send"
"""The kind of a call that sends a signal."""
LARGEST_SCHEMA = 16 * 1024
"""Characters: a larger one is not kept with each wait, and values are checked where they arrive alone."""
_WHERE = re.compile(r"Expected `[^`]*`, got `[^`]*`( - at `[^`]*`)?|at `[^`]*`")
"""What may be repeated of the problem with a value: types and the path, not the value itself."""


def misfit(value: Any, plans: list[str]) -> str | None:
    """What is wrong with a value for a signal, if the run waits for it and none of its waits would take it."""
    problems = []
    for plan in plans:
        schema = msgspec.json.decode(plan).get("type")
        problem = None if schema is None else first_problem(value, schema)
        if problem is None:
            return None
        problems.append(problem)
    return problems[0] if problems else None


def problem_with(mail: Mail, type_: Any, payloads: Payloads, what: str) -> str | None:
    """What is wrong with the value of a message that has come, if it is to be of this type."""
    try:
        payloads.take_in(mail.value or "null", type_, mail.format, what)
    except StepfastError as error:
        return str(error)
    return None


class SendCall(DurableCall[None]):
    """A call of ``ctx.signal``: sent with the address of the call as its id, so that a run which comes here again,
    because it died before this was recorded, sends nothing twice."""

    __slots__ = ("_run_id", "_sent")

    def __init__(self, execution: Execution, cursor: Cursor, run_id: str, name: str, value: Any, where: str) -> None:
        self._run_id = run_id
        self._sent = value
        super().__init__(execution, cursor, SEND, name, where)

    async def _go(self) -> None:
        execution, payloads = self._execution, self._execution.recorder.payloads
        value = payloads.encode(self._sent, OfRun(execution, "the value of signal", self.name))
        whose = payloads.encode_own({"run": self._run_id})
        try:
            mail = Mail(
                run_id_of(self._run_id), execution.clock.new_id(), status.MAIL_SIGNAL, self.name, value,
                format=payloads.format, given=f"~{self.step_key}",
            )  # fmt: skip
            await execution.recorder.queries.send_signal(mail)
        except (InvalidState, InvalidInput, RunNotFound) as error:
            text = encode_error(error, payloads)
            return await self._record_outcome(self._waited_in_vain(text, whose))
        return await self._record_outcome(self._entry(status.COMPLETED, value, arguments=whose))

    def _value(self, record: StepRecord) -> None:
        return None

    def _failure(self, error: dict[str, Any]) -> RecordedError:
        return step_failed(self.name, error, (self.branch, self.position))


SIGNALS = "signals"
"""The kind of a call that counts the signals to be taken."""
MOST_AT_ONCE = 1000


class SignalCount(DurableCall[int]):
    """The first part of ``ctx.take_signals``: how many signals of a name are taken, which are there already. Each is
    taken by a call of its own, so that it is recorded, and given back, as any signal is."""

    __slots__ = ("found", "type")

    def __init__(self, execution: Execution, cursor: Cursor, name: str, type_: Any, where: str) -> None:
        self.type = type_
        self.found: list[Mail] = []
        """What the calls after this one take. Empty where it is replayed."""
        super().__init__(execution, cursor, SIGNALS, name, where)

    async def _go(self) -> int:
        execution, what = self._execution, f"the value of signal {self.name!r}"
        payloads = execution.recorder.payloads

        def fits(mail: Mail) -> bool:
            return problem_with(mail, self.type, payloads, what) is None

        self.found = await execution.waits.signals_at_hand(self.name, MOST_AT_ONCE, fits)
        if not self._has_won():
            self.give_back()
            await self._lost(None)
        return await self._record_outcome(self._entry(status.COMPLETED, payloads.encode_own(len(self.found))))

    def give_back(self) -> None:
        """Leave what was not taken in the mailbox."""
        while self.found:
            self._execution.inbox.give_back(self.found.pop())

    def _value(self, record: StepRecord) -> int:
        return int(self._execution.recorder.payloads.plain(record.output, record.format, "a number of signals"))

    def _failure(self, error: dict[str, Any]) -> RecordedError:
        return step_failed(self.name, error, (self.branch, self.position))


class SignalCall(DurableCall[T]):
    """A call of ``ctx.wait_signal``."""

    __slots__ = ("_given", "_timeout_ms", "_type")

    _kind = status.WAITING_SIGNAL
    _prefix = ""
    """What its messages are called in the mailbox, before their names."""

    def __init__(
        self, execution: Execution, cursor: Cursor, name: str, type_: Any, timeout_ms: int | None, where: str
    ) -> None:
        self._type = type_
        self._timeout_ms = timeout_ms
        self._given: Mail | None = None
        """What it takes, if that was read already."""
        super().__init__(execution, cursor, self._kind, name, where)

    def give(self, mail: Mail) -> None:
        """Let it take this signal."""
        self._given = mail

    async def _go(self) -> T:
        refused: set[str] = set()
        mail = await self._arrival(refused)
        while mail is not None and (problem := self._misfit(mail)) is not None:
            refused.add(mail.id)
            await self._leave(mail, problem)
            mail = await self._arrival(refused)
        if not self._has_won():
            await self._lost(mail)
        if mail is None:
            text = encode_error(self._late(), self._execution.recorder.payloads)
            return await self._record_outcome(self._waited_in_vain(text))
        entry = self._entry(status.COMPLETED, mail.value, format_=mail.format, arguments=self._which(mail))
        value = await self._record_outcome(StepWith(entry, takes=[mail.id]))  # taken and recorded in one transaction
        if self._execution.recorder.observers is not None:
            self._execution.recorder.observers.takes_signal(self._execution, mail)
        return value

    async def _arrival(self, refused: set[str]) -> Mail | None:
        due_at, mail, self._given = None, self._given, None
        if mail is not None:
            return mail
        if self._timeout_ms is not None:
            record = self._record or await self._open(self._opening(self._plan()))
            due_at = record.completed_at + time_given(record, self._timeout_ms)
        what, name = f"{self._kind}:{self.name}", self._prefix + self.name
        return await self._execution.waits.mail(status.MAIL_SIGNAL, name, due_at, what, refused=refused)

    def _late(self) -> RecordedError:
        """The error when nothing came in time."""
        return SignalTimeout(f"no signal {self.name!r} came within {(self._timeout_ms or 0) / 1000:g} s")

    def _which(self, mail: Mail) -> str | None:
        """What is recorded of the message besides its value."""
        return None

    def _plan(self) -> str:
        """How long it waits, and for what: so that a sender of something else is refused at once."""
        plan: dict[str, Any] = {} if self._timeout_ms is None else {"for": self._timeout_ms}
        schema = json_schema(self._type)
        if schema is not None and len(schema) <= LARGEST_SCHEMA:
            plan["type"] = msgspec.Raw(schema.encode())
        return msgspec.json.encode(plan).decode()

    # -- values of another type ---------------------------------------------------------------------------------------

    def _misfit(self, mail: Mail) -> str | None:
        """What is wrong with a value. It is not taken: the signal stays in the mailbox and the run keeps waiting, since
        the sender may send the right one. Ending the run would be a high price for a slip of the hand."""
        what = f"the value of {self._kind} {self.name!r}"
        return problem_with(mail, self._type, self._execution.recorder.payloads, what)

    async def _leave(self, mail: Mail, problem: str) -> None:
        """Leave a message that does not fit in the mailbox."""
        self._execution.inbox.give_back(mail)
        self._tell(problem)

    def _tell(self, problem: str) -> None:
        """Report a value that does not fit, in the log and in the run's activity; the value itself is not shown."""
        execution = self._execution
        where = _WHERE.search(problem)
        said = f"a signal {self.name!r} came whose value does not fit the type that is waited for"
        said += f" ({where[0]})" if where is not None else ""
        execution.recorder.logger.warning(
            "run %s: %s; it stays in the mailbox, and the run waits on: send another", execution.run_id, said,
            extra=ids_of(execution, self.name),
        )  # fmt: skip
        execution.journal_note(
            StepRunning(
                execution.run_id, execution.claim, self.branch, self.position, self.name, f"{said}; send another", None,
                0, execution.recorder.payloads.format,
            )
        )  # fmt: skip

    def _value(self, record: StepRecord) -> T:
        what = f"the value of {self._kind} {self.name!r}"
        payloads = self._execution.recorder.payloads
        value: T = payloads.decode(record.output or "null", self._type, record.format, what)
        return value

    def _failure(self, error: dict[str, Any]) -> RecordedError:
        if error["type"] == SignalTimeout.__name__:
            return SignalTimeout(error["message"])
        return step_failed(self.name, error, (self.branch, self.position))
