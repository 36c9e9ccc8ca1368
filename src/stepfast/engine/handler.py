"""Calling the code of a run: a coroutine in the event loop, or a plain function in a thread."""

from __future__ import annotations

import contextvars
import threading
from collections.abc import Awaitable, Callable
from typing import Any

from ..errors import InvalidInput, PayloadError
from .execution import Execution
from .step_call import is_awaitable

InThread = Callable[[Callable[[], Any]], Awaitable[Any]]


def call_code(execution: Execution, args: list[Any], in_thread: InThread) -> Awaitable[Any]:
    """Call it with these arguments, and with the run's input if it takes one."""
    workflow = execution.workflow
    if workflow.takes_input:
        args.append(decode_input(execution))
    if workflow.is_async:
        work: Awaitable[Any] = workflow.function(*args)
        return work
    variables = contextvars.copy_context()

    def call() -> Any:
        execution.main.owner = threading.get_ident()
        return variables.run(workflow.function, *args)

    return _awaited(in_thread(call))


async def _awaited(called: Awaitable[Any]) -> Any:
    """What a plain function gives. One that wraps an ``async def`` gives a coroutine, which is awaited in the event
    loop."""
    result = await called
    return await result if is_awaitable(result) else result


def decode_input(execution: Execution) -> Any:
    """The input as the code declares it; InvalidInput if it does not fit."""
    workflow, claimed = execution.workflow, execution.claimed
    what = f"the input of {workflow.name!r}"
    try:
        return execution.recorder.payloads.decode(claimed.input, workflow.input_type, claimed.format, what)
    except PayloadError as error:
        refused = InvalidInput(str(error))
        refused.of_run = True
        raise refused from None
