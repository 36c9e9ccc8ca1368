"""Gauges of the database: queues, workers and schedules, read by bounded queries every few seconds."""

from __future__ import annotations

import asyncio
import time
import weakref
from collections.abc import Iterable
from importlib import metadata
from typing import TYPE_CHECKING, NamedTuple

from ..errors import StepfastError
from ..model.health import claiming_workers, serves_any
from ..model.queue_config import Gate
from ..model.records import WorkerInfo
from ..store.answers import Census
from .metrics import GAUGE, OTHER, Family, harmless

if TYPE_CHECKING:
    from ..app import Stepfast
    from ..store import Store


MOST = 10_000
"""Counts stop here: so many, or more."""


class QueueNow(NamedTuple):
    """A queue."""

    name: str
    ready: int
    oldest: float
    """For how many seconds its first run has been ready."""
    workers: int
    """Live workers that serve it, and have the code of a workflow of this queue."""
    paused: bool
    limited: bool


class Overview(NamedTuple):
    """The state of a database."""

    census: Census
    workers: list[WorkerInfo]
    gates: dict[str, Gate]
    """Settings of queues; most have none."""
    at_home: dict[str, set[str]]
    """Queues, and the workflows whose queue each is."""

    @property
    def queues(self) -> list[QueueNow]:
        """All queues that anything is known of, those that wait longest first."""
        live = claiming_workers(self.workers)
        named = self.at_home.keys() | self.gates.keys() | self.census.queues.keys()
        named |= {queue for worker in live for queue in worker.queues or ()}
        return sorted((self._queue(name, live) for name in named), key=lambda queue: (-queue.oldest, queue.name))

    def _queue(self, name: str, live: list[WorkerInfo]) -> QueueNow:
        ready, oldest = self.census.queues.get(name, (0, 0.0))
        gate = self.gates.get(name)
        paused, limited = (False, False) if gate is None else (gate.paused, gate.limited)
        workers = sum(serves_any(worker, self.at_home.get(name), name) for worker in live)
        return QueueNow(name, ready, oldest, workers, paused, limited)

    @property
    def late(self) -> list[tuple[str, float]]:
        """Schedules whose tick is late, and for how many seconds. One that code declares sleeps while no worker has
        that code."""
        declared = {name for worker in claiming_workers(self.workers) for name in worker.schedules}
        return [(name, late) for name, in_code, late in self.census.late if not in_code or name in declared]


async def look(store: Store) -> Overview:
    """Query the state, by one query after the other, so that monitoring uses one connection."""
    census = await store.census(MOST)
    workers = await store.workers()
    gates = {gate.name: gate for gate in await store.queues()}
    at_home: dict[str, set[str]] = {}
    for definition in await store.definitions():
        at_home.setdefault(definition.queue, set()).add(definition.name)
    return Overview(census, workers, gates, at_home)


_PATIENCE = 5.0
"""Seconds for all queries together."""

_readings: weakref.WeakKeyDictionary[Stepfast, Reading] = weakref.WeakKeyDictionary()


async def gauges_of(app: Stepfast) -> list[Family]:
    """Return the gauges of the database of an application, a few seconds old at most."""
    return await _readings.setdefault(app, Reading()).families(app)


class Reading:
    """The gauges that were read last, and when."""

    def __init__(self) -> None:
        self._families: list[Family] = []
        self._read_at: float | None = None
        self._under_way: asyncio.Task[list[Family]] | None = None

    async def families(self, app: Stepfast) -> list[Family]:
        """Return the gauges, read again if they are too old; one query serves all callers."""
        if self._read_at is not None and time.monotonic() - self._read_at < app.settings.metrics_cache:
            return self._families
        task = self._under_way
        if task is None or task.done():
            task = self._under_way = asyncio.create_task(self._read(app))
        elif task.get_loop() is not asyncio.get_running_loop():
            return self._families
        return await asyncio.shield(task)

    async def _read(self, app: Stepfast) -> list[Family]:
        began = time.monotonic()
        try:
            async with asyncio.timeout(_PATIENCE):
                found = await _look(app)
        except (StepfastError, TimeoutError):
            found = [_one("stepfast_database_up", "Whether the database answered the last time.", 0)]
        self._read_at = time.monotonic()
        found.append(_one("stepfast_scrape_seconds", "How long it took to ask the database.", self._read_at - began))
        self._families = found
        return found


async def _look(app: Stepfast) -> list[Family]:
    store = await app.store()
    found = await look(store)
    version = (await store.schema_state()).version
    labels = (_version(), str(version), store.dialect)
    info = Family(
        "stepfast_info", GAUGE, "Which code and which tables.", ("version", "schema", "engine"), [(labels, [1])]
    )
    return [
        *_queues(found.queues, app.settings.metrics_values),
        *_runs(found, app.settings.metrics_values),
        *_workers(found.workers),
        _one("stepfast_database_up", "Whether the database answered the last time.", 1),
        info,
    ]


def _queues(queues: list[QueueNow], most: int) -> list[Family]:
    told, rest = queues[:most], queues[most:]
    oldest = [(queue.name, queue.oldest) for queue in told]
    ready = [(queue.name, float(queue.ready)) for queue in told]
    served = [(queue.name, float(queue.workers)) for queue in told]
    paused = [(queue.name, float(queue.paused)) for queue in told]
    if rest:
        oldest.append((OTHER, max(queue.oldest for queue in rest)))
        ready.append((OTHER, float(sum(queue.ready for queue in rest))))
    return [
        _labelled(
            "stepfast_queue_oldest_ready_seconds", "For how long the first in line has been ready.", "queue", oldest
        ),
        _labelled("stepfast_queue_ready", f"Runs that are ready; counted up to {MOST}.", "queue", ready),
        _labelled("stepfast_queue_workers", "Live workers that can serve the queue.", "queue", served),
        _labelled("stepfast_queue_paused", "Whether the queue is paused.", "queue", paused),
    ]


def _runs(found: Overview, most: int) -> list[Family]:
    census, late = found.census, found.late[:most]
    return [
        _labelled(
            "stepfast_runs", f"Unfinished runs by status; counted up to {MOST}.", "status",
            [(status, float(count)) for status, count in census.runs.items()],
        ),
        _one("stepfast_timer_lag_seconds", "For how long something has been due, and is not ready.", census.timer_lag),
        _one("stepfast_mail_undelivered", f"Mail that is to be delivered; counted up to {MOST}.", census.undelivered),
        _labelled("stepfast_schedule_late_seconds", "For how long the tick of a schedule is late.", "schedule", late),
    ]  # fmt: skip


def _workers(workers: list[WorkerInfo]) -> list[Family]:
    by_state: dict[str, list[WorkerInfo]] = {state: [] for state in ("live", "stopping", "dead")}
    for worker in workers:
        by_state.setdefault(worker.state, []).append(worker)
    counts = [(state, float(len(found))) for state, found in by_state.items()]
    slots = [(state, float(sum(worker.concurrency for worker in found))) for state, found in by_state.items()]
    used = [(state, float(sum(worker.running for worker in found))) for state, found in by_state.items()]
    return [
        _labelled("stepfast_workers", "Workers by state.", "state", counts),
        _labelled("stepfast_worker_slots", "Slots of workers, by the state of the worker.", "state", slots),
        _labelled("stepfast_worker_slots_used", "Slots that hold a run, as of the last heartbeat.", "state", used),
    ]


def _one(name: str, said: str, value: float) -> Family:
    return Family(name, GAUGE, said, series=[((), [float(value)])])


def _labelled(name: str, said: str, label: str, values: Iterable[tuple[str, float]]) -> Family:
    """A series for each name. Names that are equal without control characters are one: the larger value counts."""
    series: dict[tuple[str, ...], list[float]] = {}
    for value, number in values:
        known = series.setdefault((harmless(value),), [number])
        known[0] = max(known[0], number)
    return Family(name, GAUGE, said, (label,), list(series.items()))


def _version() -> str:
    try:
        return metadata.version("stepfast")
    except metadata.PackageNotFoundError:
        return ""
