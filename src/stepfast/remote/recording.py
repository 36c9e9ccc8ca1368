"""Outcomes on their way into the database: whatever waits when the last commit returns goes out with the next.

So a busy worker writes many results with one commit, and an idle one writes a single result at once.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable

from ..engine.host import Clock
from ..errors import DatabaseRefused
from ..settings import Settings
from ..worker.db_retry import dutifully
from .messages import FAILED, TaskOutcome, refusal
from .names import ids_of_step
from .serving import Key, Serving

_MOST = 500
"""Results in one transaction."""
_BYTES = 1024 * 1024
"""About how many bytes one transaction carries: a packet of MySQL's takes 16 MB by default, and quoting can double."""

_PUT_OFF = 5.0
"""Seconds for which a result is put off at most because an engine reads what an earlier attempt left in its row."""
_AGAIN = 0.05
"""Seconds until it is tried again."""


class Recorder:
    """Writes outcomes, in the order in which they came."""

    def __init__(
        self, serving: Serving, settings: Settings, logger: logging.Logger, clock: Clock, written: Callable[[], None]
    ) -> None:
        self._serving = serving
        self._longest = settings.outage_backoff_max
        self._logger = logger
        self._clock = clock
        self._written = written
        self._waiting: list[TaskOutcome] = []
        self._writing: list[TaskOutcome] = []
        self._later: dict[Key, tuple[float, TaskOutcome]] = {}
        """What was put off, and since when."""
        self._news = asyncio.Event()
        self.emptied = asyncio.Event()
        """Set while nothing waits."""
        self.emptied.set()

    def add(self, outcome: TaskOutcome) -> None:
        """Take an outcome that is to be written with the next batch."""
        self._waiting.append(outcome)
        self.emptied.clear()
        self._news.set()

    @property
    def unrecorded(self) -> list[Key]:
        """Tasks that are done and still held."""
        return [*self._later, *(outcome.key for outcome in (*self._writing, *self._waiting))]

    async def run(self) -> None:
        """Write for as long as the worker works."""
        while True:
            await self._news.wait()
            self._news.clear()
            while self._waiting:
                self._writing, self._waiting = _portion(self._waiting)
                await self._write(self._writing)
                self._writing = []
                self._written()
            if not self._later:
                self.emptied.set()

    async def _write(self, outcomes: list[TaskOutcome]) -> None:
        """Write them; if the database takes one of them for unfit, the others do not hang on it."""
        try:
            recorded = await dutifully(
                lambda: self._serving.record(outcomes, self._overdue()),
                "recording results",
                self._logger,
                self._longest,
                refusable=True,
                clock=self._clock,
            )
        except DatabaseRefused as error:
            if len(outcomes) > 1:
                half = len(outcomes) // 2
                await self._write(outcomes[:half])
                await self._write(outcomes[half:])
            else:
                await self._refused(outcomes[0], error)
            return
        for outcome in outcomes:
            if outcome.key in recorded.put_off:
                self._put_off(outcome)
                continue
            self._later.pop(outcome.key, None)
            if outcome.key not in recorded.written:
                self._logger.warning(
                    "the result of step %s, attempt %d, is not written: its task is gone, or another worker's",
                    *outcome.key, extra=ids_of_step(outcome.step_id),
                )  # fmt: skip

    def _overdue(self) -> set[str]:
        """Steps whose results have been put off for long enough."""
        limit = self._clock.now() - _PUT_OFF
        return {key[0] for key, (since, _) in self._later.items() if since < limit}

    def _put_off(self, outcome: TaskOutcome) -> None:
        since = self._later[outcome.key][0] if outcome.key in self._later else self._clock.now()
        self._later[outcome.key] = since, outcome
        self._clock.after(_AGAIN, self.add, outcome)

    async def _refused(self, outcome: TaskOutcome, error: DatabaseRefused) -> None:
        """The step fails, and says why; unless it is this very sentence that the database does not take."""
        told = refusal(f"the database does not take the result: {error}")
        self._later.pop(outcome.key, None)
        failure = TaskOutcome(outcome.step_id, outcome.attempt, FAILED, None, told, outcome.started_at)
        if outcome.status == FAILED and outcome.output is None and outcome.error == told:
            ids = ids_of_step(outcome.step_id)
            self._logger.error("step %s: %s; its task is left to others", outcome.step_id, error, extra=ids)
        else:
            await self._write([failure])


def _portion(waiting: list[TaskOutcome]) -> tuple[list[TaskOutcome], list[TaskOutcome]]:
    """What goes out now, and what is left for the next time."""
    size = 0
    for count, outcome in enumerate(waiting):
        if count == _MOST or (count and size + outcome.size > _BYTES):
            return waiting[:count], waiting[count:]
        size += outcome.size
    return waiting, []
