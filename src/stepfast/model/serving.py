"""Which workers take a run: those that live, know its workflow and look at its queue."""

from __future__ import annotations

from collections.abc import Collection, Sequence

from .records import WorkerInfo


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
    """Whether it looks at the queue and has the code of any of these workflows; None: nobody knows which there are."""
    return serves_queue(worker, queue) and (not workflows or any(name in worker.workflows for name in workflows))


def nobody_serves(workers: Sequence[WorkerInfo], workflow: str, queue: str) -> str | None:
    """Why nobody will take such a run, in words; None if somebody will."""
    live = claiming_workers(workers)
    if any(serves(worker, workflow, queue) for worker in live):
        return None
    if any(workflow in worker.workflows for worker in live):
        return f"no live worker serves queue {queue!r}"
    return f"no live worker knows workflow {workflow!r}" if live else "there is no live worker"
