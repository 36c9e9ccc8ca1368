"""An undo that is served elsewhere: ``compensate="payments.refund"``. It is given what the step was given and gave."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from ..errors import RemoteStepError
from .cursor import Cursor
from .matching import UNDO
from .remote_call import Order, RemoteCall, RemoteUndo
from .step import Undoable

if TYPE_CHECKING:
    from .execution import Execution


async def undo_elsewhere(execution: Execution, cursor: Cursor, item: Undoable, undo: RemoteUndo) -> str | None:
    """Undo one step by a worker elsewhere; what went wrong, in words. It is retried as any undo is."""
    order = Order(undo.name, undo.group, undo.given(*item.args), retries=execution.recorder.settings.undo_retries)
    try:
        await RemoteCall(execution, cursor, order, item.line, UNDO)
        return None
    except RemoteStepError as error:
        return f"undo {undo.name!r} of step {item.step!r}: {type(error).__name__}: {error.message}"


def of_input_and_output(output: Any, input: Any) -> dict[str, Any]:
    """What the undo of a remote step is given."""
    return {"input": input, "output": output}


def of_dag_step(given: Callable[[Any], Any]) -> Callable[[Any], dict[str, Any]]:
    """What the undo of a remote step of a dag is given: it is called with a context."""
    return lambda context: {"input": given(context), "output": context.output}
