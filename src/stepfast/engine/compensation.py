"""Undo: what a completed step names to be undone by, and the undoing of a run that failed for good or was cancelled.

The code is replayed up to the end of what is recorded, which brings back each step's undo, output and arguments. Then
the undos are called, last step first, each one a step with a record of its own; one that fails does not stop the
others.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable
from typing import TYPE_CHECKING, Any

from ..errors import StepFailed
from ..model import status
from ..model.forks import is_own
from .function_spec import shape_of
from .history import UNDO, Cursor
from .remote_step import RemoteUndo, undo_elsewhere
from .step import StepCall, StepFunction, StepOptions, Undoable, Work

if TYPE_CHECKING:
    from .execution import Execution

UNDO_BRANCH = "~undo"
"""Where the records of undos are kept: at the number of the step they undo."""


class UndoCall(StepCall[Any]):
    """The undo of a step: a step that is known by what it undoes."""

    __slots__ = ()

    _kind = UNDO

    def _call(self) -> Awaitable[Any]:
        """In a task of its own: one that cancels itself, or leaves something behind that does, must not keep the other
        undos from being called."""
        if not self._work.shape.is_async:
            return super()._call()
        return self._in_own_task()


async def undo_all(execution: Execution, undoable: list[Undoable]) -> list[str]:
    """Call every undo, in reverse; what failed, in words."""
    failed = unreachable(execution, undoable)
    for item in sorted(undoable, key=lambda item: item.seq, reverse=True):
        problem = await call_undo(execution, undo_cursor(item.seq, execution.main.owner), item)
        failed += [problem] if problem is not None else []
    return failed


def undo_cursor(number: int, owner: asyncio.Task[Any] | int | None = None) -> Cursor:
    """Where the undo of a step is recorded."""
    cursor = Cursor(UNDO_BRANCH, owner)
    cursor.position = number
    return cursor


async def call_undo(
    execution: Execution, cursor: Cursor, item: Undoable, record_arguments: bool | None = None
) -> str | None:
    """Undo one step, by a step of its own; what went wrong, in words. An undo declared with ``@step`` has its own
    options; any other is retried as the settings say."""
    undo, retries = item.undo, execution.recorder.settings.undo_retries
    if isinstance(undo, RemoteUndo):
        return await undo_elsewhere(execution, cursor, item, undo)
    options = StepOptions(retries=retries, record_arguments=record_arguments)
    if isinstance(undo, StepFunction):
        options = undo.options.over(options)
    function = undo.function if isinstance(undo, StepFunction) else undo
    shape = undo.shape if isinstance(undo, StepFunction) else shape_of(function)
    try:
        work = Work(shape.name, function, shape, options)
        await UndoCall(execution, cursor, work, item.line, item.args, item.kwargs)
        return None
    except StepFailed as error:
        return f"undo {shape.name!r} of step {item.step!r}: {error.error_type}: {error.message}"


def unreachable(execution: Execution, undoable: list[Undoable]) -> list[str]:
    """Steps whose undo today's code no longer leads to."""
    reached = {item.seq for item in undoable}
    return [
        f"undo {record.undo!r} of step {record.name!r} was not called: the code as it is now does not call that step"
        for record in execution.history.records.values()
        if is_own(record.undo) and record.status == status.COMPLETED and record.seq not in reached
    ]
