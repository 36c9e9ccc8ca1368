"""How a worker of a lab dies: as by SIGKILL, as far as that can be done within a process."""

from __future__ import annotations

import asyncio

from ..worker.gc_tuning import collector
from ..worker.worker import Worker
from .mortal import MortalStore


def kill(worker: Worker) -> None:
    """Nothing more of it is written: its store is dead. Its handlers are cut off where they await something; code in
    a thread comes to its end, and nobody hears of it."""
    duties = worker.duties
    duties.stopping = duties.claimer.stopped = duties.sweeper.stopped = duties.courier.stopped = True
    duties.listen_no_more()
    collector.restore(worker)
    duties.executor.lose_all()
    for task in (*worker._tasks, *duties.chores):
        task.cancel()
    worker.left.set()


async def bury(worker: Worker, mortal: MortalStore) -> None:
    """Leave no task and no thread of it behind."""
    mortal.end()
    if not worker.left.is_set():
        kill(worker)
    duties = worker.duties
    await asyncio.gather(*worker._tasks, *duties.chores, return_exceptions=True)
    for closing in (duties.mailman.close, duties.graphs.close, duties.executor.close):
        await closing()
