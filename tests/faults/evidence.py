"""What is known when a storm is over: acts, acknowledged starts, results, faults, and the rows of the database.

Plain values, so that a test of the checker can make them up. All times are microseconds of one clock.
"""

from __future__ import annotations

from dataclasses import dataclass, field

TASK = -1
"""The position of a task's own act: it has no steps."""

RETURNS, RAISES, LATE = "returns", "raises", "late"
"""What an act is about to do. ``late``: return, but only when its time is long over."""

KILLED, FROZEN, OUTAGE = "killed", "frozen", "outage"


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
    """All positions below this must have an outcome on record before the act."""


@dataclass(frozen=True)
class Start:
    """A start that returned to its caller."""

    at: int
    run: str
    workflow: str
    key: str | None = None


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
    """Whether it still names a worker, has a place in line, or a timer."""


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


@dataclass(frozen=True)
class Try:
    """A row of ``tries``; position -1 is a failed attempt of the whole run."""

    run: str
    position: int
    claim: int
    attempt: int
    number: int
    at: int


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
    moves: list[Move] = field(default_factory=list)
    writes: list[Write] = field(default_factory=list)
    workers: dict[str, int] = field(default_factory=dict)
    """Worker id → process id, of all that ever registered."""
    may_fail: frozenset[str] = frozenset()
    """Workflows whose code may fail for good; any other must complete."""
    lease: float = 30.0
    strict: bool = False
    """Nothing happened that could cost a lease: then a loss is a violation. Otherwise a loss without a fault is only
    counted: a machine under load may starve a process for as long as its lease."""
