"""A graph as lines of text: whatever leads to a step can be followed from it upwards."""

from __future__ import annotations

from collections.abc import Iterable

from stepfast.diagrams.graph_text import draw, levels
from stepfast.model.graph import DagStep, Graph


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
