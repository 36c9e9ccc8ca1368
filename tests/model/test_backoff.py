"""When to try again."""

from __future__ import annotations

import random
from datetime import timedelta
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stepfast import (
    Backoff,
    ConfigurationError,
    ContextMisuse,
    InvalidInput,
    NonRetryableError,
    PayloadError,
    RetryLater,
    StepFailed,
)
from stepfast.model.backoff import is_retryable, retry_delay, seconds

spans = st.floats(min_value=0, max_value=1e6, allow_nan=False)
backoffs = st.builds(
    Backoff, base=spans, factor=st.floats(min_value=1, max_value=100, allow_nan=False), max=spans,
    jitter=st.one_of(st.booleans(), st.floats(min_value=0, max_value=1, allow_nan=False)),
)  # fmt: skip


def test_it_doubles_up_to_a_cap() -> None:
    backoff = Backoff(jitter=False)
    assert [backoff.delay(n) for n in range(1, 12)] == [1, 2, 4, 8, 16, 32, 64, 128, 256, 300, 300]


def test_a_factor_of_one_is_a_fixed_wait() -> None:
    assert {Backoff(base=3, factor=1, jitter=False).delay(n) for n in range(1, 50)} == {3}


@given(backoffs, st.integers(min_value=1, max_value=10**9), st.randoms(use_true_random=False))
def test_no_wait_is_negative_or_above_the_cap(backoff: Backoff, failures: int, source: random.Random) -> None:
    """However many failures."""
    assert 0 <= backoff.delay(failures, source) <= backoff.max


@given(backoffs, st.integers(min_value=1, max_value=5000), st.randoms(use_true_random=False))
def test_jitter_stays_within_its_share(backoff: Backoff, failures: int, source: random.Random) -> None:
    plain = Backoff(backoff.base, backoff.factor, backoff.max, jitter=False).delay(failures)
    share = 0.2 if backoff.jitter is True else float(backoff.jitter)
    slack = 1e-9 * (1 + plain)
    assert plain * (1 - share) - slack <= backoff.delay(failures, source) <= plain * (1 + share) + slack


@given(backoffs, st.integers(min_value=1, max_value=2000))
def test_each_wait_is_at_least_as_long_as_the_last(backoff: Backoff, failures: int) -> None:
    """Without jitter."""
    plain = Backoff(backoff.base, backoff.factor, backoff.max, jitter=False)
    assert plain.delay(failures) <= plain.delay(failures + 1)


def test_jitter_spreads_also_at_the_cap() -> None:
    """A thousand runs that failed together do not come back together, nor half of them at the cap."""
    source = random.Random(1)
    waits = [Backoff(base=100, max=100).delay(1, source) for _ in range(1000)]
    assert min(waits) < 82 and max(waits) <= 100
    assert len(set(waits)) > 990


@pytest.mark.parametrize(
    "options",
    [
        {"base": -1}, {"base": "1"}, {"base": float("nan")}, {"base": None}, {"factor": 0.5}, {"factor": float("inf")},
        {"max": -1}, {"max": float("inf")}, {"max": 1e300}, {"jitter": -0.1}, {"jitter": 1.1}, {"jitter": "yes"},
    ],
    ids=str,
)  # fmt: skip
def test_a_backoff_that_makes_no_sense_is_refused_by_name(options: dict[str, Any]) -> None:
    with pytest.raises(ConfigurationError, match=next(iter(options))):
        Backoff(**options)


@pytest.mark.parametrize(("failures", "allowed", "more"), [(1, 1, False), (1, 2, True), (2, 3, True), (3, 3, False)])
def test_there_are_exactly_as_many_calls_as_allowed(failures: int, allowed: int, more: bool) -> None:
    assert (retry_delay(ValueError(), failures, allowed, Backoff()) is not None) is more


def failed(**facts: Any) -> StepFailed:
    return StepFailed("charge", error_type="ValueError", message="no", **facts)


@pytest.mark.parametrize(
    ("error", "retryable"),
    [
        (ValueError(), True),
        (RetryLater(5), True),
        (NonRetryableError(), False),
        (PayloadError(), False),
        (InvalidInput(), False),
        (ContextMisuse(), False),
        (failed(), True),
        (failed(retryable=False), False),
    ],
    ids=repr,
)
def test_which_errors_another_try_can_help(error: Exception, retryable: bool) -> None:
    assert is_retryable(error) is retryable
    assert (retry_delay(error, 1, 5, Backoff()) is not None) is retryable


@pytest.mark.parametrize("error", [RetryLater(42), RetryLater(timedelta(seconds=42)), failed(delay=42.0)], ids=repr)
def test_an_error_may_bring_its_own_delay(error: Exception) -> None:
    assert retry_delay(error, 1, 2, Backoff()) == 42
    assert retry_delay(error, 2, 2, Backoff()) is None


@pytest.mark.parametrize(("value", "found"), [(0, 0.0), (1.5, 1.5), (timedelta(minutes=2), 120.0)], ids=str)
def test_spans_are_seconds_or_timedeltas(value: Any, found: float) -> None:
    assert seconds(value, "delay") == found


@pytest.mark.parametrize(
    "value", [-1, -0.001, float("nan"), float("inf"), True, "5", None, 1e300, timedelta(-1), timedelta.max], ids=str
)
def test_a_span_that_makes_no_sense_is_refused_by_name(value: Any) -> None:
    with pytest.raises(ConfigurationError, match="the delay"):
        seconds(value, "the delay")
