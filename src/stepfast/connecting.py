"""Which event loop of this process works with what: each connects on first use, and all of them share a SQLite store.

A connect or a close that is cancelled leaves nothing behind, and takes nothing away from other loops. After a fork the
child connects anew.
"""

from __future__ import annotations

import asyncio
import logging
import os
import threading
from collections.abc import Awaitable, Callable

from .connected import Connected
from .engine.host import Clock
from .engine.observers import Observers
from .errors import ConfigurationError
from .settings import Settings
from .store import Store

Prepare = Callable[[Store], Awaitable[None]]

_inherited: list[object] = []
"""What a parent process had open at a fork. It is kept as it is: tidying it up would tell the parent's server."""


class Connections:
    """What the event loops of one application work with. May be used from any thread."""

    def __init__(
        self,
        make: Callable[[], Store],
        settings: Settings,
        logger: logging.Logger,
        observers: Callable[[], Observers | None],
        clock: Callable[[], Clock],
    ) -> None:
        self._make = make
        self._observers = observers
        self._clock = clock
        self._settings = settings
        self._logger = logger
        self._loops: dict[asyncio.AbstractEventLoop, asyncio.Future[Connected | None]] = {}
        self._shared: Store | None = None
        self._users: dict[object, asyncio.AbstractEventLoop] = {}
        """Who works with the shared store. It is closed with the last of them."""
        self._lock = threading.Lock()
        self._process = os.getpid()

    @property
    def open(self) -> bool:
        """Whether any event loop is connected."""
        return any(not loop.is_closed() for loop in list(self._loops))

    async def get(self, prepare: Prepare) -> Connected:
        """What this event loop works with, made on first use. One connects; whoever comes meanwhile waits for it, and
        if it is cancelled, the next one does it."""
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
        """What an event loop works with, if it is connected: this one, or another. May be asked from any thread."""
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
        """Drop what this event loop works with, without waiting for anything."""
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
                future.exception()  # there may be nobody else who waits for it
            else:
                future.set_result(None)
            raise
        future.set_result(connected)
        return connected

    async def _open(self, loop: asyncio.AbstractEventLoop, prepare: Prepare) -> Connected:
        user = object()
        store = self._join(user, loop)
        try:
            await store.open()
            await prepare(store)
            return Connected(store, self._settings, self._logger, user, self._observers(), self._clock())
        except BaseException as error:
            if self._leave(user, store):
                if isinstance(error, Exception):
                    await store.close()
                else:
                    store.drop()
            raise

    async def _made(self, future: asyncio.Future[Connected | None]) -> Connected | None:
        """What somebody is still making, to be closed; if we are cancelled, it is dropped as soon as it is there."""
        try:
            return await asyncio.shield(future)
        except Exception:
            return None  # whoever was making it knows
        except BaseException:
            self._drop_when_made(future)
            raise

    def _drop_when_made(self, future: asyncio.Future[Connected | None]) -> None:
        future.add_done_callback(lambda made: None if made.exception() else self._drop(made.result()))

    # -- the shared store --------------------------------------------------------------------------------------------

    def _join(self, user: object, loop: asyncio.AbstractEventLoop) -> Store:
        with self._lock:
            store = self._shared or self._make()
            if store.dialect == "sqlite":  # one writing thread, whatever the number of event loops
                self._shared = store
                self._users[user] = loop
            return store

    def _leave(self, user: object, store: Store) -> bool:
        """Whether nobody is left who works with this store. Loops that were closed without a word count no more."""
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
