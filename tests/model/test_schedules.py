"""Which ticks a worker starts when it comes to a schedule (rule 37)."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as some
from msgspec import structs

from stepfast.errors import ConfigurationError
from stepfast.model import schedules
from stepfast.model.schedules import BY_ROUND, ScheduleRow, ScheduleSpec, check_policies, decide, made, schedule_of

EVERY = 1000
NOW = 1_000_000
GRACE = 60_000


def row(**changes: object) -> ScheduleRow:
    spec = ScheduleSpec("feed", "poll", None, EVERY, "UTC", "null", 1, "{}", "latest", "allow", 0)
    return structs.replace(made(spec, NOW, declared=True), **changes)


def decided(found: ScheduleRow, now: int, most: int = 1000, grace: int = GRACE) -> tuple[list[int], int | None]:
    done = decide(found, found.timetable(), now, most, grace)
    return done.ticks, done.next_at


def test_the_first_tick_of_a_new_schedule_is_one_span_away() -> None:
    assert row().next_at == row().due_at == NOW + EVERY
    assert decided(row(), NOW + EVERY - 1) == ([], NOW + EVERY)


@pytest.mark.parametrize("missed", ["skip", "latest", "all"])
def test_a_tick_that_has_just_come_is_started_whatever_is_said_of_missed_ones(missed: str) -> None:
    assert decided(row(missed=missed), NOW + EVERY) == ([NOW + EVERY], NOW + 2 * EVERY)


def test_of_missed_ticks_the_latest_is_started() -> None:
    assert decided(row(), NOW + 10 * EVERY + 5) == ([NOW + 10 * EVERY], NOW + 11 * EVERY)


def test_missed_ticks_are_skipped_but_not_the_one_that_is_on_time() -> None:
    found = row(missed="skip")
    assert decided(found, NOW + 10 * EVERY + 5) == ([NOW + 10 * EVERY], NOW + 11 * EVERY)
    assert decided(found, NOW + 10 * EVERY + 5, grace=4) == ([], NOW + 11 * EVERY)


def test_what_passed_while_nobody_declared_it_is_missed_however_short_ago_it_was() -> None:
    found = schedules.woken(row(missed="skip"), NOW + 10 * EVERY + 5)
    assert decided(found, NOW + 10 * EVERY + 6) == ([], NOW + 11 * EVERY)
    assert decided(found, NOW + 11 * EVERY) == ([NOW + 11 * EVERY], NOW + 12 * EVERY)


def test_all_missed_ticks_are_started_up_to_a_bound_and_in_groups() -> None:
    found, now, started = row(missed="all"), NOW + 5000 * EVERY, list[int]()
    first = decide(found, found.timetable(), now, 350, GRACE)
    assert first.dropped and len(first.ticks) == BY_ROUND
    while found.next_at is not None and found.next_at <= now:
        done = decide(found, found.timetable(), now, 350, GRACE)
        started += done.ticks
        found = schedules.fired(found, done, None)
    assert started == [NOW + n * EVERY for n in range(4651, 5001)]
    assert found.due_at == NOW + 5001 * EVERY


def test_large_inputs_are_started_in_smaller_groups() -> None:
    found = row(missed="all", input="x" * schedules.BYTES_BY_ROUND)
    assert decided(found, NOW + 5 * EVERY) == ([NOW + EVERY], NOW + 2 * EVERY)


@given(some.sampled_from(["skip", "latest", "all"]), some.integers(0, 500_000), some.integers(0, 20))
def test_no_tick_is_decided_twice_and_none_is_left_behind(missed: str, later: int, most: int) -> None:
    found = row(missed=missed)
    done = decide(found, found.timetable(), NOW + later, most, GRACE)
    assert done.ticks == sorted(set(done.ticks))
    assert all(NOW < tick <= NOW + later for tick in done.ticks)
    assert done.next_at is not None and all(tick < done.next_at for tick in done.ticks)
    assert done.next_at > NOW + later or missed == "all"


def test_a_pause_skips_the_ticks_that_pass() -> None:
    held = schedules.paused(row(missed="all"))
    assert held.due_at is None
    again = schedules.resumed(held, NOW + 10 * EVERY + 5)
    assert (again.next_at, again.due_at, again.paused) == (NOW + 11 * EVERY, NOW + 11 * EVERY, False)


def test_a_resume_of_one_that_is_not_paused_changes_nothing() -> None:
    assert schedules.resumed(row(), NOW + 10 * EVERY).same(row())


def test_other_times_begin_with_the_next_tick_and_the_grid_keeps_its_anchor() -> None:
    faster = structs.replace(row().spec, every_ms=300)
    changed = schedules.changed(row(), faster, NOW + 1000, declared=True)
    assert changed.next_at == changed.due_at == NOW + 1200
    again = schedules.changed(row(), structs.replace(row().spec, input='"other"'), NOW + 9000, declared=True)
    assert (again.next_at, again.input) == (NOW + EVERY, '"other"')


def test_one_that_cannot_be_started_keeps_its_ticks() -> None:
    failed = schedules.failed(row(), "no such workflow", NOW + EVERY)
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
