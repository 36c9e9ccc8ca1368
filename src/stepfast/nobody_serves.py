"""Whoever waits for the result of a run that nobody will take is told so, instead of waiting without a word."""

from __future__ import annotations

import contextlib
import logging

from .engine.host import Clock
from .errors import StepfastError
from .model import status
from .model.health import nobody_serves
from .model.rows import RunRow
from .store import Store

SOON = 1.0
"""Seconds of waiting after which a look is taken: a worker that is there has taken the run by then."""
_AT_MOST_EVERY = 5.0
"""Seconds between two looks of one process, however many of its callers wait."""


class Lookout:
    """Looks for workers on behalf of those who wait."""

    def __init__(self, store: Store, logger: logging.Logger, clock: Clock) -> None:
        self._store = store
        self._clock = clock
        self._logger = logger
        self._looked = float("-inf")

    async def warn(self, run_id: str) -> None:
        """One line in the log, if nobody will take the run. Somebody else in this process may just have looked: then it
        has been said, or is not so."""
        if self._clock.now() - self._looked < _AT_MOST_EVERY:
            return
        self._looked = self._clock.now()
        if (found := await self._look(run_id)) is not None:
            row, missing = found
            ids = {"run_id": run_id, "workflow": row.workflow, "attempt": row.attempt}
            self._logger.warning("run %s: %s", run_id, missing, extra=ids)

    async def missing(self, run_id: str) -> str | None:
        """What is to be said of a run that is ready and that nobody will take; None if that is not so, or cannot be
        told."""
        found = await self._look(run_id)
        return None if found is None else found[1]

    async def _look(self, run_id: str) -> tuple[RunRow, str] | None:
        """The row of a run that nobody will take, with what is to be said of it."""
        with contextlib.suppress(StepfastError):
            row = await self._store.run(run_id)
            if row is not None and row.status == status.QUEUED and row.ready:
                why = nobody_serves(await self._store.workers(), row.workflow, row.queue)
                if why is not None:
                    return row, f"it is queued; {why}: start one with `stepfast worker module:app`"
        return None
