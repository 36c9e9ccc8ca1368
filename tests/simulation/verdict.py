"""What is wrong with a world that is over: the storms' checker, and a few rules that only a simulation can ask for."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

from tests.faults import checker
from tests.faults.cases import Violation
from tests.faults.evidence import UNDO
from tests.simulation.world import Outcome


def judge(outcome: Outcome) -> list[Violation]:
    """Every violation; none, if all promises were kept."""
    return [*_ended(outcome), *checker.check(outcome.evidence), *_drawn(outcome), *_tries(outcome)]


def _ended(outcome: Outcome) -> Iterator[Violation]:
    """The world comes to rest, and nothing breaks in it."""
    if outcome.stuck is not None:
        yield Violation("stuck", "-", outcome.stuck)
    for trouble in outcome.troubles:
        yield Violation("broke", "-", trouble)


def _drawn(outcome: Outcome) -> Iterator[Violation]:
    for run_id, text in outcome.outside.wrong:
        yield Violation("drawn anew", run_id, text)


def _tries(outcome: Outcome) -> Iterator[Violation]:
    """A step that failed was tried as often as its retries say; no step is tried more often."""
    evidence = outcome.evidence
    tries = Counter((row.run, row.branch, row.position, row.attempt) for row in evidence.tries if row.branch != UNDO)
    most = Counter[tuple[str, str, int]]()
    for (run_id, branch, position, _), count in tries.items():
        most[run_id, branch, position] = max(most[run_id, branch, position], count)
    for place, count in most.items():
        allowed = outcome.outside.allowed.get(place)
        if allowed is not None and count > allowed + 1:
            yield Violation("tried too often", place[0], f"{place[1:]}: {count} tries, with {allowed} retries")
    for step in evidence.steps:
        place = (step.run, *step.place)
        allowed = outcome.outside.allowed.get(place)
        failed = step.status == "failed" and step.kind in ("step", "transaction")
        if failed and allowed is not None and most[place] < allowed + 1:
            text = f"{step.place}: given up after {most[place]} tries, with {allowed} retries"
            yield Violation("tried too rarely", step.run, text)
