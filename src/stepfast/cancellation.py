"""Cancellation that an error must not hide.

A driver that is interrupted rolls back or gives its connection back. If that fails, its error takes the place of the
``CancelledError``, and code that retries after database errors would continue a call that was cancelled. Such code
notes how often its task was cancelled, and compares when an error comes.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any


def requests() -> int:
    """Return how often the running task was cancelled, without timeouts that are over."""
    task = asyncio.current_task()
    return 0 if task is None else task.cancelling()


def seen(task: asyncio.Future[Any]) -> None:
    """Retrieve the exception of a future that has no waiter, so that asyncio does not report it. A done callback."""
    if not task.cancelled():
        task.exception()


def raise_if_cancelled(before: int) -> None:
    """Raise the cancellation that was requested since, if there was one, in place of the error that hid it."""
    if requests() > before:
        raise asyncio.CancelledError


@contextmanager
def translated(meaning: Callable[[Exception], Exception]) -> Iterator[None]:
    """Raise what an error of a driver means, or the cancellation that it hides."""
    before = requests()
    try:
        yield
    except Exception as error:
        raise_if_cancelled(before)
        raise meaning(error) from None
