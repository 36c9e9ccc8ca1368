"""A dag run itself: claimed when all its steps are settled, to end it; and claimed again to undo them, if it failed.

Undos run in reverse: that of a step when those of all completed steps after it are done, in parallel where the graph
allows. Each is a step of the dag run with a record of its own.
"""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Callable, Coroutine
from typing import Any

from ..errors import AttemptEnded, DeadlineExceeded, StepFailed, StepfastError
from ..model import status
from ..model.graph import DagStep, Graph
from ..model.rows import DagStepRow
from .compensation import call_undo, undo_cursor
from .concurrency import finish_all, run_branch
from .dag import Dag, DagContext, DagStepWorkflow, DagView
from .execution import Execution
from .observers import ids_of
from .outcomes import decode_error, step_failed, type_name
from .step import Undoable


class DagFailed(Exception):
    """A dag run ends by an error of one of its steps, or by its deadline."""

    def __init__(self, error: Exception, reason: str) -> None:
        super().__init__(str(error))
        self.error = error
        self.reason = reason


async def finish_dag(execution: Execution) -> dict[str, Any]:
    """Make the result of a dag run whose steps have all ended, or raise the error that ended it. A request of an
    operator is applied here and no sooner: what there is to undo is known once its steps are read."""
    assert execution.view is not None
    dag_steps = await _steps_of(execution)
    claimed = execution.claimed
    if claimed.failing and claimed.reason == status.REASON_CANCELLED:
        execution.asked = status.ASK_CANCEL
    if not claimed.failing and execution.asked != status.ASK_CANCEL:
        return result_of(execution, dag_steps)  # even if this fails: a dag that has come to its end is not undone
    execution.ledger.undo_recorded = bool(
        to_undo(execution.view.graph, dag_steps) or failed_within(execution, dag_steps)
    )
    if execution.asked == status.ASK_CANCEL:
        execution.leave_as_requested()
        raise execution.closed or AttemptEnded("the dag run is cancelled")
    if not dag_steps:
        raise DagFailed(StepfastError(f"dag run {execution.run_id} has no steps"), status.REASON_CODE)
    if claimed.reason == status.REASON_DEADLINE:
        late = DeadlineExceeded(f"dag run {execution.run_id} did not end before its deadline")
        raise DagFailed(late, status.REASON_DEADLINE)
    first = first_failure(dag_steps)
    raise DagFailed(failure_of(execution, first), first.reason or status.REASON_CODE)


async def _steps_of(execution: Execution) -> list[DagStepRow]:
    """The steps of the run that its graph has; what else names the run is none of it."""
    assert execution.view is not None
    found, known = await execution.recorder.queries.dag_steps(execution.run_id), execution.view.graph.dag_steps
    return [dag_step for dag_step in found if dag_step.name in known] if known else found


async def undo_dag_run(execution: Execution, dag: Dag) -> list[str]:
    """Undo the completed steps; what failed, in words. What steps could not undo of their own work is said too."""
    assert execution.view is not None
    dag_steps = await _steps_of(execution)
    await _leave_to_others(execution, dag, dag_steps)
    failed = await undo_dag(execution, dag, execution.view, dag_steps)
    return failed_within(execution, dag_steps) + failed


async def _leave_to_others(execution: Execution, dag: Dag, dag_steps: list[DagStepRow]) -> None:
    """An undo that is not in our code any more, while workers with the code of its time live: it is theirs."""
    assert execution.view is not None
    recorder = execution.recorder
    version, gone = execution.claimed.graph or "", undos_gone(dag, execution.view.graph, dag_steps)
    if not gone or version == dag.version:
        return
    if any(peer.workflows[dag.name] == version for peer in await recorder.queries.peers(dag.name)):
        told = "run %s: other code that still runs has the undo of %r"
        recorder.logger.warning(told, execution.run_id, gone[0], extra=ids_of(execution, gone[0]))
        pause = int(recorder.settings.poll_interval * 1000)
        execution.suspend(execution.database_now() + pause, status.WAITING_RETRY)
        raise execution.closed or AttemptEnded("the undo is left to others")


def result_of(execution: Execution, dag_steps: list[DagStepRow]) -> dict[str, Any]:
    """Step → output, of those that were done."""
    payloads = execution.recorder.payloads
    return {
        dag_step.name: payloads.plain(dag_step.output, dag_step.format, f"the output of step {dag_step.name!r}")
        for dag_step in dag_steps
        if dag_step.status == status.COMPLETED
    }


def first_failure(dag_steps: list[DagStepRow]) -> DagStepRow:
    """The step which failed first, and was not caught."""
    return min(
        (dag_step for dag_step in dag_steps if _failed(dag_step)),
        key=lambda dag_step: dag_step.completed_at or 0,
        default=dag_steps[0],
    )


def failure_of(execution: Execution, first: DagStepRow) -> StepFailed:
    """The error that ended the run: that of the step which failed first."""
    error = decode_error(first.error, first.format, execution.recorder.payloads)
    failure = step_failed(first.name, {**error, "retryable": False, "delay": None}, ("", 0))
    failure.only_traceback = failure.traceback  # there is no code of the user between the step and the run
    failure.seen = {}
    return failure


def failed_within(execution: Execution, dag_steps: list[DagStepRow]) -> list[str]:
    """What steps that failed or were cancelled could not undo of what they had done themselves, in words."""
    payloads = execution.recorder.payloads
    return [
        f"in step {dag_step.name!r}: {decode_error(dag_step.error, dag_step.format, payloads)['message']}"
        for dag_step in dag_steps
        if dag_step.reason == status.REASON_UNDO
    ]


def target_of(dag_step: DagStep, error: BaseException) -> str | None:
    """The step to go to on an error instead of failing, as the graph says that the run was started with."""
    kinds = {type_name(kind) for kind in type(error).__mro__ if issubclass(kind, BaseException)}
    kinds |= {getattr(error, "error_type", ""), *getattr(error, "error_bases", ())}
    return next((target for kind, target in dag_step.catch.items() if kind in kinds), None)


def _failed(dag_step: DagStepRow) -> bool:
    if dag_step.status not in (status.FAILED, status.COMPENSATED) or dag_step.reason == status.REASON_CANCELLED:
        return False
    return not (dag_step.reason or "").startswith(f"{status.REASON_CAUGHT}:")


def to_undo(graph: Graph, dag_steps: list[DagStepRow]) -> list[str]:
    """The completed steps that can be undone."""
    return [
        dag_step.name
        for dag_step in dag_steps
        if dag_step.status == status.COMPLETED and graph.dag_steps[dag_step.name].undo is not None
    ]


def undos_gone(dag: Dag, graph: Graph, dag_steps: list[DagStepRow]) -> list[str]:
    """Completed steps of which the graph says that they can be undone, and the code does not say how."""
    return [name for name in to_undo(graph, dag_steps) if name not in dag.steps or dag.steps[name].undo is None]


def steps_gone(dag: Dag, graph: Graph, dag_steps: list[DagStepRow]) -> list[str]:
    """Steps of a run that are not settled, and that the code cannot do."""
    unsettled = [dag_step.name for dag_step in dag_steps if dag_step.status not in status.TERMINAL]
    return [name for name in unsettled if name not in dag.steps or dag.steps[name].as_in(graph.dag_steps[name]) is None]


async def undo_dag(execution: Execution, dag: Dag, view: DagView, dag_steps: list[DagStepRow]) -> list[str]:
    """Undo every completed step that says how; what failed, in words."""
    graph, failed = view.graph, list[str]()
    done = {dag_step.name: dag_step for dag_step in dag_steps if dag_step.status == status.COMPLETED}
    numbers = {name: number for number, name in enumerate(graph.order, 1)}
    over = {name: asyncio.Event() for name in graph.dag_steps}  # of all: order goes through steps that were skipped too

    async def undo(name: str) -> None:
        for later in graph.dependents[name]:
            await over[later].wait()
        try:
            if execution.closed is not None:
                raise execution.closed
            if name in done and graph.dag_steps[name].undo is not None:
                problem = await _undo_one(execution, dag.steps.get(name), view, done[name], numbers[name])
                failed.extend([problem] if problem else [])
        finally:
            over[name].set()

    works: list[Coroutine[Any, Any, None]] = [undo(name) for name in reversed(graph.order)]
    for end in await finish_all(execution, execution.main, works):
        if isinstance(end, BaseException):
            raise end
    return failed


async def _undo_one(
    execution: Execution, step: DagStepWorkflow | None, view: DagView, dag_step: DagStepRow, number: int
) -> str | None:
    if step is None or step.undo is None:
        return f"the undo of step {dag_step.name!r} is not in the code any more"
    context = DagContext(execution, view, None)
    context.step_name = dag_step.name
    context.output = execution.recorder.payloads.plain(dag_step.output, dag_step.format, "an output")
    item = Undoable(number, dag_step.name, step.undo, (context,), {}, f"dag {execution.workflow.name}")
    return await run_branch(  # type: ignore[no-any-return]
        execution, undo_cursor(number), lambda cursor: call_undo(execution, cursor, item, record_arguments=False)
    )


async def wanted(when: Callable[[Any], Any] | None, context: Any) -> bool:
    """Whether a step is to be done."""
    if when is None:
        return True
    answer = when(context)
    return bool(await answer if inspect.isawaitable(answer) else answer)
