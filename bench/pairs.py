"""Two checkouts beside each other: `python -m bench --pairs 7 A B`.

A pair is a take of A, one of B and one of a second copy of A, directly after one another, in an order that turns round.
B against A is what is asked; the second copy against A is the control: how far two takes of the same code are apart on
this machine at this time. Each take is a process of its own on an empty database, with the `src` of its checkout on
PYTHONPATH and only public names of Stepfast in it.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from itertools import permutations
from statistics import median
from time import perf_counter
from typing import Any

from bench.checkouts import Checkout
from bench.engines.base import Kind
from bench.runner import ChildFailed, measure_in_child
from bench.scenarios.base import Figures
from bench.servers import Servers

SIDES = ("A", "B", "A again")
FIGURES = ("client", "server", "rate")
CONCURRENCY = 500
LONGEST = 90.0
"""Seconds for one take."""
FEWEST = 3
"""Fewer pairs than this tell nothing about a spread."""
FAILURES = 2
"""After so many failed takes a scenario is given up."""


@dataclass(frozen=True)
class Paired:
    """One scenario: an engine, what it works off, and how many of them in a full take."""

    title: str
    engine: str
    kind: Kind
    count: int


PAIRED = {
    "steps": Paired("5-step workflows on Postgres, 500 at once", "stepfast", "steps", 10_000),
    "noop": Paired("noop tasks on Postgres, 500 at once", "stepfast", "noop", 30_000),
    "plain": Paired("5-step workflows with plain steps on Postgres, 500 at once", "stepfast_plain", "steps", 10_000),
    "sqlite": Paired("5-step workflows on SQLite, 500 at once", "stepfast_sqlite", "steps", 8_000),
}


@dataclass(frozen=True)
class Comparison:
    """One figure of one scenario, over all pairs."""

    figure: str
    a: list[float]
    b: list[float]
    again: list[float]

    @property
    def ratios(self) -> list[float]:
        """B against A, of each pair."""
        return [b / a for a, b in zip(self.a, self.b, strict=True)]

    @property
    def ratio(self) -> float:
        """The median of them."""
        return median(self.ratios)

    @property
    def control(self) -> tuple[float, float]:
        """The spread of A against A: which of the two copies comes first does not matter, so both ways round."""
        ratios = [again / a for a, again in zip(self.a, self.again, strict=True)]
        widest = max(max(ratio, 1 / ratio) for ratio in ratios)
        return 1 / widest, widest

    @property
    def verdict(self) -> str:
        """What the ratio says, given the spread of the control."""
        low, high = self.control
        if len(self.a) < FEWEST:
            return "too few pairs"
        if low <= self.ratio <= high:
            return "within A/A spread"
        slower = (self.ratio > 1) != (self.figure == "rate")
        return f"{'slower' if slower else 'quicker'} by {abs(self.ratio - 1) * 100:.1f} %"


@dataclass
class Pairs:
    """All pairs of one scenario that are complete, and why others are not."""

    scenario: Paired
    takes: list[dict[str, Figures]] = field(default_factory=list)
    failures: list[str] = field(default_factory=list)

    def comparisons(self) -> list[Comparison]:
        """The figures that every take has: SQLite has no server."""
        return [
            Comparison(figure, *([pair[side][figure] for pair in self.takes] for side in SIDES))
            for figure in FIGURES
            if self.takes and all(figure in pair[side] for pair in self.takes for side in SIDES)
        ]


@dataclass
class PairRunner:
    """Takes the pairs, until there are enough or time is up."""

    servers: Servers
    copies: dict[str, Checkout]
    """A checkout for each of `SIDES`."""
    quick: bool
    seconds: float
    """No take begins later than this after the first."""
    say: Callable[[str], None]

    def run(self, names: Iterable[str], count: int) -> dict[str, Pairs]:
        """The first pair of every scenario, then the second of every one, and so on."""
        self._deadline = perf_counter() + self.seconds
        orders = list(permutations(SIDES))
        done = {name: Pairs(PAIRED[name]) for name in names}
        for number in range(count):
            for name, pairs in done.items():
                if perf_counter() > self._deadline:
                    self.say(f"time is up after {self.seconds / 60:g} minutes")
                    return done
                if len(pairs.failures) < FAILURES:
                    self._pair(pairs, f"pair {number + 1} of {count}, {name}", orders[number % len(orders)])
        return done

    def _pair(self, pairs: Pairs, title: str, order: Iterable[str]) -> None:
        takes = dict[str, Figures]()
        for side in order:
            if perf_counter() > self._deadline:
                return
            try:
                takes[side] = self._take(pairs.scenario, self.copies[side])
            except ChildFailed as error:
                pairs.failures.append(f"{side}: {error}")
                self.say(f"{title}: {side} failed")
                return
        pairs.takes.append(takes)
        self.say(f"{title}: " + ", ".join(f"{side} {_cpu(takes[side])}" for side in SIDES))

    def _take(self, scenario: Paired, copy: Checkout) -> Figures:
        url = self.servers.empty(scenario.engine)
        order = {
            "role": "pair",
            "engine": scenario.engine,
            "url": url,
            "kind": scenario.kind,
            "count": scenario.count // 5 if self.quick else scenario.count,
            "concurrency": CONCURRENCY,
            "source": str(copy.source),
        }
        environment = {**os.environ, "PYTHONPATH": str(copy.source)}
        environment.pop("PYTHONDONTWRITEBYTECODE", None)
        try:
            return measure_in_child(json.dumps(order), LONGEST, environment)
        finally:
            self.servers.discard(url)


def _cpu(figures: Figures) -> str:
    """The CPU of one take, in short."""
    return " + ".join(f"{figures[side]:.1f}" for side in ("client", "server") if side in figures) + " µs"


def as_json(done: dict[str, Pairs], copies: dict[str, Checkout], machine: str, quick: bool) -> dict[str, Any]:
    """Every take and what was made of them, for a machine to read."""
    return {
        "machine": machine,
        "quick": quick,
        "sides": {side: copy.label for side, copy in copies.items()},
        "scenarios": {
            name: {
                "title": pairs.scenario.title,
                "takes": pairs.takes,
                "failures": pairs.failures,
                "figures": {
                    found.figure: {
                        "A": median(found.a),
                        "B": median(found.b),
                        "B/A": found.ratio,
                        "B/A spread": [min(found.ratios), max(found.ratios)],
                        "A/A spread": list(found.control),
                        "verdict": found.verdict,
                    }
                    for found in pairs.comparisons()
                },
            }
            for name, pairs in done.items()
        },
    }
