"""How fast old runs are removed: little while others work, more where what is due grows."""

from __future__ import annotations

import pytest

from stepfast.model.retention import Ended, Keep
from stepfast.worker.pruner import (
    CALM,
    IDLE,
    LONGEST,
    MOST,
    PERIOD,
    Progress,
    RemovalPace,
    due_of,
    next_share,
    rest_after,
)

START = Progress(5_000_000.0, 1000.0)


def later(seconds: float, passed: float) -> Progress:
    """So many seconds later, when the moments of so many seconds have passed by."""
    return Progress(START.at + seconds, START.due + passed)


def ended(completed_at: int, status: str = "completed") -> Ended:
    return Ended(str(completed_at), status, None, completed_at, 1, None, None, None, None, None, False)


@pytest.mark.parametrize("share", [CALM, IDLE, MOST, 0.5])
def test_work_and_rest_make_the_share(share: float) -> None:
    took = 0.003
    assert took / (took + rest_after(took, share)) == pytest.approx(share)


def test_no_rest_is_longer_than_a_minute() -> None:
    assert rest_after(100.0, CALM) == LONGEST


def test_the_share_becomes_what_would_have_kept_up_and_some_more() -> None:
    assert next_share(0.1, START, later(PERIOD, PERIOD)) == pytest.approx(0.125)
    assert next_share(0.1, START, later(PERIOD, PERIOD * 1.25)) == pytest.approx(0.1)
    assert next_share(CALM, START, later(PERIOD, PERIOD * 0.1)) == 2 * CALM, "at most twice"
    assert next_share(CALM, START, later(PERIOD, -PERIOD)) == 2 * CALM
    assert next_share(MOST, START, later(PERIOD, 0)) == MOST
    assert next_share(0.2, START, later(PERIOD, PERIOD * 100)) == 0.1, "at least half"
    assert next_share(CALM, START, later(PERIOD, PERIOD * 100)) == CALM


def test_a_large_backlog_that_shrinks_is_no_reason_to_hurry() -> None:
    """Who sets a shorter retention has a year of runs to go, and nobody is in a hurry."""
    pace = RemovalPace()
    for minute in range(10):
        pace.came_to(later(60 * minute, 3600 * minute))
    assert pace.share == CALM


def test_many_that_ended_at_once_are_no_reason_to_hurry_before_they_are_later_than_they_may_be() -> None:
    first = Progress(1000.0, 1000.0)
    pace = RemovalPace(may_be_late=600)
    for minute in range(10):
        pace.came_to(Progress(first.at + 60 * minute, first.due + minute))
        assert pace.share == CALM
    for minute in range(10, 13):
        pace.came_to(Progress(first.at + 60 * minute, first.due + minute))
    assert pace.share > CALM


def test_it_takes_more_of_the_time_until_it_keeps_up() -> None:
    """Four times as much comes as can be removed in the calm share of the time."""
    pace, seconds, passed, behind = RemovalPace(), 0.0, 0.0, list[float]()
    for _ in range(20):
        pace.came_to(later(seconds, passed))
        seconds, passed = seconds + PERIOD, passed + PERIOD * pace.share / (4 * CALM)
        behind.append(seconds - passed)
    assert behind[3:] == sorted(behind[3:], reverse=True), "from then on it catches up"
    assert behind[-1] < 0 < behind[0]


def test_it_judges_once_in_a_while_and_forgets_when_nothing_is_due_any_more() -> None:
    pace = RemovalPace()
    pace.came_to(START)
    pace.came_to(later(PERIOD / 2, 0))
    assert pace.share == CALM
    pace.came_to(later(PERIOD, 0))
    assert pace.share == 2 * CALM
    pace.caught_up()
    assert pace.share == CALM
    pace.came_to(later(10 * PERIOD, 0))
    assert pace.share == CALM


def test_it_takes_more_of_the_time_while_nobody_executes_anything() -> None:
    pace = RemovalPace()
    pace.busy = False
    assert pace.share == IDLE
    pace.busy = True
    assert pace.share == CALM


def test_runs_are_due_by_how_they_ended_and_a_few_that_were_kept_longer_do_not_count() -> None:
    keep = Keep(1000, 3000)
    assert due_of([ended(5000), ended(7000), ended(9000)], keep) == 8.0
    assert due_of([ended(5000, "failed")], keep) == 8.0
    assert due_of([ended(10), ended(9000), ended(9000)], keep) == 10.0
