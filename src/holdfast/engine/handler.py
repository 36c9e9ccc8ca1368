"""Calling the code of a run: a coroutine in the event loop, or a plain function in a thread."""

from __future__ import annotations

import asyncio
import contextvars
import threading
from collections.abc import Callable
from typing import Any

from ..errors import InvalidInput, PayloadError
from .context import Context
from .dag import SKIP, NodeWorkflow
from .dag_context import DagContext, DagSyncContext
from .dag_run import wanted
from .execution import Execution
from .sync_context import SyncContext
from .workflow import WORKFLOW

InThread = Callable[[Callable[[], Any]], "asyncio.Future[Any]"]


async def call_handler(execution: Execution, in_thread: InThread) -> Any:
    """Decode the input, make the context, call."""
    workflow = execution.workflow
    args: list[Any] = []
    if isinstance(workflow, NodeWorkflow):
        context = _step_context(execution, workflow)
        begun = bool(
            execution.history.records
        )  # what has begun is not skipped any more, whatever its condition says now
        if not begun and not await wanted(workflow.when, context):
            return SKIP
        args.append(context)
    elif workflow.kind == WORKFLOW:
        args.append(Context(execution) if workflow.is_async else SyncContext(execution, execution.recorder.loop))
    if workflow.takes_input:
        args.append(decode_input(execution))
    if workflow.is_async:
        return await workflow.function(*args)
    variables = contextvars.copy_context()

    def call() -> Any:
        execution.main.owner = threading.get_ident()
        return variables.run(workflow.function, *args)

    return await in_thread(call)


def decode_input(execution: Execution) -> Any:
    """The input as the code declares it; InvalidInput if it does not fit."""
    workflow, claimed = execution.workflow, execution.claimed
    what = f"the input of {workflow.name!r}"
    try:
        return execution.recorder.payloads.decode(claimed.input, workflow.input_type, claimed.format, what)
    except PayloadError as error:
        raise InvalidInput(str(error)) from None


def _step_context(execution: Execution, workflow: NodeWorkflow) -> DagContext | DagSyncContext:
    view, name = execution.view, workflow.node.name
    assert view is not None
    if workflow.is_async:
        return DagContext(execution, view, name)
    return DagSyncContext(execution, execution.recorder.loop, view, name)
