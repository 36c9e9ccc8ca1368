"""Two hundred seeds: in none of these worlds is a promise broken. ``make sim SEEDS=…`` plays any number."""

from __future__ import annotations

import pytest

from tests.simulation.seeds import play, report

SEEDS, PARTS = 200, 8


@pytest.mark.parametrize("part", range(PARTS))
def test_no_promise_is_broken(part: int) -> None:
    each = SEEDS // PARTS
    for seed in range(1 + part * each, 1 + (part + 1) * each):
        violations = play(seed).violations
        if violations:
            pytest.fail(report(seed, violations), pytrace=False)
