"""The resources of an event loop: its store and services, connected on first use; and which application applies."""

from __future__ import annotations

import asyncio
import contextlib
import contextvars
import logging
import os
import threading
import weakref
from collections.abc import Awaitable, Callable, Coroutine, Iterable, Iterator, Mapping, Sequence
from contextvars import ContextVar
from datetime import timedelta
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

from .engine.host import Clock
from .engine.observers import Observers
from .engine.workflow import Workflow
from .errors import ConfigurationError, UnknownWorkflow
from .model.backoff import seconds
from .model.names import nearest
from .model.queue_config import Gate, Rate, decode
from .model.records import WorkerInfo
from .model.rows import Definition
from .model.urls import DatabaseUrl, redact
from .questions import answer_watcher
from .results import NoWorkerWarning, Watcher, value_watcher
from .settings import Settings
from .starts import Bounds, Planner, Starter
from .store import Store
from .store.answers import MissingRight
from .streams import StreamPoller
from .worker.db_retry import patiently
from .worker.notifier import Switchboard
from .worker.remote_dispatcher import TransportHandle
from .worker.threads import REAL
from .worker.worker import Worker

if TYPE_CHECKING:
    from .app import Stepfast


T = TypeVar("T")

PATIENCE = 5.0
"""Seconds for which a call rides out an outage before its caller gets the error."""
_PATIENCE = 2.0
"""Seconds for what is still to be written when the application is closed."""
_FRESH = 5.0
"""Seconds for which stored definitions are taken as read."""


class Connected:
    """Made on first use in a loop; closed with the application."""

    def __init__(
        self,
        store: Store,
        settings: Settings,
        logger: logging.Logger,
        user: object,
        observers: Observers | None,
        clock: Clock,
    ) -> None:
        self.store = store
        self.observers = observers
        """The observers that are notified of what happens to runs, if there are any."""
        self.user = user
        """Identifies this user of a store that several event loops share."""
        self.logger = logger
        self.loop = asyncio.get_running_loop()
        self.switchboard = Switchboard(store, logger, clock)
        self.starter = Starter(store, settings, logger, self.switchboard, clock, observers)
        self.watcher = Watcher(store, settings, logger, self.switchboard, clock)
        self.streams = StreamPoller(store, settings, logger, self.switchboard, clock)
        self.answers = answer_watcher(store, settings, logger, self.switchboard, clock)
        self.values = value_watcher(store, settings, logger, self.switchboard, clock)
        self.no_worker = NoWorkerWarning(store, logger, clock)
        self.workers: weakref.WeakSet[Worker] = weakref.WeakSet()
        """The workers that were made here."""
        self.planner: Planner
        """Checks starts against the code of the application."""
        self.transport: TransportHandle | None = None
        """Where remote steps go, once there was a worker here."""
        self.guests: set[asyncio.Task[None]] = set()
        """Tasks of other parts, such as jobs of the console. They are cancelled first, while the database can be
        reached."""
        self._stored: set[tuple[str, str]] = set()
        self._may_store = True
        self._storing: set[asyncio.Task[None]] = set()
        self.declared_queues: set[tuple[str, str]] = set()
        """The limits of queues that this process has stored."""
        self.bounds = Bounds(store, clock)
        self._known: dict[str, Definition] = {}
        self._known_at = 0.0
        self._clock = clock
        self.new_id = clock.new_id
        """An id for a run that is started here."""

    def ask(
        self, call: Callable[[], Awaitable[T]], what: str = "run", patience: float | None = PATIENCE
    ) -> Coroutine[Any, Any, T]:
        """Call the store for a caller, riding out an outage of at most so many seconds."""
        return patiently(call, what, self.logger, REAL, patience)

    async def store_definitions(self, workflows: list[Workflow[object, object]]) -> None:
        """Store the definitions of these workflows, once per process and version. Without the right to it, workers
        do."""
        new = [w for w in workflows if (w.name, w.version) not in self._stored]
        if not new or not self._may_store:
            return
        try:
            await self.store.put_definitions([w.definition() for w in new])
        except MissingRight:
            self._may_store = False
            self.logger.info("the database user may not store definitions of workflows; workers do when they begin")
        else:
            self._stored.update((w.name, w.version) for w in new)

    def has_stored(self, workflow: Workflow[object, object]) -> bool:
        """Whether this process has stored this version."""
        return (workflow.name, workflow.version) in self._stored

    def soon(self, work: Coroutine[Any, Any, None]) -> None:
        """Store something that the code declares, concurrently, for a caller who has a transaction open and must not
        wait for another: on SQLite there is one lock for all writes, and the caller has it."""
        task = asyncio.create_task(work)
        self._storing.add(task)
        task.add_done_callback(self._stored_soon)

    def _stored_soon(self, task: asyncio.Task[None]) -> None:
        self._storing.discard(task)
        if not task.cancelled() and task.exception() is not None:
            self.logger.warning(
                "what the code declares could not be stored; the next start tries again", exc_info=task.exception()
            )

    async def definition(self, name: str, also_known: list[str]) -> Definition:
        """The stored definition of a workflow whose code is not here."""
        if name not in self._known or self._clock.now() - self._known_at > _FRESH:
            self._known = {d.name: d for d in await self.store.definitions()}
            self._known_at = self._clock.now()
        if name not in self._known:
            raise UnknownWorkflow(name, sorted({*self._known, *also_known}))
        return self._known[name]

    async def close(self) -> None:
        """Stop workers that have not left yet: they give their runs back. Stop watching and listening. The store itself
        is closed by its owner."""
        try:
            await self._leave_guests()
            await asyncio.gather(*(worker.stop() for worker in list(self.workers) if worker.at_work))
            self.watcher.drop()
            self.streams.drop()
            self.answers.drop()
            self.values.drop()
            await self.switchboard.send_all(_PATIENCE)
            if self._storing:
                await self._clock.wait(self._storing, _PATIENCE)
        finally:
            await asyncio.gather(*self.drop(), return_exceptions=True)
            if self.transport is not None:
                await self.transport.close()

    async def _leave_guests(self) -> None:
        """Cancel the guests, and wait a little for their last writes."""
        for task in self.guests:
            task.cancel()
        if self.guests:
            await self._clock.wait(self.guests, _PATIENCE)

    def drop(self) -> list[asyncio.Task[None]]:
        """Fail all waits, and cancel and return every task."""
        tasks = [
            *self._storing,
            *self.guests,
            *self.starter.drop(),
            *self.switchboard.drop(),
            *self.bounds.drop(),
            *self.watcher.drop(),
            *self.streams.drop(),
            *self.answers.drop(),
            *self.values.drop(),
        ]
        for task in tasks:
            task.cancel()
        return tasks


Prepare = Callable[[Store], Awaitable[None]]

_inherited: list[object] = []
"""What a parent process had open at a fork. It is kept as it is: closing it would end the parent's sessions."""


class Connections:
    """The resources of the event loops of one application. May be used from any thread."""

    def __init__(self, app: Stepfast) -> None:
        self._app = app
        self._loops: dict[asyncio.AbstractEventLoop, asyncio.Future[Connected | None]] = {}
        self._shared: Store | None = None
        self._users: dict[object, asyncio.AbstractEventLoop] = {}
        """The users of the shared store, which is closed with the last of them."""
        self._lock = threading.Lock()
        self._process = os.getpid()

    @property
    def open(self) -> bool:
        """Whether any event loop is connected."""
        return any(not loop.is_closed() for loop in list(self._loops))

    async def get(self, prepare: Prepare) -> Connected:
        """Return the resources of this event loop, made on first use. One caller connects while others wait; if it is
        cancelled, the next one connects."""
        self._mind_fork()
        loop = asyncio.get_running_loop()
        while True:
            future = self._loops.get(loop)
            if future is None:
                return await self._connect(loop, prepare)
            connected = future.result() if future.done() else await asyncio.shield(future)
            if connected is not None:
                return connected

    def made(self, loop: asyncio.AbstractEventLoop | None = None) -> Connected | None:
        """Return the resources of an event loop (this one by default) if it is connected. May be called in any
        thread."""
        future = self._loops.get(loop or asyncio.get_running_loop())
        return future.result() if future is not None and future.done() and future.exception() is None else None

    async def close(self) -> None:
        """Disconnect this event loop; the last one closes a shared store. Cancelled, it drops instead of closing."""
        if os.getpid() != self._process:
            return  # what is open is the parent's
        future = self._loops.pop(asyncio.get_running_loop(), None)
        connected = None if future is None else await self._made(future)
        try:
            if connected is not None:
                await connected.close()
            store = self._left(connected)
            if store is not None:
                await store.close()
        except BaseException:
            self._drop(connected)
            raise

    def drop(self) -> None:
        """Drop the resources of this event loop, without waiting."""
        future = None if os.getpid() != self._process else self._loops.pop(asyncio.get_running_loop(), None)
        if future is not None:
            self._drop_when_made(future)

    # -- connecting --------------------------------------------------------------------------------------------------

    async def _connect(self, loop: asyncio.AbstractEventLoop, prepare: Prepare) -> Connected:
        for old in [old for old in list(self._loops) if old.is_closed()]:
            self._loops.pop(old, None)
        future = self._loops[loop] = loop.create_future()
        try:
            connected = await self._open(loop, prepare)
        except BaseException as error:
            if self._loops.get(loop) is future:
                del self._loops[loop]
            if isinstance(error, Exception):
                future.set_exception(error)
                future.exception()  # retrieved: there may be no other waiter
            else:
                future.set_result(None)
            raise
        future.set_result(connected)
        return connected

    async def _open(self, loop: asyncio.AbstractEventLoop, prepare: Prepare) -> Connected:
        user, app = object(), self._app
        store = self._join(user, loop)
        try:
            await store.open()
            await prepare(store)
            connected = Connected(store, app.settings, app.logger, user, app._make_observers(), app._clock)
            connected.planner = app._planner
            return connected
        except BaseException as error:
            if self._leave(user, store):
                if isinstance(error, Exception):
                    await store.close()
                else:
                    store.drop()
            raise

    async def _made(self, future: asyncio.Future[Connected | None]) -> Connected | None:
        """Wait for a connection under way, to close it; if cancelled, drop it as soon as it is made."""
        try:
            return await asyncio.shield(future)
        except Exception:
            return None  # the caller that connects has the error
        except BaseException:
            self._drop_when_made(future)
            raise

    def _drop_when_made(self, future: asyncio.Future[Connected | None]) -> None:
        future.add_done_callback(lambda made: None if made.exception() else self._drop(made.result()))

    # -- the shared store --------------------------------------------------------------------------------------------

    def _join(self, user: object, loop: asyncio.AbstractEventLoop) -> Store:
        with self._lock:
            store = self._shared or self._app._make_store()
            if store.dialect == "sqlite":  # one writing thread for all event loops
                self._shared = store
                self._users[user] = loop
            return store

    def _leave(self, user: object, store: Store) -> bool:
        """Leave a store; True if it has no user any more. Closed event loops do not count."""
        with self._lock:
            if store is not self._shared:
                return True
            self._users.pop(user, None)
            if any(not loop.is_closed() for loop in self._users.values()):
                return False
            self._shared = None
            self._users.clear()
            return True

    def _left(self, connected: Connected | None) -> Store | None:
        """The store to be closed, if any: this loop's own, or the shared one with its last user. An application that
        was used in loops which are over closes it, too."""
        store = self._shared if connected is None else connected.store
        user = None if connected is None else connected.user
        return store if store is not None and self._leave(user, store) else None

    def _drop(self, connected: Connected | None) -> None:
        if connected is not None:
            connected.drop()
            if self._leave(connected.user, connected.store):
                connected.store.drop()

    # -- forks -------------------------------------------------------------------------------------------------------

    def _mind_fork(self) -> None:
        """Threads do not come along to the child of a fork, and its connections are the parent's."""
        if os.getpid() == self._process:
            return
        if self._shared is not None:
            raise ConfigurationError(
                "this process was forked from one in which the application had its SQLite database open, and SQLite "
                "cannot be used on both sides of a fork: close the application (await app.close(), or "
                "app.sync.close()) before the fork, or use it in the children only"
            )
        _inherited.append(self._loops)
        self._loops, self._lock, self._process = {}, threading.Lock(), os.getpid()


_instead: ContextVar[tuple[Stepfast, Stepfast] | None] = ContextVar("stepfast_instead", default=None)
"""An application, and its replacement."""


_everywhere: dict[Stepfast, Stepfast] = {}
"""Applications, and their replacements in the whole process: see ``Lab.in_place``."""


def resolve_app(app: Stepfast) -> Stepfast:
    """Return the application, or its replacement where this is called."""
    instead = _instead.get()
    if instead is not None and instead[0] is app:
        return instead[1]
    return _everywhere.get(app, app) if _everywhere else app


@contextlib.contextmanager
def stands_in_everywhere(app: Stepfast, other: Stepfast) -> Iterator[None]:
    """Replace an application by another in every task and thread of the process."""
    before = _everywhere.get(app)
    _everywhere[app] = other
    try:
        yield
    finally:
        if before is None:
            _everywhere.pop(app, None)
        else:
            _everywhere[app] = before


def override_app(app: Stepfast, other: Stepfast) -> contextvars.Context:
    """Return a copy of the caller's context in which another application replaces an application."""
    made = contextvars.copy_context()
    made.run(_instead.set, (app, other))
    return made


class Namesake(NamedTuple):
    """One name under which live workers have code of different modules."""

    workflow: str
    module: str
    other: str
    worker: WorkerInfo


def database_shown(url: DatabaseUrl) -> str:
    """Return the database for messages: without a password, and a file by its whole path."""
    return redact(url.text) if url.path is None else f"the SQLite file {os.path.abspath(url.path)}"


def announce_database(url: DatabaseUrl, namespace: str, named: bool, logger: logging.Logger) -> None:
    """Log where runs are kept; as a warning, if the database was not named."""
    logger.info("works on %s, namespace %r", database_shown(url), namespace)
    if not named:
        logger.warning("%s", unnamed(url))


def announce_retention(settings: Settings, logger: logging.Logger) -> None:
    """Log for how long ended runs are kept."""
    others, failed = _days(settings.retention), _days(settings.retention_failed)
    logger.info(
        "ended runs are kept %s, failed ones %s (settings retention, retention_failed); then workers remove them",
        others, failed,
    )  # fmt: skip


def _days(span: float | timedelta | None) -> str:
    if span is None:
        return "for ever"
    return f"for {timedelta(seconds=seconds(span, 'the retention'))}".replace(", 0:00:00", "")


def unnamed(url: DatabaseUrl, way: str = "Stepfast(url)") -> str:
    """Return the warning that the database was not named; ``way`` is how it could have been."""
    return f"no database was named, neither by {way} nor by STEPFAST_URL: runs are kept in {database_shown(url)}"


def announce_namesakes(
    workflows: Mapping[str, Workflow[Any, Any]], workers: Sequence[WorkerInfo], logger: logging.Logger
) -> None:
    """Warn of names for which other live workers have other code: they execute each other's runs."""
    own = {name: workflow.module for name, workflow in workflows.items()}
    versions = {name: workflow.version for name, workflow in workflows.items()}
    for name, module, other, worker in namesakes(own, versions, workers):
        logger.warning(
            "the code of %r is from module %s here, but from %s on the live worker %s:%d: each executes the other's "
            "runs. If they are two services, give each a namespace of its own, or one of the workflows another name",
            name, module, other, worker.host, worker.pid,
        )  # fmt: skip


def announce_queues(
    queues: Sequence[str] | None,
    workflows: Mapping[str, Workflow[Any, Any]],
    limited: Iterable[str],
    logger: logging.Logger,
) -> None:
    """Warn of queues of a worker that no code here names: perhaps misspelt."""
    known = {workflow.queue for workflow in workflows.values()} | set(limited)
    for queue in queues or ():
        if queue not in known:
            logger.warning(
                "queue %r is the queue of no workflow here: only runs whose start names it are taken from it%s",
                queue, nearest(queue, sorted(known)),
            )  # fmt: skip


def announce_limits(before: Gate, after: Gate, logger: logging.Logger) -> None:
    """Warn that this process declares other limits of a queue than another one did, and say which apply."""
    if before.declared is not None:
        logger.warning(
            "the limits of queue %r are declared as %s here, and were declared as %s by %s: what was declared last "
            "holds. If two deployments differ for good, let one of them declare the queue",
            after.name, shown_limits(after.declared), shown_limits(before.declared), before.declared_by,
        )  # fmt: skip
    if after.overridden:
        logger.warning(
            "queue %r: an operator has set %s, which holds instead of what the code declares, until it is reset",
            after.name, shown_limits(after.chosen),
        )  # fmt: skip


def shown_limits(text: str | None) -> str:
    """Limits as the code writes them: ``concurrency=20, rate=Rate(100, per=60)``."""
    return ", ".join(f"{name}={_shown(value)}" for name, value in decode(text).items()) or "none"


def _shown(value: object) -> str:
    return f"Rate({value.count}, per={value.per:g})" if isinstance(value, Rate) else str(value)


def namesakes(modules: Mapping[str, str], versions: Mapping[str, str], workers: Sequence[WorkerInfo]) -> list[Namesake]:
    """Where live workers have other code of another module under one of these names, each name once. The same code in
    two modules is one that was moved."""
    found: dict[str, Namesake] = {}
    for worker in workers:
        for name, module in modules.items():
            other = worker.modules.get(name, "")
            if worker.state == "live" and worker.workflows.get(name) != versions.get(name) and _differ(module, other):
                found.setdefault(name, Namesake(name, module, other, worker))
    return list(found.values())


def all_namesakes(workers: Sequence[WorkerInfo]) -> list[Namesake]:
    """Names under which any two live workers have code of different modules, each name once."""
    live = [worker for worker in workers if worker.state == "live"]
    found = {n.workflow: n for worker in live for n in namesakes(worker.modules, worker.workflows, live)}
    return [found[name] for name in sorted(found)]


def _differ(one: str, other: str) -> bool:
    """``orders`` and ``shop.orders`` may be one file, run as a script and imported from its package."""
    known = one != "" and other != ""
    return known and one != other and not one.endswith(f".{other}") and not other.endswith(f".{one}")
