"""Silence counts only if it was seen: by the watcher's own clock, for about a lease."""

from __future__ import annotations

from stepfast.model.records import Beat
from stepfast.worker.reaper import SilenceTracker


def test_a_worker_is_silent_when_no_beat_was_seen_for_its_lease_less_a_sweep() -> None:
    vigil = SilenceTracker(sweep=5)
    for now in range(0, 30, 5):
        vigil.saw([Beat("dead", 1000, 30_000), Beat("slow", 1000 + now * 100, 30_000)], now)
        assert vigil.silent(now) == (["dead"] if now >= 25 else [])


def test_what_the_rows_say_of_the_past_does_not_count() -> None:
    """However old its last beat is by the database's clock: that may have stepped."""
    vigil = SilenceTracker(sweep=5)
    vigil.saw([Beat("stepped over", -3_600_000, 30_000)], 100)
    assert vigil.silent(100) == vigil.silent(120) == []
    vigil.saw([Beat("stepped over", 50, 30_000)], 120)
    assert vigil.silent(144) == []
    assert vigil.silent(145) == ["stepped over"]


def test_each_worker_has_its_own_lease_and_rare_sweeps_leave_time_for_two_beats() -> None:
    vigil = SilenceTracker(sweep=20)
    vigil.saw([Beat("short", 1, 3_000), Beat("long", 1, 60_000)], 0)
    assert vigil.silent(1.9) == []
    assert vigil.silent(2) == ["short"]
    assert vigil.silent(40) == ["short", "long"]


def test_whoever_has_left_is_forgotten() -> None:
    vigil = SilenceTracker(sweep=1)
    vigil.saw([Beat("one", 1, 3_000)], 0)
    vigil.saw([], 10)
    vigil.saw([Beat("one", 1, 3_000)], 20)
    assert vigil.silent(20) == []
