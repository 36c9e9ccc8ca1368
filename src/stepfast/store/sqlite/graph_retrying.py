"""The retry of an ended dag run: its steps that failed, or came to nothing because of it, are opened again."""

from __future__ import annotations

import sqlite3
from typing import NamedTuple

import msgspec

from ...errors import InvalidState
from ...model.graph import APPROVAL, Graph, Stood
from ...model.records import Lane
from .forgetting import forget_steps
from .graphs import dags_of
from .wide import execute_wide, fetch_wide


class _Ended(NamedTuple):
    """A step of it. The columns come in this order."""

    id: str
    node: str
    status: str
    reason: str | None
    begun: int
    undone: int
    forget: str | None
    queue: str
    workflow: str
    priority: int


def retry_dag(
    database: sqlite3.Connection, sql: dict[str, str], dag_id: str, name: str, version: str
) -> set[Lane] | None:
    """Let a failed or cancelled dag run go on from what its steps have completed; where something is in line now. None:
    a step of it was undone."""
    found = database.execute(sql["graph"], (name, version, dag_id)).fetchone()
    if found[0] is None:
        raise InvalidState(f"the graph of dag run {dag_id} (version {version}) is not stored any more")
    graph = Graph.from_text(found[0])
    steps = {step.node: step for step in (_Ended(*row) for row in fetch_wide(database, sql["ended_steps"], (dag_id,)))}
    stood = {name: Stood(s.status, s.reason, bool(s.begun), bool(s.undone)) for name, s in steps.items()}
    again = graph.reopened(stood)
    if again is None:
        return None
    for name in again:
        if steps[name].begun:
            _forget(database, sql, graph, steps[name])
    dag = dags_of(database, sql, [dag_id])[dag_id]
    now = dag.next(database.execute(sql["now"]).fetchone()[0])
    database.execute(sql["retry_dag"], {"id": dag_id, "pending": len(again), "now": now})
    rows = [(steps[name].id, *step, n, now) for n, (name, step) in enumerate(again.items(), 1)]
    execute_wide(database, sql["reopen"], rows)
    ready = [steps[name] for name, step in again.items() if step.ready]
    return {Lane(s.queue, s.workflow, s.priority) for s in ready} if again else {dag.lane}


def _forget(database: sqlite3.Connection, sql: dict[str, str], graph: Graph, step: _Ended) -> None:
    """The records that are to be made anew: those that the error of a step belongs to. A gate asks again."""
    if graph.nodes[step.node].kind == APPROVAL:
        database.execute(sql["forget_all"], (step.id,))
    else:
        places = msgspec.json.decode(step.forget or "[]")
        forget_steps(database, sql, [(step.id, branch, position) for branch, position in places])
    database.execute(sql["tell_again"], {"parent": step.id})
