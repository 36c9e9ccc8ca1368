"""An application connected to its database within one event loop: the store and what hangs on it."""

from __future__ import annotations

import asyncio
import logging
import weakref
from collections.abc import Coroutine, Sequence
from typing import Any

from .bounds import Bounds
from .engine.host import Clock
from .engine.observers import Observers
from .engine.workflow import Workflow
from .errors import UnknownWorkflow
from .model.records import NewRun
from .model.rows import Definition
from .nobody_serves import Lookout
from .settings import Settings
from .starter import Starter
from .store import Store
from .store.store import MissingRight
from .watcher import Watcher
from .worker.notifier import Switchboard
from .worker.remote_dispatcher import Carriage
from .worker.worker import Worker

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
        """Who is told what happens to runs, if anybody is."""
        self.user = user
        """Who this is to a store that several event loops share."""
        self.logger = logger
        self.loop = asyncio.get_running_loop()
        self.switchboard = Switchboard(store, logger, clock)
        self.starter = Starter(store, settings, logger, self.switchboard, clock, observers)
        self.watcher = Watcher(store, settings, logger, self.switchboard, clock)
        self.lookout = Lookout(store, logger, clock)
        self.workers: weakref.WeakSet[Worker] = weakref.WeakSet()
        """The workers that were made here."""
        self.carriage: Carriage | None = None
        """Where remote steps go, once there was a worker here."""
        self.guests: set[asyncio.Task[None]] = set()
        """What others do here beside everything else. They are told to end first, while the database can be reached."""
        self._stored: set[tuple[str, str]] = set()
        self._may_store = True
        self._storing: set[asyncio.Task[None]] = set()
        self.declared_queues: set[tuple[str, str]] = set()
        """The limits of queues that this process has told the database of."""
        self.bounds = Bounds(store, clock)
        self._known: dict[str, Definition] = {}
        self._known_at = 0.0
        self._clock = clock
        self.new_id = clock.new_id
        """An id for a run that is started here."""

    async def start_within(self, connection: Any, runs: Sequence[NewRun]) -> list[str]:
        """Start runs in a transaction of the caller's."""
        ids = await self.store.start_within(connection, runs)
        if self.observers is not None:
            self.observers.starts(runs, ids, joined=True)
        return ids

    async def store_definitions(self, workflows: list[Workflow[object, object]]) -> None:
        """Tell the database of these workflows, once per process and version. A user who may only start runs leaves it
        to the workers."""
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
        """Whether the database knows this version, because this process has told it."""
        return (workflow.name, workflow.version) in self._stored

    def store_definitions_soon(self, workflows: list[Workflow[object, object]]) -> None:
        """Store the definitions later, for a caller who has a transaction open and must not wait for another: on SQLite
        there is one lock for all who write, and the caller has it."""
        self.soon(self.store_definitions(workflows))

    def soon(self, work: Coroutine[Any, Any, None]) -> None:
        """Store something that the code declares, beside whatever else is under way."""
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
            await self.switchboard.send_all(_PATIENCE)
            if self._storing:
                await self._clock.wait(self._storing, _PATIENCE)
        finally:
            await asyncio.gather(*self.drop(), return_exceptions=True)
            if self.carriage is not None:
                await self.carriage.close()

    async def _leave_guests(self) -> None:
        """Tell them to end, and let them write what there is to write."""
        for task in self.guests:
            task.cancel()
        if self.guests:
            await self._clock.wait(self.guests, _PATIENCE)

    def drop(self) -> list[asyncio.Task[None]]:
        """Tell whoever waits here that nothing will come, and every task to end. The tasks, which do so at once."""
        tasks = [
            *self._storing,
            *self.guests,
            *self.starter.drop(),
            *self.switchboard.drop(),
            *self.bounds.drop(),
            *self.watcher.drop(),
        ]
        for task in tasks:
            task.cancel()
        return tasks
