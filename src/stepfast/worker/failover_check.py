"""Doubts: which of its runs a worker does not trust its memory of, since a connection broke.

Commits that it was told of may be gone, with the row still naming this worker and its claim: the fence alone would let
it go on from memory and leave a hole in the history. So the first write of each such run compares, in its own
transaction, what is stored with what is believed. If there is less, the run is lost to this worker, and goes on from
what is left.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from ..engine.host import Clock
from ..model.records import Batch, FlushAnswer, HasRecordCount


class UnverifiedWrites:
    """Open doubts, resolved run by run. While nothing breaks there are none."""

    def __init__(self, clock: Clock, held: Callable[[], Mapping[str, HasRecordCount]]) -> None:
        self._clock = clock
        self._held = held
        self.open: dict[str, HasRecordCount] = {}
        self.last_break = float("-inf")
        """When the doubt was noticed (monotonic)."""
        self._breaks = 0
        self._asked_at = 0

    def broke(self) -> None:
        """From here on nothing is sure that was believed before."""
        self._breaks += 1
        self.last_break = self._clock.now()
        self.open.update(self._held())

    def asking(self) -> None:
        """A flush is sent: it ends the doubts about its runs, but not those that come while it is under way."""
        self._asked_at = self._breaks

    def compared(self, batch: Batch, answer: FlushAnswer) -> None:
        """What was compared, and found to be as believed, is doubted no more. What was refused may be a late word of an
        older claim than the one that is doubted; a run that is lost is forgotten with those that are not held."""
        if self._asked_at == self._breaks:
            for run_id in batch.claims:
                if run_id not in answer.busy and run_id not in answer.lost:
                    self.open.pop(run_id, None)

    def forget_unheld(self) -> None:
        """A run that was lost, and of which nothing is left to be written, will never be compared."""
        held = self._held()
        for run_id in [run_id for run_id, believer in self.open.items() if held.get(run_id) is not believer]:
            del self.open[run_id]

    def drop(self, run_id: str) -> None:
        """The run was compared elsewhere, or is not held any more."""
        self.open.pop(run_id, None)
