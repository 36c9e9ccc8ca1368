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
    left: asyncio.Event
    """Set when it has been stopped, by whomever."""

    async def start(self) -> None:
        """Begin to take work."""
        ...

    async def stop(self) -> None:
        """Stop in good order: wait for handlers, give the rest back."""
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
            waits = [asyncio.ensure_future(event.wait()) for event in (stop, worker.broken, worker.left)]
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
    ear = _ears.setdefault(loop, _Ear(loop))
    ear.listen(in_loop, at_once)
    try:
        yield
    finally:
        ear.leave(in_loop, at_once)
        if not ear.listeners:
            _ears.pop(loop, None)


class _Ear:
    """Hears signals for all workers of one event loop: each of them is to stop. Whatever handled them before does so
    again when the last worker has left."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self.listeners: list[Callable[[], None]] = []
        self._at_once: list[Callable[[], None]] = []
        self._before: dict[signal.Signals, Any] = {}

    def listen(self, in_loop: Callable[[], None], at_once: Callable[[], None] | None) -> None:
        """Call these functions when a signal comes, from now on."""
        self.listeners.append(in_loop)
        if at_once is not None:
            self._at_once.append(at_once)
        for number in SIGNALS:
            with contextlib.suppress(ValueError, NotImplementedError, RuntimeError):
                if number not in self._before:
                    before = signal.getsignal(number)
                    self._loop.add_signal_handler(number, self._heard)
                    self._before[number] = before
                if self._at_once:
                    signal.signal(number, self._hear_at_once)  # the event loop is woken all the same

    def leave(self, in_loop: Callable[[], None], at_once: Callable[[], None] | None) -> None:
        """Stop calling these functions when a signal comes."""
        self.listeners.remove(in_loop)
        if at_once is not None:
            self._at_once.remove(at_once)
        if not self.listeners:
            for number, before in self._before.items():
                self._loop.remove_signal_handler(number)
                if callable(before) and not _is_of_a_loop(before):
                    signal.signal(number, before)
            self._before.clear()

    def _heard(self) -> None:
        for listener in list(self.listeners):
            listener()

    def _hear_at_once(self, _number: int, _frame: Any) -> None:
        for listener in list(self._at_once):
            listener()


_ears: dict[asyncio.AbstractEventLoop, _Ear] = {}


def _is_of_a_loop(handler: Any) -> bool:
    """Whether an event loop has put it there to be woken. By itself it does nothing: the signal would be lost."""
    return str(getattr(handler, "__module__", "")).startswith("asyncio.")
