"""Reading what the sentence on a run is made from: workers, its queue, of a dag run the steps that could move."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Sequence

from ..app import Stepfast
from ..carrying import begun_elsewhere
from ..errors import RunNotFound
from ..model import status
from ..model.graph import Graph
from ..model.status import DAG_STEP
from ..remote_reports import with_claims
from ..reports import Activity, RunInfo, StepInfo
from .why import why
from .why_dag import TOLD, is_among_steps, why_dag
from .why_queue import held_by

Veiled = Callable[[RunInfo, list[StepInfo]], tuple[RunInfo, list[StepInfo]]]
"""A run and its steps, without what must not be seen."""


async def explain(
    app: Stepfast,
    run: RunInfo,
    steps: Sequence[StepInfo],
    calls: Sequence[Activity],
    children: Sequence[RunInfo],
    veiled: Veiled = lambda info, steps: (info, steps),
) -> str:
    """Why a run does not move, or how it ended. Steps of a dag are runs that are read here: ``veiled`` gives what may
    be told of them."""
    workers = await (await app.store()).workers()
    of_dag = dag_steps(steps)
    if not of_dag or not is_among_steps(run):
        return why(run, workers, steps, calls, children, await _held_by(app, run))
    able = [s.child for s in of_dag if s.child and s.status not in status.TERMINAL and not _blocked(s)]
    told = [veiled(info, await steps_of(app, info)) for info in await infos_of(app, able[:TOLD])]
    return why_dag(run, workers, of_dag, told, max(0, len(able) - TOLD))


async def steps_of(app: Stepfast, run: RunInfo) -> list[StepInfo]:
    """The steps of a run, and of remote ones that it waits for whether a worker has begun them."""
    steps = await app.get(run.id).steps()
    if status.WAITING_REMOTE not in (run.waiting_for or ""):
        return steps
    return with_claims(steps, await begun_elsewhere(app, run.id))


async def graph_of(app: Stepfast, run: RunInfo) -> Graph | None:
    """The graph that a dag run was started with, whatever the code says by now."""
    text = await (await app.store()).graph(run.workflow, run.version, run.id)
    return None if text is None else Graph.from_text(text)


async def infos_of(app: Stepfast, ids: Sequence[str]) -> list[RunInfo]:
    """What is told of the runs that are still kept."""
    found = []
    for run_id in ids:
        with contextlib.suppress(RunNotFound):
            found.append(await app.get(run_id).info())
    return found


def dag_steps(steps: Sequence[StepInfo]) -> list[StepInfo]:
    """The steps that the graph has; a dag run has no others, but undos."""
    return [step for step in steps if step.kind == DAG_STEP]


async def _held_by(app: Stepfast, run: RunInfo) -> str | None:
    """What the queue of a ready run keeps it for."""
    return held_by(run, *await (await app.store()).measure(run.queue, run.concurrency_key)) if run.ready else None


def _blocked(step: StepInfo) -> bool:
    return step.detail == status.WAITING_STEPS
