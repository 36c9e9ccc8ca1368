"""The lifespan of an application: what each worker enters before it takes work, and leaves after its last run."""

from __future__ import annotations

import asyncio
import inspect
import logging
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager
from typing import Any, cast

from ..cancellation import seen
from ..errors import ConfigurationError, ContextMisuse
from .shutdown import to_the_end

MakeLifespan = Callable[[Any], AbstractAsyncContextManager[Any]]


def check_lifespan(lifespan: Any) -> MakeLifespan | None:
    """Refuse what does not make an asynchronous context manager."""
    if lifespan is None:
        return None
    if not callable(lifespan) or inspect.isasyncgenfunction(lifespan) or inspect.iscoroutinefunction(lifespan):
        raise ConfigurationError(
            "lifespan= takes a function of the application that gives an async context manager: declare it with "
            f"@contextlib.asynccontextmanager, as in async def lifespan(app): … yield state. It was given {lifespan!r}"
        )
    return cast(MakeLifespan, lifespan)


class Lifespan:
    """One that a worker has entered. It is entered and left by a task of its own, as task groups require."""

    def __init__(self, make: MakeLifespan, app: Any, logger: logging.Logger, entered: list[Lifespan]) -> None:
        self._make = make
        self._app = app
        self._logger = logger
        self._entered = entered
        """All of the application that are entered, in their order."""
        self.loop: asyncio.AbstractEventLoop | None = None
        self.state: Any = None
        """What it has yielded."""
        self._leaving = asyncio.Event()
        self._task: asyncio.Task[None] | None = None

    async def enter(self, broke: Callable[[str, BaseException], None]) -> None:
        """Enter it; its error if that fails. ``broke`` is called if it ends before it is left."""
        manager = self._make(self._app)
        if not hasattr(manager, "__aenter__"):
            raise ConfigurationError(
                f"lifespan= gave {type(manager).__name__}, which is no async context manager: declare the function "
                "with @contextlib.asynccontextmanager"
            )
        self.loop = asyncio.get_running_loop()
        ready: asyncio.Future[None] = self.loop.create_future()
        self._task = task = asyncio.create_task(self._live(manager, ready), name="stepfast-lifespan")
        try:
            await asyncio.wait((task, ready), return_when=asyncio.FIRST_COMPLETED)
        except asyncio.CancelledError:
            await to_the_end(self.cut_off)
            raise
        if task.done():
            task.result()
            raise ConfigurationError("the lifespan of the application ended as soon as it was entered")
        task.add_done_callback(lambda task: self._ended(task, broke))

    async def _live(self, manager: AbstractAsyncContextManager[Any], ready: asyncio.Future[None]) -> None:
        async with manager as self.state:
            self._entered.append(self)
            try:
                ready.set_result(None)
                await self._leaving.wait()
            finally:
                self._entered.remove(self)

    def _ended(self, task: asyncio.Task[None], broke: Callable[[str, BaseException], None]) -> None:
        seen(task)
        if self._leaving.is_set():
            return
        error = None if task.cancelled() else task.exception()
        broke("the lifespan of the application", error or RuntimeError("it ended while its worker was at work"))

    async def leave(self) -> None:
        """Leave it, if it was entered. An error is logged: the runs have ended by then."""
        self._leaving.set()
        task = self._task
        if task is None:
            return
        try:
            await asyncio.wait((task,))
        except asyncio.CancelledError:
            await to_the_end(self.cut_off)
            raise
        if not task.cancelled() and (error := task.exception()) is not None:
            self._logger.error("the lifespan of the application failed", exc_info=error)

    async def cut_off(self) -> None:
        """End it where it is, as the end of a process would; its own clean-up is executed."""
        self._leaving.set()
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)


def state_of(entered: list[Lifespan], own: Lifespan | None) -> Any:
    """What a lifespan has yielded: that of the worker which executes the caller, or else of the last one in this event
    loop, or in this process."""
    if own is not None and own in entered:
        return own.state
    try:
        loop = asyncio.get_running_loop()
    except RuntimeError:
        loop = None
    found = [each for each in entered if each.loop is loop] or entered
    if not found:
        raise ContextMisuse(
            "app.state is what Stepfast(lifespan=…) yields, which is there while a worker of the application is at "
            "work in this process: none is"
        )
    return found[-1].state
