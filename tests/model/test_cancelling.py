"""What a cancel does after a loss: go on to a record, or name what may have acted."""

from __future__ import annotations

import json

import pytest

from stepfast.model.transitions.operator import goes_on_first, may_have_acted


@pytest.mark.parametrize(
    ("losses", "unrecorded", "status", "waiting_for", "first"),
    [
        (0, 0, "queued", None, False),
        (1, 1, "queued", None, True),
        (1, 1, "paused", None, True),
        (1, 1, "waiting", "signal, time", False),
        (1, 1, "waiting", "retry", True),
        (1, 1, "waiting", "signal, retry", True),
        (1, 1, "waiting", "check", True),
        (1, 1, "waiting", "signal, child, time, graph, more", True),
        (2, 2, "queued", None, False),
        (0, 3, "queued", None, True),
        (1, 3, "queued", None, True),
    ],
)
def test_after_a_loss_a_record_comes_first(
    losses: int, unrecorded: int, status: str, waiting_for: str | None, first: bool
) -> None:
    """One that waits for others has come to the end of what it had begun, unless a step waits for its next try."""
    assert goes_on_first(losses, unrecorded, status, waiting_for) == first


@pytest.mark.parametrize(
    ("running", "last", "named"),
    [
        ("charge", "reserve", "step 'charge'"),
        (None, "reserve", "the step after 'reserve'"),
        (None, None, "its first step"),
    ],
)
def test_a_suspect_says_which_step_may_have_acted(running: str | None, last: str | None, named: str) -> None:
    text = may_have_acted(2, 3, "queued", running, last)
    assert text is not None
    assert json.loads(text)["message"].startswith(f"{named} may have acted: 3 workers died")


def test_nobody_else_says_so() -> None:
    assert may_have_acted(1, 3, "queued", "charge", None) is None
    assert may_have_acted(3, 3, "waiting", "charge", None, "time") is None
    assert may_have_acted(3, 3, "waiting", "charge", None, "retry") is not None
