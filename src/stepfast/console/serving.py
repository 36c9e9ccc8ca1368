"""The console by itself, as ``stepfast console`` serves it: closed, and known by the names of where it listens."""

from __future__ import annotations

import socket
from collections.abc import Collection

import uvicorn

from ..app import Stepfast
from .access import TokenDoor
from .application import TOKEN, Console
from .desk import Desk
from .gate import Gate
from .origin import Hosts, is_loopback, names_for
from .redacting import Redact, rule_of

__all__ = ["TOKEN", "is_loopback", "serve", "standing_alone"]


def standing_alone(
    app: Stepfast,
    *,
    token: str | None,
    host: str,
    read_only: bool = False,
    redact: Redact | None = None,
    allowed: Collection[str] = (),
) -> Console:
    """The console of a database, for a server of its own."""
    hosts = Hosts([*names_for(host), *allowed], addresses=not is_loopback(host))
    return Console(Desk(app, rule_of(redact or None), read_only), Gate(TokenDoor(token), hosts, read_only))


async def serve(console: Console, listener: socket.socket, root_path: str = "") -> None:
    """Serve on a socket that listens already, until the process is told to stop."""
    config = uvicorn.Config(
        console, root_path=root_path.rstrip("/"), log_level="warning", access_log=False, server_header=False
    )
    await uvicorn.Server(config).serve(sockets=[listener])
