"""A seed is the whole world: played again, also by another process, it takes the same turns to the same end."""

from __future__ import annotations

import hashlib
import os
import subprocess
import sys

import pytest

from tests.simulation import scenario
from tests.simulation.world import World

SEEDS = (3, 5)

_TRACE = """
import sys
from tests.simulation.test_determinism import trace_of
print("\\n".join(trace_of(int(sys.argv[1]))))
"""


def trace_of(seed: int) -> list[str]:
    """Every turn, every answer of the database, and every row at the end."""
    trace: list[str] = []
    outcome = World(scenario.make(seed), str(seed), trace).play()
    evidence = outcome.evidence
    for rows in (evidence.acts, evidence.runs, evidence.steps, evidence.tries, evidence.moves, evidence.writes):
        trace += [repr(row) for row in rows]
    return trace


@pytest.mark.parametrize("seed", SEEDS)
def test_a_seed_played_twice_takes_the_same_turns(seed: int) -> None:
    first, second = trace_of(seed), trace_of(seed)
    assert len(first) > 100
    assert _difference(first, second) is None


def test_another_process_with_another_order_of_sets_takes_the_same_turns() -> None:
    seed = SEEDS[0]
    here = trace_of(seed)
    environment = {**os.environ, "PYTHONHASHSEED": "4711"}
    command = [sys.executable, "-c", _TRACE, str(seed)]
    said = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=60, check=True).stdout
    assert _difference(here, said.splitlines()) is None
    assert hashlib.sha256("\n".join(here).encode()).digest() == hashlib.sha256(said.strip("\n").encode()).digest()


def _difference(first: list[str], second: list[str]) -> str | None:
    """The first line that differs, with those before it."""
    for number, (one, other) in enumerate(zip(first, second, strict=False)):
        if one != other:
            return "\n".join([*first[max(0, number - 5) : number], f"once:  {one}", f"again: {other}"])
    return None if len(first) == len(second) else f"{len(first)} lines, and {len(second)}"
