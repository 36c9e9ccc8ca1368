"""Undo: what a completed step names to be undone by, and the undoing of a run that failed for good or was cancelled.

The code is replayed up to the end of what is recorded, which brings back each step's undo, output and arguments. Then
the undos are called, last step first, each one a step with a record of its own; one that fails does not stop the
others.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from ..errors import StepFailed
from ..model import status
from .calls import StepCall
from .history import UNDO
from .line import Line
from .signature import shape_of
from .step import StepFunction, StepOptions, Undoable

if TYPE_CHECKING:
    from .execution import Execution

UNDO_BRANCH = "~undo"
"""Where the records of undos are kept: at the number of the step they undo."""


async def undo_all(execution: Execution, undoable: list[Undoable]) -> list[str]:
    """Call every undo, in reverse; what failed, in words."""
    failed = unreachable(execution, undoable)
    for item in sorted(undoable, key=lambda item: item.seq, reverse=True):
        line = Line(UNDO_BRANCH, execution.main.owner)
        line.position = item.seq
        function, options = _options(item.undo, execution.recorder.settings.undo_retries)
        shape = shape_of(function)
        call: StepCall[Any] = StepCall(
            execution, line, shape.name, function, shape, options, item.line, item.args, item.kwargs, UNDO
        )
        try:
            await call
        except StepFailed as error:
            failed.append(f"undo {shape.name!r} of step {item.step!r}: {error.error_type}: {error.message}")
    return failed


def _options(undo: Callable[..., Any], retries: int) -> tuple[Callable[..., Any], StepOptions]:
    """An undo declared with ``@step`` has its own options; any other is retried as the settings say."""
    if isinstance(undo, StepFunction):
        return undo.function, undo.options.over(StepOptions(retries=retries))
    return undo, StepOptions(retries=retries)


def unreachable(execution: Execution, undoable: list[Undoable]) -> list[str]:
    """Steps whose undo today's code no longer leads to."""
    reached = {item.seq for item in undoable}
    return [
        f"undo {record.undo!r} of step {record.name!r} could not be reached by the code as it is now"
        for record in execution.history.records.values()
        if record.undo is not None and record.status == status.COMPLETED and record.seq not in reached
    ]
