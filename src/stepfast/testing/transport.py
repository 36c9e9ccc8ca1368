"""The remote workers of a lab: in memory, and only those that the test has put there by ``lab.replace``."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from typing import Any

import msgspec

from ..errors import NonRetryableError
from ..model.remote_steps import Result, Task, error_text
from ..model.status import COMPLETED, FAILED
from .doubles import Doubles


class LabTransport:
    """Tasks that nobody stands in for lie here, and their runs wait."""

    prefix = "lab"

    def __init__(self, doubles: Doubles, encode: Callable[[Any], str]) -> None:
        self._doubles = doubles
        self._encode = encode
        self.tasks: dict[str, Task] = {}
        self.done: dict[str, Result] = {}

    async def open(self) -> None:
        """There is nothing to open."""

    async def close(self) -> None:
        """There is nothing to close."""

    async def dispatch(self, tasks: Sequence[Task], connection: Any = None) -> None:
        """Take tasks in, and serve what can be served."""
        for task in tasks:
            self.tasks[task.step_id] = task
            self.done.pop(task.step_id, None)
        await self.serve()

    async def serve(self) -> bool:
        """Serve whatever somebody stands in for by now; whether there was anything."""
        served = [task for task in self.tasks.values() if self._doubles.serves(task.name)]
        for task in served:
            result = await self._result(task)
            if self.tasks.pop(task.step_id, None) is task:
                self.done[task.step_id] = result
        return bool(served)

    async def _result(self, task: Task) -> Result:
        try:
            function = self._doubles.other((task.name,), None)
            assert function is not None, f"nobody serves {task.name!r} in this lab: lab.replace({task.name!r}, …)"
            output = function(msgspec.json.decode(task.input or "null"))
            text = self._encode(await output if inspect.isawaitable(output) else output)
        except Exception as error:
            retryable = not isinstance(error, NonRetryableError)
            said = error_text(str(error), getattr(error, "code", None), retryable=retryable)
            return Result(task.step_id, task.run_id, task.seq, FAILED, None, said, None)
        return Result(task.step_id, task.run_id, task.seq, COMPLETED, text, None, None)

    async def results(self, step_ids: Sequence[str], connection: Any = None) -> list[Result]:
        """What has come of these steps so far."""
        return [self.done[step_id] for step_id in step_ids if step_id in self.done]

    async def remove(self, results: Sequence[Result], connection: Any = None) -> None:
        """Take away results that were recorded."""
        for result in results:
            if self.done.get(result.step_id) is result:
                del self.done[result.step_id]

    async def cancel(self, step_ids: Sequence[str], connection: Any = None) -> list[str]:
        """Take back what nobody has begun."""
        return [step_id for step_id in step_ids if self.tasks.pop(step_id, None) is not None]

    async def unclaimed(self, step_ids: Sequence[str]) -> list[str]:
        """The steps, of those named, that nobody has begun."""
        return [step_id for step_id in step_ids if step_id in self.tasks]

    async def lost(self, step_ids: Sequence[str]) -> list[str]:
        """The steps, of those named, of which nothing is here."""
        return [step_id for step_id in step_ids if step_id not in self.tasks and step_id not in self.done]

    async def leftovers(self, after: str, limit: int) -> list[str]:
        """A page of all that is here."""
        return sorted(step_id for step_id in {*self.tasks, *self.done} if step_id > after)[:limit]
