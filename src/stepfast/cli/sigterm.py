"""SIGTERM in the middle of a verb that does many things, one after the other: it ends as by Ctrl+C, and says how far it
came. A service manager, a container or ``timeout`` end a command in this way."""

from __future__ import annotations

import asyncio
import contextlib
import signal
from collections.abc import Iterator

import typer

from .exits import TERMINATED


@contextlib.contextmanager
def cancelled_by_sigterm() -> Iterator[None]:
    """What stands in this block is cancelled by SIGTERM, and the command exits with the code for it."""
    loop, task, heard = asyncio.get_running_loop(), asyncio.current_task(), asyncio.Event()
    assert task is not None

    def hear() -> None:
        heard.set()
        task.cancel()

    with contextlib.suppress(NotImplementedError, ValueError, RuntimeError):  # no signals here, or not in this thread
        loop.add_signal_handler(signal.SIGTERM, hear)
    try:
        yield
    except asyncio.CancelledError:
        if heard.is_set():
            raise typer.Exit(TERMINATED) from None
        raise
    finally:
        with contextlib.suppress(NotImplementedError, ValueError, RuntimeError):
            loop.remove_signal_handler(signal.SIGTERM)
