"""What lies between a process and the database: delays, lost requests, lost replies, times without any answer.

Each process has a store of its own, which passes everything on to the one that all share. What was asked by a process
that has died is still done, if it had set out; nobody hears of it.
"""

from __future__ import annotations

import asyncio
import inspect
from collections import Counter
from collections.abc import Awaitable, Callable
from random import Random
from typing import Any

from msgspec import Struct
from msgspec.structs import replace

from stepfast.errors import DatabaseUnavailable
from stepfast.store.answers import Wakeups
from stepfast.store.sqlite.store import LOOK
from tests.simulation import threads
from tests.simulation.database import SimStore
from tests.simulation.loop import Process, SimLoop

NEVER_LOST = frozenset({"open", "close", "migrate", "schema_state"})
"""What belongs to the beginning and the end of a process."""


class Line:
    """The way of one process to the database."""

    def __init__(self, loop: SimLoop, process: Process, network: Network) -> None:
        self.loop = loop
        self.process = process
        self.network = network
        self.down_until = 0.0
        """No question gets through before this time."""
        self.asked: Counter[str] = Counter()
        """How many questions of each kind were asked."""
        self.die: Callable[[], object] = lambda: None
        """Kill the process, at once."""

    @property
    def down(self) -> bool:
        """Whether nothing gets through."""
        return self.loop.time() < self.down_until

    def asking(self, name: str, call: Callable[..., Awaitable[Any]]) -> Callable[..., Awaitable[Any]]:
        """The same call over this line: it takes its time, and may be lost on its way there or back."""
        network, loop = self.network, self.loop

        async def ask(*args: Any, **kwargs: Any) -> Any:
            self.asked[name] += 1
            lost = network.lose(self, name)
            await asyncio.sleep(network.delay())
            if self.down or lost == "request":
                raise DatabaseUnavailable("the request was lost")
            answer = await call(*args, **kwargs)
            if lost == "death":
                self.die()
            await asyncio.sleep(network.delay())
            if self.down or lost == "reply":
                raise DatabaseUnavailable("the reply was lost")
            if loop.trace is not None:
                loop.note(f"{self.process.name} {name} {_told(answer)}")
            return answer

        return ask


class Network:
    """All lines, the ears of all processes, and chance."""

    def __init__(self, loop: SimLoop, seed: str, slow: float) -> None:
        self._loop = loop
        self._random = Random(f"{seed} network")
        self._slow = slow
        """How often an answer takes long."""
        self.heard: dict[Process, Callable[[Wakeups], None]] = {}
        self.deaf = False
        """Whether wake-ups get lost."""
        self.lose: Callable[[Line, str], str | None] = lambda line, what: None
        """Asked before each question: whether its request or its reply is lost, or its process before it is heard."""

    def delay(self) -> float:
        """Seconds that something takes on its way."""
        chance = self._random.random()
        if chance < self._slow:
            return 0.05 + self._random.random() * 0.5
        return 0.0005 + chance * 0.004

    @property
    def longest(self) -> float:
        """Seconds that something takes at most."""
        return 0.55 if self._slow else 0.0045

    def tell(self, teller: Process, wakeups: Wakeups) -> None:
        """Tell every other process, each at its time, if it gets there."""
        for process, heard in list(self.heard.items()):
            if process is not teller and not (self.deaf and self._random.random() < 0.7):
                self._loop.call_later(self.delay(), heard, wakeups, context=process.blank)


class SimPulse:
    """Heartbeats over a line, for a thread of the world."""

    def __init__(self, pulse: Any, line: Line) -> None:
        self._pulse = pulse
        self._line = line

    def beat(self, worker: str, running: int) -> Any:
        """Say that the worker lives, if the line is not down."""
        line = self._line
        threads.sleep(line.network.delay())
        line.asked["beat"] += 1
        lost = line.network.lose(line, "beat")
        if line.down or lost == "request":
            raise DatabaseUnavailable("the request was lost")
        answer = self._pulse.beat(worker, running)
        threads.sleep(line.network.delay())
        if line.down or lost == "reply":
            raise DatabaseUnavailable("the reply was lost")
        line.loop.note(f"{line.process.name} beat {_told(answer)}")
        return answer

    def close(self) -> None:
        """There is nothing to be given up."""


class LineStore:
    """The store as one process has it."""

    def __init__(self, store: SimStore, line: Line) -> None:
        self._store = store
        self._line = line
        self.dialect = store.dialect
        self.can_wake = store.can_wake
        self.breaks = store.breaks

    def __getattr__(self, name: str) -> Any:
        value = getattr(self._store, name)
        if not inspect.iscoroutinefunction(value):
            return value
        made = value if name in NEVER_LOST else self._line.asking(name, value)
        setattr(self, name, made)
        return made

    def pulse(self, patience: float = 10.0) -> SimPulse:
        """Heartbeats over the same line."""
        return SimPulse(self._store.pulse(patience), self._line)

    async def close(self) -> None:
        """The database stays for the others."""

    def drop(self) -> None:
        """The database stays for the others."""

    async def notify(self, wakeups: Wakeups) -> None:
        """Tell the other processes."""
        await asyncio.sleep(self._line.network.delay())
        self._line.network.tell(self._line.process, wakeups)

    async def listen(self, heard: Callable[[Wakeups], None]) -> None:
        """Pass on what is heard, until cancelled."""
        process, ears = self._line.process, self._line.network.heard
        ears[process] = heard
        try:
            heard(LOOK)
            await asyncio.Event().wait()
        finally:
            ears.pop(process, None)

    async def register(self, worker: Any) -> None:
        """Register under the number of the process in the world. Only a lease tells that it is gone."""
        await self._line.asking("register", self._store.register)(
            replace(worker, pid=self._line.process.pid, host="world", process=None)
        )

    async def transact(self, worker: str, run_id: str, claim: int, address: Any, call: Any, *rest: Any) -> Any:
        """A function that is called in the transaction of the database belongs to the process all the same."""
        process = self._line.process

        def called(connection: Any) -> Any:
            if process.dead:
                raise threads.Gone
            return process.run(call, connection)

        return await self._line.asking("transact", self._store.transact)(worker, run_id, claim, address, called, *rest)


def _told(value: Any) -> str:
    """An answer in words: a set has no order, and the words must be the same each time."""
    if isinstance(value, (set, frozenset)):
        return "{" + ", ".join(sorted(map(_told, value))) + "}"
    if isinstance(value, (list, tuple)):
        return f"[{', '.join(map(_told, value))}]"
    if isinstance(value, Struct):
        return f"{type(value).__name__}({', '.join(_told(getattr(value, name)) for name in value.__struct_fields__)})"
    return repr(value)
