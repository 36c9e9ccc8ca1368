"""Where the code being executed stands: in which run, and in which step of it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextvars import Context, ContextVar, copy_context
from typing import TYPE_CHECKING, Any

from ..model.status import ASK_CANCEL

if TYPE_CHECKING:
    from .cursor import Cursor
    from .execution import Execution
    from .step_call import StepCall

current_execution: ContextVar[Execution | None] = ContextVar("stepfast_execution", default=None)
"""The run whose handler is executing here; set once per attempt, carried into its tasks and threads."""
current_call: ContextVar[StepCall[Any] | None] = ContextVar("stepfast_call", default=None)
"""The step whose function is executing here."""
current_cursor: ContextVar[Cursor | None] = ContextVar("stepfast_line", default=None)
"""The branch whose code is executing here; None: the main branch."""


class BlockingTry:
    """One try of a blocking step, as its thread knows it: what to call there, with the caller's context variables."""

    __slots__ = ("_args", "_context", "_function", "_kwargs", "abandoned")

    def __init__(self, function: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        self.abandoned = False
        """Whether nobody waits for it any more."""
        self._function = function
        self._args = args
        self._kwargs = kwargs
        self._context: Context | None = copy_context()

    def __call__(self) -> Any:
        """Call it in its thread; but not if it waited for its turn for so long that nobody waits for it any more."""
        context, self._context = self._context, None  # which will know this try: only the collector could free both
        return None if self.abandoned or context is None else context.run(self._call)

    def _call(self) -> Any:
        current_try.set(self)
        return self._function(*self._args, **self._kwargs)


current_try: ContextVar[BlockingTry | None] = ContextVar("stepfast_try", default=None)
"""In the thread of a blocking step: the try that is executing here."""


def cancelled() -> bool:
    """Whether the handler around this call should stop: its run was lost, timed out or cancelled, or the worker stops.

    For plain ``def`` handlers, which cannot be interrupted: ask it in long loops and return when it says True.
    """
    blocking = current_try.get()
    if blocking is not None and blocking.abandoned:
        return True
    execution = current_execution.get()
    return execution is not None and (execution.closed is not None or execution.asked == ASK_CANCEL)


def wake(future: asyncio.Future[Any]) -> None:
    """For an alarm: whoever waits for the future goes on."""
    if not future.done():
        future.set_result(None)
