"""Percentiles are values that occurred."""

from __future__ import annotations

import pytest

from stepfast.stats import _rank


@pytest.mark.parametrize(
    ("values", "percent", "expected"),
    [
        ([7], 50, 7),
        ([7], 95, 7),
        ([1, 2], 50, 1),
        ([1, 2, 3], 50, 2),
        (list(range(1, 101)), 95, 95),
        (list(range(1, 101)), 50, 50),
        (list(range(1, 21)), 95, 19),
        ([1, 1, 1, 100], 95, 100),
        ([1, 2, 3], 100, 3),
    ],
)
def test_the_smallest_value_that_so_many_do_not_exceed(values: list[float], percent: int, expected: float) -> None:
    assert _rank(values, percent) == expected
