"""Steps that never come back, and of which a lab knows that: so it is at rest although they are at work."""

from __future__ import annotations

import asyncio
from typing import Any

from ..worker.worker import Worker


class Hanging:
    """Counts the steps of one lab that never come back."""

    def __init__(self) -> None:
        self.calls = 0
        self._some = asyncio.Event()

    async def hang(self) -> Any:
        """Wait until the step is cancelled."""
        self.calls += 1
        self._some.set()
        try:
            await asyncio.get_running_loop().create_future()
        finally:
            self.calls -= 1
            if not self.calls:
                self._some.clear()

    def all_of(self, worker: Worker) -> bool:
        """Whether every run that a worker holds is at such a step, and at nothing else. One that is in no step is a
        task, or its code is about to go on."""
        running = worker.duties.executor.running.values()
        return 0 < self.calls == sum(max(1, run.at_work) for run in running)

    async def wait(self, worker: Worker) -> None:
        """Until a worker holds no run, or none but such."""
        idle = worker.duties.executor.idle
        while not (idle.is_set() or self.all_of(worker)):
            if self.calls:
                await asyncio.sleep(0.001)  # another step is at work for real, and nobody tells when it has ended
                continue
            waits = [asyncio.ensure_future(event.wait()) for event in (idle, self._some)]
            try:
                await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
            finally:
                for each in waits:
                    each.cancel()
