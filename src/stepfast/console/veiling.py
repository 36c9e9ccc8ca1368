"""Runs, steps and calls with their payloads veiled: what a page shows of them.

Errors quote values. What was hidden is struck out of them; where not all payloads of a run are at hand, nobody knows
what there is to strike out, and only the types of its errors are shown, and nothing of how far its steps say they are.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from ..engine.timers import SLEEP
from ..model import status
from ..model.status import DAG_STEP
from ..reports import Activity, ErrorInfo, RunInfo, StepInfo
from .history import History
from .redacting import HIDDEN, Veil


def veiled_runs(runs: Sequence[RunInfo], veil: Veil) -> list[RunInfo]:
    """Runs of a list, each with a veil of its own: a value that one hides may be harmless in another."""
    return [veiled_run(run, veil.anew(), complete=False) for run in runs] if veil.hides else list(runs)


def veiled_history(history: History, veil: Veil) -> History:
    """A run with its steps and failed tries. All values come before all texts, which may quote them."""
    if not veil.hides:
        return history
    for arguments in history.arguments:
        veil.value(arguments, "arguments")
    veil.value(history.info.input, "input")
    veil.value(history.info.output, "output")
    complete = history.complete
    return history._replace(
        steps=veiled_steps(history.steps, veil, complete),
        tries=veiled_calls(history.tries, veil, complete),
        info=veiled_run(history.info, veil, complete),
    )


def veiled_run(run: RunInfo, veil: Veil, complete: bool = True) -> RunInfo:
    """A run, without its steps. ``complete`` says whether all that its error may quote has passed the veil."""
    if not veil.hides:
        return run
    shown = replace(run, input=veil.value(run.input, "input"), output=veil.value(run.output, "output"))
    return replace(shown, error=veiled_error(run.error, veil, complete))


def veiled_steps(steps: Sequence[StepInfo], veil: Veil, complete: bool = True) -> list[StepInfo]:
    """Steps. All values come before all texts, because the error of one step may quote the output of another."""
    if not veil.hides:
        return list(steps)
    values = [
        step
        if step.kind == SLEEP
        else replace(step, output=veil.value(step.output, "output"), data=veil.value(step.data, "progress"))
        for step in steps
    ]
    return [
        replace(
            step,
            detail=_veiled_detail(step, veil, complete),
            error=veiled_error(step.error, veil, complete),
        )
        for step in values
    ]


def _veiled_detail(step: StepInfo, veil: Veil, complete: bool) -> str | None:
    """What a step says of itself. What steps wait for, and how those of a dag stand, is said by us."""
    if step.detail is None or complete or step.kind == DAG_STEP or step.status == status.WAITING:
        return None if step.detail is None else veil.text(step.detail)
    return HIDDEN


def veiled_calls(calls: Sequence[Activity], veil: Veil, complete: bool = True) -> list[Activity]:
    """Calls of the activity log."""
    if not veil.hides:
        return list(calls)
    values = [
        replace(call, parameters=veil.value(call.parameters, "arguments"), result=veil.value(call.result, "output"))
        for call in calls
    ]
    return [replace(call, error=veiled_error(call.error, veil, complete)) for call in values]


def veiled_error(error: ErrorInfo | None, veil: Veil, complete: bool = True) -> ErrorInfo | None:
    """An error, with its own fields hidden where paths say so, and hidden values struck out of the rest."""
    if error is None or not veil.hides:
        return error
    shown = veil.value({"type": error.type, "message": error.message, "traceback": error.traceback}, "error")
    if not complete or not isinstance(shown, dict):
        return ErrorInfo(error.type, HIDDEN, None)
    traceback = shown["traceback"]
    return ErrorInfo(
        str(shown["type"]), veil.text(str(shown["message"])), None if traceback is None else veil.text(str(traceback))
    )
