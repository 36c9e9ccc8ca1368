"""A cancelled call ends as cancelled, whatever error it meets on its way out.

A driver that is interrupted tidies up behind itself: it rolls back, or gives a connection back. If that fails, its
error takes the place of the ``CancelledError``, and whoever rides out database trouble would go on with a call that
nobody waits for any more. So those places note how often their task has been asked to end, and compare when an error
comes.
"""

from __future__ import annotations

import asyncio
from typing import Any


def requests() -> int:
    """How often the running task has been asked to end. A timeout that has come and gone is not counted any more."""
    task = asyncio.current_task()
    return 0 if task is None else task.cancelling()


def seen(task: asyncio.Future[Any]) -> None:
    """Nobody waits for this any more, and how it ended is no news: asyncio is not to report it. A done callback."""
    if not task.cancelled():
        task.exception()


def raise_if_cancelled(before: int) -> None:
    """Raise the cancellation that was asked for since, if there was one, in place of the error that hid it."""
    if requests() > before:
        raise asyncio.CancelledError
