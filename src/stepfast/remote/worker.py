"""``RemoteWorker``: serves the steps of one group, for any engine that speaks the contract, in a process of its own.

It needs a database and nothing else: no engine, no application, none of Stepfast's own tables.
"""

from __future__ import annotations

import asyncio
import logging
import os
from collections.abc import Callable
from typing import Any, TypeVar

from ..errors import ConfigurationError, InvalidState, WorkerBroken, sentence
from ..model.names import nearest
from ..model.urls import redact
from ..settings import Settings
from ..worker.shutdown import to_the_end, work_until_told
from .database import Database, located, open_database
from .handlers import Handler, declared
from .names import DEFAULT_PREFIX, check_group, check_step_name
from .shift import Options, Shift

Function = TypeVar("Function", bound=Callable[..., Any])


class RemoteWorker:
    """Serves remote steps: ``RemoteWorker(url, group="pipeline.extract")``, handlers by ``@worker.handle("…")``, then
    ``await worker.run()`` or ``stepfast remote-worker module:worker``.

    ``url`` names a Postgres (``postgresql://…``) or a MariaDB or MySQL (``mysql://…``); without one, ``STEPFAST_URL``
    does. ``pool`` is a pool of asyncpg's or asyncmy's in its place, which stays the application's. ``create=False``
    leaves the tables to somebody else. ``poll``, ``lease`` and ``grace`` are seconds: how often an idle worker looks,
    after which time a silent worker's tasks are taken by others, and how long a stop waits for handlers. ``batch`` is
    how many tasks one claim takes at most, ``concurrency`` how many handlers run at once.
    """

    def __init__(
        self,
        url: str | None = None,
        group: str = "",
        prefix: str = DEFAULT_PREFIX,
        *,
        pool: Any = None,
        create: bool = True,
        poll: float | None = None,
        lease: float | None = None,
        batch: int | None = None,
        concurrency: int | None = None,
        grace: float | None = None,
        settings: Settings | None = None,
        logger: logging.Logger | None = None,
    ) -> None:
        self.group = check_group(group)
        self._settings = Settings.from_environment() if settings is None else settings
        self._location = located(_named(url, pool), pool, prefix)
        self._create = create
        self._given = {"poll": poll, "lease": lease, "batch": batch, "concurrency": concurrency, "grace": grace}
        self._options = _options(self._settings, self._given)
        self._logger = logging.getLogger("stepfast.remote") if logger is None else logger
        self._handlers: dict[str, Handler] = {}
        self._database: Database | None = None
        self._shift: Shift | None = None
        self._cause: tuple[str, BaseException] | None = None
        self.broken = asyncio.Event()
        """Set if the worker ended by itself, which is a bug."""
        self.left = asyncio.Event()
        """Set when it has been stopped."""

    def handle(self, name: str) -> Callable[[Function], Function]:
        """Serve the steps of this name with the function below: ``async def`` or plain ``def``, which runs in a thread.
        It is given the input, and, if it takes a second parameter, the task."""
        check_step_name(name)

        def register(function: Function) -> Function:
            if name in self._handlers:
                raise ConfigurationError(f"this worker has a handler of {name!r} already")
            self._handlers[name] = declared(name, function)
            return function

        return register

    async def run(self) -> None:
        """Work until SIGTERM or Ctrl+C. A second signal does not wait for handlers."""
        await work_until_told(self)

    # -- life ------------------------------------------------------------------------------------------------------

    async def start(self) -> None:
        """Connect, make the tables unless ``create=False``, and begin to claim."""
        if self._shift is not None:
            raise InvalidState(f"the remote worker of group {self.group!r} works already")
        if not self._handlers:
            self._logger.warning("group %r: this worker has no handlers, and will fail every step", self.group)
        self.broken, self.left = asyncio.Event(), asyncio.Event()  # of the event loop that works with us now
        database = open_database(self._location, self._settings)
        try:
            await database.open()
            if self._create:
                await database.create()
        except BaseException:
            await to_the_end(database.close)
            raise
        self._database = database
        shift = Shift(database, self.group, self._options, self._handlers, self._settings, self._logger)
        shift.broken = self.broken
        self._shift = shift
        shift.begin()
        self._logger.info("remote worker %s serves group %r in %s", shift.id, self.group, self._where())

    async def stop(self, grace: float | None = None) -> None:
        """Claim nothing more, wait for handlers, give back the rest, disconnect. Who is cancelled meanwhile hears of it
        afterwards."""
        patience = self._options.grace if grace is None else grace
        await to_the_end(lambda: self._leave(patience))

    async def _leave(self, grace: float) -> None:
        shift, database = self._shift, self._database
        if shift is not None:
            await shift.end(grace)
            self._cause, self._shift = shift.cause, None
        if database is not None:
            await database.close()
            self._database = None
        self.left.set()

    async def __aenter__(self) -> RemoteWorker:
        await self.start()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.stop()
        if self.broken.is_set():
            raise self.breakage()

    # -- what is told of it ----------------------------------------------------------------------------------------

    @property
    def running(self) -> int:
        """How many handlers run."""
        return 0 if self._shift is None else self._shift.running

    @property
    def grace(self) -> float:
        """Seconds that a stop waits for handlers."""
        return self._options.grace

    @property
    def handlers(self) -> list[str]:
        """The names that have a handler here."""
        return sorted(self._handlers)

    def hurry(self) -> None:
        """Let a stop wait for handlers no longer."""
        if self._shift is not None:
            self._shift.hurry()

    def breakage(self) -> WorkerBroken:
        """What a supervisor is told of a worker that ended by itself."""
        duty, error = self._cause or ("a duty", None)
        broken = WorkerBroken(f"of group {self.group!r}", duty, "" if error is None else sentence(error), "tasks")
        broken.__cause__ = error
        return broken

    def redirect(self, url: str | None = None, **options: Any) -> None:
        """Serve another database, or in another way: what was said on the command line wins over the code."""
        if url is not None:
            self._location = located(url, None, self._location.prefix)
        self._given |= {name: value for name, value in options.items() if value is not None}
        self._options = _options(self._settings, self._given)

    def _where(self) -> str:
        url = self._location.url
        return "a pool of the application's" if url is None else redact(url.text)


def _named(url: str | None, pool: Any) -> str | None:
    if url is not None or pool is not None:
        return url
    url = os.environ.get("STEPFAST_URL")
    if not url:
        raise ConfigurationError("a remote worker needs a database: give its URL, pool=, or set STEPFAST_URL")
    return url


def _options(settings: Settings, given: dict[str, Any]) -> Options:
    """What was given, and the settings for the rest."""
    found: dict[str, Any] = {
        "poll": settings.remote_poll,
        "lease": settings.lease,
        "batch": settings.remote_batch,
        "concurrency": settings.remote_concurrency,
        "grace": settings.grace,
    }
    for name in given:
        if name not in found:
            raise TypeError(f"a remote worker has no option {name!r}{nearest(name, found)}")
    found |= {name: value for name, value in given.items() if value is not None}
    for name in ("batch", "concurrency"):
        if not isinstance(found[name], int) or isinstance(found[name], bool) or found[name] < 1:
            raise ConfigurationError(f"remote worker: {name} must be a whole number of at least 1, not {found[name]!r}")
    for name, least in (("poll", 0.001), ("lease", 0.1), ("grace", 0.0)):
        if not isinstance(found[name], (int, float)) or not least <= found[name] < float("inf"):
            raise ConfigurationError(f"remote worker: {name} must be at least {least:g} seconds, not {found[name]!r}")
    return Options(**found)
