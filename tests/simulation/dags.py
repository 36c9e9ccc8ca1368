"""Random declared graphs: the steps and undos of the storms over graphs, in shapes that a scenario makes up."""

from __future__ import annotations

from random import Random
from typing import Any

from stepfast import Stepfast
from stepfast.engine.dag import Dag
from stepfast.model.graph import Graph
from tests.faults.graphs import AT_ONCE, RELEASED, Stray, _Works
from tests.judge.ledger import Ledger

NAME = "dag"
WORKS = ("do", "do", "flaky", "do_in_thread", "nap", "checkpoint")


# -- made up -----------------------------------------------------------------------------------------------------------


def make(chance: Random) -> list[dict[str, Any]]:
    """The steps of a graph, each after some of those before it."""
    steps: list[dict[str, Any]] = []
    for number in range(chance.randint(2, 5)):
        names = [step["name"] for step in steps if step["name"] != "mend"]
        after = sorted(chance.sample(names, chance.randint(0, min(2, len(names)))))
        step: dict[str, Any] = {"name": f"s{number}", "after": after, "work": chance.choice(WORKS)}
        if len(after) > 1 and chance.random() < 0.3:
            step["join"] = "any"
        if chance.random() < 0.25:
            step["when"] = True
        if chance.random() < 0.7:
            step["undo"] = chance.choice(("quick", "slow"))
        steps.append(step)
    if chance.random() < 0.3:
        steps[0] |= {"catch": True}
        steps.insert(1, {"name": "mend", "after": [], "work": "do"})
    if chance.random() < 0.4:
        gate: dict[str, Any] = {"name": "gate", "after": [steps[0]["name"]], "gate": True}
        if chance.random() < 0.5:
            gate |= {"timeout": 1.0, "on_timeout": chance.choice(("approve", "skip"))}
        steps.append(gate)
        steps.append({"name": "behind", "after": ["gate"], "work": "do", "undo": "quick"})
    return steps


def fate(chance: Random, steps: list[dict[str, Any]]) -> dict[str, Any]:
    """What becomes of the steps of one run."""
    names = [step["name"] for step in steps if "gate" not in step]
    breaks = chance.sample(names, chance.choice((0, 0, 1)))
    if not breaks and chance.random() < 0.3:
        breaks = [names[-1]]  # when there is most to undo
    return {
        "pause": chance.choice((0.05, 0.5)),
        "breaks": breaks,
        "strays": [step["name"] for step in steps if step.get("catch") and chance.random() < 0.5],
        "unwanted": [step["name"] for step in steps if step.get("when") and chance.random() < 0.4],
        "stuck": [name for name in names if chance.random() < 0.05],
    }


# -- declared ----------------------------------------------------------------------------------------------------------


def add_to(app: Stepfast, ledger: Ledger, steps: list[dict[str, Any]]) -> Graph:
    """Declare it, as far as its steps are there."""
    works, dag = _Works(ledger), app.dag(NAME)
    there = {step["name"] for step in steps}
    for step in steps:
        after = [name for name in step["after"] if name in there]
        if "gate" in step:
            timed = {key: step[key] for key in ("timeout", "on_timeout") if key in step}
            dag.approval(step["name"], after=after, **timed)
            continue
        dag.declare(getattr(works, step["work"]), name=step["name"], after=after, **_options(works, step, there, after))
    found = app.workflows[NAME]
    assert isinstance(found, Dag)
    return found.graph


def _options(works: _Works, step: dict[str, Any], there: set[str], after: list[str]) -> Any:
    options: dict[str, Any] = {"retries": 9 if step["work"] == "flaky" else 1, "backoff": AT_ONCE}
    if "join" in step and len(after) > 1:
        options["join"] = step["join"]
    if "when" in step:
        options["when"] = works.when
    if "undo" in step:
        options["compensate"] = works.undo if step["undo"] == "quick" else works.slow_undo
    if "catch" in step and "mend" in there:
        options["catch"] = {Stray: "mend"}
    if step["work"] == "nap":
        options["backoff"] = RELEASED
    return options


def gates(steps: list[dict[str, Any]]) -> list[str]:
    """The names of what waits for a person."""
    return [step["name"] for step in steps if "gate" in step]
