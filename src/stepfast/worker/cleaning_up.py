"""Ending in good order whatever happens meanwhile: clean-up that a cancellation cannot skip, and waits with a bound.

When a program ends, every task of its event loop is cancelled at once, those that clean up among them. So what has to
be done is done by a task of its own, and whoever waits for it goes on waiting when it is cancelled, and tells of its
cancellation afterwards.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Coroutine, Iterable
from typing import Any

from ..cancellation import seen
from ..engine.host import Clock
from ..errors import StepfastError, sentence

_LAST_WORD = 1.0
"""Seconds for a task that was cancelled to come to its end; then nobody waits for it any more."""
_TIMES = 3
"""How often work is begun that is cancelled by somebody who cancels every task there is."""

_left_behind: set[asyncio.Task[Any]] = set()
"""Tasks that nobody waits for any more: without a reference they could vanish in the middle of what they do."""


async def to_the_end(work: Callable[[], Coroutine[Any, Any, None]]) -> None:
    """Do it, however often the caller is cancelled meanwhile; a cancellation comes through afterwards. The work must be
    safe to repeat: it is begun anew if it was cancelled itself."""
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
    """Do it if it can be done in so many seconds; whether it was. What goes wrong is told in the log and not raised."""
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
