"""The measures, in the order in which they are taken. One file each."""

from __future__ import annotations

from importlib import import_module

from bench.scenarios.base import Scenario

SCENARIOS = (
    "noop",
    "steps",
    "plain",
    "observed",
    "sqlite",
    "mariadb",
    "alone",
    "latency",
    "starts",
    "cost",
    "two_workers",
    "eight_workers",
    "history",
    "pruning",
    "console",
    "limited",
    "backlog",
    "memory",
    "idle",
    "graphs",
    "composing",
    "streams",
    "remote",
    "snapshot",
)


def load_scenario(name: str) -> Scenario:
    """The scenario of this name."""
    scenario: Scenario = import_module(f"bench.scenarios.{name}").SCENARIO
    return scenario
