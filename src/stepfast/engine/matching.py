"""Replay: the recorded outcomes of a run, matched by position within their branch and checked by name."""

from __future__ import annotations

from collections.abc import Iterable

from ..documents import cite
from ..errors import NonDeterminismError
from ..model.records import StepRecord
from ..model.status import CANCELLED
from .cursor import addresses_above, branches_around

PATCH = "patch"
UNDO = "undo"
_ASIDE = (PATCH, UNDO)
"""Kinds of records that are no calls of the code at a position."""


PAGE = cite("how-to/live-with-code-changes")
CAUSES = (
    "Either the code was changed while this run was under way: put the old order back, let only new runs go the new "
    "way by ctx.patched(…), or give the new code a new name. Or time, chance or something outside decides which calls "
    f"it makes: use ctx.now(), ctx.random() or a step for that. {PAGE} shows how"
)
"""How the message of a divergence ends: what may be the cause, and what to do."""

BRANCHES = ("branch", "map")
"""Kinds of calls that leave no record themselves; the calls within do."""

_EMPTY: dict[tuple[str, int], StepRecord] = {}
"""Shared by all runs that have no records, and never written to."""


class History:
    """What is recorded of one run, and what of it the code has asked for in this attempt."""

    __slots__ = ("_begun", "_latest", "_left_out", "_patches", "_reached", "aside", "last_seq", "records", "untaken")

    def __init__(self, records: list[StepRecord]) -> None:
        self.records = {(record.branch, record.position): record for record in records} if records else _EMPTY
        self.untaken = {at: each for at, each in self.records.items() if each.kind not in _ASIDE} if records else _EMPTY
        """Calls that the code has not made again yet: until this is empty, it is being replayed."""
        self.aside = _EMPTY
        """Patches, and undos that have not been called again yet."""
        if len(self.untaken) != len(self.records):
            self.aside = {at: each for at, each in self.records.items() if each.kind in _ASIDE}
        self._begun: set[tuple[str, int]] | None = None
        self._left_out: set[str] | frozenset[str] = frozenset()
        self._reached: dict[str, int] | None = None
        self._latest: dict[str, int] | None = None
        self._patches: dict[str, int] | None = None
        self.last_seq = max(record.seq for record in records) if records else 0

    def take(self, branch: str, position: int, kind: str, name: str, line: str) -> StepRecord | None:
        """The record at a position, if there is one; an error if it is of something else."""
        untaken = self.aside if kind == UNDO else self.untaken
        record = untaken.pop((branch, position), None)
        if record is None:
            self._check_no_branch(branch, position, kind, f"{kind} {name!r} (at {line})")
            return None
        if self.is_left_out(branch):
            return None
        if record.kind != kind or (record.name != name and kind != UNDO):  # an undo is known by what it undoes
            untaken[branch, position] = record
            raise NonDeterminismError(
                f"{recorded_as(record)}, but the code now calls {kind} {name!r} (at {line}). {CAUSES}"
            )
        return record

    def _check_no_branch(self, branch: str, position: int, kind: str, called: str) -> None:
        """Where a branch began before, a branch has to begin."""
        if kind in BRANCHES or kind in _ASIDE or self.is_left_out(branch):
            return
        if self._begun is None:
            self._begun = {address for outer, _ in self.records for address in addresses_above(outer)}
        if (branch, position) in self._begun:
            of = f" of branch {branch!r}" if branch else ""
            raise NonDeterminismError(
                f"position {position}{of} is recorded as a branch (something within it is recorded), but the code now "
                f"calls {called}. {CAUSES}"
            )

    def next_of(self, branch: str, position: int) -> StepRecord | None:
        """The oldest record at a position of a branch or after it, or in a branch that began there, which the code has
        not asked for."""
        found = [
            record
            for address, record in self.untaken.items()
            if any(name == branch and at >= position for name, at in (*addresses_above(address[0]), address))
        ]
        return min(found, key=lambda record: record.seq) if found else None

    @property
    def replayed(self) -> int:
        """How many records the code has asked for."""
        return len(self.records) - len(self.untaken) - len(self.aside)

    def leave_out(self, branch: str) -> None:
        """What is recorded of a branch does not count: it lost a race. Only noted, for a run may have thousands."""
        if isinstance(self._left_out, frozenset):
            self._left_out = set()
        self._left_out.add(branch)

    def is_left_out(self, branch: str) -> bool:
        """Whether it, or a branch around it, was left out."""
        return bool(self._left_out) and any(outer in self._left_out for outer in branches_around(branch))

    def ends_with(self, record: StepRecord) -> bool:
        """Whether the code of a branch came no further than this record, made when it was stopped."""
        if self._latest is None:
            self._latest = _latest(self.records.values())
        return self._latest.get(record.branch, 0) <= record.seq

    def goes_on(self, branch: str, position: int) -> bool:
        """Whether something is recorded of this branch at the position or after it: the code has been here before."""
        if self._reached is None:
            self._reached = _furthest(self.records)
        return self._reached.get(branch, -1) >= position

    def patched_from(self, patch: str) -> int | None:
        """The first position at which a branch is recorded to have gone the new way at a change."""
        if self._patches is None:
            self._patches = _earliest(address for address, record in self.records.items() if record.kind == PATCH)
        return self._patches.get(patch)

    def check_all_taken(self) -> None:
        """At the end of the code, every record must have been asked for."""
        record = self.first_left() if self.untaken else None
        if record is not None:
            raise NonDeterminismError(
                f"{recorded_as(record)}, but the code returned without calling it (end of the function). {CAUSES}"
            )

    def first_left(self) -> StepRecord | None:
        """The oldest record that the code has not asked for."""
        left = [record for record in self.untaken.values() if not self.is_left_out(record.branch)]
        return min(left, key=lambda record: record.seq) if left else None


def _furthest(addresses: Iterable[tuple[str, int]]) -> dict[str, int]:
    """Per branch the last position that something is recorded of: a call, or a branch that began there."""
    furthest: dict[str, int] = {}
    for branch, position in addresses:
        for outer, at in (*addresses_above(branch), (branch, position)):
            if at > furthest.get(outer, -1):
                furthest[outer] = at
    return furthest


def _earliest(addresses: Iterable[tuple[str, int]]) -> dict[str, int]:
    """Per branch the first position."""
    earliest: dict[str, int] = {}
    for branch, position in addresses:
        earliest[branch] = min(position, earliest.get(branch, position))
    return earliest


def _latest(records: Iterable[StepRecord]) -> dict[str, int]:
    """Per branch the number of the newest call made in it, or in a branch within, that was not stopped."""
    latest: dict[str, int] = {}
    for record in records:
        if record.kind not in _ASIDE and record.status != CANCELLED:
            for outer in branches_around(record.branch):
                latest[outer] = max(record.seq, latest.get(outer, 0))
    return latest


def recorded_as(record: StepRecord) -> str:
    """How the message of a divergence begins: what is recorded, and where it was called."""
    of = f" of branch {record.branch!r}" if record.branch else ""
    line = record.line or "an unknown line"
    return f"position {record.position}{of} is recorded as {record.kind} {record.name!r} (called at {line})"
