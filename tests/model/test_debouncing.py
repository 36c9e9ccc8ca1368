"""Debounced starts: until when a run is put off, and how it stands then."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as some

from stepfast.model.run_state import RunState
from stepfast.model.transitions import operator
from stepfast.model.transitions.recover import awake
from stepfast.model.transitions.start import Debounce, put_off

FIRST, NOW = 1_000_000, 1_003_000
BOTH = Debounce(5_000, 60_000)


def waiting(**changes: object) -> RunState:
    return RunState("run", "queued", visible_at=FIRST + 5_000, **changes)  # type: ignore[arg-type]


@given(some.integers(0, 10**6), some.integers(1, 10**6), some.none() | some.integers(1, 10**6))
def test_a_run_is_due_after_its_last_start_but_not_beyond_the_maximum(later: int, wait: int, most: int | None) -> None:
    due = Debounce(wait, most).due_at(FIRST, FIRST + later)
    assert due <= FIRST + later + wait
    assert most is None or due <= FIRST + most
    assert due in (FIRST + later + wait, FIRST + (most or 0))


def test_one_that_waits_is_put_off() -> None:
    run = put_off(waiting(), FIRST, NOW, BOTH, None)
    assert (run.place, run.visible_at, run.status) == (None, NOW + 5_000, "queued")


def test_one_that_is_ready_waits_again() -> None:
    ready = awake(waiting(), NOW, 1)
    assert ready.ready
    run = put_off(ready, FIRST, NOW, BOTH, None)
    assert (run.place, run.visible_at) == (None, NOW + 5_000)


def test_one_whose_time_is_up_is_ready() -> None:
    late = FIRST + 60_000
    run = put_off(waiting(), FIRST, late, BOTH, None)
    assert run.ready and run.visible_at is None
    ready = awake(waiting(), NOW, 1)
    assert put_off(ready, FIRST, late, BOTH, None).place == ready.place, "it keeps its place in the queue"


def test_a_deadline_and_an_expiry_hold() -> None:
    run = put_off(waiting(deadline_at=NOW + 100), FIRST, NOW, BOTH, 30_000)
    assert (run.visible_at, run.expires_at) == (NOW + 100, NOW + 35_000)
    ready = put_off(waiting(), FIRST, FIRST + 60_000, BOTH, 30_000)
    assert ready.ready and ready.visible_at == ready.expires_at == FIRST + 90_000


def test_one_that_is_paused_stays_so_and_is_due_later() -> None:
    held = operator.pause(waiting(), NOW)
    assert held is not None
    run = put_off(held, FIRST, NOW, BOTH, None)
    assert (run.status, run.place, run.visible_at, run.held_due) == ("paused", None, None, NOW + 5_000)


@pytest.mark.parametrize("most", [None, 60_000])
def test_the_first_start_is_due_after_its_wait(most: int | None) -> None:
    assert Debounce(5_000, most).due_at(FIRST, FIRST) == FIRST + 5_000
