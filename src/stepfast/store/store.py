"""The contract of a store: what every database can do, in batches. One test suite runs over all implementations."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from ..model.queue_config import Bound
from ..model.rate_limiter import Admission, WantedRuns
from ..model.records import (
    NO_DOUBTS,
    Answer,
    Batch,
    Beat,
    Claimed,
    FlushAnswer,
    HasRecordCount,
    Lane,
    Look,
    Mail,
    Mailbox,
    NewRun,
    StepDone,
    Tick,
)
from ..model.rows import DagOutputs
from .answers import NOTHING, Check, Pulse, SchemaState, Transacted, TransportConnection, Wakeups
from .lock_timeout import Breaks
from .queries import Queries

if TYPE_CHECKING:
    from .readonly import BaseGlance


Key = tuple[str, int]
"""The run of a remote step, and its number there."""


class Due(NamedTuple):
    """Remote steps that somebody has to see to, outside of our tables."""

    tasks: list[Task] = []
    """To be sent; their rows say already that they were. Empty where they were sent in the same transaction."""
    doubtful: list[Task] = []
    """To be looked for: are they still there?"""
    over: list[str] = []
    """Over, but not known to have left nothing behind: to be taken back, and their results to be removed."""
    sent: int = 0
    """How many were sent, by this transaction or by whoever has this."""


class Judgement(NamedTuple):
    """What came of results of remote steps."""

    outcomes: int
    """How many runs are told something."""
    leftover: list[str]
    """Steps that are over but may have a task left, because more than one was sent."""


class TransportConnection(Protocol):
    """A transport of remote steps in the same database: it works in the transaction that is open on a connection."""

    async def dispatch(self, tasks: Sequence[Task], connection: Any = None) -> None:
        """Send tasks out with this transaction."""

    async def remove(self, results: Sequence[Result], connection: Any = None) -> None:
        """Delete results that were recorded."""


class RemoteStepStore(Protocol):
    """A database that holds runs with remote steps. It knows nothing of the transport's own tables."""

    def carry(self, carrier: TransportConnection) -> None:
        """From now on the transport takes part in this store's transactions, because it is in the same database."""

    async def remote_steps(self, run_ids: Sequence[str]) -> list[RemoteStep]:
        """The remote steps of some runs, without their inputs."""
        ...

    async def alive_remote(self, run_id: str) -> dict[str, int | None]:
        """The ids of those of a run's remote steps that still come to something; and of those that had to be sent anew,
        because the run had ended meanwhile, when that was."""
        ...

    async def open_remote(self, carrier: str, after: Key, limit: int) -> list[Key]:
        """A page of the remote steps that wait for a result over a transport, beyond a run and a number."""
        ...

    async def over_remote(self, carrier: str, after: Key, limit: int) -> list[Key]:
        """A page of the remote steps over a transport that nobody seems to wait for any more, beyond a run and a
        number."""
        ...

    async def closed_remote(self, keys: Sequence[Key]) -> list[Key]:
        """The remote steps, of those named, that nothing is left to do about."""
        ...

    async def due_remote(self, carrier: str, joined: bool, sweep_ms: int, way_ms: int, limit: int) -> Due:
        """What somebody has to see to now. Whoever is told does so; ``joined``: sent in the same transaction. Else
        nobody misses a task while it may be on its way, which is ``way_ms``."""
        ...

    async def judge_remote(self, results: Sequence[Result], joined: bool, sweep_ms: int, random: Random) -> Judgement:
        """Decide what results mean, and leave the outcomes in mailboxes; ``joined``: and delete them with that. Else
        whoever has deleted them says so by ``clear_remote``, or they are due after ``sweep_ms``."""
        ...

    async def resend_remote(self, tasks: Sequence[Task], why: str) -> int:
        """Tasks that vanished are to be sent once more; how many runs are told that theirs will never come."""
        ...

    async def refuse_remote(self, tasks: Sequence[Task], why: str) -> int:
        """The transport does not take these tasks, and never will; how many runs are told so."""
        ...

    async def withdraw_remote(self, keys: Sequence[Key]) -> int:
        """Mark remote steps to be taken back, of those named, if nobody waits for them; how many."""
        ...

    async def clear_remote(self, step_ids: Sequence[str]) -> None:
        """Note that remote steps were withdrawn, or are over, and have left nothing behind."""


class ScheduleStore(Protocol):
    """A database that holds schedules."""

    async def schedules(self, names: Sequence[str] | None = None) -> list[ScheduleRow]:
        """All schedules, or those of some names, in the order of their names."""
        ...

    async def declare_schedules(self, worker: str | None, specs: Sequence[ScheduleSpec]) -> Declaration:
        """Store what the code of a worker declares; without a worker only what is not there yet."""
        ...

    async def put_schedule(self, spec: ScheduleSpec) -> FoundSchedule:
        """Make a schedule, or change it; refused if live workers declare it."""
        ...

    async def delete_schedule(self, name: str) -> FoundSchedule:
        """Delete a schedule; refused if live workers declare it."""
        ...

    async def hold_schedule(self, name: str, hold: bool) -> FoundSchedule:
        """Pause a schedule, or let it go on."""
        ...

    async def due_schedules(self, declared: Sequence[str], limit: int) -> list[ScheduleRow]:
        """The schedules that are due, for a worker whose code declares these."""
        ...

    async def fire(self, shots: Sequence[Shot], most: int, grace_ms: int) -> Fired:
        """Start the runs of ticks that have come, one for each, and move the schedules on. Of the missed ticks of a
        schedule at most ``most``; a tick within the grace is not missed yet."""
        ...

    async def fail_schedule(self, row: ScheduleRow, error: str) -> bool:
        """A schedule cannot be started; whether it was still as it is said to be."""
        ...


class BaseSchedules:
    """Schedules as every database holds them: by flows, and by the statements of its own."""

    async def _fetch(self, name: str, *arguments: Any) -> Sequence[Any]:
        raise NotImplementedError

    async def _drive(self, flow: Callable[..., Flow[T]], *arguments: Any) -> T:
        raise NotImplementedError

    async def schedules(self, names: Sequence[str] | None = None) -> list[ScheduleRow]:
        """All schedules, or those of some names."""
        wanted = None if names is None else list(names)
        found = [schedules.read_row(row) for row in await self._fetch("schedules", wanted)]
        return sorted(found, key=lambda row: row.name)  # a database may have an order of its own

    async def declare_schedules(self, worker: str | None, specs: Sequence[ScheduleSpec]) -> Declaration:
        """Store what code declares."""
        return await self._drive(schedules.declare, worker, specs)

    async def put_schedule(self, spec: ScheduleSpec) -> FoundSchedule:
        """Make or change the schedule of a name."""
        return await self._drive(schedules.put_schedule, spec)

    async def delete_schedule(self, name: str) -> FoundSchedule:
        """Delete the schedule of a name."""
        return await self._drive(schedules.delete_schedule, name)

    async def hold_schedule(self, name: str, hold: bool) -> FoundSchedule:
        """Pause a schedule, or let it go on."""
        return await self._drive(schedules.hold_schedule, name, hold)

    async def due_schedules(self, declared: Sequence[str], limit: int) -> list[ScheduleRow]:
        """The schedules that are due, for a worker."""
        return [schedules.read_row(row) for row in await self._fetch("due_schedules", list(declared), limit)]

    async def fire(self, shots: Sequence[Shot], most: int, grace_ms: int) -> Fired:
        """Start the runs of ticks that have come."""
        return await self._drive(schedules.fire, shots, most, grace_ms)

    async def fail_schedule(self, row: ScheduleRow, error: str) -> bool:
        """Say why a schedule cannot be started."""
        return await self._drive(schedules.fail_schedule, row, error)


class Keeper(Protocol):
    """What every store can do with runs that have ended."""

    async def ended_page(self, after: str, window: int, keep: Keep, limit: int) -> EndedPage:
        """Look at the next ``window`` runs after one; the first ``limit`` of them that ended long enough ago."""
        ...

    async def ended_kin(self, gone: Removal, keep: Keep, limit: int) -> list[str]:
        """Runs that ended long enough ago, too, and were kept for the sake of those that are gone."""
        ...

    async def ended(self, ids: Sequence[str]) -> list[Ended]:
        """The runs, of those named, that have ended, in the order of their ids. Steps of dag runs are none."""
        ...

    async def missing(self, ids: Sequence[str]) -> list[str]:
        """The ids, of those named, of runs that are not there, or not any more."""
        ...

    async def weigh(self, ids: Sequence[str]) -> dict[str, Weight]:
        """How much is recorded of each."""
        ...

    async def tries(self, run_id: str) -> list[Try]:
        """The failed tries of a run."""
        ...

    async def remove(self, runs: Sequence[Ended], alone: bool = False) -> Removal | None:
        """Take runs away with all that belongs to them, in one transaction: those that still stand as they were found
        and that nobody needs or holds locked. ``alone``: not while somebody else does the same; then there is None."""
        ...

    async def delete(self, run_id: str) -> Ended | None:
        """Take one run away, unless it has not ended (None) or somebody needs it: who, is told by what comes back."""
        ...


class KeepsRuns:
    """How ended runs are found and taken away on every database, which adds how it is asked."""

    async def _fetch(self, name: str, *arguments: Any) -> Sequence[Any]:
        raise NotImplementedError

    async def _drive(self, flow: Callable[..., Flow[T]], *arguments: Any) -> T:
        raise NotImplementedError

    async def ended_page(self, after: str, window: int, keep: Keep, limit: int) -> EndedPage:
        """Which of the next runs ended long enough ago."""
        rows = await self._fetch("ended_page", after, window, *keep, limit)
        now, busy, seen, oldest, newest, last, *_ = rows[0]
        runs = [Ended(*found) for found in (tuple(row)[6:] for row in rows) if found[0] is not None]
        return EndedPage(runs, last, seen, now - (oldest or now), now - (newest or now), now, bool(busy))

    async def ended_kin(self, gone: Removal, keep: Keep, limit: int) -> list[str]:
        """Runs that were kept for the sake of those that are gone."""
        rows = await self._fetch("ended_kin", [*gone.runs, *gone.steps], gone.origins, *keep, limit)
        return [row[0] for row in rows]

    async def ended(self, ids: Sequence[str]) -> list[Ended]:
        """The runs, of those named, that have ended."""
        return [Ended(*row) for row in await self._fetch("ended", list(ids))] if ids else []

    async def missing(self, ids: Sequence[str]) -> list[str]:
        """The ids of runs that are not there."""
        return [row[0] for row in await self._fetch("missing", list(ids))]

    async def weigh(self, ids: Sequence[str]) -> dict[str, Weight]:
        """How much is recorded of runs."""
        return {row[0]: Weight(row[1], row[2]) for row in await self._fetch("weigh", list(ids))} if ids else {}

    async def tries(self, run_id: str) -> list[Try]:
        """The failed tries of a run."""
        return sorted(Try(*row) for row in await self._fetch("tries_of", run_id))

    async def remove(self, runs: Sequence[Ended], alone: bool = False) -> Removal | None:
        """Take runs away with all that belongs to them."""
        return await self._drive(retention.remove, runs, alone)

    async def delete(self, run_id: str) -> Ended | None:
        """Take one run away."""
        return await self._drive(retention.delete, run_id)


class DebounceStore(Protocol):
    """A database that knows which runs wait for more starts of their keys."""

    async def start_debounced(self, run: NewRun, debounce: Debounce) -> Debounced:
        """Start a run that waits for more starts of its key; or put off the one that does, and give it this input."""
        ...


class BaseDebounces:
    """Debounced starts as every database makes them: by flows."""

    async def _drive(self, flow: Callable[..., Flow[T]], *arguments: Any) -> T:
        raise NotImplementedError

    async def start_debounced(self, run: NewRun, debounce: Debounce) -> Debounced:
        """Start a run that waits, or put it off."""
        return await self._drive(starts.start_debounced, run, debounce)


_TRIMMED = 20
"""Lines that are looked at for each that is written, the oldest first, whether their time is over."""

_SILENT = 60_000
"""Milliseconds without a word after which nobody expects the end of an action any more. Actions take seconds; those
that take longer give word every few seconds."""

BEGUN, DONE, REFUSED, FAILED, INTERRUPTED = "begun", "done", "refused", "failed", "interrupted"
UNKNOWN = "unknown"
"""What a line that was begun is read as when its process has fallen silent."""


class Deed(NamedTuple):
    """What somebody is about to do."""

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


class AuditLine(NamedTuple):
    """What somebody did, and what came of it."""

    id: str
    at: int
    who: str
    what: str
    which: str
    origin: str
    detail: str | None
    outcome: str
    said: str | None


class AuditStore(Protocol):
    """A database that keeps an audit."""

    async def audit_begin(self, deed: Deed, keep_ms: int | None) -> None:
        """Write what is about to be done; some of the lines that are older than this are deleted."""

    async def audit_heard(self, deed_id: str, said: str) -> None:
        """Write how far it is. Whoever takes longer than seconds gives word so."""

    async def audit_end(self, deed_id: str, outcome: str, said: str | None) -> None:
        """Write what came of it."""

    async def audit(self, which: str | None = None, before: str | None = None, limit: int = 50) -> list[AuditLine]:
        """A page of lines, the newest first; ``before`` is the id of the last line of the page before. One whose
        process has fallen silent is ``unknown``."""
        ...


class BaseAudit:
    """The audit as every database keeps it: by the statements of its own."""

    async def _fetch(self, name: str, *arguments: Any) -> Sequence[Any]:
        raise NotImplementedError

    async def _drive(self, flow: Callable[..., Flow[T]], *arguments: Any) -> T:
        raise NotImplementedError

    async def audit_begin(self, deed: Deed, keep_ms: int | None) -> None:
        """Write what is about to be done."""
        await self._drive(_begin, deed, keep_ms)

    async def audit_heard(self, deed_id: str, said: str) -> None:
        """Write how far it is."""
        await self._drive(put, "audit_heard", [(deed_id, said)])

    async def audit_end(self, deed_id: str, outcome: str, said: str | None) -> None:
        """Write what came of it."""
        await self._drive(put, "audit_end", [(deed_id, outcome, said)])

    async def audit(self, which: str | None = None, before: str | None = None, limit: int = 50) -> list[AuditLine]:
        """A page of lines."""
        if which is None:
            rows = await self._fetch("audit_page", before, limit)
        else:
            rows = await self._fetch("audit_of", which, before, limit)
        return [_read(AuditLine(*row[:-1]), row[-1]) for row in rows]


def _begin(deed: Deed, keep_ms: int | None) -> Flow[None]:
    yield from put("audit_begin", [tuple(deed)])
    if keep_ms is not None:
        yield from ask("audit_trim", keep_ms, _TRIMMED)


def _read(line: AuditLine, now: int) -> AuditLine:
    """The line as it is read: without the mark of when its process was last heard of, by which it may be unknown."""
    detail: dict[str, Any] = read_json(line.detail, dict[str, Any], {})
    heard = detail.pop("heard", None)
    heard = heard if isinstance(heard, int) else None
    if heard is not None:
        line = line._replace(detail=msgspec.json.encode(detail).decode() if detail else None)
    if line.outcome != BEGUN or now - (heard or line.at) <= _SILENT:
        return line
    said = "" if line.said is None else f"{line.said}; then "
    return line._replace(outcome=UNKNOWN, said=f"{said}nothing was heard of it any more")


class Census(Struct):
    """How things stand. Counts stop at the bound that was given: so many, or more."""

    runs: dict[str, int]
    """Unfinished runs by status: those that workers hold, that wait, are paused, or are being undone."""
    timer_lag: float
    """For how many seconds something has been due that nobody has made ready yet."""
    undelivered: int
    """Mail that was sent and has not been delivered."""
    queues: dict[str, tuple[int, float]]
    """Of each queue that has something ready: how much, and for how many seconds its first run has been."""
    late: list[tuple[str, bool, float]]
    """Schedules that nobody has come to in time: the name, whether code declares it, and for how many seconds."""


LONG_AT_WORK = 3600.0
"""Seconds. What has been executing for longer is named to operators: it may hang."""


class AtWork(NamedTuple):
    """A run that a worker executes, or a step of it."""

    run_id: str
    workflow: str
    step: str | None
    seconds: float
    """For how long it has been executing."""


class CensusStore(Protocol):
    """A database that can be watched."""

    async def long_at_work(self, seconds: float, most: int) -> list[AtWork]:
        """What has been executing for so long, the longest first; looking at ``most`` runs that workers hold."""
        ...

    async def census(self, most: int) -> Census:
        """How things stand now, counting up to ``most`` of each."""
        ...


class BaseCensus:
    """The census as every database takes it: by the statements of its own."""

    async def _fetch(self, name: str, *arguments: Any) -> Sequence[Any]:
        raise NotImplementedError

    async def census(self, most: int) -> Census:
        """How things stand now."""
        [(now, running, waiting, paused, compensating, next_due, undelivered)] = await self._fetch("census", most)
        runs = {"running": running, "waiting": waiting, "paused": paused, "compensating": compensating}
        lag = 0.0 if next_due is None else max(0, now - next_due) / 1000
        queues = await self.ready(most)
        late = [(name, bool(declared), ms / 1000) for name, declared, ms in await self._fetch("census_schedules", most)]
        return Census(runs, lag, undelivered, queues, late)

    async def long_at_work(self, seconds: float, most: int) -> list[AtWork]:
        """What has been executing for so long; of a run rather its steps than itself."""
        rows = await self._fetch("long_at_work", int(seconds * 1000), most)
        return [AtWork(run_id, workflow, step, lasted / 1000) for run_id, workflow, step, lasted in rows]

    async def ready(self, most: int) -> dict[str, tuple[int, float]]:
        """How much is ready in each queue that has something, and for how many seconds its first run has been."""
        queues: dict[str, tuple[int, float]] = {}
        for queue, ready, oldest in await self._fetch("census_queues", most):
            before = queues.get(queue, (0, 0.0))
            queues[queue] = min(most, before[0] + ready), max(before[1], oldest / 1_000_000)
        return queues


class RunCount(NamedTuple):
    """Runs of a workflow in a queue that stand in a status."""

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


class StatisticsStore(Protocol):
    """A database that can be asked what has happened lately."""

    async def statistics(self, since_ms: int, runs: int, counts: int, steps: int) -> Sample:
        """What happened within a span of time, among the newest ``runs``; unfinished ones counted up to ``counts`` of a
        kind, and up to ``steps`` calls of steps."""
        ...

    async def failures(self, since_ms: int, counts: int) -> list[Failures]:
        """What failed within a span of time, among the newest ``counts`` failed runs, and as many that were undone."""
        ...


class BaseStatistics:
    """Statistics as every database gives them: by the statements of its own."""

    async def _fetch(self, name: str, *arguments: Any) -> Sequence[Any]:
        raise NotImplementedError

    async def statistics(self, since_ms: int, runs: int, counts: int, steps: int) -> Sample:
        """What happened within a span of time."""
        (_, _, _, looked_at, reach), *ended = await self._fetch("stats_ended", runs, since_ms)
        return Sample(
            [RunCount(*row) for row in ended],
            [RunCount(*row) for row in await self._fetch("stats_open", counts)],
            await self.failures(since_ms, counts),
            [Took(*row) for row in await self._fetch("stats_steps", runs, since_ms, steps)],
            looked_at,
            reach,
        )

    async def failures(self, since_ms: int, counts: int) -> list[Failures]:
        """What failed within a span of time."""
        return [Failures(*row) for row in await self._fetch("stats_failures", counts, since_ms)]


NOTHING: Mapping[str, int] = MappingProxyType({})


class KeysHeld(Exception):
    """Somebody's open transaction holds a key: whether the key is taken is known when that transaction has ended."""


MailId = tuple[str, str]
"""A run, and the id of a piece of mail in its mailbox."""


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
    @abstractmethod
    def can_wake(self) -> bool:
        """Whether ``listen`` delivers. Without it everything works by polling."""

    # -- opening and the schema
    @abstractmethod
    async def open(self) -> None:
        """Connect. Says in one sentence what is wrong if it cannot."""

    @abstractmethod
    async def close(self) -> None:
        """Disconnect. If it is cancelled it drops what is left."""

    @abstractmethod
    def drop(self) -> None:
        """Disconnect at once, without waiting for an answer: for whoever was cancelled."""

    @abstractmethod
    async def schema_state(self) -> SchemaState:
        """Where the tables stand."""

    @abstractmethod
    async def migrate(self) -> list[str]:
        """Bring the tables up to date; the names of what was applied. Idempotent, safe when many call at once."""

    @abstractmethod
    def migration_sql(self) -> str:
        """The whole of it as a script, for those who apply it themselves."""

    @abstractmethod
    def roles_sql(self) -> str:
        """A script that makes roles of least privilege, where the database has roles."""

    @abstractmethod
    def names(self) -> list[str]:
        """The tables and views that a reset drops."""

    @abstractmethod
    async def reset(self) -> None:
        """Drop everything of this namespace."""

    @abstractmethod
    async def doctor(self) -> list[Check]:
        """Check connection, version, clock, wake-ups, pool."""

    @abstractmethod
    def glance(self, patience: float) -> BaseGlance:
        """The store as those see it who only watch: it writes nothing, and gives each question up in so many seconds.
        Made within the event loop that asks."""

    # -- definitions and starts

    @abstractmethod
    async def start(self, runs: Sequence[NewRun], at_once: bool = False) -> list[str]:
        """Insert runs, all or none; their ids, or for a key already taken the id of the run that has it. While
        somebody's open transaction holds a key this waits; ``at_once`` it raises ``KeysHeld`` and has done nothing."""

    @abstractmethod
    async def start_within(self, connection: Any, runs: Sequence[NewRun]) -> list[str]:
        """Insert runs on a connection of the caller's, in the caller's transaction: inserts only, locks nothing."""

    @abstractmethod
    async def send_within(self, connection: Any, mail: Mail) -> Answer:
        """Send a signal in the caller's transaction: inserts only; ``deliver`` does the rest after the commit."""

    # -- reading

    @abstractmethod
    async def dag_outputs(self, wanted: Sequence[tuple[str, int]]) -> dict[str, DagOutputs]:
        """The inputs of dag runs, and the outputs of their steps that were completed at a time or after."""

    # -- queues

    @abstractmethod
    async def start_bounded(self, runs: Sequence[NewRun], bound: Bound) -> list[str]:
        """Like ``start``, all or none, unless more than so many would be ready in their queue: QueueFull. One start
        into the queue at a time. Runs whose key is taken are not counted."""

    # -- operators and senders

    # -- workers

    @abstractmethod
    def pulse(self, patience: float = 10.0) -> Pulse:
        """A heartbeat for a thread of its own; a beat that takes longer than ``patience`` seconds has failed."""

    @abstractmethod
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

    @abstractmethod
    async def claim_suspects(
        self, worker: str, token: int, versions: dict[str, str], queues: Sequence[str] | None, room: Sequence[int]
    ) -> list[Claimed]:
        """A group of runs that workers have died with: of those that have the fewest losses as many as there is
        ``room`` for, which is said for two losses, for three, and so on; the last number holds for all beyond."""

    @abstractmethod
    async def claim_limited(
        self, worker: str, token: int, want: WantedRuns, remembered: Mapping[str, int] = NOTHING
    ) -> Admission:
        """Ready runs of a limited queue, as many as its limits allow. Called again with the same token it returns what
        the first call took."""

    @abstractmethod
    async def flush(self, worker: str, batch: Batch) -> FlushAnswer:
        """Write the journal: one transaction, fenced run by run."""

    @abstractmethod
    async def transact(
        self, worker: str, run_id: str, claim: int, address: tuple[str, int], call: Callable[[Any], Any],
        record: Callable[[Any], StepDone], timeout: float | None, unverified: Mapping[str, HasRecordCount] = NO_DOUBTS,
    ) -> Transacted:  # fmt: skip
        """Call a function with a connection inside a transaction, and commit what it did together with the record of
        its result. The fence and the record come last. If the record is there already, made under this claim, it is
        returned and the function is not called. RecordsVanished if the run is one of the ``unverified`` and fewer of
        its records are stored than its worker believes. LeaseLost if the run is not this worker's any more; what the
        function raises undoes everything and is raised."""

    @abstractmethod
    async def mail(self, looks: Sequence[Look]) -> dict[str, Mailbox]:
        """Looks into the mailboxes of some runs: what was sent to them and is new to who looks, no more than about
        ``mail_bytes`` for each, but of each name that is waited for the oldest in any case."""
        ...

    async def deliver(self, limit: int, only: Sequence[MailId] | None = None) -> Delivery:
        """Take mail that was only inserted to its runs: count it, wake who waits for it, carry out cancellations. All
        of it, in a bounded batch, or ``only`` this."""
        ...

    async def undelivered(self, limit: int) -> list[MailId]:
        """The mail that the next batch would take, if nobody holds its runs."""
        ...

    async def leave_undelivered(self, mail: MailId) -> None:
        """A piece of mail stays where it is, and its run is not told of it."""

    async def give_back(self, worker: str, held: Sequence[tuple[str, int]]) -> None:
        """Make (run, claim) pairs ready again at once; no attempt, no loss."""

    @abstractmethod
    async def tick(
        self, worker: str, workflows: Sequence[str] | None, lanes: bool, queues: Sequence[str] | None = None,
        schedules: Sequence[str] = (),
    ) -> Tick:  # fmt: skip
        """Which duties have work, for a worker that knows these workflows, serves these queues (None: all) and declares
        these schedules?"""
        ...

    async def promote(self, limit: int, only: Sequence[str] | None = None) -> Promotion:
        """Make due sleepers ready; end what expired. All of them, in a bounded batch, or ``only`` these."""
        ...

    async def due_runs(self, limit: int) -> list[str]:
        """The runs that the next batch of those would move, if nobody holds them."""
        ...

    async def lost_runs(self, limit: int) -> list[str]:
        """The runs that the next batch of a reaping would give back, if nobody holds them."""
        ...

    async def set_aside(self, run_id: str) -> None:
        """Hold a run that a sweep cannot move: it is paused, whatever it did, and in nobody's hands, so that no sweep
        finds it again. What it would become is not decided, and what has ended stays so."""

    async def beats(self, worker: str) -> list[Beat]:
        """The last beats of all other workers that nobody has declared dead."""
        ...

    async def expire(self, workers: Sequence[str]) -> None:
        """The processes of these workers are known to be gone: their leases are over."""

    async def reap(
        self, worker: str, limit: int, max_losses: int, silent: Sequence[str] | None = None,
        only: Sequence[str] | None = None,
    ) -> Reaping:  # fmt: skip
        """Declare workers dead whose lease is over, but only those of the ``silent`` (None: all of them); give back
        what dead workers held, in a bounded batch, or ``only`` these runs."""
        ...

    # -- wake-ups
    @abstractmethod
    async def notify(self, wakeups: Wakeups) -> None:
        """Wake others. A transaction of its own, after the data is committed; never required."""

    @abstractmethod
    async def listen(self, heard: Callable[[Wakeups], None]) -> None:
        """Call ``heard`` at each wake-up until the store is closed. Reconnects by itself."""

    # -- remote steps
    def carry(self, carrier: TransportConnection) -> None:
        """Let the transport take part in this store's transactions from now on, because it is in the same database."""
        raise NotImplementedError(f"no transport is in the same database as {type(self).__name__}")
