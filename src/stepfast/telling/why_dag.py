"""Why a dag run is not moving: it is its steps that move, so what holds each of them up is told.

Pure, as ``why.py`` is.
"""

from __future__ import annotations

import shlex
from collections.abc import Sequence

from ..model import status
from ..model.cron import clock
from ..model.records import WorkerInfo
from ..reports import RunInfo, StepInfo
from .why import why
from .words import ago, count, listed

TOLD = 3
"""So many steps are told of one by one."""


def is_among_steps(run: RunInfo) -> bool:
    """Whether a dag run is with its steps, as which it is shown: nobody holds the run itself, and it is not ready."""
    shown = (status.RUNNING, status.WAITING, status.QUEUED)
    return run.status in shown and run.worker is None and not run.ready


def why_dag(
    run: RunInfo,
    workers: Sequence[WorkerInfo],
    steps: Sequence[StepInfo],
    open_steps: Sequence[tuple[RunInfo, Sequence[StepInfo]]],
    more: int = 0,
) -> str:
    """The sentences. ``open_steps`` are, as runs and with what each does, the first of those that wait for no other
    step, with ``more`` beside them."""
    ended = sum(step.status in status.TERMINAL for step in steps)
    names = {step.child: step.name for step in steps}
    failed = [repr(step.name) for step in steps if step.status == status.FAILED]
    text = f"{ended} of {count(len(steps), 'step')} {'has' if ended == 1 else 'have'} ended"
    told = [f"{text}; {listed(failed)} failed." if failed else f"{text}."]
    told += [_step(run, step, names[step.id], workers, inside) for step, inside in open_steps]
    if more:
        told.append(f"{count(more, 'more step')} can be executed.")
    return " ".join(told)


def _step(run: RunInfo, step: RunInfo, name: str, workers: Sequence[WorkerInfo], inside: Sequence[StepInfo]) -> str:
    if step.waiting_for == f"{status.WAITING_SIGNAL}:{name}":
        command = f"stepfast signal {run.id} {shlex.quote(name)}"
        until = "" if step.due_at is None else f" until {clock(step.due_at)} ({ago(step.due_at, step.read_at)})"
        return f"{name!r} waits for an answer{until}: `{command} true` approves, and `false` in its place refuses."
    text = why(step, workers, inside, [])
    return f"{name!r}: {text[0].lower()}{text[1:]}"
