"""``remote-worker``: a process that serves remote steps; and making the tables that they go over."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from typing import Annotated

import typer

from ..errors import ConfigurationError
from ..remote import RemoteWorker, SqlTransport
from ..remote.protocol import DEFAULT_PREFIX
from ..settings import DEFAULT_URL
from ..worker.shutdown import work_until_told
from .loading import load_named
from .logs import LEVELS, log_to_stderr
from .options import option, time_option
from .output import say, write_json
from .session import Session
from .working import Notices, stoppable


def remote_worker(
    session: Session,
    worker: Annotated[str, typer.Argument(metavar="MODULE:WORKER", help="The worker, as in steps:worker.")],
    concurrency: Annotated[int | None, option("--concurrency", "-c", min=1, help="Handlers at once. (10)")] = None,
    batch: Annotated[int | None, option("--batch", min=1, help="Tasks that one claim takes at most. (10)")] = None,
    lease: Annotated[float | None, time_option("--lease", help="Silent for this long is dead. (30)")] = None,
    poll: Annotated[float | None, time_option("--poll", help="Look this often when there is nothing. (0.5)")] = None,
    grace: Annotated[float | None, time_option("--grace", help="How long a stop waits for handlers. (30)")] = None,
    log_json: Annotated[bool, typer.Option("--log-json", help="Log one JSON object per line.")] = False,
    log_level: Annotated[
        str, typer.Option("--log-level", metavar="LEVEL", help=f"One of {', '.join(LEVELS)}.")
    ] = "info",
) -> None:
    """Serve remote steps until SIGTERM or Ctrl+C.

    Needs a database and your handlers, no application and none of Stepfast's own tables. The first signal lets running
    handlers finish, a second one gives their tasks back at once. Logs go to stderr.
    """
    log_to_stderr(log_level, as_json=log_json)
    with stoppable():
        found = load_named(worker, RemoteWorker, "remote worker", "steps:worker")
        found.redirect(session.url, concurrency=concurrency, batch=batch, lease=lease, poll=poll, grace=grace)
        asyncio.run(_serve(found))


async def _serve(worker: RemoteWorker) -> None:
    try:
        await work_until_told(worker, Notices("task").tell)
    finally:
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, signal.SIG_IGN)


async def make_transport_tables(session: Session, sql: bool, prefix: str | None) -> None:
    """``migrate --transport``: the two tables of the contract, in the database of the URL."""
    url = session.url or os.environ.get("STEPFAST_URL") or (session.application().url.text if session.code else None)
    if url is None or url == DEFAULT_URL:
        raise ConfigurationError("remote steps go over Postgres, MariaDB or MySQL: name the database with --url")
    transport = SqlTransport(url, prefix or DEFAULT_PREFIX, create=False)
    if sql:
        sys.stdout.write(transport.script())
        return
    async with transport:
        made = await transport.create_tables()
    if session.json:
        write_json({"made": made})
    else:
        say(
            f"made the tables of prefix {transport.prefix!r}"
            if made
            else f"the tables of prefix {transport.prefix!r} are there"
        )
