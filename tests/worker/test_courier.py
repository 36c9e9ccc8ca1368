"""The courier: how often it looks for results of remote steps."""

from __future__ import annotations

import pytest

from stepfast.worker.remote_dispatcher import backoff_pause


@pytest.mark.parametrize(
    ("looked", "moved", "seconds"),
    [
        (0.001, True, 0.05),  # the pace itself
        (0.4, False, 1.6),  # ten thousand steps wait, and nothing comes: a fifth of the time is spent looking
        (0.4, True, 0.4),  # something comes: half of it
        (45.0, False, 5.0),  # the database was away: no reason to be away, too
        (45.0, True, 5.0),
    ],
)
def test_it_rests_by_what_looking_costs_but_never_for_longer_than_a_sweep(
    looked: float, moved: bool, seconds: float
) -> None:
    assert backoff_pause(0.05, looked, moved, 5.0) == pytest.approx(seconds)


def test_a_pace_slower_than_a_sweep_is_kept() -> None:
    assert backoff_pause(9.0, 0.001, False, 5.0) == 9.0
