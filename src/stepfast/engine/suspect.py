"""The execution of a suspect: a run that workers have died with. It tells when it has cleared itself."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from ..model.records import Claimed
from .execution import Execution
from .recorder import Recorder
from .workflow import Workflow


class Suspect(Execution):
    """With its first new record it stops being a suspect, and its seat is free for another. A class of its own, so
    that recording costs all other runs nothing more."""

    _recorded = False

    def __init__(
        self, claimed: Claimed, workflow: Workflow[Any, Any], recorder: Recorder, cleared: Callable[[], None]
    ) -> None:
        super().__init__(claimed, workflow, recorder)
        self._cleared = cleared

    @property
    def recorded(self) -> bool:
        """Whether this claim has made a new record."""
        return self._recorded

    @recorded.setter
    def recorded(self, made: bool) -> None:
        first, self._recorded = made and not self._recorded, made
        if first:
            self._cleared()
