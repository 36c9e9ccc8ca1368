"""Replay: the recorded outcomes of a run, matched by position within their branch and checked by name."""

from __future__ import annotations

from ..errors import NonDeterminismError
from ..model.records import StepRecord


class History:
    """What is recorded of one run, and what of it the code has asked for in this attempt."""

    def __init__(self, records: list[StepRecord]) -> None:
        self.records = {(record.branch, record.position): record for record in records}
        self.untaken = dict(self.records)
        """What the code has not asked for yet."""
        self.last_seq = max(record.seq for record in records) if records else 0

    def take(self, branch: str, position: int, kind: str, name: str, line: str) -> StepRecord | None:
        """The record at a position, if there is one; an error if it is of something else."""
        record = self.untaken.pop((branch, position), None)
        if record is None:
            return None
        if record.name != name or record.kind != kind:
            self.untaken[branch, position] = record
            raise NonDeterminismError(
                f"position {position}{_of(branch)} is recorded as {record.kind} {record.name!r} (called at "
                f"{record.line or 'an unknown line'}), but the code now calls {kind} {name!r} (at {line}). The code "
                "was changed while this run was under way; put the old order back, or give the new code a new name"
            )
        return record

    def check_all_taken(self) -> None:
        """At the end of the code, every record must have been asked for."""
        if not self.untaken:
            return
        record = min(self.untaken.values(), key=lambda r: r.seq)
        raise NonDeterminismError(
            f"position {record.position}{_of(record.branch)} is recorded as {record.kind} {record.name!r} (called at "
            f"{record.line or 'an unknown line'}), but the code returned without calling it (end of the function). A "
            "step was removed while this run was under way; put it back, or give the new code a new name"
        )


def _of(branch: str) -> str:
    return f" of branch {branch!r}" if branch else ""
