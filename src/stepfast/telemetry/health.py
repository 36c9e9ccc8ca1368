"""The health port: a small HTTP server in a thread of its own, so that it answers while the event loop is blocked."""

from __future__ import annotations

import asyncio
import logging
import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from http import HTTPStatus
from typing import TYPE_CHECKING, NamedTuple, Protocol, Self

from msgspec import Struct

from ..errors import ConfigurationError
from ..model.health import Finding, Vitals, is_live, is_ready
from .gauges import gauges_of
from .metrics import CONTENT_TYPE, GAUGE, Family, Metrics, render

if TYPE_CHECKING:
    from ..app import Stepfast


EVERY = 1.0
"""Seconds between two checks."""
_STOPPED = 2.0
"""A check that is so many seconds late: the whole process was stopped, and not only the event loop."""


class LoopLag:
    """Measures the lag of an event loop by a callback. Used in one thread that is not the loop's."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._sent: float | None = None
        """When the callback was scheduled that has not been called yet."""
        self._examined = time.monotonic()
        self._took = 0.0
        """How long the last callback waited."""

    @property
    def seconds(self) -> float:
        """For how long the loop has been blocked, or was at the last callback."""
        sent = self._sent
        return self._took if sent is None else max(self._took, time.monotonic() - sent)

    def examine(self) -> None:
        """Schedule a callback, unless one is pending. To be called about once a second."""
        now = time.monotonic()
        if self._sent is not None and now - self._examined > EVERY + _STOPPED:
            self._sent = now
        self._examined = now
        if self._sent is None:
            self._sent = now
            try:
                self._loop.call_soon_threadsafe(self._taken)
            except RuntimeError:
                self._sent = None  # it is closed: the process is about to end

    def _taken(self) -> None:
        sent = self._sent
        if sent is not None:
            self._took, self._sent = time.monotonic() - sent, None


PATIENCE = 3.0
"""Seconds for queries of the database by the worker's event loop. Scrapes wait for ten."""


class Report(Struct):
    """The report of a process on itself."""

    live: list[Finding]
    ready: list[Finding]
    families: list[Family] = []
    """What it has counted, if requested."""
    gauges: list[Family] = []
    """What it has read in the database, if requested."""


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
        """Return what it has counted, and what it reads in the database."""
        report = await self.report(metrics=True, gauges=True)
        return report.gauges + report.families

    async def report(self, metrics: bool = False, gauges: bool = False) -> Report:
        """Report on the workers of this process; on request with counters and with gauges of the database."""
        workers = self._vitals()
        lag = self.lag.seconds
        report = Report(is_live(workers, lag, self._app.settings.live_lag), is_ready(workers))
        if metrics:
            report.families = [*counted(self._app), lag_family(lag)]
        if gauges:
            report.gauges = await self._gauges()
        return report

    async def watch(self) -> None:
        """Check the event loop, until cancelled."""
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
        """Read gauges in the event loop that has the connections; none, if it does not answer."""
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
    """Return the lag of the event loop as a metric."""
    said = "How long the event loop of the worker did not move; of several processes, the longest."
    return Family("stepfast_loop_lag_seconds", GAUGE, said, series=[((), [seconds])])


LIVE = ("/live", "/livez")
READY = ("/ready", "/readyz")
METRICS = "/metrics"
_PLAIN = "text/plain; charset=utf-8"
_PAGES = f"there are {LIVE[0]}, {READY[0]} and {METRICS}\n"


class Source(Protocol):
    """The source of reports: one process, or the parent of several."""

    async def health(self) -> Report:
        """Whether the process is alive, and ready to work."""
        ...

    async def metrics(self) -> list[Family]:
        """What was counted, and gauges of the database."""
        ...


class Answer(NamedTuple):
    """An answer of the health port."""

    code: int
    text: str
    content_type: str = _PLAIN
    allow: bool = False
    """Whether to list the allowed methods."""


async def answer(source: Source, method: str, target: str) -> Answer:
    """Return the answer to a request, without repeating any of it."""
    path = target.partition("?")[0]
    if path not in (*LIVE, *READY, METRICS):
        return Answer(404, _PAGES)
    if method not in ("GET", "HEAD"):
        return Answer(405, "only GET and HEAD\n", allow=True)
    if path == METRICS:
        return Answer(200, render(await source.metrics()), CONTENT_TYPE)
    report = await source.health()
    return _told(report.live if path in LIVE else report.ready)


def _told(findings: Sequence[Finding]) -> Answer:
    """Return a line for each finding, also for good ones, for people who read them."""
    lines = [f"{'ok' if finding.ok else 'wrong'}: {finding.name}: {finding.said}\n" for finding in findings]
    return Answer(200 if all(finding.ok for finding in findings) else 503, "".join(lines))


_START_TIMEOUT = 10.0
"""Seconds for it to start; and a fifth of that to end."""

logger = logging.getLogger("stepfast.health")


class SideThread(ABC):
    """Reports on the workers of an event loop in a thread of its own, while the ``async with`` lasts."""

    def __init__(self, app: Stepfast) -> None:
        self._app = app
        self._stopping: Callable[[], object] | None = None

    async def __aenter__(self) -> Self:
        self._reporter = Reporter(self._app, asyncio.get_running_loop())
        self._begun: Future[None] = Future()
        self._thread = threading.Thread(target=self._run, name="stepfast-health", daemon=True)
        self._thread.start()
        self._begun.result(_START_TIMEOUT)  # blocks only briefly: nothing is queried
        return self

    async def __aexit__(self, *_: object) -> None:
        if self._stopping is not None:
            self._stopping()
        if self._thread.is_alive():
            self._thread.join(_START_TIMEOUT / 5)

    @abstractmethod
    async def _serve(self, ready: Callable[[], None]) -> None:
        """Serve until cancelled, and call ``ready`` before."""

    def _run(self) -> None:
        try:
            asyncio.run(self._until_stopped())
        except Exception as error:
            if self._begun.done():
                logger.exception("the health port broke; the worker continues without it")
            else:
                self._begun.set_exception(error)

    async def _until_stopped(self) -> None:
        loop, main = asyncio.get_running_loop(), asyncio.ensure_future(self._serve(self._ready))

        def stop() -> None:
            if not loop.is_closed():
                loop.call_soon_threadsafe(main.cancel)

        self._stopping = stop
        watching = asyncio.ensure_future(self._reporter.watch())
        try:
            await main
        except asyncio.CancelledError:  # ends here: it was stopped, and the thread ends with it
            pass
        finally:
            watching.cancel()

    def _ready(self) -> None:
        if not self._begun.done():
            self._begun.set_result(None)


LOOPBACK = "127.0.0.1"
_LONGEST = 8 * 1024
"""Bytes of a request at most. Ours have no body, and few headers."""
_PATIENCE = 5.0
"""Seconds for a request to come, and for its answer to go."""
_THINKING = 10.0
"""Seconds for an answer to be made."""
_MOST = 32
"""Connections at once; further ones are refused."""


class HealthPort(SideThread):
    """Answers ``/live``, ``/ready`` and ``/metrics`` for the workers of this event loop.

    ``async with HealthPort(app, 9000), app.worker(): …``. Counters are there if ``Metrics`` is among the observers of
    the application. Port 0 takes a free one, which is then ``port``.
    """

    def __init__(self, app: Stepfast, port: int, host: str = LOOPBACK) -> None:
        super().__init__(app)
        self._host = host
        self.port = port

    async def _serve(self, ready: Callable[[], None]) -> None:
        listener = Listener(self._reporter, self._host, self.port)
        server = await listener.listen()
        self.port = listener.port
        ready()
        try:
            await asyncio.get_running_loop().create_future()
        finally:
            server.close()


class Listener:
    """Listens, and answers requests."""

    def __init__(self, source: Source, host: str, port: int) -> None:
        self._source = source
        self._host = host
        self.port = port
        """Where it listens; for 0, the port that it was given."""
        self._open = 0
        """Connections that are being answered."""

    async def listen(self) -> asyncio.Server:
        """Take the port, or raise an error that says why that is not possible."""
        if not self._host.strip():
            raise ConfigurationError(
                "the health port needs a host to listen on, and the one that is given is empty: name one, as in "
                "127.0.0.1, or 0.0.0.0 for all addresses of this machine"
            )
        try:
            server = await asyncio.start_server(self._connected, self._host, self.port, limit=_LONGEST)
        except (OSError, OverflowError) as error:
            why = getattr(error, "strerror", None) or str(error)
            raise ConfigurationError(
                f"the health port cannot listen on {self._host}, port {self.port}: {why}. Choose another --health-port "
                "or --health-host"
            ) from None
        self.port = server.sockets[0].getsockname()[1]
        logger.info("health: http://%s:%d/live, /ready and /metrics", self._host, self.port)
        return server

    async def _connected(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.transport.set_write_buffer_limits(0)  # then `drain` waits until all of it has gone
        self._open += 1
        try:
            method, said = await self._said(reader)
            writer.write(response(said, with_body=method != "HEAD"))
            async with asyncio.timeout(_PATIENCE):
                await writer.drain()
            writer.close()
        except (TimeoutError, OSError):
            writer.transport.abort()  # a client that does not read is not waited for
        finally:
            self._open -= 1

    async def _said(self, reader: asyncio.StreamReader) -> tuple[str, Answer]:
        """The method of the request, and the answer to it."""
        if self._open > _MOST:
            return "GET", Answer(503, "too many connections at once\n")
        try:
            async with asyncio.timeout(_PATIENCE):
                head = await reader.readuntil(b"\r\n\r\n")
        except (asyncio.IncompleteReadError, asyncio.LimitOverrunError):
            return "GET", Answer(400, "this is no request that is answered here\n")
        words = head.partition(b"\r\n")[0].decode("latin-1").split(" ")
        if len(words) != 3 or not words[2].startswith("HTTP/1."):
            return "GET", Answer(400, "this is no request that is answered here\n")
        return words[0], await self._answered(words[0], words[1])

    async def _answered(self, method: str, target: str) -> Answer:
        try:
            async with asyncio.timeout(_THINKING):
                return await answer(self._source, method, target)
        except TimeoutError:
            return Answer(503, "there was no answer in time\n")
        except Exception:
            logger.exception("health: unexpected error")
            return Answer(500, "an internal error of Stepfast; the log says more\n")


def response(said: Answer, with_body: bool) -> bytes:
    """An answer as it goes over the wire."""
    body = said.text.encode()
    lines = [
        f"HTTP/1.1 {said.code} {HTTPStatus(said.code).phrase}",
        f"Content-Type: {said.content_type}",
        f"Content-Length: {len(body)}",
        "Cache-Control: no-store",
        "X-Content-Type-Options: nosniff",
        "Connection: close",
        *(["Allow: GET, HEAD"] if said.allow else []),
    ]
    head = "\r\n".join(lines) + "\r\n\r\n"
    return head.encode() + (body if with_body else b"")


async def metrics_text(app: Stepfast) -> str:
    """Return the metrics of this process and of the database, as Prometheus reads them (``text/plain; version=0.0.4``).

    Counters are there if ``Metrics`` is among the observers of the application. The database is queried at most every
    ``metrics_cache`` seconds.
    """
    return render([*await gauges_of(app), *counted(app)])
