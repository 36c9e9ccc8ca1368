"""The coalescing worker loop of the raw engines: no timer, no batch size, only what waits now."""

from __future__ import annotations

import asyncio
import json
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable

from bench.probe import PROBE, carry, work

Claimed = tuple[int, int, str, str]  # run, claim number, kind, input
Step = tuple[int, int, int, str]  # run, claim number, position, output
Completion = tuple[int, int, str]  # run, claim number, output


class RawLoop(ABC):
    """Claims into free slots and writes what handlers wait for; a cycle begins when the last one ends."""

    def __init__(self, concurrency: int, finished: Callable[[int], None]) -> None:
        self._free = concurrency
        self._finished = finished
        self._steps: list[tuple[Step, asyncio.Future[None]]] = []
        self._completions: list[Completion] = []
        self._running: set[asyncio.Task[None]] = set()
        self._wake = asyncio.Event()
        self._may_find = True
        self._closing = False

    @abstractmethod
    async def cycle(self) -> None:
        """Write the steps and completions that wait, and claim what fits: with the methods below."""

    def look(self) -> None:
        """There may be something to claim."""
        self._may_find = True
        self._wake.set()

    def stop(self) -> None:
        """Claim no more; end when the running handlers have."""
        self._closing = True
        self._wake.set()

    async def run(self) -> None:
        """Work until stopped."""
        while not self._closing or self._running or self._completions:
            if not (self._steps or self._completions or self.wanted()):
                await self._wait()
            self._wake.clear()
            await self.cycle()

    async def _wait(self) -> None:
        try:
            await asyncio.wait_for(self._wake.wait(), 1.0)
        except TimeoutError:
            self._may_find = True

    # What a cycle is made of

    def wanted(self) -> int:
        """How many runs to claim now."""
        return self._free if self._may_find and not self._closing else 0

    def take_steps(self) -> tuple[list[Step], list[asyncio.Future[None]]]:
        """The steps that wait, and who waits for them."""
        waiting, self._steps = self._steps, []
        return [row for row, _ in waiting], [future for _, future in waiting]

    def take_completions(self) -> list[Completion]:
        """The runs that wait to be completed."""
        completions, self._completions = self._completions, []
        return completions

    def wrote_steps(self, futures: Iterable[asyncio.Future[None]]) -> None:
        """The steps are durable: their handlers go on."""
        for future in futures:
            future.set_result(None)

    def wrote_completions(self, completions: list[Completion]) -> None:
        """The runs are over: their slots are free."""
        self._free += len(completions)
        self._may_find = self._may_find or bool(completions)
        for run_id, _, _ in completions:
            self._finished(run_id)

    def claimed(self, rows: list[Claimed], wanted: int) -> None:
        """Begin these runs."""
        self._may_find = len(rows) == wanted
        self._free -= len(rows)
        for run_id, claim, kind, sent in rows:
            task = asyncio.create_task(self._handle(run_id, claim, kind, json.loads(sent)))
            self._running.add(task)
            task.add_done_callback(self._running.discard)

    async def _handle(self, run_id: int, claim: int, kind: str, sent: int) -> None:
        entered = PROBE.enter(sent)
        value: int | str = 0
        for position in range(PROBE.steps if kind == "steps" else 0):
            value = await (work(position) if PROBE.payload is None else carry(PROBE.payload))
            durable: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            self._steps.append(((run_id, claim, position, json.dumps(value)), durable))
            self._wake.set()
            await durable
        PROBE.leave(entered)
        self._completions.append((run_id, claim, json.dumps(value) if PROBE.payload is None else "0"))
        self._wake.set()


class Finished:
    """Who waits for which run."""

    def __init__(self) -> None:
        self._futures: dict[int, asyncio.Future[None]] = {}

    def tell(self, run_id: int) -> None:
        """This run is recorded as finished."""
        if future := self._futures.pop(run_id, None):
            future.set_result(None)

    def expect(self, run_id: int) -> asyncio.Future[None]:
        """To be called before the run can have finished."""
        return self._futures.setdefault(run_id, asyncio.get_running_loop().create_future())
