"""Threads for handlers that are a plain ``def``. Such a handler cannot be stopped: if its run leaves before it returns,
its thread is counted until it does."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

from ..engine.execution import Execution
from ..engine.observers import ids_of
from .kit import Kit


class HandlerThreads:
    """Too many threads that do not return take slots: else they would only grow."""

    def __init__(self, kit: Kit, returned: Callable[[], None]) -> None:
        self._logger = kit.logger
        self._allowed = kit.settings.concurrency
        self._returned = returned
        """Told when a thread has come back late."""
        self._threads = kit.clock.pool("handler")
        self._loop = asyncio.get_running_loop()
        self._at_work: set[Execution] = set()
        """Runs whose handler is in its thread, at hand or not. Changed by the threads themselves."""
        self._stuck: set[Execution] = set()
        """The runs with a thread that have left this worker."""
        self.submit = self._threads.submit

    @property
    def stuck(self) -> int:
        """How many threads are at work for runs that have left."""
        return len(self._stuck)

    def call(self, execution: Execution, function: Callable[[], Any]) -> Awaitable[Any]:
        """Call the handler of a run in a thread."""

        def call() -> Any:
            try:
                return function()
            finally:
                self._at_work.discard(execution)
                if execution in self._stuck:
                    self._loop.call_soon_threadsafe(self._came_back, execution)

        self._at_work.add(execution)
        return self._threads.submit(call)

    def left(self, execution: Execution) -> None:
        """The run has left this worker."""
        if execution not in self._at_work:
            return
        self._stuck.add(execution)
        if execution not in self._at_work:  # it has just returned, and did not find itself among them
            self._stuck.discard(execution)
        elif len(self._stuck) >= self._allowed:
            self._logger.error(
                "%d threads are at work on runs that have left this worker, on account of a timeout or a lost lease "
                "(%s was the last): a plain def cannot be stopped. From now on each takes a slot until it returns",
                len(self._stuck), execution.workflow.name, extra=ids_of(execution),
            )  # fmt: skip

    def _came_back(self, execution: Execution) -> None:
        self._stuck.discard(execution)
        self._returned()

    def close(self) -> None:
        """Let idle threads go; busy ones go when they are done."""
        self._threads.close()
