"""A graph as SVG: coloured by state, and harmless whatever a step is called."""

from __future__ import annotations

from xml.etree import ElementTree

import pytest

from stepfast.diagrams import graph_svg
from stepfast.info import StepInfo
from stepfast.model.graph import DagStep, Graph
from tests.drawing.scenes import a_run, a_step, an_error
from tests.drawing.test_markup import HOSTILE
from tests.drawing.test_timeline_svg import SVG, parsed, texts

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
def test_hostile_names_change_nothing_but_text(text: str) -> None:
    def tags(word: str) -> list[str]:
        found = Graph([DagStep(word, undo=word, catch={word: "mend"}), DagStep("mend")])
        steps = [a_step(word, 0, 1, word, kind="dag_step", error=an_error(word, word), child=word)]
        svg = graph_svg(found, a_run(id=word, workflow=word, status=word), steps, str, name=word)
        return [each.tag for each in ElementTree.fromstring(svg).iter()]

    assert tags(text) == tags("harmless")
