"""A graph as lines of text: a line per step, and rails that lead from each step to those that come after it.

○    validate
├─○  charge
○ │  pack
○─╯  ship
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from ..model.graph import Graph

_MOST_RAILS = 12
"""More rails cannot be followed by eye."""
_GLYPHS = {
    # (more to the left, more to the right, goes on below)
    (False, True, True): "├", (False, True, False): "╰",
    (True, False, True): "┤", (True, False, False): "╯",
    (True, True, True): "┼", (True, True, False): "┴",
}  # fmt: skip


class Drawn(NamedTuple):
    """Steps, and the rails before each; None for a graph that is too wide."""

    steps: list[str]
    rails: list[str] | None


def draw(graph: Graph, marks: Mapping[str, str] | None = None) -> Drawn:
    """Draw the steps in an order that keeps rails short; ``marks`` are their symbols, by default ``○``."""
    steps = _order(graph)
    rails = _rails(graph, steps, marks or {})
    return Drawn(sorted(steps, key=levels(graph).__getitem__), None) if rails is None else Drawn(steps, rails)


def levels(graph: Graph) -> dict[str, int]:
    """Return how many steps are on the longest path to each, itself included."""
    found: dict[str, int] = {}
    for name in graph.order:
        found[name] = 1 + max((found[before] for before in graph.dependencies(name)), default=0)
    return found


def _order(graph: Graph) -> list[str]:
    """Each after those it depends on; what can follow at once does, so that chains stay together."""
    left = {name: len(graph.dependencies(name)) for name in graph.dag_steps}
    ready = [name for name in reversed(graph.dag_steps) if left[name] == 0]
    order: list[str] = []
    while ready:
        name = ready.pop()
        order.append(name)
        freed: list[str] = []
        for after in graph.dependents[name]:
            left[after] -= 1
            if left[after] == 0:
                freed.append(after)
        ready += reversed(freed)
    return order


def _rails(graph: Graph, steps: list[str], marks: Mapping[str, str]) -> list[str] | None:
    left = {name: len(graph.dependents[name]) for name in steps}
    columns: list[str | None] = []
    """Whose rail runs there."""
    leaf: int | None = None
    """The column of the line before, if nothing comes after its step: a step directly below would seem to."""
    lines: list[str] = []
    for name in steps:
        before = {columns.index(b) for b in graph.dependencies(name)}
        for dependency in graph.dependencies(name):
            left[dependency] -= 1
        ending = sorted(column for column in before if left[columns[column] or ""] == 0)
        here = ending[0] if ending else _free(columns, leaf)
        lines.append(_line(columns, before, set(ending), here, marks.get(name, "○")))
        for column in ending:
            columns[column] = None
        columns[here] = name if left[name] else None
        leaf = None if left[name] else here
        while columns and columns[-1] is None and len(columns) - 1 != leaf:
            columns.pop()
        if len(columns) > _MOST_RAILS:
            return None
    width = max((len(line) for line in lines), default=0)
    return [line.ljust(width) for line in lines]


def _free(columns: list[str | None], leaf: int | None) -> int:
    for column, rail in enumerate(columns):
        if rail is None and column != leaf:
            return column
    columns.append(None)
    return len(columns) - 1


def _line(columns: list[str | None], before: set[int], ending: set[int], here: int, mark: str) -> str:
    """One line: the step at ``here``, joined to the rails it comes from; other rails pass."""
    first, last = min(before | {here}), max(before | {here})
    text = ""
    for column, rail in enumerate(columns):
        if column == here:
            text += mark
        elif column in before:
            text += _GLYPHS[column > first, column < last, column not in ending]
        elif rail is not None:
            text += "│"
        else:
            text += "─" if first < column < last else " "
        text += "─" if first <= column < last else " "
    return text.rstrip()
