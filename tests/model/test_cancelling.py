"""What a cancel does after a loss: go on to a record, or name what may have acted."""

from __future__ import annotations

import json

import pytest

from stepfast.model.cancelling import goes_on_first, may_have_acted


@pytest.mark.parametrize(
    ("losses", "status", "first"),
    [(0, "queued", False), (1, "queued", True), (1, "paused", True), (1, "waiting", False), (2, "queued", False)],
)
def test_after_one_loss_a_record_comes_first(losses: int, status: str, first: bool) -> None:
    assert goes_on_first(losses, status) == first


@pytest.mark.parametrize(
    ("running", "last", "named"),
    [
        ("charge", "reserve", "step 'charge'"),
        (None, "reserve", "the step after 'reserve'"),
        (None, None, "its first step"),
    ],
)
def test_a_suspect_says_which_step_may_have_acted(running: str | None, last: str | None, named: str) -> None:
    text = may_have_acted(2, "queued", running, last)
    assert text is not None
    assert json.loads(text)["message"].startswith(f"{named} may have acted: 2 workers died")


def test_nobody_else_says_so() -> None:
    assert may_have_acted(1, "queued", "charge", None) is None
    assert may_have_acted(3, "waiting", "charge", None) is None
