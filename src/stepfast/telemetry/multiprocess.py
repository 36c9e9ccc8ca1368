"""Several worker processes seen as one: their parent requests a report of each, and adds them up."""

from __future__ import annotations

import asyncio
import logging
import os
import socket
import time
from collections import deque
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any, NamedTuple

import msgspec

from ..model.health import Finding
from ..settings import Settings
from .health import PATIENCE, Report, SideThread
from .metrics import GAUGE, Family, merged

if TYPE_CHECKING:
    from ..app import Stepfast


VARIABLE = "STEPFAST_REPORT_FD"
"""Names the open file of the wire to the parent."""
HEALTH, METRICS, GAUGES = "health", "metrics", "gauges"
_LAST_WORD = 1.0
"""Seconds for the last report."""


def wire_to_parent() -> socket.socket | None:
    """Return the wire that the parent passed, once: processes started here must not inherit it."""
    number = os.environ.pop(VARIABLE, None)
    if number is None or not number.isdecimal():
        return None
    try:
        os.set_inheritable(int(number), False)
        return socket.socket(fileno=int(number))
    except OSError:
        return None


class ReportingWire(SideThread):
    """Answers the parent."""

    def __init__(self, app: Stepfast, wire: socket.socket) -> None:
        super().__init__(app)
        self._wire = wire

    async def _serve(self, ready: Callable[[], None]) -> None:
        reader, writer = await asyncio.open_connection(sock=self._wire)
        ready()
        try:
            await self._send(writer, await self._reporter.report())
            while word := (await reader.readline()).decode("ascii", "replace").strip():
                report = await self._reporter.report(word != HEALTH, word == GAUGES)
                await self._send(writer, report)
        except ConnectionError:
            pass  # the parent is gone
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


_LONGEST = 32 * 1024 * 1024
"""Bytes of a report at most."""
_SOON = 2.0
"""Seconds within which a child answers without queries of the database."""

logger = logging.getLogger("stepfast.health")


class Wire(NamedTuple):
    """The two ends of the wire to a process that is about to be started."""

    ours: socket.socket
    theirs: socket.socket

    def for_child(self) -> dict[str, Any]:
        """Return the arguments that pass the other end to a process."""
        number = self.theirs.fileno()
        return {"pass_fds": (number,), "env": {**os.environ, VARIABLE: str(number)}}


class Child:
    """One worker process, and the wire to it."""

    def __init__(self, number: int, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.number = number
        self._reader, self._writer = reader, writer
        self.families: list[Family] = []
        """What it had counted by its last report."""
        self.answered_at = time.monotonic()
        self.introduced = False
        """Whether the process has reported yet. One that still loads its code cannot, and is not waited for."""
        self._waiting: deque[asyncio.Future[Report]] = deque()

    async def listen(self) -> None:
        """Receive its reports until it ends."""
        try:
            while text := await self._reader.readline():
                self._heard(msgspec.json.decode(text, type=Report))
        except (OSError, ValueError, msgspec.MsgspecError) as error:
            logger.debug("the wire to worker process %d broke: %s", self.number, type(error).__name__)
        finally:
            self._writer.close()
            for future in self._waiting:
                future.cancel()

    def _heard(self, report: Report) -> None:
        self.answered_at = time.monotonic()
        if not self.introduced:
            self.introduced = True
            return
        if report.families:
            self.families = report.families
        if self._waiting and not (future := self._waiting.popleft()).done():
            future.set_result(report)

    async def ask(self, word: str, patience: float) -> Report | None:
        """Request a report of the child; None if it does not answer in time."""
        if not self.introduced or self._writer.is_closing():
            return None
        future = asyncio.get_running_loop().create_future()
        self._waiting.append(future)
        self._writer.write(f"{word}\n".encode())
        done, _ = await asyncio.wait((future,), timeout=patience)
        return future.result() if done and not future.cancelled() else None


class Children:
    """All worker processes of a parent, as the health port sees them."""

    def __init__(self, size: int, settings: Settings) -> None:
        self._size = size
        self._settings = settings
        self._living: dict[Child, asyncio.Task[None]] = {}
        self._departed: list[Family] = []
        """What ended processes had counted."""

    async def joined(self, number: int, wire: Wire) -> Child:
        """Add a process that was started with its end of this wire."""
        wire.theirs.close()
        child = Child(number, *await asyncio.open_connection(sock=wire.ours, limit=_LONGEST))
        self._living[child] = asyncio.create_task(child.listen(), name="stepfast-report")
        return child

    async def left(self, child: Child) -> None:
        """Remove a process that has ended: receive its last report, and keep what it had counted."""
        task = self._living[child]
        await asyncio.wait((task,), timeout=_SOON)
        task.cancel()
        del self._living[child]
        lasting = [family for family in child.families if family.kind != GAUGE]
        self._departed = merged([*self._departed, *lasting], self._settings.metrics_series)

    async def health(self) -> Report:
        """Report on the health of all processes."""
        children = sorted(self._living, key=lambda child: child.number)
        reports = await asyncio.gather(*(child.ask(HEALTH, _SOON) for child in children))
        whole = Report([], [])
        for child, report in zip(children, reports, strict=True):
            said = self._silent(child) if report is None else report
            whole.live += _named(child, said.live)
            whole.ready += _named(child, said.ready)
        missing = self._size - len(children)
        whole.live.append(Finding("parent", True, "keeps its worker processes"))
        if missing:
            whole.ready.append(Finding("processes", False, f"{missing} of {self._size} are not running just now"))
        return whole

    def _silent(self, child: Child) -> Report:
        silent = time.monotonic() - child.answered_at
        said = f"has not answered for {silent:.1f} s" if child.introduced else f"has been starting for {silent:.1f} s"
        alive = silent < self._settings.live_lag
        return Report([Finding("process", alive, said)], [Finding("process", False, said)])

    async def metrics(self) -> list[Family]:
        """Return the sums over all processes, and gauges that one of them reads in the database."""
        children = sorted(self._living, key=lambda child: child.number)
        reading = asyncio.create_task(self._gauges(children))
        await asyncio.gather(*(child.ask(METRICS, _SOON) for child in children))
        gauges = await reading
        # Only now: a process that has ended since is among the departed.
        counted = [family for child in self._living for family in child.families]
        return gauges + merged([*self._departed, *counted])

    async def _gauges(self, children: Iterable[Child]) -> list[Family]:
        """Request gauges of the first that answers: the same one each time, so that its cache is used."""
        until = time.monotonic() + PATIENCE + _SOON
        for child in children:
            report = await child.ask(GAUGES, max(0.0, min(PATIENCE + 0.5, until - time.monotonic())))
            if report is not None and report.gauges:
                return report.gauges
        return []


def _named(child: Child, findings: Iterable[Finding]) -> list[Finding]:
    return [Finding(f"process {child.number}, {found.name}", found.ok, found.said) for found in findings]
