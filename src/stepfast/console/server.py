"""The console as a server of its own, as ``stepfast console`` runs it: with a token, and for the names of its host."""

from __future__ import annotations

import socket
from collections.abc import Collection
from urllib.parse import quote

import uvicorn
from starlette.types import ASGIApp, Receive, Scope, Send

from ..app import Stepfast
from .app import ROUTES, TOKEN, Console
from .redaction import Redact, rule_of
from .request import ConsoleState
from .security import AccessCheck, Hosts, TokenAuthenticator, is_loopback, names_for

__all__ = ["TOKEN", "is_loopback", "prefix_of", "prefixed", "serve", "standing_alone"]

_GRACE = 3
"""Seconds that responses under way have when the server stops."""


def standing_alone(
    app: Stepfast,
    *,
    token: str | None,
    host: str,
    read_only: bool = False,
    redact: Redact | None = None,
    allowed: Collection[str] = (),
) -> Console:
    """Make the console of an application, for a server of its own."""
    hosts = Hosts([*names_for(host), *allowed], addresses=not is_loopback(host))
    state = ConsoleState(app, rule_of(redact or None), read_only)
    return Console(state, AccessCheck(TokenAuthenticator(token), hosts, read_only))


async def serve(console: Console, listener: socket.socket, root_path: str = "") -> None:
    """Serve on a socket that listens already, until the process is told to stop; slow responses are then cut off."""
    config = uvicorn.Config(
        prefixed(console, root_path), log_level="warning", access_log=False, server_header=False,
        timeout_graceful_shutdown=_GRACE,
    )  # fmt: skip
    await uvicorn.Server(config).serve(sockets=[listener])


def prefix_of(root_path: str) -> str:
    """Return the prefix with a slash at its beginning only: ``/stepfast``; empty without a prefix."""
    parts = root_path.strip("/")
    return f"/{parts}" if parts else ""


def prefixed(console: ASGIApp, root_path: str) -> ASGIApp:
    """Serve the console under the prefix of a proxy, which may remove it from addresses or pass it on; the printed link
    has it. Both are accepted, unless a page of the console begins like the prefix: then it must be removed."""
    prefix = prefix_of(root_path)
    is_page = prefix in {route.path[: len(prefix)] for route in ROUTES}

    async def served(scope: Scope, receive: Receive, send: Send) -> None:
        if prefix and scope["type"] == "http":
            scope = {**scope, "root_path": prefix}
            if is_page:
                scope["raw_path"] = quote(prefix).encode() + (scope.get("raw_path") or quote(scope["path"]).encode())
        await console(scope, receive, send)

    return served
