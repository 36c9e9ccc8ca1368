"""Remote steps: steps that are served by workers elsewhere, and what becomes of one when something is heard of it.

A step goes out as a task and comes back as a result. Both are rows, or messages, of a transport that others speak too,
and a result does not say of which attempt it is. What it means is decided here, by a step and a result alone:

* what was completed is completed, no matter which worker did it;
* a failure that began before its attempt was sent out is an old one, and the attempt is sent once more. When it began
  is told by the clock of another machine, so there is a tolerance;
* any other failure ends the step, or its attempt, while there are retries left and the worker has not said that none
  will help.

Everything that comes from a worker is typed and bounded before it is used.
"""

from __future__ import annotations

import json
import random as _random
import re
from typing import Any, Final, NamedTuple

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from ..errors import ConfigurationError
from .backoff import Backoff
from .status import COMPLETED, FAILED
from .stored import more

OUTBOX: Final = "outbox"
"""To be sent when its time has come: at once, or after the backoff."""
SENT: Final = "sent"
"""With the transport; a worker serves it, or will."""
WITHDRAWN: Final = "withdrawn"
"""Its run waits no more: what no worker has begun is taken back, and what comes of the rest is thrown away."""
SETTLED: Final = "settled"
"""Its outcome is in the mailbox of its run, or was."""
OPEN = frozenset({OUTBOX, SENT})

ERROR_TYPE: Final = "RemoteStepError"
TOLERANCE_MS = 5_000
"""How far the clock of a worker may be behind the database's before its failures are taken for old ones."""
MOST_RESENT = 20
"""How often a task is sent once more, because it vanished or an old failure had come in its place. Beyond that
another program is at work on these tables, another engine say, and the step fails instead of going round for ever."""
_LONGEST_MESSAGE, _LONGEST_CODE, _LONGEST_STACK = 64 * 1024, 200, 16 * 1024
"""Characters of an error that are kept."""
_STEP_ID = re.compile(r"([0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}):(0|-?[1-9][0-9]{0,8})")
_LONGEST_CHECK_MS = 300_000
"""Milliseconds between two looks whether a task is still there."""


class Task(NamedTuple):
    """A step that waits to be done elsewhere. ``input`` is JSON text."""

    step_id: str
    run_id: str
    seq: int
    name: str
    group: str
    input: str | None
    attempt: int = 1
    trace: str | None = None
    """What observers of the run send along, as JSON: an object of short texts. A transport that has room for it
    hands it on; the tables of the contract have none."""


class Result(NamedTuple):
    """What became of it. ``output`` and ``error`` are JSON texts; ``started_at`` and ``created_at`` are milliseconds,
    the first by the clock of the worker that served it, or None."""

    step_id: str
    run_id: str
    seq: int
    status: str
    output: str | None
    error: str | None
    started_at: int | None
    created_at: int = 0
    attempt: int | None = None
    """Which attempt it is of, where the transport says so."""


class DispatchRoute(NamedTuple):
    """How remote steps go out."""

    carrier: str
    """The prefix of the transport."""
    joined: bool
    """Whether it is in the same database, so that a task is sent in the transaction that records it."""


class Dispatch(Struct, gc=False):
    """A remote step that goes out with the record that it has begun."""

    id: str
    """Under which its outcome comes into the mailbox."""
    name: str
    group: str
    input: str
    carrier: str
    """The prefix of the transport that it goes over."""
    joined: bool
    """Whether that is in the same database, so that the task is sent in the same transaction."""
    retries: int
    backoff: str
    """The backoff of its retries, as JSON."""
    attempt: int
    """The attempt of the run."""
    look_ms: int
    """After so many milliseconds a worker looks whether its task is still there."""
    undo: bool = False
    """The undo of a step; these have numbers below zero."""
    trace: str | None = None


class RemoteStep(Struct, gc=False):
    """Where a remote step stands: its row, in the order of its columns."""

    run_id: str
    seq: int
    """Its number in the run, never given twice. With the run's id it is the step's id on the transport."""
    id: str
    branch: str
    position: int
    claim: int
    run_attempt: int
    name: str
    group: str
    carrier: str
    input: str | None
    state: str
    attempt: int
    retries: int
    backoff: str
    dispatched_at: int
    """When its present attempt was sent."""
    due_at: int | None
    """When a worker has to act on it: to send it, to look whether it is still there, to take it back."""
    resent: int = 0
    queue_ms: int | None = None
    """How long it waited for a worker, as far as that is known."""
    settled_at: int | None = None
    trace: str | None = None

    @property
    def step_id(self) -> str:
        """The id of the step on the transport; all attempts share it."""
        return f"{self.run_id}:{self.seq}"

    @property
    def task(self) -> Task:
        """What goes over the transport."""
        return Task(self.step_id, self.run_id, self.seq, self.name, self.group, self.input, self.attempt, self.trace)


class StepOutcome(NamedTuple):
    """What a run is told of its step."""

    status: str
    output: str | None
    error: str | None


class Judged(NamedTuple):
    """A step after something was heard of it."""

    step: RemoteStep
    outcome: StepOutcome | None = None
    """What its run is to be told; None: nothing yet."""
    failed_try: str | None = None
    """The error of an attempt that another one follows."""


class Label(NamedTuple):
    """What stands on the mail with an outcome."""

    status: str
    attempts: int
    sent_at: int
    """When the last attempt was sent."""


def label(step: RemoteStep, outcome: StepOutcome) -> str:
    """The label of an outcome, in one word."""
    return f"{outcome.status}:{step.attempt}:{step.dispatched_at}"


def read_label(text: str) -> Label:
    """A label as it was before it was put into one word."""
    status, attempts, sent_at = text.split(":")
    return Label(status, int(attempts), int(sent_at))


def key_of(step_id: str) -> tuple[str, int] | None:
    """The run and the number in an id of the transport; None if it cannot be one of ours, which are spelled in one way
    alone: other engines may have rows on the same tables."""
    found = _STEP_ID.fullmatch(step_id)
    return None if found is None else (found[1], int(found[2]))


def judge(step: RemoteStep, result: Result, now: int, random: _random.Random | None = None) -> Judged:
    """What a result means to the step that it is of."""
    if step.state not in OPEN:
        return Judged(step)
    if result.status == COMPLETED:
        problem = _misfit(result.output)
        if problem is None:
            return _over(step, result, now, StepOutcome(COMPLETED, result.output or "null", None))
        said = error_text(f"the worker's output is not usable: {problem}", retryable=False)
        return _over(step, result, now, StepOutcome(FAILED, None, said))
    if step.state == OUTBOX:
        return Judged(step)  # the next attempt is on its way, and this is a second word on the last one
    if result.attempt is not None and result.attempt != step.attempt:
        return Judged(step)  # as above; where results say of which attempt they are, none takes the place of another
    if result.attempt is None and is_stale(result, step.attempt, step.dispatched_at):
        return send_again(step, now, "old failures came in the place of its result")
    text, again = read_error(result.error)
    if not again or step.attempt > step.retries:
        return _over(step, result, now, StepOutcome(FAILED, None, text))
    wait = int(read_backoff(step.backoff).delay(step.attempt, random) * 1000)
    return Judged(replace(step, state=OUTBOX, attempt=more(step.attempt), due_at=now + wait), None, text)


def is_stale(result: Result, attempt: int, dispatched_at: int, tolerance_ms: int = TOLERANCE_MS) -> bool:
    """Whether a result is left over from an earlier attempt, so that the present one has to be sent once more. What was
    completed is completed, and the first attempt has nothing before it."""
    if result.status == COMPLETED or attempt <= 1 or result.started_at is None:
        return False
    return result.started_at < dispatched_at - tolerance_ms


def send_again(step: RemoteStep, now: int, why: str) -> Judged:
    """The task of a step is to be sent once more, as the same attempt: it vanished, or was answered by an old
    failure."""
    if step.resent < MOST_RESENT:
        return Judged(replace(step, state=OUTBOX, resent=step.resent + 1, due_at=now))
    said = error_text(f"it was sent out {step.resent + 1} times, because {why}: is one engine alone on its tables?")
    return Judged(_closed(step, SETTLED, now), StepOutcome(FAILED, None, said))


def refused(step: RemoteStep, now: int, why: str) -> Judged:
    """The transport does not take its task, and would not another time."""
    said = error_text(f"the transport refuses it: {why}", retryable=False)
    return Judged(_closed(step, SETTLED, now), StepOutcome(FAILED, None, said))


def sent(step: RemoteStep, now: int, look_ms: int) -> RemoteStep:
    """The task of a step is out; a worker looks for it after so many milliseconds."""
    return replace(step, state=SENT, dispatched_at=now, due_at=now + look_ms)


def handed_over(step: RemoteStep, now: int, keeps_ms: int) -> RemoteStep:
    """The transport has the task, and keeps it for so many milliseconds, in which it need not be looked for."""
    return replace(step, due_at=now + keeps_ms)


def looked_for(step: RemoteStep, now: int, sweep_ms: int) -> RemoteStep:
    """A worker looks whether it is still there; the next look is later than that by half its age."""
    return replace(step, due_at=now + min(max(sweep_ms, (now - step.dispatched_at) // 2), _LONGEST_CHECK_MS))


def withdrawn(step: RemoteStep, now: int) -> RemoteStep:
    """Its run does not wait for it any more."""
    return replace(step, state=WITHDRAWN, due_at=now) if step.state in OPEN else step


def to_be_cleared(judged: Judged, due_at: int) -> Judged:
    """Let a worker act on a step that is over, at ``due_at``: its result has yet to be removed, from another
    database."""
    return judged if judged.step.settled_at is None else judged._replace(step=replace(judged.step, due_at=due_at))


def cleared(step: RemoteStep, now: int) -> RemoteStep:
    """What was withdrawn, or is over, has left nothing behind."""
    return step if step.state in OPEN else _closed(step, step.state, step.settled_at or now)


def queue_wait(started_at: int | None, dispatched_at: int) -> int | None:
    """Milliseconds for which it waited for a worker. Two clocks may disagree, but no wait is shorter than none."""
    return None if started_at is None else max(0, min(started_at - dispatched_at, 2**31 - 1))


# -- what workers say --------------------------------------------------------------------------------------


def read_error(text: str | None) -> tuple[str, bool]:
    """The error that a worker wrote, as it is recorded; and whether it leaves room for another attempt: unless it says
    that no retry will help."""
    said = _loosely(text)
    if not isinstance(said, dict):
        said = {"message": "the worker said nothing of its error that can be read"}
    message, code, stack = said.get("message"), said.get("code"), said.get("stack")
    again = said.get("retryable") is not False
    return error_text(
        message if isinstance(message, str) else "the worker gave no message",
        code if isinstance(code, str) else None,
        stack if isinstance(stack, str) else None,
        retryable=again,
    ), again


def _loosely(text: str | None) -> Any:
    """The JSON of an error of another program. Half a character, which JavaScript cuts texts into, is no reason not to
    hear the rest."""
    try:
        return None if text is None else json.loads(text)
    except (ValueError, RecursionError):
        return None


def error_text(
    message: str, code: str | None = None, stack: str | None = None, *, retryable: bool = True, kind: str = ERROR_TYPE
) -> str:
    """An error of a remote step as it is kept."""
    kept: dict[str, Any] = {
        "type": kind,
        "message": _clean(message[:_LONGEST_MESSAGE]),
        "traceback": None if stack is None else _clean(stack[-_LONGEST_STACK:]),
        "retryable": retryable,
    }
    if code is not None:
        kept["code"] = _clean(code[:_LONGEST_CODE])
    return msgspec.json.encode(kept).decode()


def backoff_text(backoff: Backoff) -> str:
    """A backoff as it is kept with a step."""
    return msgspec.json.encode(backoff).decode()


def read_backoff(text: str) -> Backoff:
    """A backoff as it was before it was written down."""
    try:
        return msgspec.json.decode(text, type=Backoff)
    except (msgspec.MsgspecError, RecursionError, ConfigurationError):  # a hand has changed it
        return Backoff()


def _over(step: RemoteStep, result: Result, now: int, outcome: StepOutcome) -> Judged:
    waited = queue_wait(result.started_at, step.dispatched_at)
    return Judged(replace(_closed(step, SETTLED, now), queue_ms=waited), outcome)


def _closed(step: RemoteStep, state: str, now: int) -> RemoteStep:
    """Nothing is to be done about it any more, so that its input is not needed."""
    return replace(step, state=state, due_at=None, input=None, settled_at=now)


def _misfit(output: str | None) -> str | None:
    """What is wrong with an output: it is text that another program wrote."""
    try:
        msgspec.json.decode(output or "null")
    except (msgspec.DecodeError, UnicodeError) as error:
        return f"it is not JSON ({error})"
    except RecursionError:
        return "it is nested too deeply"
    return None


def _clean(text: str) -> str:
    """Text that every database keeps: no lone surrogates, and no NUL."""
    return text.encode("utf-8", "backslashreplace").decode().replace("\0", "\\0")
