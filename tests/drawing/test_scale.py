"""The axis of a timeline: moments keep their order, whatever is collapsed."""

from __future__ import annotations

from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from stepfast.diagrams.timeline import GAP, make_scale, marks_of

moments = st.floats(0, 1e7, allow_nan=False)
spans = st.lists(st.tuples(moments, moments).map(lambda pair: (min(pair), max(pair))), max_size=30)


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


def test_none_is_collapsed_if_none_is_to_be() -> None:
    assert len(make_scale(0, 86410, [(0, 5)], 0, 700, collapse=False).parts) == 1


def test_nothing_took_any_time() -> None:
    scale = make_scale(0, 0, [(0, 0)], 10, 700)
    assert scale.x(0) == 10
    scale = make_scale(0, 100, [(0, 0), (50, 50), (100, 100)], 0, 700)
    assert [round(part.width) for part in scale.parts] == [28, 308, 28, 308, 28]


@given(spans, st.tuples(moments, moments), st.booleans(), st.lists(moments, max_size=20))
def test_moments_keep_their_order(
    work: list[tuple[float, float]], bounds: tuple[float, float], collapse: bool, asked: list[float]
) -> None:
    start, end = min(bounds), max(bounds)
    inside = [(max(since, start), min(until, end)) for since, until in work if since <= end and until >= start]
    scale = make_scale(start, end, inside, 20, 700, collapse=collapse)
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
