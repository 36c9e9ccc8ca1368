"""A graph as SVG: a box per step, coloured by its state in a run."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from itertools import pairwise

from ..engine.history import UNDO
from ..info import RunInfo, StepInfo
from ..model import status
from ..model.graph import APPROVAL, DagStep, Graph
from ..model.status import DAG_STEP
from ..monitoring.text import count, lasting, retries_of, shortened
from .graph_layout import HEIGHT, Box, Edge, Layers, place
from .svg import Markup, class_of, element, mark, number
from .timeline_svg import Href

_LETTER = 7.0
_SMALL_LETTER = 5.9
_NARROWEST, _WIDEST = 172.0, 236.0
_LEFT = 30.0
"""Where the name begins in its box."""


class _Standing:
    """The states of the steps of a run; empty for a graph without a run."""

    def __init__(self, graph: Graph, run: RunInfo | None, steps: Sequence[StepInfo]) -> None:
        self.graph = graph
        self.run = run
        self.steps = {step.name: step for step in steps if step.kind == DAG_STEP}
        undos = {step.position: step for step in steps if step.kind == UNDO}
        self.undos = {name: undos[step.number] for name, step in self.steps.items() if step.number in undos}
        self.states = {name: self._state(step) for name, step in self.steps.items()}

    def _state(self, step: StepInfo) -> str:
        """Return the state that is drawn: of an undone step that of its undo, of one that has not begun "queued"."""
        if step.name in self.undos:
            return self.undos[step.name].status
        return status.QUEUED if step.started_at is None and step.status == status.WAITING else step.status


def graph_svg(
    graph: Graph,
    run: RunInfo | None = None,
    steps: Sequence[StepInfo] = (),
    href: Href | None = None,
    *,
    name: str = "",
) -> Markup:
    """The graph as an element to be put into a page. With a run and its steps, boxes are coloured by state, and are
    links where ``href`` returns the page of a step (by the id of its own row)."""
    standing = _Standing(graph, run, steps)
    layers = place(graph, standing.states, _box_width(graph))
    label = _label(graph, standing, name)
    return element(
        "svg",
        element("title", label),
        *(_edge(edge, layers, standing) for edge in layers.edges),
        *(_node(box, layers, standing, href) for box in layers.boxes),
        xmlns="http://www.w3.org/2000/svg", class_="sf-drawing sf-graph", role="img", aria_label=label,
        viewBox=f"0 0 {number(layers.width)} {number(layers.height)}", width=layers.width, height=layers.height,
    )  # fmt: skip


def _box_width(graph: Graph) -> float:
    longest = max((len(name) for name in graph.dag_steps), default=0)
    return min(max(longest * _LETTER + _LEFT + 12, _NARROWEST), _WIDEST)


def _label(graph: Graph, standing: _Standing, name: str) -> str:
    steps = count(len(graph.dag_steps), "step")
    if standing.run is None:
        return f"Graph of {name}: {steps}" if name else f"Graph of {steps}"
    states = ", ".join(
        f"{number} {state}" for state, number in Counter(s.status for s in standing.steps.values()).items()
    )
    return f"Graph of run {standing.run.id} of {standing.run.workflow}: {steps}, {states}"


# -- edges -------------------------------------------------------------------------------------------------------------


def _edge(edge: Edge, layers: Layers, standing: _Standing) -> Markup:
    (x, y), *_ = edge.points
    path = f"M{number(x)} {number(y + HEIGHT / 2)}"
    for (from_x, from_y), (to_x, to_y) in pairwise(edge.points):
        path += _curve(from_x, from_y + HEIGHT / 2, to_x, to_y - HEIGHT / 2, to_y, (to_x, to_y) != edge.points[-1])
    end_x, end_y = edge.points[-1]
    source = layers.boxes[edge.source].names[0]
    done = standing.states.get(source) == status.COMPLETED
    more = " sf-catch" if edge.error is not None else " sf-completed" if done else ""
    told = None if edge.error is None else element("title", f"where {edge.error} leads to")
    tip = f"M{number(end_x - 4)} {number(end_y - HEIGHT / 2 - 7)}h8l-4 7z"
    return element(
        "g", told, element("path", d=path, class_=f"sf-edge{more}"), element("path", d=tip, class_=f"sf-arrow{more}")
    )


def _curve(x: float, y: float, to_x: float, to_y: float, layer_y: float, goes_on: bool) -> str:
    """From the lower edge of one layer to the upper edge of the next, and through that if the edge continues."""
    middle = number((y + to_y) / 2)
    drawn = f"C{number(x)} {middle} {number(to_x)} {middle} {number(to_x)} {number(to_y)}"
    return drawn + (f"V{number(layer_y + HEIGHT / 2)}" if goes_on else "")


# -- boxes -------------------------------------------------------------------------------------------------------------


def _node(box: Box, layers: Layers, standing: _Standing, href: Href | None) -> Markup:
    name = box.names[0]
    state = standing.states.get(name, "")
    step = standing.steps.get(name) if len(box.names) == 1 else None
    drawn = element(
        "g",
        element("title", "\n".join(_told(box, standing))),
        *_shape(box, layers, standing.graph.dag_steps[name]),
        mark(state, box.x - layers.box_width / 2 + 16, box.y),
        *_words(box, layers, standing),
        class_=f"sf-node {class_of(state)}",
    )
    if href is None or step is None or step.child is None or step.started_at is None:
        return drawn
    return element("a", drawn, href=href(step.child), tabindex="-1")


def _shape(box: Box, layers: Layers, step: DagStep) -> Iterator[Markup]:
    """Draw a box: an approval is round, several steps are a pile."""
    left, top = box.x - layers.box_width / 2, box.y - HEIGHT / 2
    size = {"width": layers.box_width, "height": HEIGHT, "rx": HEIGHT / 2 if step.kind == APPROVAL else 7.0}
    if len(box.names) > 1:
        yield element("rect", x=left + 4, y=top + 4, class_="sf-box", **size)
    yield element("rect", x=left, y=top, class_="sf-box", **size)
    yield element("rect", x=left, y=top, class_="sf-tint", **size)


def _words(box: Box, layers: Layers, standing: _Standing) -> Iterator[Markup]:
    x = box.x - layers.box_width / 2 + _LEFT
    room = int((layers.box_width - _LEFT - 8) / _LETTER)
    first, *others = box.names
    more = f" × {1 + len(others)}" if others else ""
    note = _note(box, standing)
    yield element("text", _cut(first, room - len(more)) + more, x=x, y=box.y + (-3 if note else 4), class_="sf-name")
    if note:
        yield element(
            "text", _cut(note, int((layers.box_width - _LEFT - 6) / _SMALL_LETTER)), x=x, y=box.y + 13, class_="sf-note"
        )


def _cut(text: str, room: int) -> str:
    return text if len(text) <= room else text[: max(room - 1, 1)] + "…"


def _note(box: Box, standing: _Standing) -> str:
    """The second line of a box: how far the step is, or what was declared of it."""
    name = box.names[0]
    step = standing.steps.get(name)
    if step is None:
        return _declared(standing.graph, standing.graph.dag_steps[name])
    if len(box.names) > 1 or step.started_at is None or step.status == status.SKIPPED:
        return step.status if step.started_at is not None or step.status in status.TERMINAL else "not begun"
    state = standing.states[name]
    parts = [state] if state != status.COMPLETED else []
    end = step.completed_at or (standing.run.read_at if standing.run is not None else None)
    parts += [lasting((end - step.started_at).total_seconds())] if end is not None else []
    parts += [f"{step.attempts} tries"] if step.attempts > 1 else []
    return " · ".join(parts)


def _declared(graph: Graph, step: DagStep) -> str:
    parts = ["approval"] if step.kind == APPROVAL else []
    parts += ["conditional"] if step.conditional else []
    if step.at_least is not None:
        parts.append(f"{'any' if step.at_least == 1 else step.at_least} of {len(graph.dependencies(step.name))}")
    return " · ".join(filter(None, (*parts, retries_of(step))))


def _told(box: Box, standing: _Standing) -> Iterator[str]:
    """Yield the lines of the tooltip of a box."""
    name, *others = box.names
    if others:
        yield f"{len(box.names)} steps: {shortened(', '.join(box.names), 300)}"
        return
    step, declared = standing.steps.get(name), standing.graph.dag_steps[name]
    yield name if step is None else f"{name}: {step.status}"
    if step is not None and step.error is not None:
        yield shortened(f"{step.error.type}: {step.error.message}", 200)
    if name in standing.undos:
        yield f"undone by {standing.undos[name].name}: {standing.undos[name].status}"
    elif declared.undo:
        yield f"would be undone by {declared.undo}"
