"""The drawings on the page of a run: when it did what, and, of a dag run, its graph. What they show is veiled."""

from __future__ import annotations

from markupsafe import Markup

from ..diagrams import graph_svg, lay_out, timeline_svg
from ..model.graph import Graph
from ..monitoring.explain import dag_steps, graph_of
from .history import History
from .visit import Visit


async def graph_of_run(visit: Visit, history: History) -> Graph | None:
    """The graph of a dag run."""
    return await graph_of(visit.look, history.info) if dag_steps(history.steps) else None


def timeline(visit: Visit, history: History, graph: Graph | None) -> Markup:
    """When the run did what."""
    placed = lay_out(history.info, history.steps, history.tries, graph, part=not history.whole)
    return Markup(timeline_svg(placed, lambda child: visit.url("runs", child)))


def graph(visit: Visit, history: History, declared: Graph | None) -> Markup | None:
    """The graph of a dag run, coloured by how its steps stand; None for other runs."""
    if declared is None:
        return None
    return Markup(graph_svg(declared, history.info, history.steps, lambda step: visit.url("runs", step)))
