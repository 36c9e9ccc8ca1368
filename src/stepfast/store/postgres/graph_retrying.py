"""The retry of an ended dag run: its steps that failed, or came to nothing because of it, are opened again."""

from __future__ import annotations

from typing import Any

import msgspec

from ...errors import InvalidState
from ...model.graph import APPROVAL, Graph, Stood
from ...model.records import Lane
from .forgetting import forget_steps
from .graphs import Dags


async def retry_dag(connection: Any, sql: dict[str, str], dags: Dags, dag_id: str, run: Any) -> set[Lane] | None:
    """Let a failed or cancelled dag run, locked in this transaction, go on from what its steps have completed; where
    something is in line now. None: a step of it was undone."""
    text = await connection.fetchval(sql["graph"], run["workflow"], run["graph"], dag_id)
    if text is None:
        raise InvalidState(f"the graph of dag run {dag_id} (version {run['graph']}) is not stored any more")
    graph = Graph.from_text(text)
    steps = {row["node"]: row for row in await connection.fetch(sql["lock_ended_steps"], dag_id)}
    stood = {name: Stood(s["status"], s["reason"], s["begun"], s["undone"]) for name, s in steps.items()}
    again = graph.reopened(stood)
    if again is None:
        return None
    await _forget(connection, sql, graph, [steps[name] for name in again if steps[name]["begun"]])
    now = (await dags.lock(connection, [dag_id])).now
    dag = await connection.fetchrow(sql["retry_dag"], dag_id, len(again), now)
    if not again:
        return {Lane(*dag)}
    columns = [list(column) for column in zip(*again.values(), strict=True)]
    rows = await connection.fetch(sql["reopen_steps"], [steps[name]["id"] for name in again], *columns, now)
    return {Lane(row["queue"], row["workflow"], row["priority"]) for row in rows if row["ready"]}


async def _forget(connection: Any, sql: dict[str, str], graph: Graph, begun: list[Any]) -> None:
    """The records that are to be made anew: those that the error of a step belongs to. A gate asks again."""
    gates = [step["id"] for step in begun if graph.nodes[step["node"]].kind == APPROVAL]
    places = [
        (step["id"], branch, position)
        for step in begun
        if step["id"] not in gates
        for branch, position in msgspec.json.decode(step["forget"] or "[]")
    ]
    await connection.execute(sql["forget_all"], gates)
    await forget_steps(connection, sql, places)
    for step in begun:
        await connection.execute(sql["tell_again"], step["id"])
