"""Ticks: when they are, on days when the clocks are changed too, and that everybody finds the same (rule 55)."""

from __future__ import annotations

from datetime import UTC, datetime
from itertools import islice, pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as some

from stepfast.errors import ConfigurationError
from stepfast.model.cron import (
    Cron,
    Every,
    jitter,
    milliseconds,
    next_tick,
    refuse_never,
    spelled,
    tick_key,
    timetable,
    zone,
)
from stepfast.model.stored import moment

HOUR = 3_600_000
YEAR = 365 * 24 * HOUR
EXPRESSIONS = ["* * * * *", "*/7 * * * *", "30 2 * * *", "0,30 1-3 * * *", "*/20 2 * * *", "15 * * * sun", "0 0 29 2 *"]
ZONES = ["UTC", "Europe/Berlin", "America/New_York", "Australia/Lord_Howe", "Africa/Cairo", "America/Sao_Paulo"]
TIMES = some.integers(0, 60 * YEAR)


def at(text: str) -> int:
    return milliseconds(datetime.fromisoformat(text))


def ticks(cron: str, tz: str, since: str, count: int) -> list[str]:
    return [spelled(tick) for tick in islice(Cron(cron, tz).after(at(since)), count)]


def test_a_job_in_the_hour_that_is_skipped_comes_right_after_it() -> None:
    """On 29 March 2026 there is no half past two in Berlin."""
    found = ticks("30 2 * * *", "Europe/Berlin", "2026-03-28T12:00+01:00", 2)
    assert found == ["2026-03-29T01:00:00Z", "2026-03-30T00:30:00Z"]  # 3:00 and 2:30, of summer


def test_a_job_in_the_hour_that_comes_twice_comes_once() -> None:
    """On 25 October 2026 half past two comes twice in Berlin."""
    found = ticks("30 2 * * *", "Europe/Berlin", "2026-10-24T12:00+02:00", 2)
    assert found == [
        "2026-10-25T00:30:00Z",
        "2026-10-26T01:30:00Z",
    ]  # the first of the two; then that of winter


def test_a_job_in_the_doubled_hour_is_not_found_again_from_its_second_pass() -> None:
    within = "2026-10-25T02:10+01:00"  # the second time ten past two
    assert ticks("30 2 * * *", "Europe/Berlin", within, 1) == ["2026-10-26T01:30:00Z"]


def test_a_job_with_a_star_for_the_hour_goes_by_the_time_that_passes() -> None:
    doubled = ticks("0 * * * *", "Europe/Berlin", "2026-10-25T00:30Z", 3)
    skipped = ticks("0 * * * *", "Europe/Berlin", "2026-03-29T00:30Z", 3)
    assert doubled == ["2026-10-25T01:00:00Z", "2026-10-25T02:00:00Z", "2026-10-25T03:00:00Z"]
    assert skipped == ["2026-03-29T01:00:00Z", "2026-03-29T02:00:00Z", "2026-03-29T03:00:00Z"]


@given(some.sampled_from(EXPRESSIONS), some.sampled_from(ZONES), TIMES, some.integers(0, 400 * 24 * HOUR))
@settings(max_examples=60, deadline=None)
def test_the_same_ticks_are_found_from_whichever_time_one_looks(cron: str, tz: str, start: int, later: int) -> None:
    times = Cron(cron, tz)
    first = list(islice(times.after(start), 5))
    assert first == sorted(set(first)) and all(tick > start for tick in first)
    for before, after in pairwise(first):
        assert next_tick(times, before) == after
        assert next_tick(times, before + (after - before) // 2) == after
    middle = start + later
    found = next_tick(times, middle)
    assert found is None or found == next(tick for tick in times.after(found - 1))


@given(some.sampled_from(EXPRESSIONS), some.sampled_from(ZONES), TIMES, some.integers(0, 3), some.integers(1, 6))
@settings(max_examples=40, deadline=None)
def test_the_newest_ticks_are_the_last_of_all(cron: str, tz: str, start: int, days: int, count: int) -> None:
    times, until = Cron(cron, tz), start + days * 24 * HOUR
    every_one = []
    for tick in times.after(start):
        if tick > until:
            break
        every_one.append(tick)
    assert times.newest(start, until, count) == every_one[-count:]


@given(some.integers(100, 10_000_000), TIMES, TIMES, some.integers(0, 50_000_000), some.integers(1, 5))
def test_every_is_a_grid_with_an_anchor(every: int, anchor: int, start: int, span: int, count: int) -> None:
    times = Every(every, anchor)
    first = next(times.after(start))
    assert start < first <= start + every and (first - anchor) % every == 0
    last = (start + span - anchor) // every
    found = times.newest(start, start + span, count)
    assert found == [anchor + n * every for n in range(last - count + 1, last + 1) if anchor + n * every > start]


def test_ticks_that_nobody_came_to_for_years_are_found_at_once() -> None:
    found = Cron("* * * * *", "Europe/Berlin").newest(at("1990-01-01T00:00Z"), at("2026-01-01T00:00Z"), 3)
    assert [spelled(tick) for tick in found] == ["2025-12-31T23:58:00Z", "2025-12-31T23:59:00Z", "2026-01-01T00:00:00Z"]


@pytest.mark.parametrize(
    ("cron", "said"),
    [
        ("0 0 30 2 *", "no cron expression that ever fires"),
        ("0 0 31 4 *", "no cron expression that ever fires"),
        ("0 25 * * *", "Bad hour"),
        ("* * * *", "has 4 fields"),
        ("0 * * * * *", "For seconds use every="),
        ("", "has 0 fields"),
        (None, "must be a string"),
    ],
)
def test_a_cron_that_cannot_fire_is_refused(cron: object, said: str) -> None:
    with pytest.raises(ConfigurationError, match=said):
        Cron(cron, "UTC")  # type: ignore[arg-type]


def test_a_schedule_without_any_tick_is_refused() -> None:
    times = Cron("0 0 29 2 *", "UTC")
    refuse_never(times, "0 0 29 2 *", 0)
    with pytest.raises(ConfigurationError, match="never fires"):
        refuse_never(times, "0 0 29 2 *", at("9999-01-01T00:00Z"))


@pytest.mark.parametrize("tz", ["Mars/Olympus", "", "Europe", "../../etc/passwd", "/etc/localtime", 3])
def test_an_unknown_zone_is_refused(tz: object) -> None:
    with pytest.raises(ConfigurationError, match=r"time zone"):
        zone(tz)


def test_a_schedule_has_either_cron_or_every() -> None:
    for cron, every in ((None, None), ("* * * * *", 1000)):
        with pytest.raises(ConfigurationError, match="either cron= or every="):
            timetable(cron, every, "UTC", 0)
    with pytest.raises(ConfigurationError, match=r"at least 0\.1 seconds"):
        timetable(None, 0, "UTC", 0)


def test_the_key_of_a_tick_names_schedule_and_time() -> None:
    assert tick_key("nightly", at("2026-11-16T03:00Z")) == "nightly@2026-11-16T03:00:00Z"
    assert tick_key("feed", at("2026-11-16T03:00:00.125Z")) == "feed@2026-11-16T03:00:00.125Z"
    assert moment(0) == datetime(1970, 1, 1, tzinfo=UTC)


@given(some.text(min_size=1), TIMES, some.integers(0, 100_000))
def test_jitter_is_bounded_and_the_same_for_everybody(name: str, tick: int, most: int) -> None:
    assert 0 <= jitter(name, tick, most) <= most
    assert jitter(name, tick, most) == jitter(name, tick, most)


def test_jitter_spreads() -> None:
    found = {jitter("nightly", n * HOUR, 30_000) for n in range(100)}
    assert len(found) > 90 and min(found) < 5_000 and max(found) > 25_000
