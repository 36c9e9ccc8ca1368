"""The health port: a very small HTTP server in a thread of its own, so that it answers while the worker is blocked.

It reads one short request per connection, within seconds, answers and closes. It needs no package, and listens on
loopback unless told otherwise.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from http import HTTPStatus
from typing import TYPE_CHECKING

from ..errors import ConfigurationError
from .answers import Answer, Source, answer
from .reports import Reporter
from .side_thread import SideThread

if TYPE_CHECKING:
    from ..app import Stepfast

LOOPBACK = "127.0.0.1"
_LONGEST = 8 * 1024
"""Bytes of a request at most. Ours have no body, and few headers."""
_PATIENCE = 5.0
"""Seconds for a request to come, and for its answer to go."""
_THINKING = 10.0
"""Seconds for an answer to be made."""
_MOST = 32
"""Connections at once; the next one is told to come again."""

logger = logging.getLogger("stepfast.health")


class HealthPort:
    """Answers ``/live``, ``/ready`` and ``/metrics`` for the workers of this event loop.

    ``async with HealthPort(app, 9000), app.worker(): …``. Counters are there if ``Metrics`` is among the observers of
    the application. Port 0 takes a free one, which ``port`` tells.
    """

    def __init__(self, app: Stepfast, port: int, host: str = LOOPBACK) -> None:
        self._app = app
        self._host = host
        self.port = port
        self._thread: SideThread | None = None

    async def __aenter__(self) -> HealthPort:
        reporter = Reporter(self._app, asyncio.get_running_loop())
        listener = Listener(reporter, self._host, self.port)
        thread = self._thread = SideThread("stepfast-health", listener.serve, reporter.watch)
        thread.start()  # a moment: nothing is asked of anybody
        self.port = listener.port
        return self

    async def __aexit__(self, *_: object) -> None:
        if self._thread is not None:
            self._thread.stop()


class Listener:
    """Listens, and has each request answered."""

    def __init__(self, source: Source, host: str, port: int) -> None:
        self._source = source
        self._host = host
        self.port = port
        """Where it listens; of 0, what it was given."""
        self._open = 0
        """Connections that are being answered."""

    async def serve(self, ready: Callable[[], None]) -> None:
        """Listen until this is cancelled."""
        server = await self.listen()
        ready()
        try:
            await asyncio.get_running_loop().create_future()
        finally:
            server.close()

    async def listen(self) -> asyncio.Server:
        """Take the port, or say why not."""
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
            writer.transport.abort()  # who asks and does not listen is not waited for
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
