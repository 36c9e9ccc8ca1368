"""What is wrong with a world of the simulation: each kind of runs by its own rules, and some for worlds alone."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

from stepfast.model.status import TIMED_OUT
from tests.faults import graphs, remote_workload, talking
from tests.faults.graph_storm import ANSWERS
from tests.judge import dags, remote, runs
from tests.judge import talking as talking_runs
from tests.judge.cases import SLACK, Violation, load
from tests.judge.evidence import UNDO, Evidence
from tests.simulation import dags as dag_programs
from tests.simulation import remote as remote_programs
from tests.simulation.people import Order
from tests.simulation.scenario import NARROW
from tests.simulation.world import Outcome

TIMED = frozenset({"too soon", "too early", "slept too short", "undone out of order", "signal out of order", "no claim",
                   "paused by nobody", "acted after its cancel", "signal lost", "too late", "lost without cause",
                   "begun while paused", "old input", "too many at once", "claimed while paused",
                   "released in vain", "event missed", "start lost"})  # fmt: skip
"""Kinds that compare times. Where the database's clock was put back, they say nothing."""

_ON_ITS_WAY = 1_200_000
"""Microseconds that a question which was asked before may still be under way."""
_BY_CHANCE = 4
"""A time may pass while the word that a run waits for it is on its way."""
_EVERYWHERE = 2_500_000
"""Microseconds until limits that were changed hold on all workers."""


def judge(outcome: Outcome) -> list[Violation]:
    """Every violation; none, if all promises were kept."""
    found = [*_ended(outcome), *_plain(outcome), *_graphs(outcome), *_remote(outcome), *_talk(outcome)]
    for rule in RULES:
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
    return runs.check(part(outcome.evidence, others, without=True))


def _graphs(outcome: Outcome) -> list[Violation]:
    world, evidence = outcome.world, outcome.evidence
    if world.graph is None:
        return []
    wanted = {row.id for row in evidence.runs if _kind(row.workflow) == dag_programs.NAME}
    scene = dags.Scene(
        part(evidence, wanted),
        {dag_programs.NAME: world.graph},
        [dags.DagStepRow(*row) for row in world.dag_steps],
        [dags.GraphAct(**line) for line in world.ledger.read(graphs.ACTS)],
        [(line["run"], line["name"], line["value"]) for line in world.ledger.read(ANSWERS)],
    )
    return dags.check(scene)


def _remote(outcome: Outcome) -> list[Violation]:
    world, evidence = outcome.world, outcome.evidence
    if not world.scenario["remote"]:
        return []
    rows, records = world.remote_rows
    scene = remote.RemoteScene(
        part(evidence, {row.id for row in evidence.runs if _kind(row.workflow) == "remote"}),
        [remote.Served(**line) for line in world.ledger.read(remote_workload.SERVED)],
        [remote.RemoteRow(*row) for row in rows],
        {(row[0], row[1], row[2]): (row[3], row[4], row[5]) for row in records},
        {(row[0], row[1], row[2]) for row in records if row[6] is not None},
        {},
        world.transport.left(),
    )
    return remote.check(scene)


def _talk(outcome: Outcome) -> list[Violation]:
    scene = outcome.world.talk
    return [] if scene is None else talking_runs.check(scene)


def _kind(workflow: str) -> str:
    name = workflow.partition("/")[0]
    if name in talking.WORKFLOWS:
        return "talk"
    return name if name == dag_programs.NAME else "remote" if name in remote_programs.WORKFLOWS else "plain"


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


# -- what only a simulation can ask for ------------------------------------------------------------------------------


def drawn(outcome: Outcome) -> Iterator[Violation]:
    """What a run draws is the same whenever its code is replayed."""
    for run_id, text in outcome.world.outside.wrong:
        yield Violation("drawn anew", run_id, text)


def remembered(outcome: Outcome) -> Iterator[Violation]:
    """What a worker remembers of a run is what is stored."""
    for run_id, text in outcome.world.misremembered:
        yield Violation("misremembered", run_id, text)


def tries(outcome: Outcome) -> Iterator[Violation]:
    """A step that failed was tried as often as its retries say; no step is tried more often."""
    evidence, allowed = outcome.evidence, outcome.world.outside.allowed
    counts = Counter((row.run, row.branch, row.position, row.attempt) for row in evidence.tries if row.branch != UNDO)
    most = Counter[tuple[str, str, int]]()
    for (run_id, branch, position, _), count in counts.items():
        most[run_id, branch, position] = max(most[run_id, branch, position], count)
    for place, count in most.items():
        if count > allowed.get(place, count) + 1:
            yield Violation("tried too often", place[0], f"{place[1:]}: {count} tries, with {allowed[place]} retries")
    for step in evidence.steps:
        place = (step.run, *step.place)
        failed = step.status == "failed" and step.kind in ("step", "transaction") and place in allowed
        if failed and most[place] < allowed[place] + 1:
            text = f"{step.place}: given up after {most[place]} tries, with {allowed[place]} retries"
            yield Violation("tried too rarely", step.run, text)


def released(outcome: Outcome) -> Iterator[Violation]:
    """A run is not released to wait for a time that has passed already, over and over."""
    counts = Counter[str]()
    for move in outcome.evidence.moves:
        if (move.old_status, move.status) == ("running", "waiting") and move.due is not None and move.due < move.at:
            counts[move.run] += 1
    for run_id, count in counts.items():
        if count > _BY_CHANCE:
            yield Violation("released in vain", run_id, f"{count} times with a time that had passed")


# -- queues ------------------------------------------------------------------------------------------------------------


def limits(outcome: Outcome) -> Iterator[Violation]:
    """Never are more runs of a limited queue at work than its limit says; none is claimed while it is paused."""
    world = outcome.world
    if not world.scenario["limits"]:
        return
    held: dict[str, bool] = {}
    for move in outcome.evidence.moves:
        if world.queues.get(move.run) != NARROW:
            continue
        held[move.run] = move.worker is not None
        if move.worker is None or move.claim == move.old_claim:
            continue
        if sum(held.values()) > (most := _most(world.scenario["limits"]["concurrency"], world.people.orders, move.at)):
            yield Violation("too many at once", move.run, f"{sum(held.values())} at work, and {most} are allowed")
        if _paused(world.people.orders, move.at):
            yield Violation("claimed while paused", move.run, f"claim {move.claim} of a queue that is held")


def _most(declared: int, orders: list[Order], at: int) -> int:
    """What may have been in force at a time."""
    changes = [(declared, 0)]
    changes += [(order.concurrency, order.answered) for order in orders if order.concurrency and order.at <= at]
    changes.sort(key=lambda change: change[1])
    newest = changes[-1][1]
    return max(most for most, when in changes if when == newest or newest > at - _EVERYWHERE)


def _paused(orders: list[Order], at: int) -> bool:
    """Whether the queue was held by a pause that had returned, and nobody had asked to let it go."""
    held = [order for order in orders if order.what == "pause_queue" and order.answered + _ON_ITS_WAY < at]
    freed = [order for order in orders if order.what == "resume_queue" and order.at <= at]
    return bool(held) and not any(order.answered >= max(pause.at for pause in held) for order in freed)


def debounced(outcome: Outcome) -> Iterator[Violation]:
    """The run of a debounced start has the input of the last one that it was given for."""
    given = defaultdict(list)
    for start in outcome.world.people.debounced:
        given[start.run].append(start)
    rows = {row.id: row for row in outcome.evidence.runs}
    for run_id, starts in given.items():
        if run_id not in rows:
            yield Violation("lost start", run_id, "a debounced start was acknowledged, and is not in the table")
            continue
        found = load(rows[run_id].input)
        latest = [s for s in starts if not any(other.at > s.answered + SLACK for other in starts)]
        unknown = all(found != start.input for start in starts)  # that of a start whose reply was lost
        if not unknown and all(found != start.input for start in latest):
            yield Violation("old input", run_id, f"it has {found}, and was given {[s.input for s in latest]} later")


def schedules(outcome: Outcome) -> Iterator[Violation]:
    """One run per tick; with ``missed="all"`` none is left out."""
    schedule = outcome.world.scenario["schedule"]
    if not schedule:
        return
    ticks = Counter(row.key for row in outcome.evidence.runs if row.key is not None and "ticks" in row.key)
    for key, count in ticks.items():
        if count > 1:
            yield Violation("tick twice", "-", f"{count} runs of {key}")


def callbacks(outcome: Outcome) -> Iterator[Violation]:
    """What was accepted is what the run saw, and it saw one outcome: nothing lost, nothing twice, nothing made up."""
    for held in outcome.world.outside.callbacks.values():
        if len(held.accepted) > 1 or len(held.seen) > 1:
            yield Violation("callback twice", held.run, f"accepted: {held.accepted}, seen: {held.seen}")
        elif held.seen and held.accepted and held.seen != held.accepted:
            yield Violation("callback lost", held.run, f"accepted: {held.accepted}, seen: {held.seen}")
        elif not held.seen <= held.sent | {TIMED_OUT}:
            yield Violation("callback made up", held.run, f"sent: {held.sent}, seen: {held.seen}")


RULES = (callbacks, drawn, remembered, tries, released, limits, debounced, schedules)
