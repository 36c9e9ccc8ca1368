"""Dag runs on the stage of the store tests: graphs in a few words, and their steps by name."""

from __future__ import annotations

from typing import Any

from stepfast.model.graph import DagStep, Graph, Settled
from stepfast.model.ids import new_id
from stepfast.model.records import Claimed, Lane, NewDagStep, NewRun, Parent, RunShape, Transition
from stepfast.model.rows import DagStepRow, RunRow
from tests.store.scene import Scene, move

ITSELF = ""
"""Among claimed steps: the dag run itself."""
QUEUE = "graphs"

CHAIN = {"a": "", "b": "a", "c": "b"}
DIAMOND = {"a": "", "b": "a", "c": "a", "d": "b c"}


def graph_of(steps: dict[str, str], **dag_steps: DagStep) -> Graph:
    """``{"b": "a"}``: b comes after a. Other steps as they are."""
    return Graph([*(DagStep(name, tuple(after.split())) for name, after in steps.items()), *dag_steps.values()])


def rows_of(graph: Graph, *, key: str | None = None, parent: Parent | None = None, **shape: Any) -> list[NewRun]:
    """What a start of a dag hands to a store: the run, then its steps."""
    common = RunShape(**({"workflow": "dag", "version": "v1", "queue": QUEUE} | shape))
    dag = NewRun(new_id(), common, '{"order":1}', key, parent, graph=graph.version, steps=len(graph.dag_steps))
    return [dag, *(_step_of(dag, graph, name) for name in graph.dag_steps)]


def _step_of(dag: NewRun, graph: Graph, name: str) -> NewRun:
    shape = dag.shape._replace(workflow=f"dag/{name}", deadline_ms=None, tags=())
    dag_step = NewDagStep(dag.id, name, len(graph.dependencies(name)))
    return NewRun(new_id(), shape, "null", graph=graph.version, dag_step=dag_step)


class Dag:
    """A dag run, or several of one graph."""

    def __init__(self, scene: Scene, graph: Graph) -> None:
        self.scene = scene
        self.store = scene.store
        self.graph = graph
        self.ids: list[str] = []

    @property
    def id(self) -> str:
        return self.ids[0]

    @property
    def workflows(self) -> list[str]:
        return ["dag", *(f"dag/{name}" for name in self.graph.dag_steps)]

    async def start(self, **options: Any) -> Dag:
        rows = rows_of(self.graph, **options)
        self.ids.append((await self.store.start(rows))[0])
        return self

    async def claim(self, *, worker: str | None = None, limit: int = 1000) -> dict[str, Claimed]:
        """All that is ready of the first run, by the names of the steps."""
        return {run.dag_step or ITSELF: run for run in await self.claim_all(worker=worker, limit=limit)}

    async def claim_all(self, *, worker: str | None = None, limit: int = 1000) -> list[Claimed]:
        marked = [(lane, 0) for lane in await self.scene.lanes(self.workflows)]
        versions = dict.fromkeys(self.workflows, "v1")
        token = next(self.scene._tokens)
        return await self.store.claim(worker or self.scene.worker, token, marked, versions, limit) if marked else []

    async def dag_step(self, name: str) -> DagStepRow:
        return (await self.dag_steps())[name]

    async def dag_steps(self, dag_id: str | None = None) -> dict[str, DagStepRow]:
        return {dag_step.name: dag_step for dag_step in await self.store.dag_steps(dag_id or self.id)}

    async def states(self, dag_id: str | None = None) -> dict[str, str]:
        """Step → status; of a blocked one, that."""
        return {
            name: "blocked" if (dag_step.status, dag_step.waiting_for) == ("waiting", "steps") else dag_step.status
            for name, dag_step in (await self.dag_steps(dag_id)).items()
        }

    async def run(self) -> RunRow:
        return await self.scene.info(self.id)

    async def get(self, column: str) -> Any:
        """A column of the dag run's row."""
        return await self.scene.rows.get(self.id, column)

    def end(self, run: Claimed, outcome: str = "completed", **changes: Any) -> Transition:
        """A step comes to its end."""
        state = "failed" if outcome.startswith("caught:") else outcome
        values: dict[str, Any] = {"output": f'"{run.dag_step}"' if state == "completed" else None}
        if state in ("failed", "cancelled"):
            values |= {"reason": "code" if state == "failed" else "cancelled", "error": '{"type":"ValueError"}'}
        assert run.dag_id is not None and run.dag_step is not None
        settled = Settled(run.dag_id, run.dag_step, outcome, self.graph)
        return move(run, state, settled=settled, **(values | changes))

    async def finish(self, *names: str) -> None:
        """Claim what is ready and complete these steps, one flush for all; the others are left with the worker."""
        held = await self.claim()
        await self.scene.flush(*(self.end(held[name]) for name in names))


def lane(name: str = ITSELF) -> Lane:
    """Where a step, or the dag run itself, stands in its queue."""
    return Lane(QUEUE, f"dag/{name}" if name else "dag", 0)
