"""A bounded memory of the records of runs that were released, so that a run which comes back need not be read again.

An entry is right if nobody claimed the run in between: then its claim number is the next one.
"""

from __future__ import annotations

from collections import OrderedDict

from ..model.records import StepRecord


class HistoryCache:
    """Records of runs that were released; of too many, those of the run that was released first go first."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._size = 0
        self._entries: OrderedDict[str, tuple[int, list[StepRecord]]] = OrderedDict()
        self.claims: dict[str, int] = {}
        """Run id → the claim number whose end is remembered."""

    def put(self, run_id: str, claim: int, records: list[StepRecord]) -> None:
        """Remember what a run had recorded when it left."""
        self.drop(run_id)
        size = sum(200 + len(record.output or "") + len(record.arguments or "") for record in records)
        if size > self._limit // 8:
            return
        self._entries[run_id] = (size, records)
        self.claims[run_id] = claim
        self._size += size
        while self._size > self._limit:
            self.drop(next(iter(self._entries)))

    def take(self, run_id: str, claim: int) -> list[StepRecord] | None:
        """What is remembered, if the run was not claimed by anybody else since."""
        entry, last = self._entries.get(run_id), self.claims.get(run_id, 0)
        self.drop(run_id)
        return entry[1] if entry is not None and last + 1 == claim else None

    def clear(self) -> None:
        """Forget all: what is remembered may not be stored any more."""
        self._entries.clear()
        self.claims.clear()
        self._size = 0

    def drop(self, run_id: str) -> None:
        """Forget the records of a run."""
        entry = self._entries.pop(run_id, None)
        if entry is not None:
            del self.claims[run_id]
            self._size -= entry[0]
