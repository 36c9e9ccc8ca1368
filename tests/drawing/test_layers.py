"""Where the boxes of a graph stand: apart from each other, and each below what it comes after."""

from __future__ import annotations

from collections import defaultdict
from itertools import pairwise

from hypothesis import given, settings
from hypothesis import strategies as st

from stepfast.diagrams.graph_layout import HEIGHT, Layers, place
from stepfast.model.graph import DagStep, Graph
from tests.drawing.test_rails import graph


def where(layers: Layers) -> dict[str, tuple[float, float]]:
    return {name: (box.x, box.y) for box in layers.boxes for name in box.names}


def test_a_diamond() -> None:
    at = where(place(graph(a="", b="a", c="a", d="bc"), {}, 100))
    assert at["a"][0] == at["d"][0] == (at["b"][0] + at["c"][0]) / 2
    assert at["b"][1] == at["c"][1] and at["a"][1] < at["b"][1] < at["d"][1]


def test_a_chain_is_a_column() -> None:
    assert len({x for x, _ in where(place(graph(a="", b="a", c="b"), {}, 100)).values()}) == 1


def test_lines_do_not_cross_without_need() -> None:
    at = where(place(graph(a="", b="", x="b", y="a"), {}, 100))
    assert (at["a"][0] < at["b"][0]) == (at["y"][0] < at["x"][0])


def test_a_long_edge_goes_around_what_is_between() -> None:
    layers = place(graph(a="", b="a", c="ab"), {}, 100)
    (long,) = [edge for edge in layers.edges if len(edge.points) == 3]
    (b,) = [box for box in layers.boxes if box.names == ("b",)]
    assert abs(long.points[1][0] - b.x) >= 50


def test_where_an_error_leads_is_an_edge_of_its_own() -> None:
    found = Graph([DagStep("a", catch={"KeyError": "mend"}), DagStep("b", ("a",)), DagStep("mend")])
    assert sorted(edge.error or "" for edge in place(found, {}, 100).edges) == ["", "KeyError"]


def test_equal_steps_are_one_box() -> None:
    items = [f"b{number}" for number in range(40)]
    found = graph(a="", **dict.fromkeys(items, "a"), z=items)
    assert [len(box.names) for box in place(found, {}, 100).boxes] == [1, 40, 1]
    states = {name: "failed" if name == "b7" else "completed" for name in found.dag_steps}
    assert sorted(len(box.names) for box in place(found, states, 100).boxes) == [1, 1, 1, 39]


def test_a_huge_graph_has_a_bound() -> None:
    names = [f"s{number}" for number in range(3000)]
    chain = Graph(DagStep(name, tuple(names[:number][-1:])) for number, name in enumerate(names))
    layers = place(chain, {}, 100)
    assert len(layers.boxes) == 100 and sum(len(box.names) for box in layers.boxes) == 3000


@st.composite
def graphs(draw: st.DrawFn) -> Graph:
    names = [f"s{number}" for number in range(draw(st.integers(0, 14)))]
    return Graph(
        DagStep(name, tuple(draw(st.sets(st.sampled_from(names[:number]), max_size=3))) if number else ())
        for number, name in enumerate(names)
    )


@settings(max_examples=40, deadline=None)
@given(graphs())
def test_boxes_stand_apart_and_inside_and_below(found: Graph) -> None:
    layers = place(found, {}, 100)
    assert sorted(name for box in layers.boxes for name in box.names) == sorted(found.dag_steps)
    rows = defaultdict(list)
    for box in layers.boxes:
        assert 50 <= box.x <= layers.width - 50 and HEIGHT / 2 <= box.y <= layers.height - HEIGHT / 2
        rows[box.y].append(box.x)
    assert all(other - one >= 100 for row in rows.values() for one, other in pairwise(sorted(row)))
    at = where(layers)
    for name in found.dag_steps:
        assert all(at[before][1] < at[name][1] for before in found.dependencies(name))
    for edge in layers.edges:
        assert all(0 <= x <= layers.width for x, _ in edge.points)
        assert all(one[1] < other[1] for one, other in pairwise(edge.points))
