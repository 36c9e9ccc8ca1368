"""What is known when a storm is over: acts, acknowledged starts, results, faults, and the rows of the database.

Plain values, so that a test of the checker can make them up. All times are microseconds of one clock.
"""

from __future__ import annotations

from dataclasses import dataclass, field

TASK = -1
"""The position of a task's own act: it has no steps."""

UNDO = "~undo"
"""The branch of undos; their position is the number of the step they undo."""

RETURNS, RAISES, LATE, ASKS = "returns", "raises", "late", "asks"
"""What an act is about to do. ``late``: return, but only when its time is long over. ``asks``: say that something which
is waited for is not so yet, which leaves no record."""

KILLED, FROZEN, OUTAGE, STOPPED = "killed", "frozen", "outage", "stopped"
"""What was done to a process. ``stopped`` is a fault that is none: it left in good order, and gave its runs back."""

Place = tuple[str, int]
"""A branch and a position in it."""


@dataclass(frozen=True)
class Act:
    """One call of a step's function, as it wrote it down itself."""

    at: int
    run: str
    workflow: str
    position: int
    name: str
    claim: int
    attempt: int
    pid: int
    nonce: str
    does: str = RETURNS
    needs: int = 0
    """All positions of its branch below this must have an outcome on record before the act."""
    branch: str = ""
    undoes: str | None = None
    """For an undo: the output it was given, of the step it undoes."""

    @property
    def place(self) -> Place:
        return self.branch, self.position


@dataclass(frozen=True)
class Start:
    """A start that returned to its caller."""

    at: int
    run: str
    workflow: str
    key: str | None = None


@dataclass(frozen=True)
class Signal:
    """A signal that somebody set out to send. ``acknowledged``: when the call returned; None if it did not."""

    at: int
    run: str
    name: str
    sender: str
    number: int
    nonce: str
    acknowledged: int | None = None


@dataclass(frozen=True)
class Wish:
    """What an operator asked of a run: to be cancelled, paused, resumed."""

    at: int
    run: str
    what: str
    granted: bool | None = None
    """None: nobody knows, the reply was lost. False: it was refused."""
    answered: int = 0


@dataclass(frozen=True)
class Row:
    """A row that a ``ctx.transaction`` wrote into a table of the test."""

    run: str
    branch: str
    position: int
    nonce: str


@dataclass(frozen=True)
class Letter:
    """What is left in a mailbox at the end."""

    run: str
    kind: str
    name: str
    value: str | None = None


@dataclass(frozen=True)
class Seen:
    """How a run ended, as ``result()`` told a caller."""

    run: str
    status: str
    value: str | None = None
    """The result as JSON."""


@dataclass(frozen=True)
class Fault:
    """Something done to a process, or (pid 0) to the database."""

    pid: int
    kind: str
    begin: int
    end: int


@dataclass(frozen=True)
class Run:
    """A row of ``runs`` at the end."""

    id: str
    workflow: str
    status: str
    reason: str | None = None
    key: str | None = None
    output: str | None = None
    claim: int = 1
    held: bool = False
    """Whether it still names a worker, has a place in its queue, or a timer."""
    parent: str | None = None
    parent_branch: str | None = None
    parent_position: int | None = None
    origin: str | None = None
    """The run that this one continues."""
    input: str | None = None
    error: str | None = None


@dataclass(frozen=True)
class Step:
    """A row of ``steps`` at the end."""

    run: str
    position: int
    name: str
    claim: int
    seq: int
    status: str
    output: str | None
    at: int
    branch: str = ""
    kind: str = "step"
    undo: str | None = None
    """The name of what undoes it."""

    @property
    def place(self) -> Place:
        return self.branch, self.position


@dataclass(frozen=True)
class Try:
    """A row of ``tries``; position -1 is a failed attempt of the whole run."""

    run: str
    position: int
    claim: int
    attempt: int
    number: int
    at: int
    branch: str = ""
    timed_out: bool = False
    """Whether it was given up because it took too long; its act may have begun or not, and would have returned."""
    waited_out: bool = False
    """Whether the time of ``ctx.wait_until`` was up, which is its last failure: none of its acts failed."""

    @property
    def place(self) -> Place:
        return self.branch, self.position


@dataclass(frozen=True)
class Move:
    """A change of a run's row, as the database itself logged it in the same transaction, in order."""

    at: int
    run: str
    claim: int
    old_claim: int
    status: str
    old_status: str
    worker: str | None
    old_worker: str | None
    attempt: int = 1
    old_attempt: int = 1
    losses: int = 0
    old_losses: int = 0
    due: int | None = None
    """When it is to be ready again, if by a timer."""
    wakes: int = 0
    ends: int = 0
    """How many ends of children have reached it."""
    asked: str | None = None
    """What an operator asks of whoever holds it."""


@dataclass(frozen=True)
class Write:
    """A record that was inserted (or deleted, or changed), with the claim its run had at that moment."""

    at: int
    what: str
    run: str
    position: int
    claim: int
    run_claim: int | None
    value: str | None = None
    branch: str = ""
    kind: str = "step"
    status: str = "completed"
    old_status: str | None = None
    """For a change: what it was before. An open record (``waiting``) may be replaced, once."""

    @property
    def place(self) -> Place:
        return self.branch, self.position


INSERTED, DELETED, CHANGED, TRIED = "step+", "step-", "step~", "try+"


@dataclass
class Evidence:
    """All of it."""

    acts: list[Act] = field(default_factory=list)
    starts: list[Start] = field(default_factory=list)
    seen: list[Seen] = field(default_factory=list)
    faults: list[Fault] = field(default_factory=list)
    runs: list[Run] = field(default_factory=list)
    steps: list[Step] = field(default_factory=list)
    tries: list[Try] = field(default_factory=list)
    others: list[tuple[str, str]] = field(default_factory=list)
    """(table, run id) of every other row that belongs to a run."""
    unwanted: list[str] = field(default_factory=list)
    """Runs whose start was rolled back with the transaction it was part of."""
    signals: list[Signal] = field(default_factory=list)
    wishes: list[Wish] = field(default_factory=list)
    rows: list[Row] = field(default_factory=list)
    letters: list[Letter] = field(default_factory=list)
    values: dict[tuple[str, str], str] = field(default_factory=dict)
    """(run, key) → what ``ctx.set`` has left."""
    moves: list[Move] = field(default_factory=list)
    writes: list[Write] = field(default_factory=list)
    workers: dict[str, int] = field(default_factory=dict)
    """Worker id → process id, of all that ever registered."""
    may_fail: frozenset[str] = frozenset()
    """Workflows whose code may fail for good; any other must complete."""
    culprits: frozenset[str] = frozenset()
    """Workflows that kill their process; any other is innocent of the deaths of its workers."""
    may_undo: frozenset[str] = frozenset()
    """Workflows that may fail and be undone."""
    may_fail_to_undo: frozenset[str] = frozenset()
    """Workflows with undos that may fail for good."""
    branched: set[tuple[str, Place]] = field(default_factory=set)
    """(run, place) at which branches began, or which lost a race: these may have no record of their own."""
    cut: bool = False
    """Whether connections were cut: then a transaction is rolled back and called again, which is no failure."""
    lease: float = 30.0
    news: int = 0
    """Microseconds that may pass between a commit and a call which was made without knowing of it."""
    strict: bool = False
    """Nothing happened that could cost a lease: then a loss is a violation. Otherwise a loss without a fault is only
    counted: a machine under load may starve a process for as long as its lease."""
