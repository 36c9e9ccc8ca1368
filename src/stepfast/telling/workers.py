"""What can be said of workers: which live, which serve a run, what they are called."""

from __future__ import annotations

from collections.abc import Sequence

from ..model.records import WorkerInfo
from ..model.serving import claiming_workers, serves, serves_queue

__all__ = ["claiming_workers", "live_workers", "queues_of", "serves", "serves_queue", "worker_name"]


def worker_name(worker: WorkerInfo) -> str:
    """Host and process, as an operator looks for it."""
    return f"{worker.host}:{worker.pid}"


def live_workers(workers: Sequence[WorkerInfo]) -> list[WorkerInfo]:
    """Workers within their lease, also those that are about to stop."""
    return [worker for worker in workers if worker.state != "dead"]


def queues_of(worker: WorkerInfo) -> str:
    """The queues it looks at, in words."""
    return "all" if worker.queues is None else ", ".join(worker.queues)
