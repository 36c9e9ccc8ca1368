"""A worker process that reports to its parent: the parent listens for all, and asks each over a wire of its own.

The parent sends a word: ``health``, ``metrics``, or ``gauges`` for both and what stands in the database. The child
answers with a report, as one line of JSON. Without being asked it sends one when it begins, and a last one when it ends
in good order.
"""

from __future__ import annotations

import asyncio
import os
import socket
from collections.abc import Callable
from typing import TYPE_CHECKING

import msgspec

from .reports import Report, Reporter
from .side_thread import SideThread

if TYPE_CHECKING:
    from ..app import Stepfast

VARIABLE = "STEPFAST_REPORT_FD"
"""Names the open file that is the wire to the parent."""
HEALTH, METRICS, GAUGES = "health", "metrics", "gauges"
_LAST_WORD = 1.0
"""Seconds for the last report to go."""


def wire_to_parent() -> socket.socket | None:
    """The wire that our parent gave us, once: what we start ourselves must not have it."""
    number = os.environ.pop(VARIABLE, None)
    if number is None or not number.isdecimal():
        return None
    try:
        os.set_inheritable(int(number), False)
        return socket.socket(fileno=int(number))
    except OSError:
        return None


class ReportingWire:
    """Answers the parent, in a thread of its own, while the ``async with`` lasts."""

    def __init__(self, app: Stepfast, wire: socket.socket) -> None:
        self._app = app
        self._wire = wire
        self._thread: SideThread | None = None

    async def __aenter__(self) -> ReportingWire:
        self._reporter = reporter = Reporter(self._app, asyncio.get_running_loop())
        thread = self._thread = SideThread("stepfast-health", self._answer, reporter.watch)
        thread.start()
        return self

    async def __aexit__(self, *_: object) -> None:
        if self._thread is not None:
            self._thread.stop()

    async def _answer(self, ready: Callable[[], None]) -> None:
        reader, writer = await asyncio.open_connection(sock=self._wire)
        ready()
        try:
            await self._send(writer, await self._reporter.report())
            while word := (await reader.readline()).decode("ascii", "replace").strip():
                report = await self._reporter.report(word != HEALTH, word == GAUGES)
                await self._send(writer, report)
        except ConnectionError:
            pass  # the parent is gone; somebody will tell us what to do
        finally:
            try:
                async with asyncio.timeout(_LAST_WORD):
                    await self._send(writer, await self._reporter.report(metrics=True))
            except (TimeoutError, OSError):
                pass
            writer.close()

    async def _send(self, writer: asyncio.StreamWriter, report: Report) -> None:
        writer.write(msgspec.json.encode(report) + b"\n")
        await writer.drain()
