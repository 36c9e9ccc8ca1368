"""The values that go between engine and store: records, batches of the journal, and the answers to them."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Mapping, Sequence
from types import MappingProxyType
from typing import NamedTuple, Protocol, TypeVar

from msgspec import Struct, field

from ..settings import FORMAT
from .attributes import Attribute
from .graph import Settled
from .remote_steps import Dispatch
from .status import WAITING

RUN_ITSELF = -1
"""The position under which the failed tries of a run as a whole are kept; steps count from 0."""


class RunShape(NamedTuple):
    """What many starts have in common, so that a batch is sent as a few scalars and three arrays."""

    workflow: str
    version: str
    queue: str
    priority: int = 0
    delay_ms: int = 0
    at_ms: int | None = None
    expires_ms: int | None = None
    deadline_ms: int | None = None
    max_attempts: int | None = None
    timeout_ms: int | None = None
    tags: tuple[str, ...] = ()
    concurrency_key: str | None = None
    format: int = FORMAT


class Parent(NamedTuple):
    """Whose child a run is: the address in the parent's code, and the id under which the parent waits for its end."""

    run_id: str
    branch: str
    position: int
    reply_to: str


class NewDagStep(NamedTuple):
    """Which step of which dag run a new row is, and how many others it waits for."""

    dag_id: str
    name: str
    pending: int


RETURN, RAISE, CANCEL, QUEUE = "return", "raise", "cancel", "queue"
ON_CONFLICT = (RETURN, RAISE, CANCEL, QUEUE)
"""What a start does that finds its name taken."""


class Unique(Struct):
    """A start that makes the one live run of a name, unless there is one. The store fills in what it found."""

    name: str
    on_conflict: str
    """What becomes of the start if there is one: a word of ``ON_CONFLICT``."""
    signal: Mail | None = None
    """What is put into the mailbox of the run, whichever it is. ``run_id`` is not known yet."""
    together: bool = False
    """Whether nothing is started where one of several names is taken, and that is refused."""
    tried: bool = False
    """Whether it was sent before, and its reply may have been lost."""
    check: bool = True
    """Whether the value is compared with what the run waits for before it is sent."""
    waits: bool = False
    """Whether the run waits for the name, which another has."""
    holder: str | None = None
    """The live run that has the name already."""
    answer: Answer | None = None
    """What became of the signal to that run."""


class NewRun(Struct, gc=False):
    """A run that is to be started."""

    id: str
    shape: RunShape
    input: str
    key: str | None = None
    parent: Parent | None = None
    origin: str | None = None
    """The run that this one continues or repeats."""
    trace: str | None = None
    """What observers send along with it, as JSON."""
    graph: str | None = None
    """For a dag run and its steps: the version of the graph it goes by."""
    steps: int = 0
    """For a dag run: how many steps it has. They are started in the same call, after it."""
    dag_step: NewDagStep | None = None
    unique: Unique | None = None
    """The name that it is to have alone, as long as it lives."""
    graph_text: str | None = None
    """For a dag run whose graph may not be stored yet: the graph itself, to be stored with the run."""
    attributes: tuple[Attribute, ...] = ()
    detached: bool = False
    """For a child: whether it is not cancelled with its parent."""
    earlier: tuple[str, int] | None = None
    """Filled in by the store if another run has the key: the input of that one, if it is small, and its format."""


class Lane(NamedTuple):
    """Where ready runs wait in order: a queue, a workflow and a priority."""

    queue: str
    workflow: str
    priority: int


class StepRecord(Struct, gc=False):
    """The recorded outcome of a step, as it is read back."""

    branch: str
    position: int
    seq: int
    name: str
    kind: str
    status: str
    output: str | None
    error: str | None
    arguments: str | None
    attempts: int
    started_at: int
    completed_at: int
    line: str | None
    format: int = FORMAT
    undo: str | None = None
    claim: int = 0
    """The claim that recorded it; only told where people read it."""
    losses: int | None = None
    """How many workers died during the call, or may have; told in the same places."""


class Claimed(Struct, gc=False):
    """A run that a claim handed to this worker."""

    id: str
    workflow: str
    queue: str
    priority: int
    claim: int
    attempt: int
    first_attempt: int
    losses: int
    wakes: int
    format: int
    input: str
    max_attempts: int | None
    timeout_ms: int | None
    deadline_in_ms: int | None
    started_at: int
    place: int
    last_version: str | None
    asked: str | None = None
    ends: int = 0
    """How many ends of its children were delivered to it."""
    undoing: bool = False
    """Whether its completed steps are being undone."""
    parent_id: str | None = None
    now_ms: int = 0
    """The database's time of the claim."""
    dag_id: str | None = None
    dag_step: str | None = None
    """For a step of a dag run: which."""
    graph: str | None = None
    ready_at: int | None = None
    """When it became ready: outputs of later steps are not for it."""
    failing: bool = False
    """For a dag run: one of its steps failed, or it was cancelled."""
    reason: str | None = None
    seed: str = ""
    """What the random values of the run are made from; a secret."""
    trace: str | None = None
    """The same; since a worker let go of it, as its observers left it."""
    unrecorded_losses: int = 0
    """Workers that died with it since its last record."""
    named: bool = False
    """Whether it has a name alone, as long as it lives."""
    records: list[StepRecord] = field(default_factory=list)
    complete: bool = True
    """Whether ``records`` is the whole history, or pages are missing."""
    tries: dict[tuple[str, int], Tries] = field(default_factory=dict)
    """Failed tries of the present attempt, for steps that have no outcome yet."""
    worker: str = ""
    """The worker that executes it, set by that worker."""
    limited: bool = False
    """Whether its queue is limited: then it counts only while it is executed, and leaves at each wait."""


class Tries(NamedTuple):
    """The failed tries of a step: how many, and when the next one is due."""

    failures: int
    due_at: int


class StepDone(NamedTuple):
    """Journal entry: the outcome of a step. A tuple, because a flush turns hundreds of them into columns.

    With the status ``waiting`` it is not the outcome yet, but what was decided when the step began (the time a sleep
    ends, that a child was started); it may be replaced, once, by the outcome.
    """

    run_id: str
    claim: int
    branch: str
    position: int
    seq: int
    name: str
    kind: str
    status: str
    output: str | None
    error: str | None
    arguments: str | None
    attempts: int
    duration_ms: int
    line: str | None
    format: int = FORMAT
    undo: str | None = None
    """The name of the function that undoes it, if it has one."""
    losses: int | None = None
    """How many workers died with the run while this call was under way, or may have been."""


class QuestionAnswer(NamedTuple):
    """The end of a question."""

    id: str
    state: str
    """``answered`` or ``refused``."""
    answer: str | None
    """The answer, or why it is refused."""
    format: int


class NewCallback(NamedTuple):
    """A callback that a run makes."""

    id: str
    """The hash of its token."""
    run_id: str
    name: str
    expects: str | None
    """The JSON schema of its value, if that is known and not too large."""
    timeout_ms: int | None
    heartbeat_ms: int | None
    attempt: int
    """The attempt of the run that makes it."""


class CallbackOutcome(NamedTuple):
    """The end of a callback."""

    state: str
    """``completed``, ``failed`` or ``timed_out``."""
    value: str | None
    error: str | None
    format: int


class EventTaken(NamedTuple):
    """An event that a run takes."""

    id: str
    """Of its row."""
    waited: str
    """The key that the run waited for; empty: any."""


class StepWith(Struct, gc=False):
    """Journal entry: the outcome of a step together with what must happen in the same transaction."""

    step: StepDone
    takes: list[str] = field(default_factory=list)
    """Ids of mail that the run takes by this record."""
    starts: list[NewRun] = field(default_factory=list)
    """Children that this record starts, unless the run is being cancelled."""
    sends: list[Dispatch] = field(default_factory=list)
    """Remote steps that go out with this record, unless the run is being cancelled."""
    answers: list[QuestionAnswer] = field(default_factory=list)
    """Questions that this record answers or refuses."""
    callbacks: list[NewCallback] = field(default_factory=list)
    """Callbacks that this record makes."""
    event: EventTaken | None = None
    """The event that it takes."""
    attributes: tuple[Attribute, ...] = ()
    """Attributes that the run has from this record on."""

    @property
    def run_id(self) -> str:
        """Whose entry it is."""
        return self.step.run_id

    @property
    def claim(self) -> int:
        """The number of the claim that the entry is written under."""
        return self.step.claim


class FailedTry(Struct, gc=False):
    """Journal entry: one failed try of a step, or (at position ``RUN_ITSELF``) one failed attempt of the run."""

    run_id: str
    claim: int
    branch: str
    position: int
    attempt: int
    number: int
    name: str
    error: str
    arguments: str | None
    duration_ms: int
    format: int = FORMAT
    retry_ms: int = 0
    """How long after this the next try is due."""


class ValueSet(Struct, gc=False):
    """Journal entry, latest wins: a value that the run lets others read."""

    run_id: str
    claim: int
    key: str
    value: str
    format: int = FORMAT


class StepRunning(Struct, gc=False):
    """Journal entry, latest wins: a step is under way, and what it says of its progress."""

    run_id: str
    claim: int
    branch: str
    position: int
    name: str
    detail: str | None
    data: str | None
    since_ms: int
    format: int = FORMAT


class StreamItem(NamedTuple):
    """An item of a stream; without a value it is the end of the stream. In the log of a run that says that all lines
    before its number were logged, and have no room."""

    owner: str
    """The run whose stream it is."""
    stream: str
    source: str
    """What sends: a branch of the workflow, or a step."""
    claim: int | None
    """Of a step: the claim under which it is called. None: an item of workflow code, sent once in the life of a run."""
    number: int
    """Its number among those of its source, from 0; of a step, among those of its try."""
    attempt: int
    value: str | None
    format: int


class StreamItems(Struct, gc=False):
    """Journal entry: items of streams, in the order in which they were sent. It takes more until it leaves."""

    run_id: str
    claim: int
    most_items: int
    """Items that a stream takes."""
    most_bytes: int
    """Bytes that they may have together."""
    items: list[StreamItem] = field(default_factory=list)
    size: int = 0
    left: bool = False
    """Whether it is part of a batch, and takes no more items."""
    most_lines: int = 10_000
    """Lines that the log of a run takes; more are counted."""


class EventWait(Struct, gc=False):
    """Journal entry: the run is to be woken by the next event of a name and a key."""

    run_id: str
    claim: int
    name: str
    key: str
    """Empty: of any key."""


class Transition(Struct, gc=False):
    """Journal entry: the run leaves this worker, for good or for a while.

    ``status`` is where it goes. ``due_at`` (a time of the database) or ``delay_ms`` is when it is due again (neither:
    not by time). ``wakes`` is the number seen when the mailbox was looked at; if the row holds another by then, a
    waiting run becomes ready instead. ``awaits`` is the number of delivered ends of children at which it is to be
    woken. ``forget`` names the records that the next attempt is to make again.

    ``compensating`` begins, or goes on with, the undoing of completed steps. A ``successor`` is started in the same
    transaction and takes over the mail and the parent.
    """

    run_id: str
    claim: int
    status: str
    reason: str | None = None
    output: str | None = None
    error: str | None = None
    delay_ms: int | None = None
    waiting_for: str | None = None
    wakes: int | None = None
    next_attempt: bool = False
    needs_new_record: bool = False
    """Whether it has to come to a new record before it can be cancelled, and so needs the next attempt even then."""
    recorded: bool = False
    """Whether this claim made a new record; if so the losses are counted from zero."""
    version: str | None = None
    forget: list[tuple[str, int]] = field(default_factory=list)
    drop: list[tuple[str, int]] = field(default_factory=list)
    """Records that do not stay, no matter what becomes of the run: this claim made them by code that diverges."""
    format: int = FORMAT
    due_at: int | None = None
    awaits: int | None = None
    linger_ms: int = 0
    """For how long ends of children are gathered before they wake it: about as long as waking costs."""
    child: bool = False
    """Whether it has a parent, which must hear of its end."""
    named: bool = False
    """Whether it has a name alone, which a start may wait for."""
    successor: NewRun | None = None
    settled: Settled | None = None
    """For a step of a dag run that ends: what it means to the others."""
    trace: str | None = None
    """What observers leave for the worker that takes the run next."""


Entry = StepDone | StepWith | FailedTry | StepRunning | ValueSet | StreamItems | EventWait | Transition


class Mail(Struct, gc=False):
    """A message in a run's mailbox: a signal, the end of a child, or the outcome of a remote step.

    For a signal ``name`` is its name. For the others ``id`` is the id the run waits for and ``name`` the status.
    """

    run_id: str
    id: str
    kind: str
    name: str
    value: str | None
    error: str | None = None
    format: int = FORMAT
    trace: str | None = None
    given: str | None = None
    """The id that the sender of a signal gave: the run takes one signal of it."""
    start: str | None = None
    """Of a signal that a start by name has sent to a live run: the rows of the run to be made, if it is not taken."""


def holds_all(mail: Sequence[Mail], most: int) -> bool:
    """Whether a query of a mailbox was not cut short by the bytes that it may bring. A character has up to four."""
    return 4 * sum(len(each.value or "") + len(each.error or "") for each in mail) < most


class Look(NamedTuple):
    """What one look into a mailbox is to bring."""

    run_id: str
    names: dict[str, int] | None = None
    """The names of signals that are waited for, and how many of each at most. None: all there are."""
    seen: tuple[str, ...] = ()
    """Mail that was brought before, and may still lie there."""


class Mailbox(Struct, gc=False):
    """What a look at a run's mailbox brought: the counters first, so that mail is never older than they are."""

    wakes: int
    ends: int
    mail: list[Mail] = field(default_factory=list)
    """In the order it was sent. Of each name that was asked for the first, if there is one; of the ends of children
    all, unless there are ``more``."""
    more: bool = False
    """Whether ends of children may have been left for the next look."""


class Answer(Struct):
    """What became of an operator's request (cancel, pause, resume) or of a signal."""

    status: str | None
    """The run's status before; None: there is no such run."""
    reason: str | None = None
    done: bool = False
    """False: the run was in no state for it, and nothing was changed."""
    lane: Lane | None = None
    """The lane in which it is ready now."""
    ended: bool = False
    running: bool = False
    """Whether a worker holds it, which is to hear of it."""
    lanes: set[Lane] = field(default_factory=set)
    """For a dag run: the lanes in which its steps are ready now."""
    whose: str | None = None
    """The run that this is told of, if it is not the one that was asked but the last that it went on as."""
    awaited: list[str] = field(default_factory=list)
    """Of a signal whose value has to be checked before it is sent: the plans of the open waits for it."""


class Held(NamedTuple):
    """A running run that names a worker: what a heartbeat brings back."""

    id: str
    claim: int
    asked: str | None


class BeatAnswer(Struct):
    """What the database said to a heartbeat."""

    alive: bool
    """False: the worker was declared dead; nothing it holds is its own any more."""
    held: list[Held] = field(default_factory=list)


class Beat(NamedTuple):
    """The last heartbeat of a worker, for those who watch over it."""

    worker: str
    at: int
    lease_ms: int
    process: str | None = None


class WorkerInfo(Struct):
    """A worker as it registers, and as ``stepfast workers`` shows it."""

    id: str
    host: str
    pid: int
    queues: list[str] | None
    workflows: dict[str, str]
    """Name → version of the code this worker has."""
    concurrency: int
    lease_ms: int
    state: str = "live"
    running: int = 0
    started_at: int = 0
    beat_at: int = 0
    age_ms: int = 0
    modules: dict[str, str] = {}
    """Name → module that the code comes from."""
    process: str | None = None
    """Machine, process id and beginning, where they are known."""
    schedules: list[str] = []
    """Names of the schedules that its code declares."""
    limits: dict[str, str] = {}
    """Queue → the limits that its code declares, as they are stored."""


class Tick(Struct):
    """The answer to the one question an idle worker asks: which duties have work?"""

    now_ms: int
    due: bool
    next_due_ms: int | None
    """Milliseconds until the next sleeper is due."""
    suspects: bool
    lanes: list[Lane]
    mail: bool = False
    """Whether there is mail to be delivered."""
    names: bool = False
    """Whether runs that have ended have names to hand on."""
    limited: list[Lane] = field(default_factory=list)
    """Lanes of limited queues that have something ready. Those of paused queues are told nowhere."""
    gated: frozenset[str] = frozenset()
    """The queues that are paused or limited: the usual claim gives nothing of them."""
    paused: frozenset[str] = frozenset()
    """The gated queues that are paused: no worker claims any of their runs."""
    limited_suspects: list[str] = field(default_factory=list)
    """Limited queues with runs that workers have died with."""
    schedule_ms: int | None = None
    """Milliseconds until the next schedule is due that this worker may start runs of."""
    remote: bool = False
    """Whether remote steps wait to be sent, or for their results."""
    remote_ms: int | None = None
    """Milliseconds until the next of them has to be seen to; told on SQLite, for labs."""
    events: bool = False
    """Whether there are events for which no wait has been woken."""
    start_ms: int | None = None
    """Milliseconds until the next run is to be started by an event."""


class HasRecordCount(Protocol):
    """What remembers the records of a run."""

    def believed(self) -> int:
        """How much it takes to be stored."""
        ...


class Tally:
    """Counts records, each address once, no matter how often it is written."""

    def __init__(self) -> None:
        self._open: set[tuple[str, int]] = set()
        self._closed: set[tuple[str, int]] = set()

    def add(self, branch: str, position: int, status: str) -> None:
        """Count a record that is stored."""
        (self._open if status == WAITING else self._closed).add((branch, position))

    @property
    def number(self) -> int:
        """How much is stored: two for a record, one for an open one."""
        return 2 * len(self._closed) + len(self._open - self._closed)


NO_DOUBTS: Mapping[str, HasRecordCount] = MappingProxyType({})

E = TypeVar("E", StepDone, StepWith, FailedTry, StepRunning, ValueSet, StreamItems, EventWait, Transition)


class Batch(Struct, gc=False):
    """What one flush carries, sorted by what is to be done with it."""

    steps: list[StepDone] = field(default_factory=list)
    tries: list[FailedTry] = field(default_factory=list)
    running: list[StepRunning] = field(default_factory=list)
    transitions: list[Transition] = field(default_factory=list)
    joint: list[StepWith] = field(default_factory=list)
    values: list[ValueSet] = field(default_factory=list)
    streams: list[StreamItems] = field(default_factory=list)
    waits: list[EventWait] = field(default_factory=list)
    claims: dict[str, int] = field(default_factory=dict)
    """The claim number each run in the batch is fenced on: one per run."""
    unverified: Mapping[str, HasRecordCount] = NO_DOUBTS
    """Runs of which more may be believed than is stored; those in the batch are compared. It changes while the batch is
    under way: the writer looks at it when the connection is at hand."""

    def add(self, entry: Entry) -> None:
        """Put an entry where it belongs."""
        if isinstance(entry, StepDone):
            self.steps.append(entry)
        elif isinstance(entry, Transition):
            self.transitions.append(entry)
        elif isinstance(entry, FailedTry):
            self.tries.append(entry)
        elif isinstance(entry, StepWith):
            self.joint.append(entry)
        elif isinstance(entry, ValueSet):
            self.values.append(entry)
        elif isinstance(entry, StreamItems):
            entry.left = True
            self.streams.append(entry)
        elif isinstance(entry, EventWait):
            self.waits.append(entry)
        else:
            self.running.append(entry)

    def entries(self) -> Iterator[Entry]:
        """All entries of the batch, of all kinds."""
        return itertools.chain(self.steps, self.others())

    def others(self) -> Iterator[Entry]:
        """All entries but the records of steps that nothing goes with."""
        return itertools.chain(
            self.tries, self.running, self.transitions, self.joint, self.values, self.streams, self.waits
        )

    def part(self, belongs: Callable[[Entry], bool]) -> Batch:
        """The entries that belong to a part of the batch, as a batch of their own."""

        def kept(entries: list[E]) -> list[E]:
            return [entry for entry in entries if belongs(entry)]

        part = Batch(
            kept(self.steps),
            kept(self.tries),
            kept(self.running),
            kept(self.transitions),
            kept(self.joint),
            kept(self.values),
            kept(self.streams),
            kept(self.waits),
            unverified=self.unverified,
        )
        part.claims = {entry.run_id: entry.claim for entry in part.entries()}
        return part


class FlushAnswer(Struct, gc=False):
    """What the database said to a flush."""

    now_ms: int
    """The database's time; 0 if nothing was written."""
    lost: set[str] = field(default_factory=set)
    """Runs that are no longer this worker's: nothing of them was written."""
    busy: set[str] = field(default_factory=set)
    """Runs whose row another transaction holds locked: their entries ride in the next flush."""
    asked: dict[str, str] = field(default_factory=dict)
    """What operators ask of runs in the batch: cancel, pause."""
    barred: set[str] = field(default_factory=set)
    """Runs that are being cancelled: of their entries that start children nothing was written."""
    undelivered: bool = False
    """Whether the flush left mail to be delivered: ends of children, cancellations of them."""
    lanes: set[Lane] = field(default_factory=set)
    """The lanes in which steps of dag runs, or dag runs themselves, were made ready."""
    asked_elsewhere: bool = False
    """Whether steps that other workers hold are to end, because their dag run begins to fail."""
    vanished: set[str] = field(default_factory=set)
    """Those of the lost of which less is stored than was believed, though they name this worker still."""
    full: set[tuple[str, str]] = field(default_factory=set)
    """Streams that had no room for an item, by the run that sent it."""
    earlier: dict[tuple[str, str, int], int] = field(default_factory=dict)
    """Addresses of steps (run, branch, position), and when they were recorded, if that was by an earlier flush, whose
    reply was lost."""

    def time_of(self, entry: Entry) -> int:
        """When an entry was committed that was neither lost nor left for the next flush."""
        step = entry.step if isinstance(entry, StepWith) else entry
        if self.earlier and isinstance(step, StepDone):
            return self.earlier.get((step.run_id, step.branch, step.position), self.now_ms)
        return self.now_ms

    def with_that_of(self, other: FlushAnswer) -> FlushAnswer:
        """The answer to a batch that was written in two parts. Its time is that of this part, if anything was written.
        Where the other has another time its runs have ended, and do not go on by what they are told."""
        return FlushAnswer(
            self.now_ms or other.now_ms,
            self.lost | other.lost,
            self.busy | other.busy,
            self.asked | other.asked,
            self.barred | other.barred,
            self.undelivered or other.undelivered,
            self.lanes | other.lanes,
            self.asked_elsewhere or other.asked_elsewhere,
            self.vanished | other.vanished,
            self.full | other.full,
            self.earlier | other.earlier,
        )
