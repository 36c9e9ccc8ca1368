"""``console``: serves the web console until Ctrl+C."""

from __future__ import annotations

import os
import secrets
import socket
from typing import Annotated, Any

import typer

from ..errors import ConfigurationError
from .options import option
from .session import Session

_BACKLOG = 128


async def console(
    session: Session,
    app: Annotated[
        str | None, typer.Argument(metavar="[MODULE:APP]", show_default=False, help="The code: its database and codec.")
    ] = None,
    host: Annotated[str, typer.Option("--host", help="Where it listens.")] = "127.0.0.1",
    port: Annotated[int, typer.Option("--port", min=0, max=65535, help="0: any that is free.")] = 8710,
    read_only: Annotated[bool, typer.Option("--read-only", help="Refuse every action.")] = False,
    redact: Annotated[
        list[str] | None, option("--redact", metavar="PATH", help="Hide this of payloads: password, card.number …")
    ] = None,
    allow_host: Annotated[
        list[str] | None, option("--allow-host", metavar="NAME", help="Also answer to this name, as behind a proxy.")
    ] = None,
    root_path: Annotated[
        str, option("--root-path", metavar="PREFIX", help="The prefix that a proxy puts before it.")
    ] = "",
) -> None:
    """Serve the web console. Needs only the database; the code is for payloads that passed through its codec.

    It opens by a token: that of STEPFAST_CONSOLE_TOKEN, else one that is made now and printed with the link."""
    serving = _serving()
    token = os.environ.get(serving.TOKEN, "").strip() or None
    if token is None and not serving.is_loopback(host):
        raise ConfigurationError(
            f"{host} can be reached from outside this machine: set {serving.TOKEN} to a secret of your own first"
        )
    if app is not None:
        session = session.with_options(None, None, app, False)
    with _listening(host, port) as listener:
        link = f"http://{_shown(host)}:{listener.getsockname()[1]}{serving.prefix_of(root_path)}/"
        made = secrets.token_urlsafe(32) if token is None else None
        async with session.operating() as found:
            await found.store()  # what is wrong with the database is said now, and not on the first page
            served = serving.standing_alone(
                found, token=token or made, host=host, read_only=read_only, redact=redact, allowed=allow_host or ()
            )
            print(f"Stepfast console: {link}" + (f"?token={made}" if made else ""), flush=True)
            await serving.serve(served, listener, root_path)


def _serving() -> Any:
    """The part of the console that stands alone; it comes with an extra."""
    try:
        from ..console import serving
    except ImportError as error:
        raise ConfigurationError(str(error)) from None
    return serving


def _listening(host: str, port: int) -> socket.socket:
    try:
        family, _, _, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        return socket.create_server(address[:2], family=family, backlog=_BACKLOG)
    except (OSError, UnicodeError) as error:  # the latter for what can be no name
        why = getattr(error, "strerror", None) or "there is no such host"
        raise ConfigurationError(
            f"nothing can listen on {host}:{port}: {why}; --host and --port choose another"
        ) from None


def _shown(host: str) -> str:
    """The host as a link has it; one that stands for all addresses is reached by this machine's own."""
    if host in ("0.0.0.0", "::", ""):
        return "localhost"
    return f"[{host}]" if ":" in host else host
