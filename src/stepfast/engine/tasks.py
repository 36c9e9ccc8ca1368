"""The tasks of a run: that of its handler, branches, steps that a plain function waits for, and tasks that were
cancelled too late."""

from __future__ import annotations

import asyncio
from typing import Any

from .scope import current_call

Task = asyncio.Task[Any]


class RunTask(asyncio.Task[Any]):
    """A task that executes the code of a run, and notes which step's code cancelled it: a timeout or a task that a step
    made carries the step's context variables. It is made without the task factory of the event loop, because an eager
    one would begin it before the engine has taken note of it."""

    canceller: Any = None
    """The step whose code cancelled the task last; None if it was code outside of steps, or the worker."""
    _before = 0
    """How many requests to end were open before those of that step."""

    def cancel(self, msg: Any = None) -> bool:
        """Note whose code it is that asks."""
        call = current_call.get()
        if call is not self.canceller:
            self.canceller, self._before = call, self.cancelling()
        return super().cancel(msg)

    def withdraw(self, call: Any) -> bool:
        """Withdraw the requests to end of one step's code; whether there are no others."""
        if self.canceller is not call or self._before:
            return False
        while self.cancelling():
            self.uncancel()
        self.canceller = None
        return True


class Tasks:
    """The tasks of one run beside that of its handler. Made when first needed: most runs have none."""

    __slots__ = ("_branches", "_late", "performing")

    def __init__(self) -> None:
        self._branches: set[Task] = set()
        self._late: set[Task | None] = set()
        self.performing: Task | None = None
        """For a plain def: the task that performs the step its thread waits for."""

    def add(self, task: Task) -> None:
        """A branch begins; it ends with the run at the latest."""
        self._branches.add(task)
        task.add_done_callback(self._branches.discard)

    def knows(self, task: Task | None) -> bool:
        """Whether a task is one of those of the run."""
        return task in self._branches or (task is not None and task is self.performing)

    def cancel(self) -> None:
        """The run leaves, and all of them end."""
        for task in list(self._branches):
            task.cancel()
        if self.performing is not None:
            self.performing.cancel()

    def cancel_other_branches(self) -> None:
        """Whatever other branches do or wait for is given up."""
        for task in self._branches - {asyncio.current_task()}:
            task.cancel()

    def was_cancelled_late(self) -> None:
        """The present task was cancelled when it was too late for the call that it is in."""
        self._late.add(asyncio.current_task())

    def stop_if_late(self) -> None:
        """Whoever was to be stopped when an outcome was being recorded is stopped here, before it does more."""
        if self._late and (task := asyncio.current_task()) in self._late:
            self._late.discard(task)
            if task is not None and task.cancelling():
                raise asyncio.CancelledError
