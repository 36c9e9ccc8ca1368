"""The queues of an application: ``app.queues`` looks at them; ``app.pause_queue`` and ``app.resume_queue`` change what
holds for them, over all workers."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass

from .connected import Connected
from .model import gate
from .model.limits import Rate
from .model.names import check_queue
from .model.records import WorkerInfo
from .model.rows import QueueDepth
from .model.serving import claiming_workers, serves_queue
from .settings import Settings


@dataclass(frozen=True, slots=True)
class QueueInfo:
    """A queue as it stands."""

    name: str
    paused: bool
    ready: int
    """Runs that are due now, whether a limit or a pause keeps them or not."""
    running: int
    """Runs that workers hold."""
    waiting: int
    """Runs in the status ``waiting``: for a time, a signal, a child."""
    delayed: int
    """Runs that are queued for a later time."""
    oldest: float | None
    """Seconds for which the first of them has been ready; None: nothing is."""
    concurrency: int | None
    rate: Rate | None
    key_concurrency: int | None
    key_rate: Rate | None
    max_ready: int | None
    workers: int
    """How many live workers look at it; 0: nobody serves it."""
    overridden: tuple[str, ...] = ()
    """The limits that an operator has set: these are not as the code declares them."""


class QueueVerbs:
    """The part of the application that is about queues."""

    logger: logging.Logger
    settings: Settings

    async def _connect(self, migrate: bool = False) -> Connected:
        raise NotImplementedError

    async def queues(self) -> list[QueueInfo]:
        """Every queue that has runs, that a definition or a worker names, or that somebody has said something about, by
        name."""
        store = (await self._connect()).store
        gates = {each.name: each for each in await store.queues()}
        depths = {depth.queue: depth for depth in await store.queue_depths()}
        workers = claiming_workers(await store.workers())
        named = {definition.queue for definition in await store.definitions()}
        named.update(queue for worker in workers for queue in worker.queues or ())
        names = sorted({*gates, *depths, *named})
        return [_info(gates.get(name) or gate.Gate(name), depths.get(name), workers) for name in names]

    async def pause_queue(self, name: str) -> None:
        """Hold a queue: no run of it is claimed from now on. What is being executed goes on to its end, or to its next
        wait; starts are taken as before."""
        await self._change_queue(name, gate.pause)

    async def resume_queue(self, name: str) -> None:
        """Let a paused queue go on."""
        await self._change_queue(name, gate.resume)

    async def _change_queue(self, name: str, decide: gate.Decision) -> None:
        connected = await self._connect()
        await connected.store.change_queue(check_queue(name, self.settings.max_name), decide)
        connected.switchboard.tick_everywhere()


def _info(said: gate.Gate, depth: QueueDepth | None, workers: Sequence[WorkerInfo]) -> QueueInfo:
    found, limits = depth or QueueDepth(said.name), said.limits
    return QueueInfo(
        said.name, said.paused, found.ready, found.running, found.waiting, found.delayed, found.oldest,
        limits.concurrency, limits.rate, limits.key_concurrency, limits.key_rate, limits.max_ready,
        sum(serves_queue(worker, said.name) for worker in workers), said.overridden,
    )  # fmt: skip
