"""A transport that is no database: it shows what the engine needs of one, and can be as wayward as a test wants."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from stepfast.errors import DatabaseRefused
from stepfast.model.remote_steps import Result, Task


class MemoryTransport:
    """Tasks are served when they are sent, if there is somebody to serve them."""

    def __init__(self, serve: Callable[[Task], Result | None] = lambda task: None, prefix: str = "memory") -> None:
        self.prefix = prefix
        self.serve = serve
        self.tasks: dict[str, Task] = {}
        self.done: dict[str, Result] = {}
        self.sent: list[Task] = []
        self.largest = 10**9

    async def open(self) -> None:
        pass

    async def close(self) -> None:
        pass

    async def dispatch(self, tasks: Sequence[Task], connection: Any = None) -> None:
        assert connection is None
        if any(len(task.input or "") > self.largest for task in tasks):
            raise DatabaseRefused("it is too large")
        for task in tasks:
            self.sent.append(task)
            self.tasks[task.step_id] = task
            if (result := self.serve(task)) is not None:
                del self.tasks[task.step_id]
                self.done[task.step_id] = result

    async def results(self, step_ids: Sequence[str], connection: Any = None) -> list[Result]:
        return [self.done[step_id] for step_id in step_ids if step_id in self.done]

    async def remove(self, results: Sequence[Result], connection: Any = None) -> None:
        for result in results:
            self.done.pop(result.step_id, None)

    async def cancel(self, step_ids: Sequence[str], connection: Any = None) -> list[str]:
        return [step_id for step_id in step_ids if self.tasks.pop(step_id, None) is not None]

    async def unclaimed(self, step_ids: Sequence[str]) -> list[str]:
        return [step_id for step_id in step_ids if step_id in self.tasks]

    async def lost(self, step_ids: Sequence[str]) -> list[str]:
        return [step_id for step_id in step_ids if step_id not in self.tasks and step_id not in self.done]

    async def leftovers(self, after: str, limit: int) -> list[str]:
        return sorted(step_id for step_id in {*self.tasks, *self.done} if step_id > after)[:limit]


def echo(task: Task) -> Result:
    """A worker that gives back what it was given."""
    return Result(task.step_id, task.run_id, task.seq, "completed", task.input, None, None)
