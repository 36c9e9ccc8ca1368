"""What is wrong with a world that is over: the storms' checkers, each for its kind of runs, and a few rules that only a
simulation can ask for."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

from tests.faults import checker, graph_rules, graphs, remote_rules, remote_workload
from tests.faults.cases import Violation
from tests.faults.evidence import Evidence
from tests.faults.graph_storm import ANSWERS
from tests.simulation import dags, remote, rules
from tests.simulation.world import Outcome

TIMED = frozenset({"too soon", "too early", "slept too short", "undone out of order", "signal out of order", "no claim",
                   "paused by nobody", "acted after its cancel", "signal lost", "too late", "lost without cause",
                   "begun while paused", "old input", "too many at once", "claimed while paused",
                   "released in vain"})  # fmt: skip
"""Kinds that compare times. Where the database's clock was put back, they say nothing."""


def judge(outcome: Outcome) -> list[Violation]:
    """Every violation; none, if all promises were kept."""
    found = [*_ended(outcome), *_plain(outcome), *_graphs(outcome), *_remote(outcome)]
    for rule in rules.ALL:
        found += rule(outcome)
    if any(fault["kind"] == "step" and fault["ms"] < 0 for fault in outcome.world.scenario["faults"]):
        found = [violation for violation in found if violation.kind not in TIMED]
    return found


def _ended(outcome: Outcome) -> Iterator[Violation]:
    """The world comes to rest, and nothing breaks in it."""
    if outcome.stuck is not None:
        yield Violation("stuck", "-", outcome.stuck)
    for trouble in outcome.troubles:
        yield Violation("broke", "-", trouble)


# -- each kind of runs by its own checker ------------------------------------------------------------------------------


def _plain(outcome: Outcome) -> list[Violation]:
    others = {row.id for row in outcome.evidence.runs if _kind(row.workflow) != "plain"}
    return checker.check(part(outcome.evidence, others, without=True))


def _graphs(outcome: Outcome) -> list[Violation]:
    world, evidence = outcome.world, outcome.evidence
    if world.graph is None:
        return []
    wanted = {row.id for row in evidence.runs if _kind(row.workflow) == dags.NAME}
    scene = graph_rules.Scene(
        part(evidence, wanted),
        {dags.NAME: world.graph},
        [graph_rules.DagStepRow(*row) for row in world.dag_steps],
        [graph_rules.GraphAct(**line) for line in world.ledger.read(graphs.ACTS)],
        [(line["run"], line["name"], line["value"]) for line in world.ledger.read(ANSWERS)],
    )
    return graph_rules.check(scene)


def _remote(outcome: Outcome) -> list[Violation]:
    world, evidence = outcome.world, outcome.evidence
    if not world.scenario["remote"]:
        return []
    rows, records = world.remote_rows
    scene = remote_rules.RemoteScene(
        part(evidence, {row.id for row in evidence.runs if _kind(row.workflow) == "remote"}),
        [remote_rules.Served(**line) for line in world.ledger.read(remote_workload.SERVED)],
        [remote_rules.RemoteRow(*row) for row in rows],
        {(row[0], row[1], row[2]): (row[3], row[4], row[5]) for row in records},
        {(row[0], row[1], row[2]) for row in records if row[6] is not None},
        {},
        world.transport.left(),
    )
    return remote_rules.check(scene)


def _kind(workflow: str) -> str:
    name = workflow.partition("/")[0]
    return name if name == dags.NAME else "remote" if name in remote.WORKFLOWS else "plain"


def part(evidence: Evidence, runs: set[str], without: bool = False) -> Evidence:
    """The evidence about some runs, or about all others."""

    def wanted(item: Any) -> bool:
        run_id = getattr(item, "run", None) or getattr(item, "id", None)
        return (run_id in runs) is not without

    kept = ("acts", "starts", "seen", "runs", "steps", "tries", "signals", "wishes", "rows", "letters", "moves",
            "writes")  # fmt: skip
    lists: Any = {name: list(filter(wanted, getattr(evidence, name))) for name in kept}
    others = [(table, run_id) for table, run_id in evidence.others if (run_id in runs) is not without]
    return replace(evidence, others=others, **lists)
