"""What every store can do. One protocol, batch-shaped; one test suite runs over all that implement it.

All methods raise ``DatabaseUnavailable`` when the database cannot be reached or the connection broke; every write is
then safe to repeat with the same arguments, because the reply may have been lost after the commit.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

from ..errors import ConfigurationError, InvalidState
from ..model.bulk_actions import Granted
from ..model.queue_config import Bound, Decision, Gate
from ..model.rate_limiter import Admission, Usage, WantedRuns
from ..model.records import (
    NO_DOUBTS,
    Answer,
    Batch,
    Beat,
    BeatAnswer,
    Believer,
    Claimed,
    FlushAnswer,
    Lane,
    Look,
    Mail,
    Mailbox,
    NewRun,
    StepDone,
    StepRecord,
    StepRunning,
    Tick,
    WorkerInfo,
)
from ..model.rows import (
    NO_CALL,
    ActivityRow,
    CallKey,
    DagOutputs,
    DagStepRow,
    Definition,
    ExecutorRow,
    Outcome,
    ProgressRow,
    QueueDepth,
    RunRow,
)
from ..model.transitions.operator import NewTime
from .audit import AuditStore
from .breaks import Breaks
from .census import CensusStore
from .debouncing import DebounceStore
from .keeping import Keeper
from .remote_port import RemoteStepStore
from .schedules import ScheduleStore
from .statistics import StatisticsStore

if TYPE_CHECKING:
    from .glance import BaseGlance

NOTHING: Mapping[str, int] = MappingProxyType({})


class KeysHeld(Exception):
    """Somebody's open transaction holds a key: whether the key is taken is known when that transaction has ended."""


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


class Promotion(NamedTuple):
    """What became of due runs."""

    lanes: set[Lane]
    ended: list[str]
    moved: int
    asked: bool = False
    """Whether steps that workers hold are to end, because their dag run begins to fail."""


class Reaping(NamedTuple):
    """What became of the runs of dead workers."""

    buried: list[str]
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
    """How the tables stand to this code."""

    version: int
    """0: there are none."""
    newest: int
    compatible_from: int
    pending: list[str]
    """Names of the migrations still to be applied."""


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
    """Something may have changed, nobody knows what."""


class MissingRight(ConfigurationError):
    """The user of the database may not do what was asked."""


def mailbox_full(run_id: str, most: int) -> InvalidState:
    """Too many signals lie in a mailbox already."""
    return InvalidState(
        f"run {run_id} has {most} signals that it has not taken, and keeps no more (setting max_signals): is the name "
        "one that it waits for?"
    )


def holds_all(mail: Sequence[Mail], most: int) -> bool:
    """Whether a look was not cut short by the bytes that it may bring. A character has up to four bytes."""
    return 4 * sum(len(each.value or "") + len(each.error or "") for each in mail) < most


class Store(Keeper, ScheduleStore, DebounceStore, RemoteStepStore, CensusStore, StatisticsStore, AuditStore, Protocol):
    """A database that holds runs."""

    dialect: str
    breaks: Breaks
    """Tells when a connection broke: what was committed before may be gone."""

    @property
    def can_wake(self) -> bool:
        """Whether ``listen`` delivers. Without it everything works by polling."""
        ...

    # -- opening and the schema
    async def open(self) -> None:
        """Connect. Says in one sentence what is wrong if it cannot."""

    async def close(self) -> None:
        """Disconnect. If it is cancelled it drops what is left."""

    def drop(self) -> None:
        """Disconnect at once, without waiting for an answer: for whoever was cancelled."""

    async def schema_state(self) -> SchemaState:
        """Where the tables stand."""
        ...

    async def migrate(self) -> list[str]:
        """Bring the tables up to date; the names of what was applied. Idempotent, safe when many call at once."""
        ...

    def migration_sql(self) -> str:
        """The whole of it as a script, for those who apply it themselves."""
        ...

    def roles_sql(self) -> str:
        """A script that makes roles of least privilege, where the database has roles."""
        ...

    def names(self) -> list[str]:
        """The tables and views that a reset drops."""
        ...

    async def reset(self) -> None:
        """Drop everything of this namespace."""

    async def doctor(self) -> list[Check]:
        """Check connection, version, clock, wake-ups, pool."""
        ...

    def glance(self, patience: float) -> BaseGlance:
        """The store as those see it who only watch: it writes nothing, and gives each question up in so many seconds.
        Made within the event loop that asks."""
        ...

    # -- definitions and starts
    async def put_definitions(self, definitions: Sequence[Definition]) -> None:
        """Store what the code declares."""

    async def definitions(self) -> list[Definition]:
        """The current definition of each workflow."""
        ...

    async def start(self, runs: Sequence[NewRun], at_once: bool = False) -> list[str]:
        """Insert runs, all or none; their ids, or for a key already taken the id of the run that has it. While
        somebody's open transaction holds a key this waits; ``at_once`` it raises ``KeysHeld`` and has done nothing."""
        ...

    async def start_within(self, connection: Any, runs: Sequence[NewRun]) -> list[str]:
        """Insert runs on a connection of the caller's, in the caller's transaction: inserts only, locks nothing."""
        ...

    async def send_within(self, connection: Any, mail: Mail) -> Answer:
        """Send a signal in the caller's transaction: inserts only; ``deliver`` does the rest after the commit."""
        ...

    # -- reading
    async def outcomes(self, ids: Sequence[str]) -> list[Outcome]:
        """How the runs ended that have; of the others nothing."""
        ...

    async def heir(self, run_id: str) -> str:
        """The last of the runs that one went on as (``ctx.continue_as``); itself, if it did not."""
        ...

    async def run(self, run_id: str) -> RunRow | None:
        """One run with its payloads; None if there is none of that id."""
        ...

    async def runs(
        self,
        *,
        workflow: str | None = None,
        status: str | None = None,
        queue: str | None = None,
        tag: str | None = None,
        reason: str | None = None,
        key: str | None = None,
        before: str | None = None,
        limit: int = 50,
        since_ms: int | None = None,
        older_ms: int | None = None,
        oldest_first: bool = False,
    ) -> list[RunRow]:
        """A page of runs, newest first unless told otherwise; ``before`` is the last id of the page before.
        ``since_ms`` and ``older_ms`` bound the age of runs by the database's clock. Large inputs and outputs are left
        out, and the row says so."""
        ...

    async def ids_between(self, first: str, last: str, limit: int) -> list[str]:
        """Ids of runs from the one to the other. Left out: steps of dag runs, children of runs that are found."""
        ...

    async def unread(self, run_id: str, limit: int = 20) -> list[tuple[str, int]]:
        """Names of signals that a run has not taken yet, the oldest first, and how many of each."""
        ...

    async def awaited(self, run_id: str, signal: str) -> list[str | None]:
        """What is kept of each wait for a signal that a run has given its slot back in: its plan, as JSON."""
        ...

    async def steps(self, run_id: str, after: tuple[str, int] = ("", -1), limit: int = 1000) -> list[StepRecord]:
        """A page of recorded outcomes, by (branch, position)."""
        ...

    async def executors(self, run_ids: Sequence[str]) -> dict[str, list[ExecutorRow]]:
        """Who executed each of some runs: the workers of its claims, in their order."""
        ...

    async def progress(self, run_id: str) -> list[ProgressRow]:
        """What is under way."""
        ...

    async def last_words(self, run_id: str, first: tuple[str, int], last: tuple[str, int]) -> list[ProgressRow]:
        """What steps have told of their progress, by (branch, position); also of those that ended."""
        ...

    async def failed_calls(self, run_id: str, attempt: int) -> dict[tuple[str, int], int]:
        """How often steps have failed in an attempt of their run."""
        ...

    async def activity(self, run_id: str, after: CallKey = NO_CALL, limit: int = 10_000) -> list[ActivityRow]:
        """A page of the calls of one run, by address and try; ``after`` is the last of the page before."""
        ...

    async def workers(self) -> list[WorkerInfo]:
        """Every worker that is registered, dead ones included."""
        ...

    async def run_with_key(self, workflow: str, key: str) -> str | None:
        """The id of the run of a workflow that has a key, or that was debounced by it and has not begun; None: there is
        none."""
        ...

    async def suspects(self) -> list[tuple[str, str, int]]:
        """How many runs that workers have died with are ready: (queue, workflow, count)."""
        ...

    async def dag_steps(self, dag_id: str) -> list[DagStepRow]:
        """The steps of a dag run, in the order they were started in."""
        ...

    async def dag_outputs(self, wanted: Sequence[tuple[str, int]]) -> dict[str, DagOutputs]:
        """The inputs of dag runs, and the outputs of their steps that were completed at a time or after."""
        ...

    async def graph(self, name: str, version: str, dag_id: str) -> str | None:
        """The stored graph of a dag in a version, or the copy that this run of it brought along."""
        ...

    async def value(self, run_id: str, key: str) -> tuple[str, int] | None:
        """A value that the run lets others read, and its format."""
        ...

    async def values(self, run_id: str) -> list[tuple[str, str, int]]:
        """All values that the run lets others read: (key, value, format)."""
        ...

    async def seed(self, run_id: str) -> str | None:
        """The secret that a run's random values are made from, for a replay outside of a worker. Nobody is shown it."""
        ...

    # -- queues
    async def queues(self) -> list[Gate]:
        """What is said about queues, by name; nothing is about most."""
        ...

    async def queue_depths(self) -> list[QueueDepth]:
        """How much there is in each queue that has something."""
        ...

    async def measure(self, queue: str, key: str | None) -> tuple[Gate, Usage]:
        """What is said about a queue, and what counts against its limits, those of a key among them."""
        ...

    async def change_queue(self, name: str, decide: Decision) -> tuple[Gate, Gate]:
        """Decide something about a queue, with its row locked: how it was, and how it is now. It holds for every claim
        that begins when this has returned."""
        ...

    async def queue_bounds(self) -> dict[str, int]:
        """The queues that take no more than so many ready runs (``max_ready``)."""
        ...

    async def count_ready(self, queue: str, most: int) -> int:
        """How many runs of a queue are ready, counted no further than so many."""
        ...

    async def start_bounded(self, runs: Sequence[NewRun], bound: Bound) -> list[str]:
        """Like ``start``, all or none, unless more than so many would be ready in their queue: QueueFull. One start
        into the queue at a time. Runs whose key is taken are not counted."""
        ...

    async def declare_queues(self, wanted: Mapping[str, Decision]) -> list[tuple[Gate, Gate]]:
        """Store what the code declares of queues: of those that said something else so far, how they were, and how they
        are now."""
        ...

    # -- operators and senders
    async def retry(self, run_id: str) -> set[Lane] | None:
        """Queue a failed or cancelled run again, keeping its records but those its error belongs to; of a dag run, the
        steps that did not complete. Where it, or they, are ready now. Refused (None) once an undo has begun."""
        ...

    async def send(self, mail: Mail, again: bool = False) -> Answer:
        """Put a signal into a run's mailbox and wake the run; refused if the run has ended. Safe to repeat: who does
        not know whether it came through asks ``again``, and it is not sent twice even if it was taken meanwhile."""
        ...

    async def cancel(self, run_id: str) -> Answer:
        """End a run that nobody holds (or begin its undoing); mark one that is held, for its owner to see."""
        ...

    async def pause(self, run_id: str) -> Answer:
        """Hold a run; mark one that a worker holds. Its time to wake is kept."""
        ...

    async def resume(self, run_id: str) -> Answer:
        """Let a paused run go on: at once, or when it would have been due; take back a mark."""
        ...

    async def reschedule(self, run_id: str, wanted: NewTime) -> Answer:
        """Move the time at which a run is due that waits in its queue or for a retry, or its priority; of a dag run
        those of its steps."""
        ...

    async def grant(self, wish: str, ids: Sequence[str]) -> Granted:
        """Cancel, pause, resume or retry many runs by few statements. Dag runs, and rows that somebody holds locked,
        are left to be asked one by one."""
        ...

    # -- workers
    async def register(self, worker: WorkerInfo) -> None:
        """A worker comes to life."""

    async def tell_progress(self, worker: str, entries: Sequence[StepRunning]) -> None:
        """What steps are doing, of runs that are still this worker's; no row of a run is locked for it."""

    async def worker_state(self, worker: str, state: str) -> None:
        """A worker says it is stopping."""

    async def unregister(self, worker: str) -> None:
        """A worker leaves in good order; what still names it is ready again."""

    def pulse(self, patience: float = 10.0) -> Pulse:
        """A heartbeat for a thread of its own; a beat that takes longer than ``patience`` seconds has failed."""
        ...

    async def claim(
        self,
        worker: str,
        token: int,
        lanes: Sequence[tuple[Lane, int]],
        versions: dict[str, str],
        limit: int,
        remembered: Mapping[str, int] = NOTHING,
    ) -> list[Claimed]:
        """Up to ``limit`` ready runs of these lanes (each with its mark), highest priority first, then oldest, with
        their first records. Called again with the same token it returns what the first call took. Runs whose records
        the caller ``remembered`` as of a claim number come without them if nobody has claimed them since."""
        ...

    async def claim_suspects(
        self, worker: str, token: int, versions: dict[str, str], queues: Sequence[str] | None, room: Sequence[int]
    ) -> list[Claimed]:
        """A group of runs that workers have died with: of those that have the fewest losses as many as there is
        ``room`` for, which is said for two losses, for three, and so on; the last number holds for all beyond."""
        ...

    async def claim_limited(
        self, worker: str, token: int, want: WantedRuns, remembered: Mapping[str, int] = NOTHING
    ) -> Admission:
        """Ready runs of a limited queue, as many as its limits allow. Called again with the same token it returns what
        the first call took."""
        ...

    async def flush(self, worker: str, batch: Batch) -> FlushAnswer:
        """Write the journal: one transaction, fenced run by run."""
        ...

    async def transact(
        self, worker: str, run_id: str, claim: int, address: tuple[str, int], call: Callable[[Any], Any],
        record: Callable[[Any], StepDone], timeout: float | None, doubts: Mapping[str, Believer] = NO_DOUBTS,
    ) -> Transacted:  # fmt: skip
        """Call a function with a connection inside a transaction, and commit what it did together with the record of
        its result. The fence and the record come last. If the record is there already, made under this claim, it is
        returned and the function is not called. RecordsVanished if it is one of the ``doubts`` and less is stored of
        it than is believed. LeaseLost if the run is not this worker's any more; what the
        function raises undoes everything and is raised."""
        ...

    async def mail(self, looks: Sequence[Look]) -> dict[str, Mailbox]:
        """Looks into the mailboxes of some runs: what was sent to them and is new to who looks, no more than about
        ``mail_bytes`` for each, but of each name that is waited for the oldest in any case."""
        ...

    async def deliver(self, limit: int) -> Delivery:
        """Take mail that was only inserted to its runs: count it, wake who waits for it, carry out cancellations."""
        ...

    async def give_back(self, worker: str, held: Sequence[tuple[str, int]]) -> None:
        """Make (run, claim) pairs ready again at once; no attempt, no loss."""

    async def tick(
        self, worker: str, workflows: Sequence[str] | None, lanes: bool, queues: Sequence[str] | None = None,
        schedules: Sequence[str] = (),
    ) -> Tick:  # fmt: skip
        """Which duties have work, for a worker that knows these workflows, serves these queues (None: all) and declares
        these schedules?"""
        ...

    async def promote(self, limit: int) -> Promotion:
        """Make due sleepers ready; end what expired."""
        ...

    async def beats(self, worker: str) -> list[Beat]:
        """The last beats of all other workers that nobody has declared dead."""
        ...

    async def expire(self, workers: Sequence[str]) -> None:
        """The processes of these workers are known to be gone: their leases are over."""

    async def reap(self, worker: str, limit: int, max_losses: int, silent: Sequence[str] | None = None) -> Reaping:
        """Declare workers dead whose lease is over, but only those of the ``silent`` (None: all of them); give back
        what dead workers held, in a bounded batch."""
        ...

    # -- wake-ups
    async def notify(self, wakeups: Wakeups) -> None:
        """Wake others. A transaction of its own, after the data is committed; never required."""

    async def listen(self, heard: Callable[[Wakeups], None]) -> None:
        """Call ``heard`` at each wake-up until the store is closed. Reconnects by itself."""
