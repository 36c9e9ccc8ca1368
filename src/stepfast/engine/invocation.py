"""How the code of a run is invoked, for each kind of workflow: executed, interrupted, undone, or only replayed."""

from __future__ import annotations

import asyncio
import contextvars
import threading
from collections.abc import Awaitable, Callable, Coroutine
from typing import TYPE_CHECKING, Any, cast

from ..errors import AttemptEnded, AttemptTimeout, ContextMisuse, HistoryEnded, InvalidInput, PayloadError
from ..model import status
from ..model.graph import DagStep
from ..model.status import DAG, DAG_STEP, TASK, WORKFLOW
from .compensation import undo_all
from .context import Context
from .dag import SKIP, Dag, DagContext, DagStepWorkflow, DagSyncContext
from .dag_run import finish_dag, undo_dag_run, wanted
from .execution import Execution
from .host import current_call, current_cursor, current_execution
from .observers import OfRun, ids_of
from .step import is_awaitable
from .sync_context import SyncContext
from .workflow import Workflow, spoken

if TYPE_CHECKING:
    from .call import DurableCall


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


_LONGEST = 60.0
"""Seconds. Code that has only records to read and takes longer waits for something outside its steps."""


class Replaying:
    """What a replay that does nothing new has met."""

    def __init__(self) -> None:
        self.beyond: DurableCall[Any] | None = None
        """The first call that nothing is recorded of."""
        self.other_arguments: tuple[str, ...] = ()
        """Steps that the code now gives other arguments than are recorded."""

    def ends_at(self, call: DurableCall[Any]) -> HistoryEnded:
        """The replay stops at this call."""
        self.beyond = self.beyond or call
        run_id = call.of_run
        return HistoryEnded(f"run {run_id}: nothing is recorded of {call.kind} {call.name!r} (at {call.line})")


async def replay(
    ghost: Execution, performing: Coroutine[Any, Any, Any], longest: float = _LONGEST
) -> BaseException | None:
    """Perform a run on its records alone; its execution remembers what it met. How the code ended: None if it returned,
    HistoryEnded if it calls more than is recorded, AttemptTimeout if it took too long."""
    ghost.replaying = Replaying()
    ghost.main.owner = task = asyncio.current_task()
    token = current_execution.set(ghost)
    limit = ghost.clock.timeout(longest)
    try:
        async with limit:
            await performing
        return None
    except asyncio.CancelledError as error:
        if task is not None and task.cancelling():
            raise
        return error  # by something that the code awaited
    except BaseException as error:  # ends here: a cancellation was caught above, and the rest is what the code says
        if limit.expired():
            return AttemptTimeout(
                f"the code took longer than {longest:g} s, although every call was answered from its record"
            )
        return error
    finally:
        current_execution.reset(token)
        ghost.main.owner = None
        ghost.close(AttemptEnded("the replay is over"))


class Kind:
    """A kind of workflow: how its runs are performed, interrupted and undone. What is said here holds unless a kind
    says otherwise."""

    bounded = True
    """Whether its timeout and deadline bound an attempt."""
    applies_request_first = True
    """Whether a request made while the run was not executed is applied before its code is called."""
    called_again_by: str | None = None
    """What calls the code outside of its steps once more, if anything does."""

    async def perform(self, execution: Execution, in_thread: InThread) -> Any:
        """Call the code; what it returns."""
        raise NotImplementedError

    def context(self, execution: Execution) -> Context | SyncContext | None:
        """What code of this kind is given to make durable calls by."""
        return None

    async def undo(self, execution: Execution, in_thread: InThread) -> list[str]:
        """Undo what the code did, in reverse; what failed, in words. A replay tells what there is to undo."""
        ghost = Execution(execution.claimed, execution.workflow, execution.recorder)
        ghost.view = execution.view
        end = await replay(ghost, self.perform(ghost, in_thread))
        if ghost.diverged is not None:
            told = "run %s: its code was changed, and may no longer call all steps that are to be undone: %s"
            execution.recorder.logger.error(told, ghost.run_id, end, extra=ids_of(execution))
        return await undo_all(execution, ghost.undoable)

    def is_between_steps(self, execution: Execution) -> bool:
        """Whether an operator's request can be applied now, without cutting off a piece of work."""
        return execution.at_work == 0

    def encode_result(self, execution: Execution, result: Any) -> str:
        """What the code returned, as it is stored."""
        workflow = execution.workflow
        what = OfRun(execution, "the result of", workflow.name)
        return execution.recorder.payloads.round_trip(result, workflow.output_type, what)[0]


class TaskKind(Kind):
    """One piece of work. It is notified of requests, and may finish."""

    async def perform(self, execution: Execution, in_thread: InThread) -> Any:
        """Call the function of the task."""
        return await call_code(execution, [], in_thread)

    def is_between_steps(self, execution: Execution) -> bool:
        """A task has no steps."""
        return False


class WorkflowKind(Kind):
    """Code that is given a context, and does its work in steps."""

    called_again_by = "every replay"

    async def perform(self, execution: Execution, in_thread: InThread) -> Any:
        """Call the function with a context."""
        return await call_code(execution, [self.context(execution)], in_thread)

    def context(self, execution: Execution) -> Context | SyncContext:
        """The context of the main branch."""
        if execution.workflow.is_async:
            return Context(execution)
        return SyncContext(execution, execution.recorder.loop)


class DagStepKind(Kind):
    """A step of a dag run: code that is given a context, if the graph and its condition want it."""

    called_again_by = "every further try and every replay"

    async def perform(self, execution: Execution, in_thread: InThread) -> Any:
        """Call the function of the step, as the graph of its run has it: by now the code may say something else of it,
        but a run keeps its graph."""
        workflow, view = cast(DagStepWorkflow, execution.workflow), execution.view
        assert view is not None
        dag_step = view.graph.dag_steps[workflow.dag_step.name]
        execution.workflow = workflow = _code_for(execution, workflow, dag_step)
        context = self.context(execution)
        begun = bool(execution.history.records)  # what has begun is not skipped, even if its condition says so now
        if dag_step.conditional and not begun and not await wanted(workflow.when, context):
            return SKIP
        return await call_code(execution, [context], in_thread)

    def context(self, execution: Execution) -> DagContext | DagSyncContext:
        """The context of the step's function."""
        view, name = execution.view, cast(DagStepWorkflow, execution.workflow).dag_step.name
        assert view is not None
        if execution.workflow.is_async:
            return DagContext(execution, view, name)
        return DagSyncContext(execution, execution.recorder.loop, view, name)

    def is_between_steps(self, execution: Execution) -> bool:
        """Only while it waits for something: its own code is a piece of work, as that of a task."""
        return execution.at_work == 0 and execution.busy == 0


class DagKind(Kind):
    """A dag run itself, which is claimed when all its steps are settled."""

    bounded = False
    applies_request_first = False  # what there is to undo is known once its steps are read

    async def perform(self, execution: Execution, in_thread: InThread) -> Any:
        """The result of a dag run, or the error that ended it."""
        return await finish_dag(execution)

    async def undo(self, execution: Execution, in_thread: InThread) -> list[str]:
        """Undo the completed steps, in the reverse order of the graph."""
        return await undo_dag_run(execution, cast(Dag, execution.workflow))

    def is_between_steps(self, execution: Execution) -> bool:
        """A dag run applies requests when it knows its steps."""
        return False

    def encode_result(self, execution: Execution, result: Any) -> str:
        """The outputs of the steps, which are within the limits, as one value."""
        return execution.recorder.payloads.encode_own(result)


KINDS: dict[str, Kind] = {
    TASK: TaskKind(),
    WORKFLOW: WorkflowKind(),
    DAG_STEP: DagStepKind(),
    DAG: DagKind(),
}


def kind_of(workflow: Workflow[Any, Any]) -> Kind:
    """The kind of a workflow."""
    return KINDS[workflow.kind]


def current() -> Context | SyncContext | None:
    """The context of the run in whose code this is called, also in functions, tasks and threads that this code began.

    None outside of a run, in the function of a step or an undo, and in a task, which has no context. A context belongs
    to the task of its branch: concurrent parts need ``ctx.branch``, or ``ctx.branches`` where other code makes the
    tasks.
    """
    execution = current_execution.get()
    if execution is None or current_call.get() is not None:
        return None
    cursor = current_cursor.get()
    return kind_of(execution.workflow).context(execution) if cursor is None else Context(execution, cursor)


def refuse_in_workflow(called: str, instead: str) -> None:
    """Refuse a call in the body of a workflow, or of a step of a dag, where every replay would make it again. In a step
    of theirs, or in a plain task, it may be made."""
    execution = current_execution.get()
    if execution is None or current_call.get() is not None:
        return
    workflow = execution.workflow
    again = kind_of(workflow).called_again_by
    if again is not None:
        raise ContextMisuse(
            f"{called} was called in the body of {spoken(workflow.kind)} {workflow.name!r}, where {again} would "
            f"call it again. Use {instead}, or call it inside a ctx.step"
        )


def _code_for(execution: Execution, workflow: DagStepWorkflow, dag_step: DagStep) -> DagStepWorkflow:
    """The code that the graph of the run asks for. If the code has only an approval of that name now, the step is left
    to workers that have its function: to wait for an approval instead, or to fail, would be another graph."""
    code = workflow.as_in(dag_step)
    if code is not None:
        return code
    said = (
        f"run {execution.run_id}: by its graph {dag_step.name!r} of dag {workflow.dag!r} is a step with a function, "
        "but the code has an approval of that name"
    )
    if not execution.replaying:
        recorder = execution.recorder
        told = "%s; it is left to workers that have the function"
        recorder.logger.warning(told, said, extra=ids_of(execution, dag_step.name))
        execution.suspend(execution.database_now() + int(recorder.settings.poll_interval * 1000), status.WAITING_RETRY)
    raise execution.closed or AttemptEnded(said)
