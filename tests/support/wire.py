"""As much of the Postgres wire protocol as the test servers need: framing of messages, and SQL statements
over a socket.

The server fixtures must work before any driver is trusted, and the proxy has to know where a reply ends.
"""

from __future__ import annotations

import contextlib
import socket
import struct
from collections.abc import Iterator

PROTOCOL_3 = 196608


class WireError(Exception):
    """The server answered with an error, or not in the protocol at all."""


def messages(buffer: bytearray) -> Iterator[tuple[bytes, bytes]]:
    """Take every complete message out of the buffer, as (type, whole message); a part of one stays."""
    while len(buffer) >= 5:
        (length,) = struct.unpack_from("!I", buffer, 1)
        if len(buffer) < 1 + length:
            return
        message = bytes(buffer[: 1 + length])
        del buffer[: 1 + length]
        yield message[:1], message


class Session:
    """One connection to a server that trusts us."""

    def __init__(self, host: str, port: int, *, database: str = "postgres", user: str = "postgres") -> None:
        self._socket = socket.create_connection((host, port), timeout=30)
        pairs = b"".join(part.encode() + b"\0" for part in ("user", user, "database", database)) + b"\0"
        try:
            self._socket.sendall(struct.pack("!II", 8 + len(pairs), PROTOCOL_3) + pairs)
            _until_ready(self._socket)
        except BaseException:
            self._socket.close()
            raise

    def execute(self, sql: str) -> list[str]:
        """Run one statement; the first column of its rows."""
        query = sql.encode() + b"\0"
        self._socket.sendall(b"Q" + struct.pack("!I", 4 + len(query)) + query)
        return _until_ready(self._socket)

    def close(self) -> None:
        with contextlib.suppress(OSError):
            self._socket.sendall(b"X" + struct.pack("!I", 4))
        self._socket.close()


def execute(host: str, port: int, sql: str, *, database: str = "postgres", user: str = "postgres") -> list[str]:
    """Run one statement on a connection of its own."""
    with contextlib.closing(Session(host, port, database=database, user=user)) as session:
        return session.execute(sql)


def _until_ready(connection: socket.socket) -> list[str]:
    buffer, rows, error = bytearray(), [], None
    while True:
        chunk = connection.recv(65536)
        if not chunk:
            raise error or WireError("the server closed the connection")
        buffer += chunk
        for kind, message in messages(buffer):
            if kind == b"E":
                error = WireError(_error_text(message))
            elif kind == b"D":
                rows.append(_first_column(message))
            elif kind == b"Z":
                if error:
                    raise error
                return rows


def _first_column(message: bytes) -> str:
    (length,) = struct.unpack_from("!i", message, 7)
    return "" if length < 0 else message[11 : 11 + length].decode()


def _error_text(message: bytes) -> str:
    fields = {field[:1]: field[1:].decode(errors="replace") for field in message[5:].split(b"\0") if field}
    return f"{fields.get(b'C', '?????')}: {fields.get(b'M', 'no message')}"
