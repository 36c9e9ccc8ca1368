"""Two hundred seeds, half of them in ``make test``: in none of these worlds is a promise broken. ``make sim SEEDS=…``
plays any number."""

from __future__ import annotations

import gc
import warnings

import pytest

from tests.simulation.seeds import play, report

SEEDS, PARTS = 200, 8
MORE = range(PARTS // 2, PARTS)


@pytest.mark.parametrize("part", [pytest.param(n, marks=[pytest.mark.thorough] * (n in MORE)) for n in range(PARTS)])
def test_no_promise_is_broken(part: int) -> None:
    each = SEEDS // PARTS
    gc.collect()
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        for seed in range(1 + part * each, 1 + (part + 1) * each):
            violations = play(seed).violations
            if violations:
                pytest.fail(report(seed, violations), pytrace=False)
        gc.collect()
    assert not said, "coroutines that were never awaited, most likely"
