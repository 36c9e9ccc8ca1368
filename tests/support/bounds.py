"""No test runs longer than its bound, whatever it does, and one that is ended by it says where everything stood.

pytest-timeout ends a test by raising in it. That is not enough for a test that hangs in its own clean-up, because the
clean-up may wait for a task that swallows every cancellation. So a thread watches each test as well. At the bound it
writes down where all tasks and threads stand; if the test has still not ended a while later, it ends the process, which
the other test processes survive.
"""

from __future__ import annotations

import asyncio
import faulthandler
import gc
import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TextIO

import pytest

LEAVE = 30.0
"""Seconds that a test which has reached its bound is left for its clean-up."""

EARLY = 1.0
"""Seconds before pytest-timeout raises at which the stacks are written: afterwards the tasks are gone."""


def bound_of(item: pytest.Item) -> float:
    """Seconds that a test may take: what its mark says, or else the setting `timeout`."""
    mark = item.get_closest_marker("timeout")
    if mark is not None:
        return float(mark.args[0] if mark.args else mark.kwargs["timeout"])
    return float(item.config.getini("timeout") or 0)


@contextmanager
def bounded(name: str, seconds: float, stream: TextIO, leave: float = LEAVE) -> Iterator[None]:
    """Watch what is done inside the block. A bound of no seconds is none."""
    if seconds <= 0:
        yield
        return
    done = threading.Event()

    def watch() -> None:
        if not done.wait(max(seconds - EARLY, 0)):
            write_stacks(f"{name} is about to reach its bound of {seconds:g} s", stream)
            if not done.wait(EARLY + leave):
                write_stacks(f"{name} did not end {leave:g} s after its bound; this process ends here", stream)
                os._exit(70)

    watcher = threading.Thread(target=watch, name="bound", daemon=True)
    watcher.start()
    try:
        yield
    finally:
        done.set()
        watcher.join()


def write_stacks(why: str, stream: TextIO) -> None:
    """Where every task and every thread of this process stands."""
    print(f"\n{'=' * 30} {why} {'=' * 30}", file=stream)
    for task in [thing for thing in gc.get_objects() if isinstance(thing, asyncio.Task)]:
        if not task.done():
            task.print_stack(file=stream)
    stream.flush()
    faulthandler.dump_traceback(stream)
    stream.flush()


_STREAM = pytest.StashKey[TextIO]()


def pytest_configure(config: pytest.Config) -> None:
    """Keep the real standard error at hand: during a test it is captured."""
    config.stash[_STREAM] = os.fdopen(os.dup(2), "w")


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtest_protocol(item: pytest.Item) -> Iterator[None]:
    """Each test, from its first fixture to the end of its clean-up."""
    with bounded(item.nodeid, bound_of(item), item.config.stash[_STREAM]):
        return (yield)
