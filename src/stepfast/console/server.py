"""The console by itself, as ``stepfast console`` serves it: closed, and known by the names of where it listens."""

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
"""Seconds that answers under way have at the end."""


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
    return Console(
        ConsoleState(app, rule_of(redact or None), read_only), AccessCheck(TokenAuthenticator(token), hosts, read_only)
    )


async def serve(console: Console, listener: socket.socket, root_path: str = "") -> None:
    """Serve on a socket that listens already, until the process is told to stop; whoever is slow then is cut off."""
    config = uvicorn.Config(
        prefixed(console, root_path), log_level="warning", access_log=False, server_header=False,
        timeout_graceful_shutdown=_GRACE,
    )  # fmt: skip
    await uvicorn.Server(config).serve(sockets=[listener])


def prefix_of(root_path: str) -> str:
    """The prefix as addresses begin with it: ``/stepfast``; empty, if there is none."""
    parts = root_path.strip("/")
    return f"/{parts}" if parts else ""


def prefixed(console: ASGIApp, root_path: str) -> ASGIApp:
    """The console under the prefix that a proxy puts before it. Some proxies take it off again, others hand it on, and
    the link that is printed has it: both are understood, unless a page of ours begins like the prefix."""
    prefix = prefix_of(root_path)
    is_page = prefix in {route.path[: len(prefix)] for route in ROUTES}

    async def served(scope: Scope, receive: Receive, send: Send) -> None:
        if prefix and scope["type"] == "http":
            has_it = not is_page and f"{scope['path']}/".startswith(f"{prefix}/")
            path, raw = scope["path"], scope.get("raw_path") or quote(scope["path"]).encode()
            if not has_it:
                path, raw = prefix + path, quote(prefix).encode() + raw
            scope = {**scope, "root_path": prefix, "path": path, "raw_path": raw}
        await console(scope, receive, send)

    return served
