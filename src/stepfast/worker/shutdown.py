"""Stopping: signals of the operating system, clean-up that a cancellation cannot skip, and waits with a bound."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import signal
from collections.abc import Callable, Coroutine, Iterable, Iterator
from typing import Any, Protocol, TypeVar

from ..cancellation import seen
from ..engine.host import Clock
from ..errors import StepfastError, WorkerBroken, sentence

SIGNALS = (signal.SIGTERM, signal.SIGINT)


class Stoppable(Protocol):
    """What works until it is stopped: a worker, or one that serves remote steps."""

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


async def run_until_signal(worker: W, at_once: Callable[[W], None] | None = None) -> None:
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
    ear = _ears.setdefault(loop, _SignalListener(loop))
    ear.listen(in_loop, at_once)
    try:
        yield
    finally:
        ear.leave(in_loop, at_once)
        if not ear.listeners:
            _ears.pop(loop, None)


class _SignalListener:
    """Hears signals for all workers of one event loop: each of them is to stop. The handlers of before are put back
    when the last worker has left."""

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


_ears: dict[asyncio.AbstractEventLoop, _SignalListener] = {}


def _is_of_a_loop(handler: Any) -> bool:
    """Whether an event loop has put it there to be woken. By itself it does nothing: the signal would be lost."""
    return str(getattr(handler, "__module__", "")).startswith("asyncio.")


_LAST_WORD = 1.0
"""Seconds for a task that was cancelled to come to its end; then it is not waited for any more."""
_TIMES = 3
"""How often work is begun that is cancelled by code that cancels every task there is."""

_left_behind: set[asyncio.Task[Any]] = set()
"""Tasks that are not waited for any more: without a reference they could vanish in the middle of what they do."""


async def to_the_end(work: Callable[[], Coroutine[Any, Any, None]]) -> None:
    """Do it, however often the caller is cancelled while it lasts; a cancellation comes through afterwards. The work
    must be safe to repeat: it is begun again if it was cancelled itself."""
    cancelled, task = False, asyncio.create_task(work())
    for _ in range(_TIMES):
        while not task.done():
            try:
                await asyncio.wait((task,))
            except asyncio.CancelledError:  # ends here: raised below, when the work is done
                cancelled = True
        if not task.cancelled():
            break
        task = asyncio.create_task(work())
    if cancelled:
        _leave_to_itself(task)
        raise asyncio.CancelledError
    await task


async def bounded(
    work: Coroutine[Any, Any, Any], seconds: float, what: str, logger: logging.Logger, clock: Clock
) -> bool:
    """Do it if it can be done in so many seconds; whether it was. Errors are logged and not raised."""
    task = asyncio.create_task(work)
    try:
        await clock.wait((task,), seconds)
    except asyncio.CancelledError:
        _leave_behind(task)
        raise
    if not task.done():
        logger.warning("%s took longer than %g s; it is not waited for", what, seconds)
        await ended((task,), clock)
        return False
    return _went_well(task, what, logger)


async def ended(tasks: Iterable[asyncio.Task[Any]], clock: Clock, seconds: float = _LAST_WORD) -> None:
    """Cancel tasks and wait until they have ended, but not for long: one that ignores it is left behind."""
    pending = {task for task in tasks if not task.done()}
    for task in pending:
        task.cancel()
    if pending:
        pending = await clock.wait(pending, seconds)
    for task in pending:
        task.cancel()  # the first one may have been swallowed by what the task was waiting for
        _leave_behind(task)


def _leave_to_itself(task: asyncio.Task[Any]) -> None:
    """The caller hears of its cancellation; what else went wrong is for the log."""
    if task.done() and not task.cancelled() and (error := task.exception()) is not None:
        logging.getLogger("stepfast").error("clean-up failed", exc_info=error)


def _leave_behind(task: asyncio.Task[Any]) -> None:
    task.cancel()
    _left_behind.add(task)
    task.add_done_callback(_left_behind.discard)
    task.add_done_callback(seen)


def _went_well(task: asyncio.Task[Any], what: str, logger: logging.Logger) -> bool:
    if task.cancelled():
        return False
    error = task.exception()
    if error is None:
        return True
    if isinstance(error, StepfastError):
        logger.warning("%s: %s", what, sentence(error))
    else:
        logger.error("%s: unexpected error", what, exc_info=error)
    return False
