"""Where the code being executed stands: in which run, and in which step of it."""

from __future__ import annotations

from contextvars import ContextVar
from threading import Event
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .calls import StepCall
    from .execution import Execution

current_execution: ContextVar[Execution | None] = ContextVar("holdfast_execution", default=None)
"""The run whose handler is executing here; set once per attempt, carried into its tasks and threads."""
current_call: ContextVar[StepCall[Any] | None] = ContextVar("holdfast_call", default=None)
"""The step whose function is executing here."""
abandoned_try: ContextVar[Event | None] = ContextVar("holdfast_abandoned_try", default=None)
"""In the thread of a blocking step: set when nobody waits for this try any more."""


def cancelled() -> bool:
    """Whether the handler around this call should stop: its run was lost, timed out, or the worker stops.

    For plain ``def`` handlers, which cannot be interrupted: ask it in long loops and return when it says True.
    """
    abandoned = abandoned_try.get()
    if abandoned is not None and abandoned.is_set():
        return True
    execution = current_execution.get()
    return execution is not None and execution.closed is not None
