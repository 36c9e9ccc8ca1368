"""What a flush of the journal carries, and what the database says to it."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Mapping
from types import MappingProxyType
from typing import TypeVar

from msgspec import Struct, field

from .records import Entry, FailedTry, Lane, StepDone, StepRunning, StepWith, Transition, ValueSet
from .tally import Believer

NO_DOUBTS: Mapping[str, Believer] = MappingProxyType({})

E = TypeVar("E", StepDone, StepWith, FailedTry, StepRunning, ValueSet, Transition)


class Batch(Struct, gc=False):
    """What one flush carries, sorted by what is to be done with it."""

    steps: list[StepDone] = field(default_factory=list)
    tries: list[FailedTry] = field(default_factory=list)
    running: list[StepRunning] = field(default_factory=list)
    transitions: list[Transition] = field(default_factory=list)
    joint: list[StepWith] = field(default_factory=list)
    values: list[ValueSet] = field(default_factory=list)
    claims: dict[str, int] = field(default_factory=dict)
    """The claim number each run in the batch is fenced on: one per run."""
    doubts: Mapping[str, Believer] = NO_DOUBTS
    """Runs of which more may be believed than is stored; those in the batch are compared. It changes while the batch is
    under way: whoever writes looks at it when the connection is at hand."""

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
        else:
            self.running.append(entry)

    def entries(self) -> Iterator[Entry]:
        """All entries of the batch, of whatever kind."""
        return itertools.chain(self.steps, self.tries, self.running, self.transitions, self.joint, self.values)

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
            doubts=self.doubts,
        )
        part.claims = {entry.run_id: entry.claim for entry in part.entries()}
        return part

    def clear(self) -> None:
        """Take everything out of the batch."""
        for part in (self.steps, self.tries, self.running, self.transitions, self.joint, self.values, self.claims):
            part.clear()


class FlushAnswer(Struct, gc=False):
    """What the database said to a flush."""

    now_ms: int
    """The database's time; 0 if nothing was written."""
    lost: set[str] = field(default_factory=set)
    """Runs that are no longer this worker's: nothing of them was written."""
    busy: set[str] = field(default_factory=set)
    """Runs whose row somebody else holds locked: their entries ride in the next flush."""
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
            self.earlier | other.earlier,
        )
