"""Each rule that is taken out is noticed within 200 seeds; and a failing seed is made smaller, to one command."""

from __future__ import annotations

import re

import pytest

from tests.simulation import mutations
from tests.simulation.__main__ import first_seed
from tests.simulation.seeds import play, report

QUICK = ("take", "skips")
"""Found by one of the first seeds."""


@pytest.mark.parametrize(
    "name", [pytest.param(n, marks=() if n in QUICK else pytest.mark.thorough) for n in mutations.ALL]
)
def test_a_rule_that_is_taken_out_is_noticed(name: str) -> None:
    assert first_seed(name, 1, 200) is not None, f"without {name} ({mutations.what(name)}) no seed says a word"


def test_a_failing_seed_is_made_smaller_and_told_with_the_command_that_plays_it_again() -> None:
    with mutations.take():
        found = first_seed("take", 1, 200)
        assert found is not None
        seed, whole = found[0], play(found[0])
        told = report(seed, whole.violations, most=20)
        match = re.search(rf"tests.simulation {seed} --without '([^']*)'", told)
        assert match is not None, told
        again = play(seed, match[1].split(","))
        assert {violation.kind for violation in again.violations} & {violation.kind for violation in whole.violations}
        assert len(str(again.made)) < len(str(whole.made))
    assert play(seed, match[1].split(",")).violations == []
