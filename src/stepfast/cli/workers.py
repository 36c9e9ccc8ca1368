"""What can be said of workers: which live, which serve a run, what they are called."""

from __future__ import annotations

from collections.abc import Sequence

from ..model.records import WorkerInfo


def worker_name(worker: WorkerInfo) -> str:
    """Host and process, as an operator looks for it."""
    return f"{worker.host}:{worker.pid}"


def live_workers(workers: Sequence[WorkerInfo]) -> list[WorkerInfo]:
    """Those within their lease, also if they are about to stop."""
    return [worker for worker in workers if worker.state != "dead"]


def claiming_workers(workers: Sequence[WorkerInfo]) -> list[WorkerInfo]:
    """Those that take new runs."""
    return [worker for worker in workers if worker.state == "live"]


def serves(worker: WorkerInfo, workflow: str, queue: str) -> bool:
    """Whether the worker would claim such a run."""
    return workflow in worker.workflows and serves_queue(worker, queue)


def serves_queue(worker: WorkerInfo, queue: str) -> bool:
    """Whether it looks at the queue at all."""
    return worker.queues is None or queue in worker.queues


def queues_of(worker: WorkerInfo) -> str:
    """The queues it looks at, in words."""
    return "all" if worker.queues is None else ", ".join(worker.queues)
