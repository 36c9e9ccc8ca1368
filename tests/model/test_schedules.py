"""Ticks: when they are, also when clocks are changed, and which of them a worker starts (rules 37 and 55)."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from itertools import islice, pairwise, takewhile
from zoneinfo import ZoneInfo

import pytest
from cronsim import CronSim
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec import structs

from stepfast.errors import ConfigurationError
from stepfast.model import schedules
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
from stepfast.model.schedules import BY_ROUND, ScheduleRow, ScheduleSpec, check_policies, decide, made, schedule_of
from stepfast.model.stored import moment

EVERY = 1000
NOW = 1_000_000
GRACE = 60_000


def schedule(**changes: object) -> ScheduleRow:
    spec = ScheduleSpec("feed", "poll", None, EVERY, "UTC", "null", 1, "{}", "latest", "allow", 0)
    return structs.replace(made(spec, NOW, declared=True), **changes)


def decided(found: ScheduleRow, now: int, most: int = 1000, grace: int = GRACE) -> tuple[list[int], int | None]:
    done = decide(found, found.timetable(), now, most, grace)
    return done.ticks, done.next_at


def test_the_first_tick_of_a_new_schedule_is_one_span_away() -> None:
    assert schedule().next_at == schedule().due_at == NOW + EVERY
    assert decided(schedule(), NOW + EVERY - 1) == ([], NOW + EVERY)


@pytest.mark.parametrize("missed", ["skip", "latest", "all"])
def test_a_tick_that_has_just_come_is_started_whatever_is_said_of_missed_ones(missed: str) -> None:
    assert decided(schedule(missed=missed), NOW + EVERY) == ([NOW + EVERY], NOW + 2 * EVERY)


def test_of_missed_ticks_the_latest_is_started() -> None:
    assert decided(schedule(), NOW + 10 * EVERY + 5) == ([NOW + 10 * EVERY], NOW + 11 * EVERY)


def test_missed_ticks_are_skipped_but_not_the_one_that_is_on_time() -> None:
    found = schedule(missed="skip")
    assert decided(found, NOW + 10 * EVERY + 5) == ([NOW + 10 * EVERY], NOW + 11 * EVERY)
    assert decided(found, NOW + 10 * EVERY + 5, grace=4) == ([], NOW + 11 * EVERY)


def test_what_passed_while_nobody_declared_it_is_missed_however_short_ago_it_was() -> None:
    found = schedules.woken(schedule(missed="skip"), NOW + 10 * EVERY + 5)
    assert decided(found, NOW + 10 * EVERY + 6) == ([], NOW + 11 * EVERY)
    assert decided(found, NOW + 11 * EVERY) == ([NOW + 11 * EVERY], NOW + 12 * EVERY)


def test_all_missed_ticks_are_started_up_to_a_bound_and_in_groups() -> None:
    found, now, started = schedule(missed="all"), NOW + 5000 * EVERY, list[int]()
    first = decide(found, found.timetable(), now, 350, GRACE)
    assert first.dropped and len(first.ticks) == BY_ROUND
    while found.next_at is not None and found.next_at <= now:
        done = decide(found, found.timetable(), now, 350, GRACE)
        started += done.ticks
        found = schedules.fired(found, done, None)
    assert started == [NOW + n * EVERY for n in range(4651, 5001)]
    assert found.due_at == NOW + 5001 * EVERY


def test_large_inputs_are_started_in_smaller_groups() -> None:
    found = schedule(missed="all", input="x" * schedules.BYTES_BY_ROUND)
    assert decided(found, NOW + 5 * EVERY) == ([NOW + EVERY], NOW + 2 * EVERY)


@given(st.sampled_from(["skip", "latest", "all"]), st.integers(0, 500_000), st.integers(0, 20))
def test_no_tick_is_decided_twice_and_none_is_left_behind(missed: str, later: int, most: int) -> None:
    found = schedule(missed=missed)
    done = decide(found, found.timetable(), NOW + later, most, GRACE)
    assert done.ticks == sorted(set(done.ticks))
    assert all(NOW < tick <= NOW + later for tick in done.ticks)
    assert done.next_at is not None and all(tick < done.next_at for tick in done.ticks)
    assert done.next_at > NOW + later or missed == "all"


def test_a_pause_skips_the_ticks_that_pass() -> None:
    held = schedules.paused(schedule(missed="all"))
    assert held.due_at is None
    again = schedules.resumed(held, NOW + 10 * EVERY + 5)
    assert (again.next_at, again.due_at, again.paused) == (NOW + 11 * EVERY, NOW + 11 * EVERY, False)


def test_a_resume_of_one_that_is_not_paused_changes_nothing() -> None:
    assert schedules.resumed(schedule(), NOW + 10 * EVERY).same(schedule())


def test_other_times_begin_with_the_next_tick_and_the_grid_keeps_its_anchor() -> None:
    faster = structs.replace(schedule().spec, every_ms=300)
    changed = schedules.changed(schedule(), faster, NOW + 1000, declared=True)
    assert changed.next_at == changed.due_at == NOW + 1200
    again = schedules.changed(schedule(), structs.replace(schedule().spec, input='"other"'), NOW + 9000, declared=True)
    assert (again.next_at, again.input) == (NOW + EVERY, '"other"')


def test_one_that_cannot_be_started_keeps_its_ticks() -> None:
    failed = schedules.failed(schedule(), "no such workflow", NOW + EVERY)
    assert (failed.next_at, failed.due_at) == (NOW + EVERY, NOW + EVERY + schedules.RETRY_MS)
    done = decide(failed, failed.timetable(), NOW + EVERY + 1, 10, GRACE)
    assert schedules.fired(failed, done, None).error is None


def test_words_that_mean_nothing_are_refused() -> None:
    with pytest.raises(ConfigurationError, match=r"missed= must be one of 'skip', 'latest', 'all', not 'none'"):
        check_policies("none", "allow")
    with pytest.raises(ConfigurationError, match=r"overlap= must be one of 'allow', 'skip', not True"):
        check_policies("all", True)


def test_a_run_tells_which_schedule_started_it_and_for_which_tick() -> None:
    assert schedule_of(["a", "schedule:x@y"], "x@y@2026-11-16T03:00:00Z") == ("x@y", "2026-11-16T03:00:00Z")
    assert schedule_of(["schedule:x"], None) == ("x", None)
    assert schedule_of(["a"], "x@2026-11-16T03:00:00Z") is None


# -- ticks


HOUR = 3_600_000
YEAR = 365 * 24 * HOUR
EXPRESSIONS = [
    "*/20 * * * * *",
    "5,35 30 2 * * *",
    "* * * * *",
    "*/7 * * * *",
    "30 2 * * *",
    "0,30 1-3 * * *",
    "*/20 2 * * *",
    "15 * * * sun",
    "0 0 29 2 *",
]
ZONES = ["UTC", "Europe/Berlin", "America/New_York", "Australia/Lord_Howe", "Africa/Cairo", "America/Sao_Paulo"]
TIMES = st.integers(0, 60 * YEAR)


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


def test_six_fields_begin_with_the_second() -> None:
    assert ticks("*/20 * * * * *", "UTC", "2026-01-01T00:00:19Z", 3) == ticks(
        "*/20 * * * * *", "Europe/Berlin", "2026-01-01T00:00:19Z", 3
    )
    found = Cron("*/20 59 1 * * *", "Europe/Berlin").after(at("2026-03-28T12:00Z"))
    assert [spelled(tick) for tick in islice(found, 4)] == [
        "2026-03-29T00:59:00Z", "2026-03-29T00:59:20Z", "2026-03-29T00:59:40Z", "2026-03-29T23:59:00Z",
    ]  # fmt: skip


def test_a_job_with_a_star_for_the_hour_goes_by_the_time_that_passes() -> None:
    doubled = ticks("0 * * * *", "Europe/Berlin", "2026-10-25T00:30Z", 3)
    skipped = ticks("0 * * * *", "Europe/Berlin", "2026-03-29T00:30Z", 3)
    assert doubled == ["2026-10-25T01:00:00Z", "2026-10-25T02:00:00Z", "2026-10-25T03:00:00Z"]
    assert skipped == ["2026-03-29T01:00:00Z", "2026-03-29T02:00:00Z", "2026-03-29T03:00:00Z"]


@given(st.sampled_from(EXPRESSIONS), st.sampled_from(ZONES), TIMES, st.integers(0, 400 * 24 * HOUR))
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


@given(st.sampled_from(EXPRESSIONS), st.sampled_from(ZONES), TIMES, st.integers(0, 3), st.integers(1, 6))
@settings(max_examples=40, deadline=None)
def test_the_newest_ticks_are_the_last_of_all(cron: str, tz: str, start: int, days: int, count: int) -> None:
    times, until = Cron(cron, tz), start + days * 24 * HOUR
    every_one = []
    for tick in times.after(start):
        if tick > until:
            break
        every_one.append(tick)
    assert times.newest(start, until, count) == every_one[-count:]


@given(st.integers(100, 10_000_000), TIMES, TIMES, st.integers(0, 50_000_000), st.integers(1, 5))
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
        ("0 0 * * * * *", "has 7 fields; there are five: .* or six, with the second before them"),
        ("61 * * * * *", "no cron expression"),
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


@given(st.text(min_size=1), TIMES, st.integers(0, 100_000))
def test_jitter_is_bounded_and_the_same_for_everybody(name: str, tick: int, most: int) -> None:
    assert 0 <= jitter(name, tick, most) <= most
    assert jitter(name, tick, most) == jitter(name, tick, most)


def test_jitter_spreads() -> None:
    found = {jitter("nightly", n * HOUR, 30_000) for n in range(100)}
    assert len(found) > 90 and min(found) < 5_000 and max(found) > 25_000


# -- expressions with a star, compared with what the clocks show


MINUTE = 60_000
CHANGES = [
    ("Australia/Lord_Howe", datetime(2025, 10, 4, 15, 30, tzinfo=UTC)),  # 02:00 becomes 02:30
    ("Australia/Lord_Howe", datetime(2025, 4, 5, 15, 0, tzinfo=UTC)),  # 02:00 becomes 01:30
    ("Europe/Berlin", datetime(2025, 3, 30, 1, 0, tzinfo=UTC)),
    ("Europe/Berlin", datetime(2025, 10, 26, 1, 0, tzinfo=UTC)),
    ("America/Havana", datetime(2025, 3, 9, 5, 0, tzinfo=UTC)),  # 00:00 becomes 01:00
    ("America/Havana", datetime(2025, 11, 2, 5, 0, tzinfo=UTC)),
    ("Asia/Kolkata", datetime(2025, 3, 30, 1, 0, tzinfo=UTC)),  # half an hour beside the others, and never changed
]
STARRED = [
    "*/15 3 * * *", "45 * * * *", "*/20 1-2 * * *", "0 * * * *", "*/7 */2 * * *", "30 * * * SUN", "* 0 * * *",
]  # fmt: skip


def shown(cron: str, tz: str, begin: int, minutes: int) -> list[int]:
    """The minutes at which the clocks show a time of the expression."""
    around = CronSim(cron, moment(begin) - timedelta(days=1))
    times = {when.replace(tzinfo=None) for when in takewhile((moment(begin) + timedelta(days=3)).__ge__, around)}
    moments = [begin + n * MINUTE for n in range(1, minutes + 1)]
    return [at for at in moments if moment(at).astimezone(ZoneInfo(tz)).replace(tzinfo=None) in times]


@pytest.mark.parametrize("cron", STARRED)
def test_no_time_that_the_clocks_show_is_lost(cron: str) -> None:
    for tz, change in CHANGES:
        begin = milliseconds(change - timedelta(hours=6))
        until = begin + 12 * 60 * MINUTE
        wanted = shown(cron, tz, begin, 12 * 60)
        for start in (begin, milliseconds(change) - 1, milliseconds(change), milliseconds(change) + 10 * MINUTE + 1):
            found = list(takewhile(until.__ge__, Cron(cron, tz).after(start)))
            assert found == [at for at in wanted if at > start], (tz, start)


def test_changes_between_ticks_that_are_far_apart_are_seen() -> None:
    cron = Cron("*/30 3 5 10 *", "Australia/Lord_Howe")
    found = list(takewhile(lambda tick: tick < milliseconds(datetime(2028, 1, 1, tzinfo=UTC)), cron.after(0)))
    last = [moment(tick).astimezone(ZoneInfo("Australia/Lord_Howe")).strftime("%Y %H:%M") for tick in found[-6:]]
    assert last == ["2025 03:00", "2025 03:30", "2026 03:00", "2026 03:30", "2027 03:00", "2027 03:30"]
