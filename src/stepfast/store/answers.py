"""What a store answers, beside rows and records: small values for workers, operators and monitors."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Any, NamedTuple, Protocol

import msgspec
from msgspec import Struct

from ..errors import ConfigurationError, InvalidState
from ..model.records import BeatAnswer, Lane, StepRecord
from ..model.remote_steps import Result, Task
from ..model.rows import CallbackRow
from ..model.stored import read_json

Key = tuple[str, int]
"""The run of a remote step, and its number there."""
MailId = tuple[str, str]
"""The run that mail is for, and the id of the mail."""


class Due(NamedTuple):
    """Remote steps that need work outside of our tables."""

    tasks: list[Task] = []
    """To be sent; their rows say already that they were. Empty where they were sent in the same transaction."""
    doubtful: list[Task] = []
    """To be looked for: are they still there?"""
    over: list[str] = []
    """Over, but not known to have left nothing behind: to be taken back, and their results to be removed."""
    sent: int = 0
    """How many were sent, by this transaction or by its caller."""


class Judgement(NamedTuple):
    """What came of results of remote steps."""

    outcomes: int
    """How many runs are notified."""
    leftover: list[str]
    """Steps that are over but may have a task left, because more than one was sent."""


class TransportConnection(Protocol):
    """A transport of remote steps in the same database, which works in the transaction that is open on a connection.
    A protocol, because transports are in a layer above."""

    async def dispatch(self, tasks: Sequence[Task], connection: Any = None) -> Any:
        """Send tasks out with this transaction."""

    async def remove(self, results: Sequence[Result], connection: Any = None) -> None:
        """Delete results that were recorded."""


BEGUN, DONE, REFUSED, FAILED, INTERRUPTED = "begun", "done", "refused", "failed", "interrupted"
UNKNOWN = "unknown"
"""What a line that was begun is read as when its process has fallen silent."""


class AuditEntry(NamedTuple):
    """What an operator is about to do."""

    id: str
    who: str
    what: str
    """A verb, as ``run.cancel``."""
    which: str
    """The run, queue or schedule it is done to; of many runs, what they are chosen by."""
    origin: str
    """From where: the address of the client."""
    detail: str | None = None
    """What else was asked, as JSON. Never a payload."""


_SILENT = 60_000
"""Milliseconds of silence after which the end of an action is not expected any more. Actions take seconds; those
that take longer write how far they are every few seconds."""


class AuditLine(NamedTuple):
    """What an operator did, and what came of it."""

    id: str
    at: int
    who: str
    what: str
    which: str
    origin: str
    detail: str | None
    outcome: str
    said: str | None

    def as_read(self, now: int) -> AuditLine:
        """The line without the mark of when its process was last heard of, by which it may be unknown."""
        detail: dict[str, Any] = read_json(self.detail, dict[str, Any], {})
        line, heard = self, detail.pop("heard", None)
        heard = heard if isinstance(heard, int) else None
        if heard is not None:
            line = self._replace(detail=msgspec.json.encode(detail).decode() if detail else None)
        if line.outcome != BEGUN or now - (heard or line.at) <= _SILENT:
            return line
        said = "" if line.said is None else f"{line.said}; then "
        return line._replace(outcome=UNKNOWN, said=f"{said}nothing was heard of it any more")


class Census(Struct):
    """Counts of runs, queues and schedules. They stop at the bound that was given: so many, or more."""

    runs: dict[str, int]
    """Unfinished runs by status: those that workers hold, that wait, are paused, or are being undone."""
    timer_lag: float
    """For how many seconds something has been due that no worker has made ready yet."""
    undelivered: int
    """Mail that was sent and has not been delivered."""
    queues: dict[str, tuple[int, float]]
    """Of each queue that has something ready: how much, and for how many seconds its first run has been."""
    late: list[tuple[str, bool, float]]
    """Schedules that are late: the name, whether code declares it, and for how many seconds."""


LONG_AT_WORK = 3600.0
"""Seconds. What has been executing for longer is named to operators: it may hang."""


class AtWork(NamedTuple):
    """A run that a worker executes, or a step of it."""

    run_id: str
    workflow: str
    step: str | None
    seconds: float
    """For how long it has been executing."""


class RunCount(NamedTuple):
    """Runs of a workflow in a queue that have a status."""

    workflow: str
    queue: str
    status: str
    number: int
    oldest_ms: int | None
    """Of unfinished ones: the age of the oldest."""


class Alike(NamedTuple):
    """What runs have in common that failed alike."""

    workflow: str
    reason: str | None
    step: str | None
    error_type: str | None


class Failures(NamedTuple):
    """Runs of a workflow that failed alike."""

    workflow: str
    reason: str | None
    step: str | None
    """The step whose failure ended them, if it was one."""
    error_type: str | None
    """The class of the error; None where it cannot be read without the codec."""
    number: int
    last_ms: int
    """How long ago the last of them ended."""
    first_ms: int = 0
    """How long ago the first did, within the span."""
    newest: str = ""
    """The run of them that was started last."""


class Took(NamedTuple):
    """How long one call of a step took."""

    workflow: str
    step: str
    ms: int


class Sample(NamedTuple):
    """What was found, and in how much."""

    ended: list[RunCount]
    unfinished: list[RunCount]
    failures: list[Failures]
    steps: list[Took]
    looked_at: int
    """Of how many runs, the newest ones, those were found that have ended."""
    reach_ms: int | None
    """How old the oldest of these is; None: there is none."""


NOTHING: Mapping[str, int] = MappingProxyType({})


class KeysHeld(Exception):
    """An open transaction of a caller holds a key: whether it is taken is known when that transaction has ended."""


class Delivery(NamedTuple):
    """What became of mail that was to be delivered."""

    lanes: set[Lane]
    """Where runs that it woke are ready."""
    ended: bool
    """Whether runs were cancelled by it."""
    running: bool
    """Whether some of it was for runs that a worker holds."""
    moved: int
    asked: bool = False
    """Whether runs that a worker holds are to be cancelled by it."""
    timed: bool = False
    """Whether runs are to be made ready at another time because of it."""
    names: bool = False
    """Whether some of the runs that it was for have names to hand on, now or when they end."""


class Promotion(NamedTuple):
    """What became of due runs."""

    lanes: set[Lane]
    ended: list[str]
    moved: int
    asked: bool = False
    """Whether steps that workers hold are to end, because their dag run begins to fail."""


class Reaping(NamedTuple):
    """What became of the runs of dead workers."""

    dead_workers: list[str]
    lanes: set[Lane]
    dead_letters: list[str]
    moved: int
    asked: bool = False
    """Whether steps of dag runs that a worker holds are to end because of it."""


class Transacted(NamedTuple):
    """What a transaction of a step brought."""

    record: StepRecord
    asked: str | None
    """What operators ask of the run: cancel, pause."""


class SchemaState(NamedTuple):
    """How the tables fit this code."""

    version: int
    """0: there are none."""
    newest: int
    compatible_from: int
    pending: list[str]
    """Names of the migrations still to be applied."""
    moved: str | None = None
    """What is said of a namespace that was moved, or that a move fills."""


class Check(NamedTuple):
    """One finding of ``stepfast doctor``."""

    name: str
    ok: bool
    found: str
    advice: str = ""


class Pulse(Protocol):
    """A worker's heartbeat: synchronous, for a thread of its own, on a connection of its own."""

    def beat(self, worker: str, running: int) -> BeatAnswer:
        """Say that the worker lives; hear what it holds."""
        ...

    def close(self) -> None:
        """Give the connection up."""


class Wakeups(NamedTuple):
    """Topics of a wake-up: lanes that have something ready, whether runs have ended, or just that something has."""

    lanes: frozenset[Lane]
    ended: bool
    anything: bool = False
    """Anything may have changed."""
    streams: bool = False
    """Whether items of streams, or answers to questions, were committed."""


class StreamRow(NamedTuple):
    """An item of a stream; without a value it is the end of the stream."""

    number: int
    attempt: int
    restarted: bool
    value: str | None
    format: int
    sent_at: int


class StreamEnd(NamedTuple):
    """What is to come of a run's streams."""

    over: bool
    """Whether the run has ended."""
    continuation: str | None
    """The run that it continues as."""
    links_gone: int = 0
    """How many runs that were between the two have been removed."""


class AwaitedValue(NamedTuple):
    """A value that is waited for."""

    run_id: str
    key: str
    value: str | None
    format: int | None
    over: bool
    """Whether the run has ended, or is not there."""
    status: str | None
    continuation: str | None


class QuestionRow(NamedTuple):
    """The state of a question."""

    id: str
    run_id: str
    """The run that is to answer: the one that was asked, or one that continues it."""
    name: str
    state: str
    answer: str | None
    format: int
    over: bool
    """Whether the run has ended, or is being undone, so that nothing answers any more."""


class AskedRow(NamedTuple):
    """A question to a run, for people."""

    id: str
    name: str
    state: str
    answer: str | None
    format: int
    asked_at: int
    ended_at: int | None


class CallbackAnswer(NamedTuple):
    """What became of an outcome, or a heartbeat, that was given to a callback."""

    row: CallbackRow
    """How the callback stands, or stood before."""
    done: bool = False
    """False: nothing was changed."""
    to_check: bool = False
    """Whether the value is to be checked before it is taken."""
    lane: Lane | None = None
    """The lane in which its run is ready now."""


class MissingRight(ConfigurationError):
    """The user of the database may not do what was asked."""


def mailbox_full(run_id: str, most: int) -> InvalidState:
    """Too many signals lie in a mailbox already."""
    return InvalidState(
        f"run {run_id} has {most} signals that it has not taken, and keeps no more (setting max_signals): is the name "
        "one that it waits for?"
    )
