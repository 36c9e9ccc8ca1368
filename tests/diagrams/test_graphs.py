"""Graphs as lines of text, as boxes, and as SVG."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from itertools import pairwise
from xml.etree import ElementTree

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from stepfast.diagrams import graph_svg
from stepfast.diagrams.graph_layout import HEIGHT, Layers, place
from stepfast.diagrams.graph_text import draw, levels
from stepfast.info import StepInfo
from stepfast.model.graph import DagStep, Graph
from tests.diagrams.scenes import a_run, a_step, an_error
from tests.diagrams.test_svg import HOSTILE
from tests.diagrams.test_timeline import SVG, parsed, texts


def graph(**after: Iterable[str]) -> Graph:
    return Graph(DagStep(name, tuple(before)) for name, before in after.items())


def picture(found: Graph) -> list[str]:
    drawn = draw(found)
    assert drawn.rails is not None
    return [f"{rail} {name}" for rail, name in zip(drawn.rails, drawn.steps, strict=True)]


def test_a_chain_is_a_column() -> None:
    assert picture(graph(a="", b="a", c="b")) == ["○ a", "○ b", "○ c"]


def test_a_diamond() -> None:
    assert picture(graph(a="", b="a", c="a", d="bc")) == [
        "○   a",
        "├─○ b",
        "○ │ c",
        "○─╯ d",
    ]


def test_several_roots_and_several_ends() -> None:
    assert picture(graph(a="", b="", c="ab", d="c", e="c", f="c")) == [
        "○     a",
        "│ ○   b",
        "○─╯   c",
        "├─○   d",
        "├───○ e",
        "○     f",
    ]


def test_a_rail_passes_behind_a_line_it_has_nothing_to_do_with() -> None:
    assert picture(graph(a="", b="a", c="a", d="a", e="bcd")) == [
        "○     a",
        "├─○   b",
        "├─│─○ c",
        "○ │ │ d",
        "○─┴─╯ e",
    ]


def test_a_rail_that_goes_on_is_crossed_by_a_line_that_comes_from_it_too() -> None:
    assert picture(graph(a="", b="", c="ab", d="ab", e="cd")) == [
        "○     a",
        "│ ○   b",
        "├─┼─○ c",
        "○─╯ │ d",
        "○───╯ e",
    ]


def test_what_does_not_hang_together_does_not_seem_to() -> None:
    lines = picture(graph(a="", b="", c=""))
    assert lines == ["○   a", "  ○ b", "○   c"]


def test_chains_beside_each_other_stay_together() -> None:
    found = graph(a="", b="", a2="a", b2="b")
    assert draw(found).steps == ["a", "a2", "b", "b2"]


def test_steps_are_marked_by_how_they_stand() -> None:
    drawn = draw(graph(a="", b="a"), {"a": "●"})
    assert drawn.rails == ["●", "○"]


def test_a_step_that_an_error_leads_to_is_joined_to_where_it_comes_from() -> None:
    found = Graph([DagStep("a", catch={"KeyError": "mend"}), DagStep("b", ("a",)), DagStep("mend")])
    assert picture(found) == ["○   a", "├─○ b", "○   mend"]


def test_a_wide_graph_has_levels_instead() -> None:
    items = [f"b{number}" for number in range(40)]
    found = graph(a="", **dict.fromkeys(items, "a"), z=items)
    drawn = draw(found)
    assert drawn.rails is None
    assert drawn.steps == ["a", *items, "z"]
    assert [levels(found)[name] for name in drawn.steps] == [1, *([2] * 40), 3]


def test_a_long_chain_is_drawn_quickly() -> None:
    names = [f"s{number}" for number in range(1000)]
    found = Graph(DagStep(name, tuple(names[:number][-1:])) for number, name in enumerate(names))
    assert draw(found).rails == ["○"] * 1000


def test_every_line_leads_to_all_that_a_step_comes_after() -> None:
    """Follow the drawing of a tangled graph upwards from each step, and find its dependencies, all and only."""
    found = graph(a="", b="a", c="b", d="a", e="d", f="ce", g="a", h="abg", i="f", j="", k="jh", m="ai", n="j")
    drawn = draw(found)
    assert drawn.rails is not None
    for row, name in enumerate(drawn.steps):
        assert set(followed(drawn.rails, drawn.steps, row)) == set(found.dependencies(name)), name


def followed(rails: list[str], steps: list[str], row: int) -> Iterable[str]:
    """The steps that lines lead to from one: along its line, and up from wherever it joins a rail."""
    line = rails[row]
    here = line.index("○")
    joins = [here]
    for direction in (-1, 1):
        column = here
        while 0 <= column + direction < len(line) and line[column + direction] in "─":
            column += 2 * direction
            if line[column] in "├┤┼┴╯╰":
                joins.append(column)
    for column in joins:
        above = up(rails, row, column)
        if above is not None:
            yield steps[above]


def up(rails: list[str], row: int, column: int) -> int | None:
    """The step from which the rail in a column comes down to a row."""
    for above in range(row - 1, -1, -1):
        glyph = rails[above][column : column + 1]
        if glyph == "○":
            return above
        if glyph not in ("│", "├", "┤", "┼"):
            return None
    return None


# -- boxes


def where(layers: Layers) -> dict[str, tuple[float, float]]:
    return {name: (box.x, box.y) for box in layers.boxes for name in box.names}


def test_the_boxes_of_a_diamond() -> None:
    at = where(place(graph(a="", b="a", c="a", d="bc"), {}, 100))
    assert at["a"][0] == at["d"][0] == (at["b"][0] + at["c"][0]) / 2
    assert at["b"][1] == at["c"][1] and at["a"][1] < at["b"][1] < at["d"][1]


def test_the_boxes_of_a_chain_are_a_column() -> None:
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


# -- as SVG


ORDER = Graph(
    [
        DagStep("reserve", undo="release", retries=3),
        DagStep("ok", ("reserve",), kind="approval", retries=0),
        DagStep("wrap", ("reserve",), conditional=True),
        DagStep("ship", ("ok", "wrap"), at_least=1, catch={"KeyError": "mend"}),
        DagStep("mend", retries=2),
    ]
)


def standing() -> list[StepInfo]:
    return [
        a_step("reserve", 0, 2, kind="dag_step", number=1, child="r1"),
        a_step("ok", 2, None, "waiting", kind="dag_step", number=2, child="r2"),
        a_step("wrap", None, None, "skipped", kind="dag_step", number=3),
        a_step("ship", None, None, "waiting", kind="dag_step", number=4, child="r4"),
        a_step("mend", 3, 4, "failed", kind="dag_step", number=5, error=an_error(), attempts=3),
        a_step("release", 5, 6, "compensated", kind="undo", branch="~undo", position=1),
    ]


def test_a_declared_graph() -> None:
    svg = graph_svg(ORDER, name="order")
    assert parsed(svg).get("aria-label") == "Graph of order: 5 steps" and parsed(svg).get("role") == "img"
    assert {"reserve", "3 retries", "approval", "conditional", "any of 2"} <= set(texts(svg))
    assert "2 retries" not in svg and "no retries" not in svg
    assert "where KeyError leads to" in svg and "would be undone by release" in svg
    assert "<a " not in svg and "style" not in svg


def test_a_graph_as_a_run_stands() -> None:
    svg = graph_svg(ORDER, a_run(ended=False, status="waiting"), standing(), lambda step: f"/runs/{step}")
    assert "5 steps, 1 completed, 2 waiting, 1 skipped, 1 failed" in (parsed(svg).get("aria-label") or "")
    assert {"compensated · 2 s", "waiting · 8 s", "skipped", "not begun", "failed · 1 s · 3 tries"} <= set(texts(svg))
    assert "undone by release: compensated" in svg
    assert [link.get("href") for link in parsed(svg).iter(f"{SVG}a")] == ["/runs/r1", "/runs/r2"]


def test_many_equal_steps_are_a_pile() -> None:
    found = Graph([DagStep("first"), *(DagStep(f"item {n}", ("first",)) for n in range(40))])
    assert "item 0 × 40" in texts(graph_svg(found))


@pytest.mark.parametrize("text", HOSTILE)
def test_hostile_names_of_steps_change_nothing_but_text(text: str) -> None:
    def tags(word: str) -> list[str]:
        found = Graph([DagStep(word, undo=word, catch={word: "mend"}), DagStep("mend")])
        steps = [a_step(word, 0, 1, word, kind="dag_step", error=an_error(word, word), child=word)]
        svg = graph_svg(found, a_run(id=word, workflow=word, status=word), steps, str, name=word)
        return [each.tag for each in ElementTree.fromstring(svg).iter()]

    assert tags(text) == tags("harmless")
