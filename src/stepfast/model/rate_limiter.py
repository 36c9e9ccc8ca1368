"""Which of the ready runs of a limited queue may be taken now, and when the next one may.

Pure: from the limits, from what is counted (what workers hold, what was started lately), and from those that come
first in the queue. A run counts while a worker has it, and no longer: one that waits does not. A rate counts the
start of an attempt, once; a run that is taken again for the same attempt is not counted again.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from types import MappingProxyType
from typing import NamedTuple

from msgspec import Struct, field

from .queue_config import Limits, Rate
from .records import Claimed, Lane
from .run_state import sooner


class Candidate(NamedTuple):
    """A ready run at the front of its queue, in the order of the columns."""

    id: str
    workflow: str
    priority: int
    place: int
    version: str
    """Of the code that had it last."""
    size: int
    """Bytes of its input."""
    key: str | None
    fresh: bool
    """Whether taking it begins an attempt, which a rate counts."""
    losses: int = 0


class Count(NamedTuple):
    """What counts against the limits of a queue, or of one key."""

    running: int = 0
    started: int = 0
    """Within the span of the rate."""
    next_at: int | None = None
    """When the rate allows another start, if it does not now."""


NOTHING = Count()


class Usage(Struct):
    """What counts against the limits of a queue."""

    now: int
    """The time of the database when this was counted."""
    whole: Count = NOTHING
    keys: Mapping[str, Count] = field(default_factory=dict)
    """Of the keys of all candidates."""


class Room(NamedTuple):
    """How much the claimer can take."""

    runs: int
    bytes: int
    """Of inputs together; one run is always taken."""


class Choice(Struct):
    """What is taken, and what keeps the others."""

    taken: list[Candidate] = field(default_factory=list)
    left: bool = False
    """Whether some were left."""
    cut_short: bool = False
    """Whether some were left only because their inputs would have been too much at once."""
    next_at: int | None = None
    """When a rate allows one of those that were left."""


def free_at_once(limits: Limits, whole: Count, wanted: int) -> int:
    """How many may be taken at most, whichever they are."""
    return wanted if limits.concurrency is None else max(0, min(wanted, limits.concurrency - whole.running))


def free_starts(rate: Rate | None, count: Count, wanted: int) -> int:
    """How many attempts may begin now."""
    return wanted if rate is None else max(0, min(wanted, rate.count - count.started))


def is_open(limits: Limits, key: Count) -> bool:
    """Whether another attempt may begin for a key that so much counts for."""
    full = limits.key_concurrency is not None and key.running >= limits.key_concurrency
    return not full and free_starts(limits.key_rate, key, 1) == 1


def choose(candidates: Iterable[Candidate], limits: Limits, usage: Usage, room: Room) -> Choice:
    """Take the front of the queue, by priority and then by age, as long as no limit is in the way."""
    choice, tally = Choice(), _Tally(limits, usage, room)
    for run in sorted(set(candidates), key=lambda run: (-run.priority, run.place)):
        if not tally.allows(run):
            choice.left = True
            choice.next_at = sooner(choice.next_at, _allowed_at(run, limits, usage))
        elif choice.taken and tally.size >= room.bytes:
            choice.left = choice.cut_short = True
        else:
            choice.taken.append(run)
            tally.add(run)
    return choice


class _Tally:
    """What may still be taken beside what was chosen so far."""

    def __init__(self, limits: Limits, usage: Usage, room: Room) -> None:
        self._limits = limits
        self._usage = usage
        self._at_once = free_at_once(limits, usage.whole, room.runs)
        self._starts = free_starts(limits.rate, usage.whole, self._at_once)
        self._taken, self._begun = Counter[str](), Counter[str]()
        """How many were chosen of each key, and how many of these begin an attempt."""
        self.size = 0
        """How many bytes the inputs of the chosen have."""

    def allows(self, run: Candidate) -> bool:
        """Whether no limit keeps it."""
        if not self._at_once or (run.fresh and not self._starts):
            return False
        return run.key is None or self._key_allows(run.key, run.fresh)

    def _key_allows(self, key: str, fresh: bool) -> bool:
        limits, count = self._limits, self._usage.keys.get(key, NOTHING)
        if limits.key_concurrency is not None and count.running + self._taken[key] >= limits.key_concurrency:
            return False
        return not fresh or limits.key_rate is None or count.started + self._begun[key] < limits.key_rate.count

    def add(self, run: Candidate) -> None:
        """Count a run that is taken."""
        self._at_once -= 1
        self._starts -= run.fresh
        self.size += run.size
        if run.key is not None:
            self._taken[run.key] += 1
            self._begun[run.key] += run.fresh


def _allowed_at(run: Candidate, limits: Limits, usage: Usage) -> int | None:
    """When the rates allow a run that was left; None: they do not keep it, or began to do so by what was taken now."""
    if not run.fresh:
        return None
    counts = [(limits.rate, usage.whole)]
    if run.key is not None:
        counts.append((limits.key_rate, usage.keys.get(run.key, NOTHING)))
    times = [
        count.next_at for rate, count in counts if rate is not None and count.started >= rate.count and count.next_at
    ]
    return max(times, default=None)


_PARTS = 1000
"""Into so many parts the span of a rate is divided: no more rows than that are kept of it."""


def logged_at(rate: Rate, now: int) -> int:
    """The time under which starts are logged: rounded up, so that a window never holds more than the rate allows."""
    part = max(1, rate.per_ms // _PARTS)
    return -(-now // part) * part


def begun(taken: Sequence[Candidate], ids: Iterable[str]) -> Counter[str | None]:
    """How many attempts begin with those of the runs that were really taken, by key."""
    there = set(ids)
    return Counter(run.key for run in taken if run.fresh and run.id in there)


# -- what goes between worker and store ----------------------------------------------------------------------


class KeysSeen(NamedTuple):
    """How far the keys of a queue were looked at: a claim looks at a bounded number of them, and the next goes on."""

    workflow: str = ""
    key: str = ""


class WantedRuns(NamedTuple):
    """What a worker would take from a limited queue."""

    queue: str
    lanes: list[tuple[Lane, int]]
    """Where something may be ready, each with its mark: what stands before it was seen claimed."""
    versions: dict[str, str]
    room: int
    keys_seen: KeysSeen = KeysSeen()
    seen: Mapping[Lane, int] = MappingProxyType({})
    """Where keys have limits: up to which place of a lane there is nothing ready without a key."""
    suspects: tuple[int, ...] = ()
    """If given: take runs that workers have died with, as many as this says by their losses, and no others."""


class Admission(Struct):
    """What a limited queue gave."""

    runs: list[Claimed] = field(default_factory=list)
    limited: bool = True
    """False: the queue is paused, or has no limits any more; nothing was looked for."""
    left: bool = False
    """Whether something is ready that was not taken."""
    again: bool = False
    """Whether asking again at once may bring more."""
    wait_ms: int | None = None
    """When a rate allows more."""
    seen: dict[Lane, int] = field(default_factory=dict)
    """Up to which place of a lane there is nothing ready without a key: the next claim looks behind it."""
    keys_seen: KeysSeen = KeysSeen()
