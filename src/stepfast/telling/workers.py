"""What can be said of workers: which live, which serve a run, what they are called."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ..model.health import claiming_workers, serves, serves_queue
from ..model.moments import moment
from ..model.records import WorkerInfo
from ..reports import ExecutedBy
from ..store.store import AtWork
from .words import lasting

__all__ = [
    "at_work_in_words",
    "claiming_workers",
    "executor",
    "executor_name",
    "live_workers",
    "queues_of",
    "serves",
    "serves_queue",
    "worker_name",
    "worker_shape",
]


def worker_name(worker: WorkerInfo) -> str:
    """Host and process, as an operator looks for it."""
    return f"{worker.host}:{worker.pid}"


def executor_name(executed_by: ExecutedBy | None) -> str:
    """Host and process of the worker that executed something; its id where they are not known any more."""
    if executed_by is None:
        return ""
    return executed_by.worker if executed_by.host is None else f"{executed_by.host}:{executed_by.pid}"


def executor(executed_by: ExecutedBy | None) -> str:
    """Host, process and id of the worker that executed something."""
    name = executor_name(executed_by)
    return name if executed_by is None or executed_by.host is None else f"{name} ({executed_by.worker})"


def live_workers(workers: Sequence[WorkerInfo]) -> list[WorkerInfo]:
    """Workers within their lease, also those that are about to stop."""
    return [worker for worker in workers if worker.state != "dead"]


def queues_of(worker: WorkerInfo) -> str:
    """The queues it looks at, in words."""
    return "all" if worker.queues is None else ", ".join(worker.queues)


def at_work_in_words(each: AtWork) -> str:
    """What has been executing for a long time, and for how long."""
    step = "" if each.step is None else f", step {each.step!r}"
    return f"run {each.run_id} ({each.workflow}{step}) for {lasting(each.seconds)}"


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
        "started_at": moment(worker.started_at),
        "beat_at": moment(worker.beat_at),
        "silent_for": worker.age_ms / 1000,
    }
