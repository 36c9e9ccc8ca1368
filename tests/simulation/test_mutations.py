"""Each rule that is taken out is noticed within 200 seeds; and a failing seed is made smaller, to one command."""

from __future__ import annotations

import re
import threading

import pytest

from tests.simulation import mutations, scenario
from tests.simulation.__main__ import first_seed
from tests.simulation.seeds import kinds_of, play, report
from tests.simulation.shrinking import shrink, without

QUICK = ("take", "skips")
"""Found by one of the first seeds."""


@pytest.mark.parametrize(
    "name", [pytest.param(n, marks=() if n in QUICK else pytest.mark.thorough) for n in mutations.ALL]
)
def test_a_rule_that_is_taken_out_is_noticed(name: str) -> None:
    assert first_seed(name, 1, 200) is not None, f"without {name} ({mutations.what(name)}) no seed says a word"


@pytest.mark.thorough
def test_a_failing_seed_is_made_smaller_and_told_with_the_command_that_plays_it_again() -> None:
    threads = threading.active_count()
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
    assert threading.active_count() <= threads, "a world left threads behind"


def test_of_what_was_left_out_nothing_is_left_out_once_more() -> None:
    gone = shrink(scenario.make(49), lambda _: True)
    assert "dag=null" in gone and not any(part.startswith("dag.") for part in gone)


def test_a_world_that_cannot_be_played_leaves_no_thread_behind() -> None:
    threads = threading.active_count()
    assert kinds_of(49, without(scenario.make(49), ["dag=null"])) == set()
    assert threading.active_count() <= threads
