"""A TCP proxy in front of a database server that behaves like a bad network.

It can reset connections, stop moving bytes, refuse new connections, and do the worst thing a network does to
a database client: let a statement through, let the server carry it out, and lose the reply. For that it reads
the server's side of the Postgres protocol, message by message; everything else passes untouched. Of the protocol of
MariaDB it knows commits.
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
import struct
from collections.abc import Callable
from dataclasses import dataclass, field
from types import TracebackType
from typing import Literal, Self
from urllib.parse import urlsplit, urlunsplit

from tests.support import wire

Match = Callable[[bytes], bool]

#: How a client asks for encryption (TLS, GSSAPI) before all else. The proxy has to read along: it says no.
ENCRYPTION_REQUESTS = {struct.pack("!II", 8, code) for code in (80877103, 80877104)}
COMMAND_COMPLETE, PORTAL_SUSPENDED, READY_FOR_QUERY, ERROR = b"C", b"s", b"Z", b"E"
#: What stands in for the tag of a statement of which the client wanted a few rows only: the server names none then.
SUSPENDED_TAG = b"SUSPENDED"
IDLE = b"I"
COMMIT_OF_MARIADB, OK_OF_MARIADB = b"\x07\x00\x00\x00\x03COMMIT", b"\x01\x00"
"""The command; and what its reply has behind its length, if it was carried out."""


@dataclass(eq=False)
class Swallow:
    """An order to lose one reply. `happened` is set once it was carried out, and `tag` says on which."""

    match: Match
    happened: asyncio.Event = field(default_factory=asyncio.Event)
    tag: bytes = b""


@dataclass(eq=False)
class _Link:
    """One client's connection and its twin to the server."""

    client: asyncio.StreamWriter
    server: asyncio.StreamWriter
    task: asyncio.Task[None]
    greeted: bool = False
    unparsed: bytearray = field(default_factory=bytearray)
    held: bytearray = field(default_factory=bytearray)  # a reply that will be lost if it proves to be committed
    order: Swallow | None = None
    tag: bytes = b""

    def reset(self) -> None:
        """Both ends at once. The client sees a reset, as from a crashed peer, not an orderly end."""
        _abort(self.client)
        _abort(self.server)


class Proxy:
    """Listens on a port of its own and forwards to the target. Lives in one event loop.

    With `protocol="raw"`, for other servers, everything but `swallow` works; with `"mariadb"` the tag is `b"COMMIT"`,
    where a client sends it alone.
    """

    def __init__(
        self, target_host: str, target_port: int, *, protocol: Literal["postgres", "mariadb", "raw"] = "postgres"
    ) -> None:
        self._target = (target_host, target_port)
        self._reads_along = protocol == "postgres"
        self._reads_commits = protocol == "mariadb"
        self._listener: asyncio.Server | None = None
        self._links: set[_Link] = set()
        self._tasks: set[asyncio.Task[None]] = set()
        self._moving = asyncio.Event()
        self._moving.set()
        self._refusing = False
        self._cuts = 0
        self._orders: list[Swallow] = []
        self.transactions = 0
        """How often the server said that it is idle: the transactions of all clients, ended one way or the other."""
        self.passing: Callable[[], None] | None = None
        """Called before anything is passed on, in either direction: a fault may begin at exactly that moment."""

    # Life

    async def start(self) -> Self:
        self._listener = await asyncio.start_server(self._accept, "127.0.0.1", 0)
        return self

    async def stop(self) -> None:
        if self._listener is None:
            return
        self._listener.close()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks)
        await self._listener.wait_closed()
        self._listener = None

    async def __aenter__(self) -> Self:
        return await self.start()

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.stop()

    @property
    def port(self) -> int:
        assert self._listener is not None, "the proxy was not started"
        return int(self._listener.sockets[0].getsockname()[1])

    def url(self, target: str) -> str:
        """The same URL, through the proxy."""
        parts = urlsplit(target)
        account, at, _ = parts.netloc.rpartition("@")
        return urlunsplit(parts._replace(netloc=f"{account}{at}127.0.0.1:{self.port}"))

    @property
    def knows_all_tags(self) -> bool:
        """Whether every reply can be lost, not only those to commits."""
        return self._reads_along

    @property
    def connections(self) -> int:
        """How many clients are connected through to the server now."""
        return len(self._links)

    # Faults

    def cut(self) -> None:
        """Reset every connection, also one that is being made; new ones are welcome."""
        self._cuts += 1
        for link in list(self._links):
            link.reset()
            link.task.cancel()

    def stall(self) -> None:
        """Nothing moves any more, in either direction, and nobody is told."""
        self._moving.clear()

    def resume(self) -> None:
        """What `stall` held up goes on its way."""
        self._moving.set()

    def refuse(self, refusing: bool = True) -> None:
        """Reset every new connection at once; the ones that exist go on."""
        self._refusing = refusing

    def swallow(self, match: Match) -> Swallow:
        """Lose one reply: the first whose command tag (`b"UPDATE 3"`, `b"COMMIT"`) matches and whose work is
        committed. A statement of which only the first row was asked for has the tag `SUSPENDED_TAG`.

        A tag alone proves nothing: inside a transaction the work could still be rolled back. So the reply is
        held until the server says that it is idle again, with no error in between. Then the client's
        connection is reset in place of the reply. A reply that matches inside an open transaction goes
        through, and the order stands.
        """
        assert self._reads_along or self._reads_commits, "the protocol is not understood here"
        order = Swallow(match)
        self._orders.append(order)
        return order

    def swallow_next_commit_reply(self) -> Swallow:
        """Lose the reply to the next commit: of a COMMIT, or of a statement that writes on its own.

        A SELECT that writes (through a CTE or a function) looks like any other; `swallow` with a match of
        your own finds it.
        """
        return self.swallow(lambda tag: tag.split(b" ")[0] in {b"COMMIT", b"INSERT", b"UPDATE", b"DELETE", b"MERGE"})

    # Forwarding

    async def _accept(self, requests: asyncio.StreamReader, client: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        try:
            await self._serve(requests, client, task)
        except asyncio.CancelledError:
            pass  # by stop() or cut(); asyncio would report it as a failure of this callback
        finally:
            self._tasks.discard(task)
            _abort(client)

    async def _serve(
        self, requests: asyncio.StreamReader, client: asyncio.StreamWriter, task: asyncio.Task[None]
    ) -> None:
        if self._refusing:
            return
        cuts = self._cuts
        try:
            replies, server = await asyncio.open_connection(*self._target)
        except OSError:
            return  # the target is down: to the client that is a reset
        if self._refusing or cuts != self._cuts:
            _abort(server)
            return
        link = _Link(client, server, task)
        self._links.add(link)
        try:
            async with asyncio.TaskGroup() as directions:
                directions.create_task(self._forward_requests(requests, link))
                directions.create_task(self._forward_replies(replies, link))
        except* (OSError, RuntimeError):
            pass  # a reset on one side (also just before we write), or a reply swallowed: both sides are reset below
        finally:
            self._links.discard(link)
            link.reset()

    async def _forward_requests(self, requests: asyncio.StreamReader, link: _Link) -> None:
        while chunk := await requests.read(65536):
            await self._pass()
            if self._reads_along and not link.greeted and chunk in ENCRYPTION_REQUESTS:
                await _send(link.client, b"N")
                continue
            link.greeted = True
            if self._reads_commits:
                link.tag = b"COMMIT" if chunk == COMMIT_OF_MARIADB else b""
            await _send(link.server, chunk)
        link.server.write_eof()

    async def _forward_replies(self, replies: asyncio.StreamReader, link: _Link) -> None:
        while chunk := await replies.read(65536):
            await self._pass()
            if link.tag and self._reads_commits and chunk[3:5] == OK_OF_MARIADB:
                for order in self._orders:
                    if order.match(link.tag):
                        self._lose(order, link.tag)
            await _send(link.client, self._let_through(chunk, link) if self._reads_along else chunk)
        link.client.write_eof()

    async def _pass(self) -> None:
        if self.passing is not None:
            self.passing()
        await self._moving.wait()

    def _let_through(self, chunk: bytes, link: _Link) -> bytes:
        """The complete messages that the client may see now. Raises ConnectionResetError to lose a reply."""
        link.unparsed += chunk
        visible = bytearray()
        for kind, message in wire.messages(link.unparsed):
            self.transactions += kind == READY_FOR_QUERY and message[5:6] == IDLE
            if kind in (COMMAND_COMPLETE, PORTAL_SUSPENDED) and link.order is None:
                link.tag = message[5:].rstrip(b"\0") or SUSPENDED_TAG
                link.order = next((order for order in self._orders if order.match(link.tag)), None)
            if link.order is None:
                visible += message
                continue
            link.held += message
            if kind == READY_FOR_QUERY and message[5:6] == IDLE and link.order in self._orders:
                self._lose(link.order, link.tag)
            if kind in (READY_FOR_QUERY, ERROR):
                visible += link.held
                link.held.clear()
                link.order = None
        return bytes(visible)

    def _lose(self, order: Swallow, tag: bytes) -> None:
        self._orders.remove(order)
        order.tag = tag
        order.happened.set()
        raise ConnectionResetError("a reply was swallowed")


async def _send(sink: asyncio.StreamWriter, data: bytes) -> None:
    sink.write(data)
    await sink.drain()


def _abort(writer: asyncio.StreamWriter) -> None:
    """Close with a TCP reset: lingering for no time at all makes the kernel send one."""
    with contextlib.suppress(OSError):
        writer.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    writer.transport.abort()
