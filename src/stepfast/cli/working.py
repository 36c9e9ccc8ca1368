"""``worker``: one process that works, or several with one that keeps them alive."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import signal
import sys
from collections.abc import Iterator
from typing import Annotated, Any, NoReturn

import typer

from ..app import Stepfast
from .crew import Crew
from .logs import LEVELS, log_to_stderr
from .options import option, time_option
from .session import Session


def worker(
    session: Session,
    app: Annotated[str, typer.Argument(metavar="MODULE:APP", help="The application, as in orders:app.")],
    queues: Annotated[
        list[str] | None, option("--queues", "-q", metavar="A,B", help="Only these queues. (all)")
    ] = None,
    concurrency: Annotated[int | None, option("--concurrency", "-c", min=1, help="Runs at once. (100)")] = None,
    lease: Annotated[float | None, time_option("--lease", help="Silent for this long is dead. (30)")] = None,
    poll: Annotated[float | None, time_option("--poll", help="Look this often if nothing wakes it. (1)")] = None,
    grace: Annotated[float | None, time_option("--grace", help="How long a stop waits for handlers. (30)")] = None,
    processes: Annotated[int, typer.Option("--processes", "-p", min=1, help="Worker processes.")] = 1,
    log_json: Annotated[bool, typer.Option("--log-json", help="Log one JSON object per line.")] = False,
    log_level: Annotated[
        str, typer.Option("--log-level", metavar="LEVEL", help=f"One of {', '.join(LEVELS)}.")
    ] = "info",
) -> None:
    """Execute runs until SIGTERM or Ctrl+C.

    The first signal lets running handlers finish, a second one gives their runs back at once; either way no attempt is
    used up. With --processes, a process that dies is replaced. Logs go to stderr.
    """
    log_to_stderr(log_level, as_json=log_json)
    if processes > 1:
        # The last value of an option wins, so each child is this very command with one process.
        command = [sys.executable, "-m", "stepfast", *sys.argv[1:], "--processes", "1"]
        raise typer.Exit(asyncio.run(Crew(processes, command).run()))
    names = [name.strip() for part in queues or () for name in part.split(",") if name.strip()]
    with _stoppable():
        application = session.with_options(None, None, app, False).application()
        if not application.workflows:
            logging.getLogger("stepfast").warning("%s has no workflows: this worker has nothing to execute", app)
        asyncio.run(
            _work(application, queues=names or None, concurrency=concurrency, lease=lease, poll=poll, grace=grace)
        )


async def _work(app: Stepfast, **options: Any) -> None:
    try:
        await app.work(**options)
    finally:
        # Whatever comes now comes too late to change anything, and must not spoil the exit.
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, signal.SIG_IGN)
        await app.close()


@contextlib.contextmanager
def _stoppable() -> Iterator[None]:
    """A signal that comes before the worker holds anything (modules are imported, the database is asked) is a good end
    too; afterwards the worker takes the signals itself."""

    def leave(*_: object) -> NoReturn:
        raise SystemExit(0)

    before = {number: signal.signal(number, leave) for number in (signal.SIGTERM, signal.SIGINT)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
