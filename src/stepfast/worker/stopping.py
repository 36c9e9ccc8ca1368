"""Working until somebody says stop: signals, and what is told of them."""

from __future__ import annotations

import asyncio
import contextlib
import signal
from collections.abc import Callable, Iterator
from typing import Any, Protocol, TypeVar

from ..errors import WorkerBroken

SIGNALS = (signal.SIGTERM, signal.SIGINT)


class Stoppable(Protocol):
    """What can work until it is told: a worker, or one that serves remote steps."""

    broken: asyncio.Event

    async def start(self) -> None:
        """Begin."""
        ...

    async def stop(self) -> None:
        """End in good order."""
        ...

    def hurry(self) -> None:
        """Wait for handlers no longer."""
        ...

    def breakage(self) -> WorkerBroken:
        """Why it ended by itself."""
        ...


W = TypeVar("W", bound=Stoppable)


async def work_until_told(worker: W, at_once: Callable[[W], None] | None = None) -> None:
    """Until SIGTERM or Ctrl+C: then stop claiming, wait for handlers, give the rest back. A second signal hurries.

    ``at_once`` is called at every signal the moment it comes, also while some code blocks the event loop.
    """
    stop = asyncio.Event()

    def signalled() -> None:
        if stop.is_set():
            worker.hurry()
        stop.set()

    with _signals(signalled, None if at_once is None else lambda: at_once(worker)):
        await worker.start()
        try:
            waits = [asyncio.ensure_future(event.wait()) for event in (stop, worker.broken)]
            try:
                await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
            finally:
                for wait in waits:
                    wait.cancel()
        finally:
            await worker.stop()
    if worker.broken.is_set():
        raise worker.breakage()


@contextlib.contextmanager
def _signals(in_loop: Callable[[], None], at_once: Callable[[], None] | None) -> Iterator[None]:
    """SIGTERM and SIGINT call the one in the event loop, and the other between any two steps of Python code; where
    signals cannot be had (another thread), nothing."""
    loop = asyncio.get_running_loop()
    installed = []
    for number in SIGNALS:
        with contextlib.suppress(ValueError, NotImplementedError, RuntimeError):
            loop.add_signal_handler(number, in_loop)
            installed.append(number)
            if at_once is not None:
                signal.signal(number, _called(at_once))  # the event loop is woken all the same
    try:
        yield
    finally:
        for number in installed:
            loop.remove_signal_handler(number)


def _called(function: Callable[[], None]) -> Callable[[int, Any], None]:
    return lambda _number, _frame: function()
