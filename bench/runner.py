"""Takes the measurements: engines in turns, each in a process of its own, nothing beside it."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from importlib.util import find_spec
from pathlib import Path

from bench.engines import ENGINES
from bench.scenarios.base import Figures, Scenario
from bench.servers import Servers

ROOT = Path(__file__).resolve().parent.parent


@dataclass
class Outcome:
    """All takes of one scenario: per engine one list of figures, or why there is none."""

    scenario: Scenario
    takes: dict[str, list[Figures]] = field(default_factory=dict)
    failures: dict[str, str] = field(default_factory=dict)


@dataclass
class Runner:
    """One run of the benchmark."""

    servers: Servers
    quick: bool
    engines: list[str] | None
    """Those asked for by name; then a quick run leaves none of them out."""
    repeats: int
    say: Callable[[str], None]

    def run(self, scenario: Scenario) -> Outcome:
        """Every engine of the scenario, in turns, as often as asked; the order turns round each time."""
        outcome = Outcome(scenario)
        names = [name for name in self._who(scenario) if self._available(name, outcome)]
        for take in range(self.repeats if scenario.repeats else 1):
            for name in names[take % 2 :] + names[: take % 2]:
                if name not in outcome.failures:
                    self.say(f"{scenario.name}: {name}")
                    self._take(scenario, name, outcome)
        return outcome

    def _who(self, scenario: Scenario) -> list[str]:
        if self.engines is not None:
            return [name for name in scenario.engines if name in self.engines]
        return list((scenario.quick_engines if self.quick else None) or scenario.engines)

    def _available(self, name: str, outcome: Outcome) -> bool:
        package = ENGINES[name].package
        if find_spec(package) is not None:
            return True
        outcome.failures[name] = f"{package} is not installed (bench/requirements.txt)"
        return False

    def _take(self, scenario: Scenario, name: str, outcome: Outcome) -> None:
        urls = [self.servers.empty(name) for _ in range(scenario.databases)]
        subject = {"engine": name, "urls": urls, "quick": self.quick}
        order = json.dumps({"role": "measure", "scenario": scenario.name, "subject": subject})
        try:
            figures = measure_in_child(order, scenario.quick_timeout if self.quick else scenario.timeout)
            outcome.takes.setdefault(name, []).append(figures)
        except ChildFailed as error:
            outcome.failures[name] = str(error)
        finally:
            for url in urls:
                self.servers.discard(url)


class ChildFailed(Exception):
    """The measuring process gave no answer; the message is the end of what it said."""


def measure_in_child(order: str, timeout: float, environment: Mapping[str, str] | None = None) -> Figures:
    """Start the measuring process, wait, and read the last line it wrote."""
    command = [sys.executable, "-W", "ignore", "-m", "bench.child", order]
    try:
        child = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=timeout)
    except subprocess.TimeoutExpired:
        raise ChildFailed(f"no answer within {timeout:g} s") from None
    if child.returncode != 0 or not child.stdout.strip():
        end = "\n".join(child.stderr.strip().splitlines()[-6:])
        raise ChildFailed(end or f"ended with code {child.returncode}")
    figures: Figures = json.loads(child.stdout.strip().splitlines()[-1])
    return figures


def known(names: list[str], among: Iterable[str], what: str) -> list[str]:
    """The names themselves, or a complaint that lists the right ones."""
    for name in names:
        if name not in among:
            raise SystemExit(f"there is no {what} {name!r}; choose from: {', '.join(among)}")
    return names
