"""How one process is doing, as a report: is it alive, is it ready, and what has it counted.

Made in a thread of its own, so that there is an answer also while some code blocks the event loop of the worker.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import TYPE_CHECKING

from msgspec import Struct

from ..model.health import Finding, Vitals, is_live, is_ready
from .database_gauges import gauges_of
from .exposition import GAUGE, Family
from .loop_lag import EVERY, LoopLag
from .metrics import Metrics

if TYPE_CHECKING:
    from ..app import Stepfast

PATIENCE = 3.0
"""Seconds for the questions that only the event loop of the worker can ask the database. Scrapes wait for ten."""


class Report(Struct):
    """What a process says of itself."""

    live: list[Finding]
    ready: list[Finding]
    families: list[Family] = []
    """What it has counted, if that was asked for."""
    gauges: list[Family] = []
    """What it has read in the database for all, if that was asked for."""


class Reporter:
    """Reports of the workers that an application has in one event loop. Used in another thread."""

    def __init__(self, app: Stepfast, loop: asyncio.AbstractEventLoop) -> None:
        self._app = app
        self._loop = loop
        self.lag = LoopLag(loop)

    async def health(self) -> Report:
        """Whether the process is alive, and ready to work."""
        return await self.report()

    async def metrics(self) -> list[Family]:
        """What it has counted, and what it reads in the database."""
        report = await self.report(metrics=True, gauges=True)
        return report.gauges + report.families

    async def report(self, metrics: bool = False, gauges: bool = False) -> Report:
        """How the workers of this process are doing now; if wanted, with counters and with gauges of the database."""
        workers = self._vitals()
        lag = self.lag.seconds
        report = Report(is_live(workers, lag, self._app.settings.live_lag), is_ready(workers))
        if metrics:
            report.families = [*counted(self._app), lag_family(lag)]
        if gauges:
            report.gauges = await self._gauges()
        return report

    async def watch(self) -> None:
        """Have an eye on the event loop, until cancelled."""
        while True:
            self.lag.examine()
            await asyncio.sleep(EVERY)

    def _vitals(self) -> list[Vitals]:
        connected = self._app._connections.made(self._loop)
        while connected is not None:
            try:
                return [worker.vitals() for worker in list(connected.workers) if worker.at_work]
            except RuntimeError:  # changed while we looked
                continue
        return []

    async def _gauges(self) -> list[Family]:
        """Read by the event loop that has the connections; nothing, if that does not answer."""
        if self._app._connections.made(self._loop) is None:
            return []
        reading = gauges_of(self._app)
        try:
            future = asyncio.wrap_future(asyncio.run_coroutine_threadsafe(reading, self._loop))
        except RuntimeError:  # the loop is closed
            reading.close()
            return []
        await asyncio.wait((future,), timeout=PATIENCE)
        if future.done() and not future.cancelled():
            return future.result()
        future.cancel()
        return []


def counted(app: Stepfast) -> list[Family]:
    """What the metrics among the observers of an application have counted."""
    return [family for observer in app.observers if isinstance(observer, Metrics) for family in observer.families()]


def lag_family(seconds: float) -> Family:
    """How long the event loop took to take a word."""
    said = "How long the event loop of the worker did not move; of several processes, the longest."
    return Family("stepfast_loop_lag_seconds", GAUGE, said, series=[((), [seconds])])


def all_ok(findings: Sequence[Finding]) -> bool:
    """Whether nothing is wrong."""
    return all(finding.ok for finding in findings)
