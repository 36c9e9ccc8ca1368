"""Dag runs: what the end of a step means to the others. Called in the transaction that ends it, for a whole batch.

What to release and what to skip is decided by the graph; here it is looked up and written. The steps that fail their
run come first: of a run that fails nothing is released, so that the order within a batch makes no difference.
"""

from __future__ import annotations

import sqlite3
from collections import Counter
from collections.abc import Iterable, Sequence
from typing import NamedTuple

import msgspec
from msgspec import Struct

from ...model import status
from ...model.cancelling import goes_on_first
from ...model.graph import Settled, is_failure, summed
from ...model.records import DagOutputs, Lane, Mail, NodeRow
from .families import cancel_children
from .wide import execute_wide, fetch_wide

Name = tuple[str, str]
"""(dag run, step)"""


class Aftermath(NamedTuple):
    """What came of the end of steps."""

    lanes: set[Lane]
    """Where something was put in line: steps, or dag runs whose steps are all settled."""
    held: dict[str, str]
    """The steps that were asked to end, and the workers that hold them."""
    undelivered: bool
    """Whether children of cancelled steps have mail."""


class DagRow(NamedTuple):
    """A dag run of which steps are settled. The columns come in this order."""

    id: str
    pending: int
    failing: int
    settled_at: int
    queue: str
    workflow: str
    priority: int
    paused: int

    def next(self, now: int) -> int:
        """The time at which the next steps of it end: later than any before. Who was released by those does not see
        what comes of these."""
        return max(now, self.settled_at + 1)

    @property
    def lane(self) -> Lane:
        """Where it stands when its steps are settled."""
        return Lane(self.queue, self.workflow, self.priority)


Dags = dict[str, DagRow]


class OpenStep(NamedTuple):
    """A step that is not settled. The columns come in this order."""

    dag_id: str
    id: str
    begun: int
    worker: str | None
    undoes: int
    """Whether it has completed something of its own that can be undone."""
    queue: str
    workflow: str
    priority: int
    losses: int
    status: str
    waiting_for: str | None

    @property
    def lane(self) -> Lane:
        """Where it stands when it is ready."""
        return Lane(self.queue, self.workflow, self.priority)


class _Dependent(Struct):
    """A step for which dependencies are settled. The columns come in this order."""

    dag_id: str
    node: str
    row: int
    pending: int
    met: int
    blocked: int
    queue: str
    workflow: str
    priority: int
    goes: str = "wait"


# -- settling ----------------------------------------------------------------------------------------------


def settle(
    database: sqlite3.Connection, sql: dict[str, str], ends: Sequence[Settled], dags: Dags, now: int
) -> Aftermath:
    """Steps of these dag runs have ended: release or skip what waited for them, or let their runs fail."""
    ends = [end for end in ends if end.dag_id in dags]  # unless somebody has deleted the run
    counts = Counter(end.dag_id for end in ends)
    failed = {end.dag_id for end in ends if is_failure(end.outcome)}
    going = [end for end in ends if end.dag_id not in failed and not dags[end.dag_id].failing]
    lanes, skipped = _release(database, sql, going, dags, now)
    counts.update(skipped)
    return _fall(database, sql, dags, failed, counts, lanes, now)


def settle_failed(database: sqlite3.Connection, sql: dict[str, str], ended: Sequence[str], now: int) -> Aftermath:
    """Steps of these dag runs (one entry for each) were ended by a sweep."""
    dags = dags_of(database, sql, set(ended))
    counts = Counter(dag_id for dag_id in ended if dag_id in dags)
    return _fall(database, sql, dags, set(counts), counts, set(), now)


def end_steps(database: sqlite3.Connection, sql: dict[str, str], failing: Sequence[str], now: int) -> Aftermath:
    """Dag runs were marked as failing: their steps come to an end."""
    dags = dags_of(database, sql, failing)
    ended, after = _end(database, sql, failing, now)
    return after._replace(lanes=after.lanes | _count_down(database, sql, dags, ended, set(), now))


def _fall(
    database: sqlite3.Connection, sql: dict[str, str], dags: Dags, failed: set[str],
    counts: Counter[str], lanes: set[Lane], now: int,
) -> Aftermath:  # fmt: skip
    """Let runs fail that do not yet, and count down all of them."""
    fresh = {dag_id for dag_id in failed if not dags[dag_id].failing}
    ended, after = _end(database, sql, sorted(fresh), now)
    counts.update(ended)
    return after._replace(lanes=after.lanes | lanes | _count_down(database, sql, dags, counts, fresh, now))


def dags_of(database: sqlite3.Connection, sql: dict[str, str], ids: Iterable[str]) -> Dags:
    """Where dag runs stand, before steps of theirs are settled."""
    return {row[0]: DagRow(*row) for row in fetch_wide(database, sql["dags"], (_json(list(ids)),))}


def _count_down(
    database: sqlite3.Connection, sql: dict[str, str], dags: Dags, counts: Counter[str], fails: set[str],
    now: int,
) -> set[Lane]:  # fmt: skip
    """Dag runs have fewer steps to wait for; the lanes of those that have none left."""
    rows = [
        (dag_id, count, dag_id in fails, n, dags[dag_id].next(now))
        for n, (dag_id, count) in enumerate(counts.items(), 1)
    ]
    execute_wide(database, sql["settle"], rows)
    last = {dag_id for dag_id, count in counts.items() if count == dags[dag_id].pending}
    return {dags[dag_id].lane for dag_id in last if dag_id in fails or not dags[dag_id].paused}


def _end(
    database: sqlite3.Connection, sql: dict[str, str], dag_ids: Sequence[str], now: int
) -> tuple[Counter[str], Aftermath]:
    """End the steps of these runs that nobody holds: how many of each. Those that have something of their own to undo
    do so first, and those that are held are asked."""
    if not dag_ids:
        return Counter(), Aftermath(set(), {}, False)
    which = _json(list(dag_ids))
    steps = open_steps(database, sql, dag_ids)
    held = {step.id: step.worker for step in steps if step.worker is not None}
    if held:
        database.execute(sql["ask_steps"], (which,))
    free = [step for step in steps if step.worker is None]
    first = [step for step in free if goes_on_first(step.losses, step.status, step.waiting_for)]
    for step in first:
        database.execute(sql["go_on_first"], (step.id,))
    free = [step for step in free if step not in first]
    for step in free:
        if step.undoes:
            database.execute(sql["undo_cancelled"], (step.id,))
    database.execute(sql["end_steps"], (now, which))
    undelivered = cancel_children(database, sql, [step.id for step in free if step.begun])
    lanes = {step.lane for step in free if step.undoes} | {step.lane for step in first}
    return Counter(step.dag_id for step in free if not step.undoes), Aftermath(lanes, held, undelivered)


def open_steps(database: sqlite3.Connection, sql: dict[str, str], dag_ids: Sequence[str]) -> list[OpenStep]:
    """The steps of dag runs that are not settled, but for those that are undoing what they did."""
    return [OpenStep(*row) for row in fetch_wide(database, sql["open_steps"], (_json(list(dag_ids)),))]


# -- releasing ---------------------------------------------------------------------------------------------


def _release(
    database: sqlite3.Connection, sql: dict[str, str], ends: Sequence[Settled], dags: Dags, now: int
) -> tuple[set[Lane], Counter[str]]:
    """Release and skip what waited for these steps, and for the skipped ones. Round by round it is only looked; then
    everything is written at once."""
    known: dict[Name, _Dependent] = {}
    round_ = list(ends)
    while round_:
        sums = summed(round_)
        _look_up(database, sql, known, [name for name in sums if name not in known])
        round_ = _skipped(round_, sums, known)
    steps = known.values()
    execute_wide(database, sql["count_down"], [(s.row, s.pending, s.met) for s in steps if s.goes == "wait"])
    for s in steps:
        if s.goes == "ready" and dags[s.dag_id].paused:
            s.goes = "hold"
    moved = [
        (s.row, s.pending, s.met, s.goes, n, dags[s.dag_id].next(now))
        for n, s in enumerate(steps, 1)
        if s.goes != "wait"
    ]
    execute_wide(database, sql["release"], moved)
    lanes = {Lane(s.queue, s.workflow, s.priority) for s in steps if s.goes == "ready"}
    return lanes, Counter(s.dag_id for s in steps if s.goes == "skip")


def _look_up(
    database: sqlite3.Connection, sql: dict[str, str], known: dict[Name, _Dependent], names: list[Name]
) -> None:
    if names:
        found = {(row[0], row[1]): _Dependent(*row) for row in fetch_wide(database, sql["dependents"], (_json(names),))}
        known.update((name, found[name]) for name in names if name in found)  # in the order of the batch


def _skipped(round_: list[Settled], sums: dict[Name, tuple[int, int]], known: dict[Name, _Dependent]) -> list[Settled]:
    """Count, and decide what is blocked still; those that will not be needed are settled, too."""
    graphs = {end.dag_id: end.graph for end in round_}
    skipped = []
    for (dag_id, node), (count, completed) in sums.items():
        step, graph = known.get((dag_id, node)), graphs[dag_id]
        if step is None:
            continue
        step.pending -= count
        step.met += completed
        if step.blocked and step.goes == "wait":
            step.goes = graph.decide(node, step.pending, step.met)
            if step.goes == "skip":
                skipped.append(Settled(dag_id, node, status.SKIPPED, graph))
    return skipped


# -- signals and reading -----------------------------------------------------------------------------------


def post_to_step(database: sqlite3.Connection, sql: dict[str, str], mail: Mail) -> bool:
    """Leave a signal for the step of its name, to be delivered later; whether there is one that has not ended."""
    row = (mail.id, mail.kind, mail.name, mail.value, mail.error, mail.format, mail.run_id, mail.name)
    if database.execute(sql["post_to_step"], row).rowcount > 0:
        return True
    step = database.execute(sql["step_named"], (mail.run_id, mail.name)).fetchone()
    return step is not None and step[1] not in status.TERMINAL


def nodes(database: sqlite3.Connection, sql: dict[str, str], dag_id: str) -> list[NodeRow]:
    """The steps of a dag run."""
    return [NodeRow(*row) for row in database.execute(sql["nodes"], (dag_id,)).fetchall()]


def dag_outputs(
    database: sqlite3.Connection, sql: dict[str, str], wanted: Sequence[tuple[str, int]]
) -> dict[str, DagOutputs]:
    """What the steps of dag runs see; two questions for all of them, and one for each large payload."""
    which, found = _json(list(wanted)), dict[str, DagOutputs]()
    for dag_id, text, format_ in fetch_wide(database, sql["dag_inputs"], (which,)):
        if text is None:
            (text,) = database.execute(sql["dag_input"], (dag_id,)).fetchone()
        found[dag_id] = DagOutputs(text, format_, [])
    for dag_id, node, output, format_, completed_at, there in fetch_wide(database, sql["dag_outputs"], (which,)):
        if dag_id in found:
            if output is None and there:
                (output,) = database.execute(sql["dag_output"], (dag_id, node)).fetchone()
            found[dag_id].outputs.append((node, output, format_, completed_at))
    return found


def _json(value: object) -> str:
    return msgspec.json.encode(value).decode()
