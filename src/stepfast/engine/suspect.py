"""The execution of a suspect: a run that workers have died with. It tells when it has cleared itself."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from ..model.records import Claimed, StepDone
from .execution import Execution
from .ledger import Ledger
from .matching import History
from .recorder import Recorder
from .workflow import Workflow


class Suspect(Execution):
    """With its first new record it stops being a suspect, and its seat is free for another. A class of its own, so
    that recording costs all other runs nothing more."""

    def __init__(
        self, claimed: Claimed, workflow: Workflow[Any, Any], recorder: Recorder, cleared: Callable[[], None]
    ) -> None:
        self._cleared = cleared
        super().__init__(claimed, workflow, recorder)

    def _ledger_for(self, history: History) -> Ledger:
        return _TellingLedger(history, self.recorder.settings.history_records, self._cleared)


class _TellingLedger(Ledger):
    """The ledger of a suspect, which tells of its first record."""

    __slots__ = ("_cleared",)

    def __init__(self, history: History, most: int, cleared: Callable[[], None]) -> None:
        super().__init__(history, most)
        self._cleared = cleared

    def add(self, entry: StepDone, now: int) -> None:
        """A record of this run is committed."""
        first = not self.recorded
        super().add(entry, now)
        if first:
            self._cleared()
