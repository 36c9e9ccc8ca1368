"""What can be said of workers: which live, which serve a run, what they are called."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Any

from ..model.records import WorkerInfo
from ..model.serving import claiming_workers, serves, serves_queue

__all__ = ["claiming_workers", "live_workers", "queues_of", "serves", "serves_queue", "worker_name", "worker_shape"]


def worker_name(worker: WorkerInfo) -> str:
    """Host and process, as an operator looks for it."""
    return f"{worker.host}:{worker.pid}"


def live_workers(workers: Sequence[WorkerInfo]) -> list[WorkerInfo]:
    """Workers within their lease, also those that are about to stop."""
    return [worker for worker in workers if worker.state != "dead"]


def queues_of(worker: WorkerInfo) -> str:
    """The queues it looks at, in words."""
    return "all" if worker.queues is None else ", ".join(worker.queues)


def worker_shape(worker: WorkerInfo) -> dict[str, Any]:
    """A worker as JSON."""
    return {
        "id": worker.id,
        "host": worker.host,
        "pid": worker.pid,
        "state": worker.state,
        "queues": worker.queues,
        "workflows": worker.workflows,
        "concurrency": worker.concurrency,
        "running": worker.running,
        "lease": worker.lease_ms / 1000,
        "started_at": datetime.fromtimestamp(worker.started_at / 1000, UTC),
        "beat_at": datetime.fromtimestamp(worker.beat_at / 1000, UTC),
        "silent_for": worker.age_ms / 1000,
    }
