"""``worker`` and ``remote-worker``: processes that execute runs and serve remote steps, and their logs.

Logs go to stderr: lines for people or JSON for collectors, each with the ids of its run. Stepfast never logs payloads;
handlers may.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import signal
import sys
import time
from collections.abc import Iterator
from datetime import UTC, datetime
from importlib.util import find_spec
from typing import Annotated, Any, NoReturn

import msgspec
import typer

from ..app import Stepfast
from ..errors import ConfigurationError
from ..log_context import NAMES, RunFilter
from ..monitoring.text import count, printable
from ..remote import RemoteWorker, SqlTransport
from ..remote.protocol import DEFAULT_PREFIX
from ..settings import DEFAULT_URL
from ..telemetry import Metrics
from ..telemetry.health import LOOPBACK, HealthPort
from ..telemetry.multiprocess import ReportingWire, wire_to_parent
from ..worker import Worker
from ..worker.shutdown import run_until_signal
from .app_loader import load_named
from .command import CHILD_URL, Session, option, time_option
from .exit_codes import INTERRUPTED
from .output import say, write_json
from .supervisor import Crew

LEVELS = ("debug", "info", "warning", "error", "critical")
_LINE = "%(asctime)s %(levelname)s %(name)s: %(message)s"
_IDS = (*NAMES, "step_id")
_OWN = frozenset((*vars(logging.makeLogRecord({})), "message", "asctime", "taskName", *_IDS))
"""Attributes that every record has, without those that a caller gave."""


def log_to_stderr(level: str, *, as_json: bool) -> None:
    """Set logging up before the application's module is imported, so that its ``basicConfig`` changes nothing."""
    if level.lower() not in LEVELS:
        raise ConfigurationError(f"there is no log level {level!r}; there are {', '.join(LEVELS)}")
    handler = logging.StreamHandler(sys.stderr)
    handler.addFilter(RunFilter())
    handler.setFormatter(JsonLines() if as_json else Lines(_LINE))
    logging.basicConfig(level=level.upper(), handlers=[handler], force=True)
    if as_json:
        _join_structlog()


def say_in_log(text: str) -> None:
    """Write a line for the user who pressed Ctrl+C, at any log level. It bypasses Python's streams, which are not
    reentrant: a signal may come while another line is written."""
    fields = {"name": "stepfast.worker", "levelname": "INFO", "levelno": logging.INFO, "msg": text}
    record = logging.makeLogRecord(fields)
    handlers = logging.getLogger().handlers
    line = handlers[0].format(record) if handlers else text
    with contextlib.suppress(OSError):
        os.write(2, f"{line}\n".encode(errors="backslashreplace"))


class Lines(logging.Formatter):
    """Lines for people, with times in UTC: what an error says cannot take over the terminal on which they are read."""

    converter = time.gmtime  # type: ignore[assignment]
    default_msec_format = "%s.%03dZ"

    def format(self, record: logging.LogRecord) -> str:
        """The line, and an error's traceback below it."""
        return printable(super().format(record))


class JsonLines(logging.Formatter):
    """One JSON object per record: time, level, logger, message, ids where there are some, an error's traceback, and
    what the caller gave with the message: ``extra={…}``, or the values of a call of structlog."""

    def format(self, record: logging.LogRecord) -> str:
        """The record of the log as one line of JSON."""
        said = dict(record.msg) if isinstance(record.msg, dict) else {}  # by structlog's bridge to Python's own logging
        line: dict[str, object] = {
            "time": datetime.fromtimestamp(record.created, UTC),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": said.pop("event", "") if isinstance(record.msg, dict) else record.getMessage(),
        }
        if record.exc_info:
            line["exception"] = self.formatException(record.exc_info)
        if record.stack_info:
            line["stack"] = record.stack_info
        ids = {name: getattr(record, name) for name in _IDS if getattr(record, name, None) is not None}
        given = {name: value for name, value in vars(record).items() if name not in _OWN and not name.startswith("_")}
        for name, value in (ids | given | said).items():
            if name not in line:
                line[name] = value
            elif line[name] != value:
                line[f"{name}_"] = value
        try:
            return msgspec.json.encode(line, enc_hook=str).decode()
        except Exception:  # a lone surrogate, or a value that is no JSON; the line is worth more than it
            return msgspec.json.encode({_text(name): _writable(value) for name, value in line.items()}).decode()


def _writable(value: object) -> object:
    return value if isinstance(value, datetime) else _text(value)


def _text(value: object) -> str:
    try:
        return str(value).encode("utf-8", "backslashreplace").decode()
    except Exception:  # its own __str__ raises
        return f"<{type(value).__name__}>"


def _join_structlog() -> None:
    """Send what structlog logs to Python's own logging, unless the application sets it up otherwise. This comes before
    the application is imported: a logger that is bound at import time keeps what was set up by then."""
    if find_spec("structlog") is None:
        return
    import structlog

    if structlog.is_configured():
        return
    structlog.configure(
        processors=[
            structlog.stdlib.filter_by_level,
            structlog.contextvars.merge_contextvars,
            structlog.processors.StackInfoRenderer(),
            structlog.processors.format_exc_info,
            structlog.stdlib.ProcessorFormatter.wrap_for_formatter,
        ],
        wrapper_class=structlog.stdlib.BoundLogger,
        logger_factory=structlog.stdlib.LoggerFactory(),
    )


LeaseOption = Annotated[
    float | None,
    time_option("--lease", help="Seconds without a heartbeat after which the worker is taken for dead. (30)"),
]
GraceOption = Annotated[float | None, time_option("--shutdown-grace", help="How long a stop waits for handlers. (30)")]
LogJsonOption = Annotated[bool, typer.Option("--log-json", help="Log one JSON object per line.")]
LogLevelOption = Annotated[str, typer.Option("--log-level", metavar="LEVEL", help=f"One of {', '.join(LEVELS)}.")]


def worker(
    session: Session,
    app: Annotated[str, typer.Argument(metavar="MODULE:APP", help="The application, as in orders:app.")],
    queues: Annotated[
        list[str] | None, option("--queues", "-q", metavar="A,B", help="Only these queues. (all)")
    ] = None,
    concurrency: Annotated[int | None, option("--concurrency", "-c", min=1, help="Runs at once. (100)")] = None,
    lease: LeaseOption = None,
    poll_interval: Annotated[
        float | None, time_option("--poll-interval", help="Poll this often if nothing wakes it. (1)")
    ] = None,
    shutdown_grace: GraceOption = None,
    processes: Annotated[int, typer.Option("--processes", "-p", min=1, help="Worker processes.")] = 1,
    health_port: Annotated[
        int | None, option("--health-port", min=0, max=65535, help="Answer /live, /ready and /metrics there. (none)")
    ] = None,
    health_host: Annotated[
        str, typer.Option("--health-host", metavar="HOST", help="Where that port listens.")
    ] = LOOPBACK,
    log_json: LogJsonOption = False,
    log_level: LogLevelOption = "info",
) -> None:
    """Execute runs until SIGTERM or Ctrl+C.

    The first signal lets running handlers finish, a second one gives their runs back at once; either way no attempt is
    used up. With --processes, a process that dies is replaced, and the health port reports on all of them together.
    Logs go to stderr.
    """
    log_to_stderr(log_level, as_json=log_json)
    health = None if health_port is None else (health_host, health_port)
    if processes > 1:
        raise typer.Exit(asyncio.run(Crew(processes, child_command(session), health).run()))
    names = [name.strip() for part in queues or () for name in part.split(",") if name.strip()]
    with stoppable():
        application = session.with_options(None, None, app, False).application()
        if not application.workflows:
            logging.getLogger("stepfast").warning("%s has no workflows: this worker has nothing to execute", app)
        asyncio.run(
            _work(
                application, _watch(application, health), queues=names or None, concurrency=concurrency, lease=lease,
                poll_interval=poll_interval, shutdown_grace=shutdown_grace,
                switch_interval=_switch_interval(application),
            )
        )  # fmt: skip


_OWN_SWITCH_INTERVAL = 0.001
"""Python's is 0.005, with which SQLite's writer waits longest for the interpreter's lock while handlers are busy."""


def _switch_interval(app: Stepfast) -> float | None:
    """Return how often threads take turns in this process, which is the worker's own; None: as the settings say."""
    own = app.url.kind == "sqlite" and not app.settings.switch_interval
    return _OWN_SWITCH_INTERVAL if own else None


def _watch(app: Stepfast, health: tuple[str, int] | None) -> contextlib.AbstractAsyncContextManager[object]:
    """Return what reports the health of this worker: a wire to a parent of several, or the health port."""
    wire = wire_to_parent()
    if wire is None and health is None:
        return contextlib.nullcontext()
    if not any(isinstance(observer, Metrics) for observer in app.observers):
        app.observe(Metrics(app.settings))
    if wire is not None:
        return ReportingWire(app, wire)
    assert health is not None
    return HealthPort(app, port=health[1], host=health[0])


def child_command(session: Session) -> list[str]:
    """Return this command with one process: the last value of an option wins. The URL is passed in the environment,
    because every user of the machine can read the arguments of a process, and it may hold a password."""
    arguments, rest = [], iter(sys.argv[1:])
    for argument in rest:
        if argument in ("--url", "-u"):
            next(rest, None)
        elif not argument.startswith("--url=") and not (argument.startswith("-u") and argument != "-u"):
            arguments.append(argument)
    if session.url is not None:
        os.environ[CHILD_URL] = session.url
    return [sys.executable, "-m", "stepfast", *arguments, "--processes", "1"]


async def _work(app: Stepfast, watch: contextlib.AbstractAsyncContextManager[object], **options: Any) -> None:
    try:
        async with watch:
            worker = await app._make_worker(**options)
            await run_until_signal(worker, Notices().tell)
    finally:
        # A signal that comes now is too late to change anything, and must not change the exit code.
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, signal.SIG_IGN)
        await app.close()


class Notices:
    """Prints the effect of each signal at once, also while code blocks the event loop. The third one ends the
    process."""

    def __init__(self, what: str = "run") -> None:
        self._what = what
        self._came = 0

    def tell(self, worker: Worker | RemoteWorker) -> None:
        """Print what a signal will do."""
        self._came += 1
        if self._came == 1 and worker.running:
            say_in_log(
                f"stopping: waiting up to {worker.shutdown_grace:g} s for {count(worker.running, self._what)}; "
                "a second Ctrl+C ends at once"
            )
        elif self._came == 1:
            say_in_log("stopping")
        elif self._came == 2:
            say_in_log(
                f"ending at once: unfinished {self._what}s go back into their queues; "
                "a third Ctrl+C does not wait for that either"
            )
        else:
            say_in_log(f"ended; unfinished {self._what}s go back into their queues when the lease is over")
            os._exit(INTERRUPTED)


@contextlib.contextmanager
def stoppable() -> Iterator[None]:
    """Exit with 0 on a signal that comes before the worker holds any run; afterwards the worker handles signals
    itself."""

    def leave(*_: object) -> NoReturn:
        raise SystemExit(0)

    before = {number: signal.signal(number, leave) for number in (signal.SIGTERM, signal.SIGINT)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def remote_worker(
    session: Session,
    worker: Annotated[str, typer.Argument(metavar="MODULE:WORKER", help="The worker, as in steps:worker.")],
    concurrency: Annotated[int | None, option("--concurrency", "-c", min=1, help="Handlers at once. (10)")] = None,
    batch: Annotated[int | None, option("--batch", min=1, help="Tasks that one claim takes at most. (10)")] = None,
    lease: LeaseOption = None,
    poll_interval: Annotated[
        float | None, time_option("--poll-interval", help="Poll this often while there are no tasks. (0.5)")
    ] = None,
    shutdown_grace: GraceOption = None,
    log_json: LogJsonOption = False,
    log_level: LogLevelOption = "info",
) -> None:
    """Serve remote steps until SIGTERM or Ctrl+C.

    Needs a database and your handlers, no application and none of Stepfast's own tables. The first signal lets running
    handlers finish, a second one gives their tasks back at once. Logs go to stderr.
    """
    log_to_stderr(log_level, as_json=log_json)
    with stoppable():
        found = load_named(worker, RemoteWorker, "remote worker", "steps:worker")
        found.redirect(
            session.url,
            concurrency=concurrency,
            batch=batch,
            lease=lease,
            poll_interval=poll_interval,
            shutdown_grace=shutdown_grace,
        )
        asyncio.run(_serve(found))


async def _serve(worker: RemoteWorker) -> None:
    try:
        await run_until_signal(worker, Notices("task").tell)
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
