"""The retry of an ended dag run: its steps that failed, or came to nothing because of it, are opened again."""

from __future__ import annotations

from ...errors import InvalidState
from ...model.graph import APPROVAL, Graph, Stood
from ...model.records import Lane
from ...model.run_state import Standing
from ...model.transitions import operator
from ...model.transitions.dag import settled_at
from .requests import Flow, ask, put
from .standings import change, forget_steps, forgotten, read


def retry_dag(dag: Standing, now: int) -> Flow[set[Lane] | None]:
    """Let a failed or cancelled dag run, locked in this transaction, go on from what its steps have completed; where
    something is ready now. None: a step of it was undone."""
    [(text,)] = yield from ask("graph", dag.workflow, dag.graph, dag.id)
    if text is None:
        raise InvalidState(f"the graph of dag run {dag.id} (version {dag.graph}) is not stored any more")
    graph = Graph.from_text(text)
    found = yield from read("lock_steps", dag.id)
    steps = {step.dag_step: step for step in found.runs.values() if step.dag_step is not None}
    again = graph.reopened({name: _stood(step) for name, step in steps.items()})
    if again is None:
        return None
    yield from _forget(graph, [steps[name] for name in again if steps[name].begun])
    now = settled_at(dag, now)
    moved = [operator.reopen(steps[name], how, now, number) for number, (name, how) in enumerate(again.items(), 1)]
    after = operator.retry_dag(dag, len(again), now)
    yield from change([after, *moved])
    return {run.lane for run in (after, *moved) if run.ready}


def _stood(step: Standing) -> Stood:
    return Stood(step.status, step.reason, step.begun, bool(step.undoing))


def _forget(graph: Graph, begun: list[Standing]) -> Flow[None]:
    """The records that are to be made anew: those that the error of a step belongs to. An approval asks again."""
    named = [(step, step.dag_step) for step in begun if step.dag_step is not None]
    approvals = [step for step, name in named if graph.dag_steps[name].kind == APPROVAL]
    yield from put("forget_all", [(step.id,) for step in approvals])
    yield from forget_steps([address for step in begun if step not in approvals for address in forgotten(step)])
    yield from put("tell_again", [(step.id,) for step in begun])
