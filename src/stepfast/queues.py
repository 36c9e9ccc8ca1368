"""The queues of an application: ``app.queue`` declares limits, ``app.queues`` lists queues, and ``app.pause_queue``,
``app.resume_queue`` and ``app.set_limits`` change them for all workers."""

from __future__ import annotations

import logging
import os
import socket
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Unpack

from .engine.options import shows_options
from .errors import ConfigurationError
from .model import queue_config
from .model.health import claiming_workers, serves_queue
from .model.names import check_queue
from .model.queue_config import LimitKeywords, Rate, checked, encode
from .model.records import WorkerInfo
from .model.rows import Definition, QueueDepth
from .runtime import Connected, announce_limits
from .settings import Settings
from .store.answers import MissingRight


@dataclass(frozen=True, slots=True)
class QueueInfo:
    """A queue."""

    name: str
    paused: bool
    ready: int
    """Runs that are due now, also those that a limit or a pause keeps from being claimed."""
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
    """How many live workers serve it."""
    overridden: tuple[str, ...] = ()
    """The limits that an operator has set: these are not as the code declares them."""


@shows_options
class QueueVerbs:
    """The methods of the application for queues."""

    logger: logging.Logger
    settings: Settings

    _connect: Callable[[], Awaitable[Connected]]

    _declared_queues: dict[str, dict[str, Any]]

    def queue(self, name: str, **limits: Unpack[LimitKeywords]) -> None:
        """Declare the limits of a queue: ``app.queue("mail", concurrency=20, rate=Rate(100, per=60))``. They hold over
        all workers, from the moment a worker with this code begins, unless an operator has set others."""
        check_queue(name, self.settings.max_name)
        given = {limit: value for limit, value in checked("app.queue", limits).items() if value is not None}
        if self._declared_queues.setdefault(name, given) != given:
            raise ConfigurationError(f"app.queue: the limits of queue {name!r} are declared twice, and differ")

    async def set_limits(self, name: str, *, reset: bool = False, **limits: Unpack[LimitKeywords]) -> None:
        """Set limits of a queue at run time. They apply in place of those that the code declares; None removes a limit,
        and one that is not given stays as it is. ``reset=True`` applies those of the code again."""
        given = checked("app.set_limits", limits)
        if reset == bool(given):
            raise ConfigurationError("app.set_limits takes limits, or reset=True")
        await self._change_queue(
            name, queue_config.reset if reset else lambda said, now: queue_config.choose(said, given, now)
        )

    def _declared_texts(self) -> dict[str, str]:
        return {name: encode(limits) for name, limits in self._declared_queues.items()}

    async def _declare_queues(self, connected: Connected, joins: bool = False) -> None:
        """Store the limits that are declared here, once per process. ``joins``: the caller has a transaction open, and
        must not wait for another."""
        new = set(self._declared_texts().items()) - connected.declared_queues
        if new and joins:
            connected.soon(self._store_queues(connected, new))
        elif new:
            await self._store_queues(connected, new)

    async def _store_queues(self, connected: Connected, new: set[tuple[str, str]]) -> None:
        me = f"{socket.gethostname()}:{os.getpid()}"
        wanted = {name: partial(_declare, limits=self._declared_queues[name], by=me) for name, _ in new}
        try:
            for before, after in await connected.store.declare_queues(wanted):
                announce_limits(before, after, self.logger)
        except MissingRight:
            self.logger.info("the database user may not declare queues; workers do when they begin")
        connected.declared_queues |= new
        connected.bounds.forget()
        connected.switchboard.tick_everywhere()

    async def queues(self) -> list[QueueInfo]:
        """Every queue that has runs or limits, is paused, or is named by a definition or a worker, by name."""
        store = (await self._connect()).store
        gates = {each.name: each for each in await store.queues()}
        depths = {depth.queue: depth for depth in await store.queue_depths()}
        workers = claiming_workers(await store.workers())
        return queue_infos(gates, depths, workers, await store.definitions())

    async def pause_queue(self, name: str) -> None:
        """Pause a queue: no run of it is claimed from now on. A running run continues to its end or its next wait; runs
        can be started."""
        await self._change_queue(name, queue_config.pause)

    async def resume_queue(self, name: str) -> None:
        """Resume a paused queue."""
        await self._change_queue(name, queue_config.resume)

    async def _change_queue(self, name: str, decide: queue_config.Decision) -> None:
        connected = await self._connect()
        await connected.store.change_queue(check_queue(name, self.settings.max_name), decide)
        connected.bounds.forget()
        connected.switchboard.tick_everywhere()


def queue_infos(
    gates: Mapping[str, queue_config.Gate],
    depths: Mapping[str, QueueDepth],
    workers: Sequence[WorkerInfo],
    definitions: Iterable[Definition],
) -> list[QueueInfo]:
    """Return every queue that has limits or runs, or that a claiming worker or a definition names, by name."""
    named = {definition.queue for definition in definitions}
    named.update(queue for worker in workers for queue in worker.queues or ())
    names = sorted({*gates, *depths, *named})
    return [_queue_info(gates.get(name) or queue_config.Gate(name), depths.get(name), workers) for name in names]


def _queue_info(said: queue_config.Gate, depth: QueueDepth | None, workers: Sequence[WorkerInfo]) -> QueueInfo:
    """Make a `QueueInfo` from its limits, its runs and the workers that claim."""
    found, limits = depth or QueueDepth(said.name), said.limits
    return QueueInfo(
        said.name, said.paused, found.ready, found.running, found.waiting, found.delayed, found.oldest,
        limits.concurrency, limits.rate, limits.key_concurrency, limits.key_rate, limits.max_ready,
        sum(serves_queue(worker, said.name) for worker in workers), said.overridden,
    )  # fmt: skip


def _declare(said: queue_config.Gate, now: int, limits: Mapping[str, Any], by: str) -> queue_config.Gate:
    return queue_config.declare(said, limits, by, now)
