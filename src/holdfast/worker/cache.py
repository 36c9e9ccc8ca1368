"""A bounded memory of the records of runs that were released, so that a run which comes back need not be read again.

An entry is right if nobody claimed the run in between: then its claim number is the next one.
"""

from __future__ import annotations

from collections import OrderedDict

from ..model.records import StepRecord


class HistoryCache:
    """Least recently released goes first."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._size = 0
        self._entries: OrderedDict[str, tuple[int, int, list[StepRecord]]] = OrderedDict()

    def put(self, run_id: str, claim: int, records: list[StepRecord]) -> None:
        """Remember what a run had recorded when it left."""
        self.drop(run_id)
        size = sum(200 + len(record.output or "") + len(record.arguments or "") for record in records)
        if size > self._limit // 8:
            return
        self._entries[run_id] = (claim, size, records)
        self._size += size
        while self._size > self._limit:
            _, (_, dropped, _) = self._entries.popitem(last=False)
            self._size -= dropped

    def take(self, run_id: str, claim: int) -> list[StepRecord] | None:
        """What is remembered, if the run was not claimed by anybody else since."""
        entry = self._entries.get(run_id)
        self.drop(run_id)
        return entry[2] if entry is not None and entry[0] + 1 == claim else None

    def drop(self, run_id: str) -> None:
        """Forget a run."""
        entry = self._entries.pop(run_id, None)
        if entry is not None:
            self._size -= entry[1]
