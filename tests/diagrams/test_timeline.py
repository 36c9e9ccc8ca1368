"""Timelines: where bars are placed, what becomes of many, and their SVG."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise
from xml.etree import ElementTree

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from stepfast.diagrams import Markup, standalone, stylesheet, timeline_svg
from stepfast.diagrams.timeline import (
    GAP,
    LABELS,
    LETTER,
    MOST_BANDS,
    WIDTH,
    Band,
    Timeline,
    lay_out,
    make_scale,
    marks_of,
)
from stepfast.info import Activity, StepInfo
from stepfast.model.graph import DagStep, Graph
from tests.diagrams.scenes import a_failure, a_run, a_step, an_error, at, numbered
from tests.diagrams.test_svg import HOSTILE

DAY = 86400.0


def band(timeline: Timeline, name: str) -> Band:
    return next(found for found in timeline.bands if found.name == name)


def states(timeline: Timeline, name: str) -> list[str]:
    return [bar.state for bar in band(timeline, name).bars]


# -- what is drawn


def test_the_run_comes_first_then_its_steps_in_the_order_of_the_code() -> None:
    steps = [
        a_step("last", 5, 6, position=3), a_step("b1", 2, 3, branch="2.1"), a_step("b0", 2, 3, branch="2.0"),
        a_step("first", 0, 1, position=0), a_step("inner", 3, 4, branch="2.0/1", position=0),
    ]  # fmt: skip
    timeline = lay_out(a_run(), steps)
    assert [(each.name, each.depth, each.item) for each in timeline.bands] == [
        ("checkout", 0, None), ("first", 0, None), ("b0", 1, 0), ("inner", 2, None), ("b1", 1, 1), ("last", 0, None),
    ]  # fmt: skip


def test_tries_stand_before_the_outcome() -> None:
    steps = [a_step("charge", 7, 8, attempts=3)]
    calls = [a_failure("charge", 1, 2, 1), a_failure("charge", 4, 5, 2)]
    timeline = lay_out(a_run(), steps, calls)
    assert states(timeline, "charge") == ["failed", "failed", "completed"]
    charge = band(timeline, "charge")
    assert charge.note.text == "7 s · 3 tries"
    assert "try 1 failed after 1 s: ConnectionError: nobody answers" in charge.bars[0].told
    assert charge.track == (charge.bars[0].x, charge.bars[-1].x)


def test_what_is_said_of_a_step_stands_before_the_undo_that_follows_it() -> None:
    """Also if another stretch of the undo is drawn before the step: the first after the step is meant."""
    undone = [a_step("charge", 1, 2, number=6), a_step("undo", 3, 4, kind="undo", position=6)]
    calls = [a_failure("undo", 0, 0.5, position=6)]
    charge = band(lay_out(a_run(4), undone, calls), "charge")
    assert [bar.undo for bar in charge.bars] == [True, False, True]
    assert charge.note.x == charge.bars[1].x + charge.bars[1].width + 6 and not charge.note.ends


def test_what_is_said_of_a_run_stands_behind_all_bars() -> None:
    """Also of one whose only bar fills the axis."""
    run = replace(a_run(0.343, status="failed"), error=an_error())
    whole = lay_out(run, [a_step("charge", 0, 0.343, "failed", error=an_error())]).bands[0]
    assert whole.note.text == "343 ms · ConnectionError"
    assert whole.note.x >= max(bar.x + bar.width for bar in whole.bars)
    named = replace(run, error=replace(an_error(), type="E" * 300))
    note = lay_out(named, []).bands[0].note
    assert note.text.endswith("…") and note.x + LETTER * len(note.text) <= WIDTH


def test_a_step_that_failed_for_good_has_only_its_tries() -> None:
    steps = [a_step("charge", 4, 5, "failed", attempts=2, error=an_error())]
    calls = [a_failure("charge", 1, 2, 1), a_failure("charge", 4, 5, 2)]
    assert states(lay_out(a_run(), steps, calls), "charge") == ["failed", "failed"]
    assert states(lay_out(a_run(), steps), "charge") == ["failed"]


def test_a_step_that_is_to_be_tried_again_waits_until_now() -> None:
    steps = [a_step("charge", 1, None, "waiting", error=an_error())]
    timeline = lay_out(a_run(ended=False, status="waiting"), steps, [a_failure("charge", 1, 2)])
    bars = band(timeline, "charge").bars
    assert [(bar.state, bar.work) for bar in bars] == [("failed", True), ("waiting", False)]
    assert timeline.now is not None and abs(bars[-1].x + bars[-1].width - timeline.now) < 0.1


def test_waits_are_no_work() -> None:
    kinds = ("sleep", "signal", "call", "result", "first", "wait_until", "step", "transaction", "remote", "start")
    steps = numbered([a_step(kind, n, n + 0.9, kind=kind) for n, kind in enumerate(kinds)])
    timeline = lay_out(a_run(), steps)
    work = {each.name for each in timeline.bands[1:] if each.bars[0].work}
    assert work == {"step", "transaction", "remote", "start"}


def test_what_a_remote_step_was_queued_for_is_a_wait() -> None:
    bars = band(lay_out(a_run(), [a_step("x", 1, 9, kind="remote", queue_wait=3.0)]), "x").bars
    assert [(bar.state, bar.work) for bar in bars] == [("queued", False), ("completed", True)]


def test_an_undo_stands_beside_what_it_undoes() -> None:
    steps = numbered([a_step("reserve", 0, 1), a_step("charge", 1, 2)])
    steps += [a_step("refund", 5, 6, "compensated", kind="undo", branch="~undo", position=2)]
    timeline = lay_out(a_run(status="compensated"), steps)
    assert [each.name for each in timeline.bands] == ["checkout", "reserve", "charge"]
    charge = band(timeline, "charge")
    assert [bar.undo for bar in charge.bars] == [False, True] and charge.undo == "refund"
    assert charge.note.text == "1 s · undone by refund"


def test_an_undo_of_what_is_not_known_has_a_lane_of_its_own() -> None:
    steps = [a_step("refund", 5, 6, "compensated", kind="undo", branch="~undo", position=7)]
    assert [each.name for each in lay_out(a_run(), steps).bands] == ["checkout", "refund"]


def test_an_approval_waits_and_what_has_not_begun_has_no_bar() -> None:
    graph = Graph([DagStep("ok", kind="approval"), DagStep("ship", ("ok",))])
    steps = [
        a_step("ok", 1, 5, kind="dag_step"),
        a_step("ship", None, None, "waiting", kind="dag_step", position=1, detail="steps"),
    ]
    timeline = lay_out(a_run(ended=False, status="waiting"), steps, (), graph)
    assert [bar.work for bar in band(timeline, "ok").bars] == [False]
    ship = band(timeline, "ship")
    assert (ship.bars, ship.state, ship.note.text) == ((), "queued", "not begun")


def test_the_tries_of_a_step_of_a_dag_are_attempts_of_its_own_run() -> None:
    calls = [a_failure("order/load", 1, 2, branch="load", position=None)]
    timeline = lay_out(a_run(), [a_step("load", 1, 6, kind="dag_step", attempts=2)], calls)
    assert states(timeline, "load") == ["failed", "completed"]


def test_the_queue_and_failed_attempts_of_the_run() -> None:
    run = a_run(started_at=at(2), attempt=2)
    timeline = lay_out(run, [], [a_failure("checkout", 3, 4, position=None)])
    assert states(timeline, "checkout") == ["queued", "failed"]
    assert timeline.bands[0].note.text == "8 s · 2 attempts"


def test_a_run_that_nobody_has_taken() -> None:
    timeline = lay_out(a_run(ended=False, status="queued", started_at=None), [])
    assert timeline.bands[0].note.text == "10 s · not begun"
    assert timeline.now is not None


def test_days_without_work_are_a_gap_that_says_how_long() -> None:
    steps = numbered([a_step("a", 0, 3), a_step("sleep", 3, 3 + DAY, kind="sleep"), a_step("b", 3 + DAY, 6 + DAY)])
    timeline = lay_out(a_run(6 + DAY), steps)
    assert [gap.label for gap in timeline.gaps] == ["1 d"]
    assert [mark.label for mark in timeline.beginnings] == ["2 Mar 09:30:00", "3 Mar 09:30:03"]
    assert band(timeline, "a").bars[0].width > 200


# -- many


def test_the_items_of_a_map_are_one_lane_for_each_call_and_outcome() -> None:
    steps = [a_step(name, n, n + 1, branch=f"0.{n}", position=p) for n in range(50) for p, name in enumerate("ab")]
    steps[1] = replace(steps[1], status="failed")
    timeline = lay_out(a_run(60), steps)
    assert [(each.name, each.count, each.state) for each in timeline.bands[1:]] == [
        ("a", 50, "completed"), ("b", 1, "failed"), ("b", 49, "completed"),
    ]  # fmt: skip
    assert band(timeline, "a").told == ("50 times 'a': completed", "median 1 s · longest 1 s")


def test_few_items_stay_as_they_are() -> None:
    steps = [a_step(name, n, n + 1, branch=f"0.{n}", position=p) for n in range(3) for p, name in enumerate("ab")]
    assert [each.name for each in lay_out(a_run(), steps).bands[1:]] == ["a", "b", "a", "b", "a", "b"]


def test_a_loop_that_makes_the_same_call_again_and_again() -> None:
    steps = numbered([a_step("a", 0, 1)] + [a_step("poll", n, n + 0.5) for n in range(1, 9)] + [a_step("b", 9, 10)])
    assert [(each.name, each.count) for each in lay_out(a_run(), steps).bands[1:]] == [("a", 1), ("poll", 8), ("b", 1)]


def test_of_a_long_run_the_first_bands_are_drawn() -> None:
    steps = numbered([a_step(f"step {n % 2}", n, n + 1) for n in range(5200)])
    timeline = lay_out(a_run(5200), steps)
    assert (timeline.left_out, len(timeline.bands)) == (4700, MOST_BANDS + 1)
    assert band(timeline, "step 1").bars[0].width > 1  # the axis is that of the bands which are drawn


# -- whatever comes

seconds = st.floats(0, 3e6)
kinds = st.sampled_from(["step", "sleep", "signal", "call", "remote", "dag_step", "undo"])
outcomes = st.sampled_from(["completed", "failed", "waiting", "running", "cancelled", "skipped", "strange"])
branches = st.sampled_from(["", "", "1.0", "1.1", "1.2", "1.0/3", "~undo", "odd"])


@st.composite
def any_step(draw: st.DrawFn) -> StepInfo:
    start, length = draw(st.none() | seconds), draw(st.none() | seconds)
    return a_step(
        draw(st.text(max_size=60)), start, None if start is None or length is None else start + length, draw(outcomes),
        branch=draw(branches), position=draw(st.integers(0, 8)), kind=draw(kinds), attempts=draw(st.integers(0, 5)),
        number=draw(st.none() | st.integers(1, 9)), queue_wait=draw(st.none() | seconds),
        error=draw(st.none() | st.just(an_error())),
    )  # fmt: skip


@st.composite
def any_failure(draw: st.DrawFn) -> Activity:
    start = draw(seconds)
    position = draw(st.none() | st.integers(0, 8))
    return a_failure("x", start, start + draw(seconds), branch=draw(branches), position=position)


UNDONE_FIRST = (
    a_step("undo", 0, 1, kind="undo", position=6),
    a_step("charge", 1, None, number=6, attempts=0),
)
"""An undo that stands before the step that it undoes: what comes is not always in order."""


@settings(max_examples=40, deadline=None)
@given(st.lists(any_step(), max_size=25), st.lists(any_failure(), max_size=25), seconds, st.booleans())
@example([a_step("", None, None), *UNDONE_FIRST], [], 0.0, True)
def test_nothing_overlaps_or_leaves_the_view(
    steps: list[StepInfo], calls: list[Activity], until: float, ended: bool
) -> None:
    timeline = lay_out(a_run(until, ended=ended), steps, calls)
    for one, other in pairwise(timeline.bands):
        assert one.y < other.y
    for found in timeline.bands:
        for bar in found.bars:
            assert bar.width > 0
            assert bar.x >= LABELS - 1e-6 and bar.x + bar.width <= WIDTH
        for one_bar, next_bar in pairwise(found.bars):
            assert one_bar.x + one_bar.width <= next_bar.x + 1e-6
        if found.note.text:
            wide = LETTER * len(found.note.text)
            since = found.note.x - wide if found.note.ends else found.note.x
            assert since >= 0 and since + wide <= WIDTH
            for bar in found.bars:
                assert since >= bar.x + bar.width - 1e-6 or since + wide <= bar.x + 1e-6, "words on a bar"
        assert found.y < timeline.height
    for gap in timeline.gaps:
        assert gap.x >= LABELS and gap.x + gap.width <= WIDTH
    for mark in (*timeline.marks, *timeline.beginnings):
        assert LABELS <= mark.x <= WIDTH


# -- the axis


moments = st.floats(0, 1e7, allow_nan=False)
spans_of_work = st.lists(st.tuples(moments, moments).map(lambda pair: (min(pair), max(pair))), max_size=30)


def test_a_long_gap_is_narrow_and_what_was_done_is_not() -> None:
    scale = make_scale(0, 86410, [(0, 5), (86405, 86410)], 0, 700)
    assert [part.collapsed for part in scale.parts] == [False, True, False]
    assert scale.parts[1][:2] == (5, 86405)
    assert scale.parts[1].width == GAP
    assert scale.x(5) > 300
    assert scale.x(86405) == scale.x(5) + GAP


def test_gaps_that_are_not_worth_it_stay() -> None:
    assert len(make_scale(0, 10, [(0, 4), (5, 10)], 0, 700).parts) == 1
    assert len(make_scale(0, 100, [(0, 45), (50, 100)], 0, 700).parts) == 1


def test_nothing_took_any_time() -> None:
    scale = make_scale(0, 0, [(0, 0)], 10, 700)
    assert scale.x(0) == 10
    scale = make_scale(0, 100, [(0, 0), (50, 50), (100, 100)], 0, 700)
    assert [round(part.width) for part in scale.parts] == [28, 308, 28, 308, 28]


@given(spans_of_work, st.tuples(moments, moments), st.lists(moments, max_size=20))
def test_moments_keep_their_order(
    work: list[tuple[float, float]], bounds: tuple[float, float], asked: list[float]
) -> None:
    start, end = min(bounds), max(bounds)
    inside = [(max(since, start), min(until, end)) for since, until in work if since <= end and until >= start]
    scale = make_scale(start, end, inside, 20, 700)
    places = [scale.x(moment) for moment in sorted([start, *asked, end])]
    assert all(one <= other + 1e-6 for one, other in pairwise(places))
    assert min(places) >= 20 and max(places) <= 720 + 1e-6
    for one, other in pairwise(scale.parts):
        assert one.end == other.start and abs(one.x + one.width - other.x) < 1e-6
    assert all(part.width > 0 for part in scale.parts)
    assert all(until - since >= 2 for since, until, *_, collapsed in scale.parts if collapsed)


@given(st.floats(0.0005, 1e9), st.floats(60, 900))
def test_ticks_are_round_and_apart(length: float, width: float) -> None:
    part = make_scale(0, length, [(0, length)], 0, width).parts[0]
    marks = marks_of(part)
    assert all(other.x - one.x >= 71.9 for one, other in pairwise(marks))
    assert all(0 <= mark.x <= width + 1e-6 for mark in marks)
    assert len(marks) <= width / 72 + 1


# -- as SVG


SVG = "{http://www.w3.org/2000/svg}"


def parsed(svg: str) -> ElementTree.Element:
    return ElementTree.fromstring(svg)


def texts(svg: str) -> list[str]:
    return ["".join(text.itertext()) for text in parsed(svg).iter(f"{SVG}text")]


def drawn(**fields: object) -> Markup:
    steps = numbered([a_step("charge", 1, 3), a_step("mail", 3, 5, kind="call", child="c/1")])
    return timeline_svg(lay_out(a_run(), steps), lambda child: f"/runs/{child}?a=1&b=2")


def test_it_says_what_it_is() -> None:
    root = parsed(drawn())
    assert root.tag == f"{SVG}svg" and root.get("role") == "img"
    assert root.get("aria-label") == root.findtext(f"{SVG}title")
    assert (root.get("aria-label") or "").endswith("of checkout: completed, 2 steps")
    assert root.get("viewBox") == "0 0 1000 138"


def test_names_times_and_links() -> None:
    assert {"checkout", "charge", "mail call", "2 s", "10 s"} <= set(texts(drawn()))
    (link,) = parsed(drawn()).iter(f"{SVG}a")
    assert link.get("href") == "/runs/c/1?a=1&b=2"


def test_without_addresses_there_are_no_links() -> None:
    steps = [a_step("mail", 3, 5, kind="call", child="c1")]
    assert "<a " not in timeline_svg(lay_out(a_run(), steps))


def test_colours_come_from_classes_only() -> None:
    run = a_run(ended=False, status="running")
    steps = numbered([a_step("a", 0, 2, "failed", error=an_error()), a_step("b", 2, None, "waiting", kind="signal")])
    svg = timeline_svg(lay_out(run, steps, [a_failure("a", 0, 1)]))
    assert "style" not in svg and "rgb" not in svg
    assert 'class="sf-bar sf-failed"' in svg and 'class="sf-now"' in svg and "url(#sf-wait-waiting)" in svg


def test_a_long_name_is_cut_and_told_in_full() -> None:
    name = "a name that is far too long for the column that names stand in"
    svg = timeline_svg(lay_out(a_run(), [a_step(name, 0, 1)]))
    assert any(text.endswith("…") and name.startswith(text[:-1]) for text in texts(svg))
    assert any(name in (title.text or "") for title in parsed(svg).iter(f"{SVG}title"))


@pytest.mark.parametrize("text", HOSTILE)
def test_hostile_names_change_nothing_but_text(text: str) -> None:
    def tags(word: str) -> list[str]:
        steps = [
            a_step(word, 0, 1, "failed", error=an_error(word, word), kind=word, child=word, detail=word, lost_to=word),
            a_step(word, 1, 2, kind="undo", branch=word),
        ]
        run = a_run(workflow=word, error=an_error(word, word), id=word)
        root = parsed(timeline_svg(lay_out(run, steps, [a_failure(word, 0, 1, error=an_error(word, word))])))
        assert all(not name.startswith("on") for each in root.iter() for name in each.attrib)
        return [each.tag for each in root.iter()]

    assert tags(text) == tags("harmless")


def test_a_file_brings_its_colours_along() -> None:
    text = standalone(drawn())
    style = parsed(text).findtext(f"{SVG}style")
    assert style == stylesheet()
    assert "<" not in stylesheet() and "&" not in stylesheet() and "url(" not in stylesheet()


def test_five_thousand_steps_stay_small() -> None:
    steps = [a_step("fetch", n / 10, n / 10 + 1, branch=f"0.{n}") for n in range(5000)]
    assert len(timeline_svg(lay_out(a_run(600), steps))) < 10_000
    loop = numbered([a_step(f"step {n % 2}", n, n + 1) for n in range(5000)])
    assert len(timeline_svg(lay_out(a_run(5000), loop))) < 600_000
