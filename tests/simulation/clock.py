"""The clockwork of a process of the world, and the time of the modules that ask the machine for it."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import random
import threading
from collections.abc import Callable, Coroutine, Iterator
from random import Random
from types import SimpleNamespace
from typing import Any

from stepfast import questions, results, run, schedules
from stepfast.engine.host import Timer
from stepfast.model import ids
from stepfast.store.sqlite import ctx_transaction
from stepfast.worker.threads import Clockwork, Pool
from tests.faults import bystanders, graphs, remote_workload, talking
from tests.judge import ledger
from tests.simulation.loop import EPOCH, Process, SimLoop, current_process
from tests.simulation.threads import SimBell, SimPool, SimThread, sleep

_ASK_THE_MACHINE = (ids, questions, run, schedules, results, ctx_transaction)
"""Modules that take the time from the machine: how long a caller waits is real time."""


class SimClock(Clockwork):
    """Time, timers, threads and chance of one process."""

    def __init__(self, loop: SimLoop, process: Process, seed: str) -> None:
        super().__init__()
        self._loop = loop
        self._process = process
        self.random = Random(f"{seed} {process.name}")

    def now(self) -> float:
        """Seconds since the world began."""
        return self._loop.time()

    new_id = staticmethod(lambda: ids.new_id())

    def alarm(self, seconds: float, function: Callable[..., object], *args: Any) -> Timer:
        """A timer that knows nothing but its process."""
        return self._loop.call_later(seconds, function, *args, context=self._process.blank)

    def task(self, work: Coroutine[Any, Any, Any]) -> asyncio.Task[Any]:
        """A task that its process knows."""
        return self._loop.create_task(work)

    def pool(self, name: str) -> Pool:
        """Threads for blocking calls."""
        return SimPool(self._loop, name)

    def thread(self, name: str, function: Callable[[], None]) -> threading.Thread:
        """A thread of its own, which has its turn like everybody else."""
        return SimThread(self._loop, name, function)  # type: ignore[return-value]

    def bell(self) -> threading.Event:
        """What such a thread waits at."""
        return SimBell()

    async def joined(self, thread: threading.Thread, seconds: float) -> None:
        """Wait for a thread to end, for so many seconds at most."""
        ended = asyncio.Event()
        made: Any = thread
        made.ended.append(ended.set)
        if made.is_alive():
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(seconds):
                    await ended.wait()


@contextlib.contextmanager
def time_of(loop: SimLoop, seed: str, now: Callable[[], int]) -> Iterator[None]:
    """Time, ids and chance come from the world, for all who ask the machine."""
    told = SimpleNamespace(
        monotonic=loop.time,
        time=lambda: EPOCH + loop.time(),
        time_ns=lambda: int((EPOCH + loop.time()) * 1e9),
        sleep=sleep,
    )
    bits, nonces = Random(f"{seed} ids"), itertools.count(1)
    drawn = SimpleNamespace(token_hex=lambda _: f"n{next(nonces)}")
    system = SimpleNamespace(getpid=lambda: current_process.get(loop.outside).pid)
    changes: list[tuple[Any, str, Any]] = [(module, "time", told) for module in _ASK_THE_MACHINE]
    changes += [(ids, "_bits", lambda: bits.getrandbits(64)), (ids, "_last", 0), (graphs, "time", told)]
    changes += [(ids, "os", SimpleNamespace(urandom=bits.randbytes))]
    for module in (ledger, graphs, bystanders, remote_workload, talking):
        changes += [(module, "now", now), (module, "secrets", drawn)]
    changes += [(module, "os", system) for module in (ledger, graphs, remote_workload)]
    before = [(module, name, vars(module)[name]) for module, name, _ in changes]
    state = random.getstate()
    random.seed(f"{seed} chance")
    for module, name, value in changes:
        setattr(module, name, value)
    try:
        yield
    finally:
        for module, name, value in before:
            setattr(module, name, value)
        random.setstate(state)
