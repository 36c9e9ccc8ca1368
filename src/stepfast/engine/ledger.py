"""The ledger of a claim: what it has recorded, so that a run which comes back here need not be read again, and so that
what is stored can be compared with what is believed."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import islice

from ..model import status
from ..model.records import StepDone, StepRecord, Tally
from .matching import History
from .trail import Address


class Ledger:
    """Records of this claim are kept while they are few; from then on only their number is."""

    __slots__ = ("_history", "_kept", "_most", "_sure", "_tally", "fresh", "newest", "recorded", "undo_recorded")

    def __init__(self, history: History, most: int) -> None:
        self._history = history
        self._most = most
        self._kept: dict[Address, tuple[StepDone, int]] | None = {}
        """New records, as they are stored: one per address; and when they were committed."""
        self._tally: Tally | None = None
        """How much is stored, where the records themselves are not kept."""
        self._sure: int | None = None
        """How many of the new records are committed; None: all of them. Others go out with the release of the run."""
        self.fresh: Sequence[Address] = ()
        """Where this claim has made a record before the code had asked for all that was recorded: if it diverges, they
        do not stay."""
        self.newest: dict[str, int] = {}
        """The database time of each branch's newest record that the code has seen."""
        self.recorded = False
        """Whether this claim has made a new record."""
        self.undo_recorded = False
        """Whether this claim has recorded a step that can be undone; the code may not have heard of it yet."""

    def add(self, entry: StepDone, now: int) -> None:
        """A record of this run is committed."""
        self.recorded = True
        if entry.undo is not None:
            self.undo_recorded = True
        if now > self.newest.get(entry.branch, 0):
            self.newest[entry.branch] = now
        address = (entry.branch, entry.position)
        if self._history.untaken:
            self.made_early(address)
        kept = self._kept
        if kept is None:
            assert self._tally is not None
            self._tally.add(entry.branch, entry.position, entry.status)
            return
        made = (entry, now)
        if kept.setdefault(address, made) is not made and _replaces(entry, kept[address][0]):
            kept[address] = made
        if len(kept) > self._most:
            self.keep_only_count()

    def saw(self, branch: str, recorded_at: int) -> None:
        """The code sees a record: ``ctx.now()`` moves on, never back, in whatever order parallel records are read."""
        if recorded_at > self.newest.get(branch, 0):
            self.newest[branch] = recorded_at

    def has_undos(self) -> bool:
        """Whether something that was done can be undone."""
        return self.undo_recorded or any(
            record.undo is not None and record.status == status.COMPLETED for record in self._history.records.values()
        )

    def last_step(self) -> str | None:
        """The name of the step that was recorded last, before this claim."""
        last = max(self._history.records.values(), key=lambda record: record.seq, default=None)
        return None if last is None else last.name

    def made_early(self, address: Address) -> None:
        """A record was made while others had not been asked for. What was open before is decided by it, and stays."""
        if address not in self._history.records:
            self.fresh = fresh = self.fresh if isinstance(self.fresh, list) else []
            fresh.append(address)

    def leave(self, entries: Sequence[tuple[StepDone, int]]) -> None:
        """The run is released, and these go out with it: they will be there when it comes back."""
        self._sure = len(self._kept or ())
        if self._kept is not None:
            for entry, now in entries:
                self._kept.setdefault((entry.branch, entry.position), (entry, now))

    def keep_only_count(self) -> None:
        """The records of this claim are too many to be kept, or not all known here: only their number is."""
        if self._kept is not None:
            self._tally = self._counted()
            self._kept = None

    def _counted(self) -> Tally:
        tally = Tally()
        for record in self._history.records.values():
            tally.add(record.branch, record.position, record.status)
        for entry, _ in islice((self._kept or {}).values(), self._sure):
            tally.add(entry.branch, entry.position, entry.status)
        return tally

    def believed(self) -> int:
        """How much is stored of this run, if nothing that was acknowledged has vanished."""
        return (self._tally or self._counted()).number

    def whole_history(self) -> list[StepRecord] | None:
        """All records as they would be read back, one per address, if they are few enough to be kept."""
        if self._kept is None:
            return None
        records = dict(self._history.records)
        for address, (entry, now) in self._kept.items():
            if address not in records or _replaces(entry, records[address]):
                records[address] = as_record(entry, now)
        return list(records.values())


def _replaces(new: StepDone, old: StepDone | StepRecord) -> bool:
    """Whether an entry takes the place of a record at its address: as in the database, only an outcome does, and only
    that of a record which its call had begun."""
    return old.status == status.WAITING and new.status != status.WAITING


def as_record(entry: StepDone, now: int) -> StepRecord:
    """An entry as it will be read back."""
    return StepRecord(
        entry.branch,
        entry.position,
        entry.seq,
        entry.name,
        entry.kind,
        entry.status,
        entry.output,
        entry.error,
        entry.arguments,
        entry.attempts,
        now - entry.duration_ms,
        now,
        entry.line,
        entry.format,
        entry.undo,
    )
