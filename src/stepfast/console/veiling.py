"""Runs, steps and calls with their payloads veiled: what a page shows of them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from ..reports import Activity, ErrorInfo, RunInfo, StepInfo
from .redacting import HIDDEN, Veil


def veiled_runs(runs: Sequence[RunInfo], veil_of: Veil) -> list[RunInfo]:
    """Runs of a list, each with a veil of its own: a value that one hides may be harmless in another."""
    return [veiled_run(run, veil_of.anew()) for run in runs]


def veiled_run(run: RunInfo, veil: Veil) -> RunInfo:
    """A run. Where its payloads were left out, nobody knows what to strike out of its error: only the type is shown."""
    if not veil.hides:
        return run
    shown = replace(run, input=veil.value(run.input, "input"), output=veil.value(run.output, "output"))
    error = veiled_error(run.error, veil)
    if error is not None and run.left_out:
        error = ErrorInfo(error.type, HIDDEN, None)
    return replace(shown, error=error)


def veiled_steps(steps: Sequence[StepInfo], veil: Veil) -> list[StepInfo]:
    """Steps. All values come before all texts, because the error of one step may quote the output of another."""
    if not veil.hides:
        return list(steps)
    values = [
        replace(step, output=veil.value(step.output, "output"), data=veil.value(step.data, "progress"))
        for step in steps
    ]
    return [
        replace(
            step,
            detail=None if step.detail is None else veil.text(step.detail),
            error=veiled_error(step.error, veil),
        )
        for step in values
    ]


def veiled_calls(calls: Sequence[Activity], veil: Veil) -> list[Activity]:
    """Calls of the activity log."""
    if not veil.hides:
        return list(calls)
    values = [
        replace(call, parameters=veil.value(call.parameters, "arguments"), result=veil.value(call.result, "output"))
        for call in calls
    ]
    return [replace(call, error=veiled_error(call.error, veil)) for call in values]


def veiled_error(error: ErrorInfo | None, veil: Veil) -> ErrorInfo | None:
    """An error, with its own fields hidden where paths say so, and hidden values struck out of the rest."""
    if error is None or not veil.hides:
        return error
    shown = veil.value({"type": error.type, "message": error.message, "traceback": error.traceback}, "error")
    if not isinstance(shown, dict):
        return ErrorInfo(error.type, HIDDEN, None)
    traceback = shown["traceback"]
    return ErrorInfo(
        str(shown["type"]), veil.text(str(shown["message"])), None if traceback is None else veil.text(str(traceback))
    )
