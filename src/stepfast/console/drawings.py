"""The drawings on the page of a run: when it did what, and, of a dag run, its graph."""

from __future__ import annotations

from collections.abc import Sequence

from markupsafe import Markup

from ..drawing import graph_svg, lay_out, timeline_svg
from ..engine.workflow import DAG_STEP
from ..model.graph import Graph
from ..reports import Activity, RunInfo, StepInfo, activity_info
from ..telling.explaining import graph_of
from .history import History
from .visit import Visit

_SECONDS = 3.0
"""So long the database may take for the tries."""
_TRIES = 500
_RETRIED = 10
"""Of so many steps of a dag run the failed tries are looked up: each is a question of its own."""
_BEFORE_ALL = ("", -2)


async def tries_of(visit: Visit, history: History) -> list[Activity]:
    """The failed tries of the steps that are shown, and of the run itself; a bounded number of them."""
    glance = (await visit.app.store()).glance(_SECONDS)
    info, payloads = history.info, visit.app._payloads
    rows = await glance.failed_tries(info.id, history.after or _BEFORE_ALL, _TRIES)
    found = [activity_info(info.id, row, payloads) for row in rows]
    retried = [step for step in history.steps if step.kind == DAG_STEP and step.child is not None and step.attempts > 1]
    for step in retried[:_RETRIED]:
        assert step.child is not None
        rows = await glance.failed_tries(step.child, limit=_TRIES)
        found += [activity_info(step.child, row, payloads, step.name) for row in rows]
    return found


async def graph_of_run(visit: Visit, history: History) -> Graph | None:
    """The graph of a dag run."""
    of_dag = any(step.kind == DAG_STEP for step in history.steps)
    return await graph_of(visit.app, history.info) if of_dag else None


def timeline(
    visit: Visit,
    history: History,
    run: RunInfo,
    steps: Sequence[StepInfo],
    tries: Sequence[Activity],
    graph: Graph | None,
) -> Markup:
    """When the run did what. What was done is veiled already."""
    placed = lay_out(run, steps, tries, graph, part=not history.whole)
    return Markup(timeline_svg(placed, lambda child: visit.url("runs", child)))


def graph(visit: Visit, run: RunInfo, steps: Sequence[StepInfo], graph: Graph | None) -> Markup | None:
    """The graph of a dag run, coloured by how its steps stand; None for other runs."""
    return None if graph is None else Markup(graph_svg(graph, run, steps, lambda step: visit.url("runs", step)))
