"""A thread with an event loop of its own, for what has to go on while the worker's is blocked."""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import Callable, Coroutine
from concurrent.futures import Future
from typing import Any

_PATIENCE = 10.0
"""Seconds for it to begin; and a fifth of that to end."""

Main = Callable[[Callable[[], None]], Coroutine[Any, Any, None]]

logger = logging.getLogger("stepfast.health")


class SideThread:
    """Runs a coroutine, and another beside it, until told to stop."""

    def __init__(self, name: str, main: Main, beside: Callable[[], Coroutine[Any, Any, None]]) -> None:
        self._main = main
        """Is given a function to call when it is ready."""
        self._beside = beside
        self._begun: Future[None] = Future()
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        self._stopping: Callable[[], object] | None = None

    def start(self) -> None:
        """Begin, and wait until it is ready. Raises what kept it from that."""
        self._thread.start()
        self._begun.result(_PATIENCE)

    def stop(self) -> None:
        """End, and wait for that, but not for long: nothing that it does is worth a delay. Safe to repeat."""
        if self._stopping is not None:
            self._stopping()
        if self._thread.is_alive():
            self._thread.join(_PATIENCE / 5)

    def _run(self) -> None:
        try:
            asyncio.run(self._until_stopped())
        except Exception as error:
            if self._begun.done():
                logger.exception("the health port broke; the worker goes on without it")
            else:
                self._begun.set_exception(error)

    async def _until_stopped(self) -> None:
        loop, main = asyncio.get_running_loop(), asyncio.ensure_future(self._main(self._ready))

        def stop() -> None:
            if not loop.is_closed():
                loop.call_soon_threadsafe(main.cancel)

        self._stopping = stop
        beside = asyncio.ensure_future(self._beside())
        try:
            await main
        except asyncio.CancelledError:  # ends here: it was told to stop, and the thread ends with it
            pass
        finally:
            beside.cancel()

    def _ready(self) -> None:
        if not self._begun.done():
            self._begun.set_result(None)
