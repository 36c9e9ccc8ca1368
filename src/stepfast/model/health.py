"""The health of workers: whether one is alive and ready, which runs it serves, and how it tries suspects."""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Sequence
from fractions import Fraction
from typing import NamedTuple

from msgspec import Struct

from ..settings import SUSPECT_LOSSES
from .records import WorkerInfo


class Vitals(NamedTuple):
    """What a worker knows of itself."""

    worker: str
    registered: bool
    """Whether the database knows it under its present id."""
    stopping: bool
    broken: bool
    """Whether a duty of it ended by an error."""
    heartbeat_alive: bool
    beat_age: float
    """Seconds since its last heartbeat that came through."""
    lease: float


class Finding(Struct):
    """One thing that was looked at."""

    name: str
    ok: bool
    said: str


def is_live(workers: Sequence[Vitals], lag: float, bound: float) -> list[Finding]:
    """Whether a restart would help. An outage of the database is no reason for one: it would restart the whole fleet,
    and change nothing."""
    stuck = f"the event loop has not moved for {lag:.1f} s"
    findings = [Finding("event loop", lag < bound, "moves" if lag < bound else stuck)]
    for vitals in workers:
        dead = vitals.registered and not vitals.stopping and not vitals.heartbeat_alive
        findings.append(Finding("heartbeat", not dead, "its thread is gone" if dead else "its thread is there"))
        if vitals.broken:
            findings.append(Finding("duties", False, "one of them broke; the log says which"))
    return findings


def is_ready(workers: Sequence[Vitals]) -> list[Finding]:
    """Whether there is a worker that claims: registered, heard of within its lease, and not about to stop."""
    if not workers:
        return [Finding("worker", False, "there is none yet")]
    return [finding for vitals in workers for finding in _readiness(vitals)]


def _readiness(vitals: Vitals) -> list[Finding]:
    if vitals.stopping:
        return [Finding("worker", False, f"{vitals.worker} stops")]
    if not vitals.registered:
        return [Finding("worker", False, f"{vitals.worker} is not registered")]
    fresh = vitals.beat_age < vitals.lease
    said = f"{vitals.beat_age:.1f} s ago, with a lease of {vitals.lease:g} s"
    return [
        Finding("worker", True, f"{vitals.worker} is registered"),
        Finding("heartbeat", fresh, said if fresh else f"the last one that came through was {said}"),
    ]


def claiming_workers(workers: Sequence[WorkerInfo]) -> list[WorkerInfo]:
    """The workers that take new runs."""
    return [worker for worker in workers if worker.state == "live"]


def serves(worker: WorkerInfo, workflow: str, queue: str) -> bool:
    """Whether the worker would claim such a run."""
    return workflow in worker.workflows and serves_queue(worker, queue)


def serves_queue(worker: WorkerInfo, queue: str) -> bool:
    """Whether it looks at the queue at all."""
    return worker.queues is None or queue in worker.queues


def serves_any(worker: WorkerInfo, workflows: Collection[str] | None, queue: str) -> bool:
    """Whether it looks at the queue and has the code of any of these workflows; None: all, if unknown."""
    return serves_queue(worker, queue) and (not workflows or any(name in worker.workflows for name in workflows))


def why_unserved(workers: Sequence[WorkerInfo], workflow: str, queue: str) -> str | None:
    """Why no worker will take such a run, in words; None if one will."""
    live = claiming_workers(workers)
    if any(serves(worker, workflow, queue) for worker in live):
        return None
    if any(workflow in worker.workflows for worker in live):
        return f"no live worker serves queue {queue!r}"
    return f"no live worker knows workflow {workflow!r}" if live else "there is no live worker"


def group_size(losses: int, max_losses: int, slots: int) -> int:
    """How many runs with so many losses a worker tries at once."""
    last = max_losses - 1
    if losses >= last:
        return 1
    first = float(max(1, slots // 2))
    return max(1, round(math.pow(first, (last - losses) / (last - SUSPECT_LOSSES))))


def room_for_suspects(unproved: Iterable[int], max_losses: int, slots: int) -> list[int]:
    """How many more suspects a worker may take: of those with two losses, with three, and so on; the last number holds
    for all that have more. ``unproved`` are the losses of the suspects it holds that have made no new record yet: one
    out of a group of ten fills a tenth of the room, one that is to be tried alone all of it."""
    left = 1 - sum(Fraction(1, group_size(losses, max_losses, slots)) for losses in unproved)
    levels = range(SUSPECT_LOSSES, max(SUSPECT_LOSSES, max_losses - 1) + 1)
    return [max(0, int(left * group_size(losses, max_losses, slots))) for losses in levels]
