"""No test runs longer than its bound, whatever it does, and one that is ended by it says where everything stood.

pytest-timeout ends a test by raising in it. That is not enough for a test that hangs in its own clean-up, because the
clean-up may wait for a task that swallows every cancellation. So a thread watches the tests as well. At the bound it
writes down where all tasks and threads stand; if the test has still not ended a while later, it ends the process, which
the other test processes survive.
"""

from __future__ import annotations

import asyncio
import contextlib
import faulthandler
import gc
import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from time import monotonic  # tests that change the clock of the module `time` do not mean this one
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


class _Bound:
    """What is watched: at its first moment the stacks are written, at its last the process ends."""

    def __init__(self, name: str, seconds: float, stream: TextIO, leave: float) -> None:
        began = monotonic()
        self._name, self._seconds, self._stream, self._leave = name, seconds, stream, leave
        self._last = began + seconds + leave
        self._written = False
        self.moment = began + max(seconds - EARLY, 0)

    def come(self) -> None:
        """The moment has come."""
        if self._written:
            write_stacks(
                f"{self._name} did not end {self._leave:g} s after its bound; this process ends here", self._stream
            )
            os._exit(70)
        write_stacks(f"{self._name} is about to reach its bound of {self._seconds:g} s", self._stream)
        self._written, self.moment = True, self._last


class _Watchman:
    """The thread that watches. It serves all tests of a process: to start one for each would take longer than many of
    them. It sleeps until the first moment that it knows of, and is woken only for an earlier one."""

    def __init__(self) -> None:
        self._news = threading.Condition()
        self._bounds: set[_Bound] = set()
        self._until = 0.0
        self._thread: threading.Thread | None = None

    def begin(self, bound: _Bound) -> None:
        with self._news:
            self._bounds.add(bound)
            if self._thread is None:
                self._thread = threading.Thread(target=self._watch, name="bound", daemon=True)
                self._thread.start()
            elif bound.moment < self._until:
                self._news.notify()

    def end(self, bound: _Bound) -> None:
        """From now on nothing is written about it."""
        with self._news:
            self._bounds.discard(bound)

    def _watch(self) -> None:
        with self._news:
            while True:
                now = monotonic()
                for bound in [bound for bound in self._bounds if bound.moment <= now]:
                    bound.come()
                self._until = min((bound.moment for bound in self._bounds), default=now + 3600)
                self._news.wait(max(self._until - monotonic(), 0))


_WATCHMAN = _Watchman()


@contextmanager
def bounded(name: str, seconds: float, stream: TextIO, leave: float = LEAVE) -> Iterator[None]:
    """Watch what is done inside the block. A bound of no seconds is none."""
    if seconds <= 0:
        yield
        return
    bound = _Bound(name, seconds, stream, leave)
    _WATCHMAN.begin(bound)
    try:
        yield
    finally:
        _WATCHMAN.end(bound)


def write_stacks(why: str, stream: TextIO) -> None:
    """Where every task and every thread of this process stands."""
    print(f"\n{'=' * 30} {why} {'=' * 30}", file=stream)
    for task in [thing for thing in gc.get_objects() if isinstance(thing, asyncio.Task)]:
        if not task.done():
            with contextlib.suppress(TypeError):  # a compiled driver has frames without a line
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
