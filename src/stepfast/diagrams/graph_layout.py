"""The layout of a graph: one layer for each level, related steps above each other, and edges around unrelated steps."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import NamedTuple

from ..model.graph import Graph
from .graph_text import draw, levels

FROM = 6
"""So many equal steps in one level become one box."""
MOST = 300
"""More boxes cannot be seen: then all steps of a level in the same state are one box."""
_MOST_LAYERS = 100
_SWEEPS = 6
_BESIDE = 26.0
_LANE = 14.0
"""How wide an edge is that passes a layer."""
HEIGHT = 44.0
_BELOW = 38.0
"""The room between two layers."""
MARGIN = 12.0


class Box(NamedTuple):
    """A step, or equal ones; the point is the middle of its box."""

    names: tuple[str, ...]
    x: float
    y: float
    layer: int


class Edge(NamedTuple):
    """An edge, by its points; ``error`` is the error that it is for."""

    source: int
    target: int
    points: tuple[tuple[float, float], ...]
    error: str | None


@dataclass(frozen=True, slots=True)
class Layers:
    """The layout, in units of the view box."""

    boxes: tuple[Box, ...]
    edges: tuple[Edge, ...]
    box_width: float
    width: float
    height: float


def place(graph: Graph, states: Mapping[str, str], box_width: float) -> Layers:
    """The boxes and edges of a graph, whose steps are in these states."""
    groups = _groups(graph, states)
    layer_of = _layer_of(graph, groups)
    edges = _edges(graph, groups)
    net = _Net(layer_of, [(source, target) for source, target in edges if layer_of[source] < layer_of[target]])
    net.untangle()
    xs = net.positions(box_width)
    left = min((x - net.width(node, box_width) / 2 for node, x in xs.items()), default=0.0) - MARGIN
    right = max((x + net.width(node, box_width) / 2 for node, x in xs.items()), default=0.0) + MARGIN
    at = {node: (x - left, _y(net.layer[node])) for node, x in xs.items()}
    boxes = [Box(tuple(names), *at[number], layer_of[number]) for number, names in enumerate(groups)]
    drawn = [
        Edge(source, target, tuple(at[node] for node in way), edges[source, target])
        for (source, target), way in net.ways.items()
    ]
    return Layers(
        tuple(boxes), tuple(drawn), box_width, right - left, _y(max(layer_of, default=0)) + HEIGHT / 2 + MARGIN
    )


def _y(layer: int) -> float:
    return MARGIN + HEIGHT / 2 + layer * (HEIGHT + _BELOW)


# -- what becomes one box ----------------------------------------------------------------------------------------------


def _groups(graph: Graph, states: Mapping[str, str]) -> list[list[str]]:
    """The steps, equal ones together; in the order in which chains stay together."""
    order = draw(graph).steps

    def alike(name: str) -> object:
        step = graph.dag_steps[name]
        around = (frozenset(graph.dependencies(name)), frozenset(graph.dependents[name]))
        return around, step.kind, states.get(name), bool(step.catch)

    families = _by(order, alike)
    firsts = {family[0]: family for family in families if len(family) >= FROM}
    gone = {name for family in firsts.values() for name in family}
    groups = [firsts.get(name, [name]) for name in order if name in firsts or name not in gone]
    if len(groups) <= MOST:
        return groups
    where = levels(graph)
    band = -(-max(where.values()) // _MOST_LAYERS)
    return _by(sorted(order, key=where.__getitem__), lambda name: ((where[name] - 1) // band, states.get(name)))


def _by(names: Sequence[str], key: Callable[[str], object]) -> list[list[str]]:
    found: dict[object, list[str]] = {}
    for name in names:
        found.setdefault(key(name), []).append(name)
    return list(found.values())


def _layer_of(graph: Graph, groups: list[list[str]]) -> list[int]:
    where = levels(graph)
    tops = [min(where[name] for name in names) for names in groups]
    dense = {top: layer for layer, top in enumerate(sorted(set(tops)))}
    return [dense[top] for top in tops]


def _edges(graph: Graph, groups: list[list[str]]) -> dict[tuple[int, int], str | None]:
    """(from, to) → the error that leads there; None: the end of a step does."""
    group_of = {name: number for number, names in enumerate(groups) for name in names}
    found: dict[tuple[int, int], str | None] = {}
    for name, step in graph.dag_steps.items():
        for error, target in step.catch.items():
            found.setdefault((group_of[name], group_of[target]), error)
    for name, step in graph.dag_steps.items():
        for before in step.after:
            found[group_of[before], group_of[name]] = None
    return {edge: error for edge, error in found.items() if edge[0] != edge[1]}


# -- the order within a layer, and places ------------------------------------------------------------------------------


class _Net:
    """Nodes in layers, where every edge goes from one layer to the next: a long one through nodes of its own."""

    def __init__(self, layer_of: list[int], edges: list[tuple[int, int]]) -> None:
        self.layer = dict(enumerate(layer_of))
        self.real = len(layer_of)
        self.ways: dict[tuple[int, int], list[int]] = {}
        self.above: dict[int, list[int]] = defaultdict(list)
        self.below: dict[int, list[int]] = defaultdict(list)
        for source, target in edges:
            self._lay(source, target)
        self.rows: list[list[int]] = [[] for _ in range(max(self.layer.values(), default=-1) + 1)]
        for node, layer in self.layer.items():
            self.rows[layer].append(node)

    def _lay(self, source: int, target: int) -> None:
        way = [source]
        for layer in range(self.layer[source] + 1, self.layer[target]):
            node = len(self.layer)
            self.layer[node] = layer
            way.append(node)
        way.append(target)
        self.ways[source, target] = way
        for one, other in pairwise(way):
            self.below[one].append(other)
            self.above[other].append(one)

    def untangle(self) -> None:
        """Put each node near the middle of those it is joined to, layer by layer, down and up again."""
        for sweep in range(_SWEEPS):
            down = sweep % 2 == 0
            beside = self.above if down else self.below
            for row in self.rows if down else reversed(self.rows):
                row.sort(key=self._places(beside, row).__getitem__)

    def _places(self, beside: dict[int, list[int]], row: list[int]) -> dict[int, float]:
        """The middle of the neighbours of each node of a row; a node without any keeps its place."""
        around = {near for node in row for near in beside[node]}
        place = {
            node: at for layer in {self.layer[near] for near in around} for at, node in enumerate(self.rows[layer])
        }
        found = {}
        for at, node in enumerate(row):
            near = [place[other] for other in beside[node]]
            found[node] = sum(near) / len(near) if near else float(at)
        return found

    def width(self, node: int, box_width: float) -> float:
        """How wide a node is: a box, or an edge that passes."""
        return box_width if node < self.real else _LANE

    def positions(self, box_width: float) -> dict[int, float]:
        """Return the positions of nodes: as near to their neighbours as the others of the layer leave room for."""
        x: dict[int, float] = {}
        for row in self.rows:
            x |= _packed(row, [0.0] * len(row), [self.width(node, box_width) for node in row])
        for sweep in range(2 * _SWEEPS):
            down = sweep % 2 == 0
            beside = self.above if down else self.below
            for row in self.rows if down else reversed(self.rows):
                wanted = [_middle([x[near] for near in beside[node]], x[node]) for node in row]
                x |= _packed(row, wanted, [self.width(node, box_width) for node in row])
        return x


def _middle(places: list[float], otherwise: float) -> float:
    return sum(places) / len(places) if places else otherwise


def _packed(row: list[int], wanted: list[float], widths: list[float]) -> dict[int, float]:
    """Places in this order and far enough from each other, and in sum as near to the wanted ones as can be: nodes that
    want the same place share it, as a block around the middle of what they want."""
    offsets, reached = [], 0.0
    for wide in widths:
        offsets.append(reached + wide / 2)
        reached += wide + _BESIDE
    blocks: list[tuple[float, int]] = []
    """(the sum of what its nodes want, how many they are)"""
    for want, offset in zip(wanted, offsets, strict=True):
        total, size = want - offset, 1
        while blocks and blocks[-1][0] / blocks[-1][1] >= total / size:
            more, count = blocks.pop()
            total, size = total + more, size + count
        blocks.append((total, size))
    shifts = [total / size for total, size in blocks for _ in range(size)]
    return {node: shift + offset for node, shift, offset in zip(row, shifts, offsets, strict=True)}
