"""The execution of a run that workers have died with. It says when it has cleared itself, and which calls the dead may
have begun."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from ..model.records import Claimed, StepDone, StepRecord, StepWith
from .durable_call import DurableCall
from .execution import Execution
from .ledger import Ledger
from .matching import UNDO, History
from .recorder import Recorder
from .step_call import STEP
from .workflow import Workflow

_CALLS = frozenset({STEP, UNDO, "transaction", "wait_until"})
"""Kinds of records whose calls call a function of the user's."""


class Suspect(Execution):
    """With its first new record it stops being a suspect, and its seat is free for another. A class of its own, so
    that recording costs all other runs nothing more."""

    def __init__(
        self, claimed: Claimed, workflow: Workflow[Any, Any], recorder: Recorder, cleared: Callable[[], None]
    ) -> None:
        self._cleared = cleared
        self._begun: set[tuple[str, int]] = set()
        """Calls that the code came to before this claim's first record: the claims that were lost may have come to them
        as well."""
        super().__init__(claimed, workflow, recorder)

    def take(self, call: DurableCall[Any]) -> StepRecord | None:
        """Take the call's position; its record, if the step was done before."""
        if not self.ledger.recorded:
            self._begun.add((call.branch, call.position))
        return super().take(call)

    def marked(self, entry: StepDone) -> StepDone:
        """With the number of workers that died while the call was under way, or may have been."""
        losses = self.claimed.unrecorded_losses
        if losses and entry.kind in _CALLS and (entry.branch, entry.position) in self._begun:
            return entry._replace(losses=losses)
        return entry

    async def record(self, entry: StepDone | StepWith) -> int:
        """Journal an outcome and wait for its commit; the database's time of it."""
        return await super().record(self.marked(entry) if isinstance(entry, StepDone) else entry)

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
