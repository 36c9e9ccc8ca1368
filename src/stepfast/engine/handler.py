"""Calling the code of a run: a coroutine in the event loop, or a plain function in a thread."""

from __future__ import annotations

import asyncio
import contextvars
import threading
from collections.abc import Callable
from typing import Any

from ..errors import AttemptEnded, InvalidInput, PayloadError
from ..model.graph import Node
from ..model.status import WAITING_RETRY
from .context import Context
from .dag import SKIP, NodeWorkflow
from .dag_context import DagContext, DagSyncContext
from .dag_run import wanted
from .execution import Execution
from .sync_context import SyncContext
from .telling import ids_of
from .workflow import WORKFLOW

InThread = Callable[[Callable[[], Any]], "asyncio.Future[Any]"]


async def call_handler(execution: Execution, in_thread: InThread) -> Any:
    """Decode the input, make the context, call."""
    workflow = execution.workflow
    args: list[Any] = []
    if isinstance(workflow, NodeWorkflow):
        node = _node_of(execution, workflow)
        execution.workflow = workflow = _code_for(execution, workflow, node)
        context = _step_context(execution, workflow)
        begun = bool(execution.history.records)  # what has is not skipped any more, whatever its condition says now
        if node.conditional and not begun and not await wanted(workflow.when, context):
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


def _node_of(execution: Execution, workflow: NodeWorkflow) -> Node:
    """A step as the graph of its run has it. By now the code may say something else of it; a run keeps its graph."""
    assert execution.view is not None
    return execution.view.graph.nodes[workflow.node.name]


def _code_for(execution: Execution, workflow: NodeWorkflow, node: Node) -> NodeWorkflow:
    """The code that the graph of the run asks for. If the code has only a gate of that name now, the step is left to
    workers that have its function: to ask somebody instead, or to fail, would be another graph."""
    code = workflow.as_in(node)
    if code is not None:
        return code
    said = (
        f"run {execution.run_id}: by its graph {node.name!r} of dag {workflow.dag!r} is a step with a function, "
        "but the code has an approval of that name"
    )
    if not execution.replay_only:
        recorder = execution.recorder
        told = "%s; it is left to workers that have the function"
        recorder.logger.warning(told, said, extra=ids_of(execution, node.name))
        execution.suspend(execution.database_now() + int(recorder.settings.poll * 1000), WAITING_RETRY)
    raise execution.closed or AttemptEnded(said)


def _step_context(execution: Execution, workflow: NodeWorkflow) -> DagContext | DagSyncContext:
    view, name = execution.view, workflow.node.name
    assert view is not None
    if workflow.is_async:
        return DagContext(execution, view, name)
    return DagSyncContext(execution, execution.recorder.loop, view, name)
