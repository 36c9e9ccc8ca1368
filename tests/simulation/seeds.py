"""Playing seeds: what a seed came to, and what is said of one that broke a promise."""

from __future__ import annotations

import contextlib
import pprint
from dataclasses import dataclass
from typing import Any

from tests.judge import story
from tests.judge.cases import Violation
from tests.judge.worlds import judge
from tests.simulation import scenario
from tests.simulation.shrinking import MOST, shrink, without
from tests.simulation.world import Outcome, World


@dataclass
class Played:
    """A world that is over, and what is wrong with it."""

    made: scenario.Scenario
    outcome: Outcome
    violations: list[Violation]


def play(seed: int, left_out: list[str] | None = None) -> Played:
    """The world of a seed, or what is left of it."""
    made = without(scenario.make(seed), left_out or [])
    outcome = World(made, str(seed)).play()
    return Played(made, outcome, judge(outcome))


def kinds_of(seed: int, made: scenario.Scenario) -> set[str]:
    """What kinds of promises a scenario breaks. One that cannot be played at all breaks none."""
    with contextlib.suppress(Exception):
        return {violation.kind for violation in judge(World(made, str(seed)).play())}
    return set()


def kinds_of_seed(seed: int) -> tuple[int, list[str]]:
    """What kinds of promises a seed breaks; for a process of its own."""
    return seed, sorted({violation.kind for violation in play(seed).violations})


def report(seed: int, violations: list[Violation], most: int = MOST) -> str:
    """The smallest scenario that is left of a seed, its story, and the command that plays it again."""
    wanted = {violation.kind for violation in violations}
    left_out = shrink(scenario.make(seed), lambda made: bool(wanted & kinds_of(seed, made)), most)
    again = play(seed, left_out)
    return tell(seed, left_out, again)


def tell(seed: int, left_out: list[str], played: Played) -> str:
    """Everything about one world."""
    told = [f"seed {seed}: {len(played.violations)} violations", *map(str, played.violations), ""]
    told += [pprint.pformat(_short(played.made), width=140), ""]
    told.append(story.tell(played.outcome.evidence, played.violations))
    told += ["", "to play it again:", f"  {command(seed, left_out)}"]
    return "\n".join(told)


def command(seed: int, left_out: list[str]) -> str:
    """What plays a seed again, exactly."""
    less = f" --without '{','.join(left_out)}'" if left_out else ""
    return f".venv/bin/python -m tests.simulation {seed}{less}"


def _short(made: scenario.Scenario) -> dict[str, Any]:
    """A scenario without what it does not have."""
    return {name: value for name, value in made.items() if value not in (None, [], False)}
