"""What a worker knows of dag runs: it asks only for what is new, and for all where it has forgotten."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

import pytest

from stepfast.errors import DatabaseUnavailable
from stepfast.model.graph import DagStep, Graph
from stepfast.model.records import Claimed
from stepfast.model.rows import DagOutputs
from stepfast.worker.dag_cache import DagCache
from tests.support.engine import PATIENCE, Gate
from tests.support.worker_context import make_kit

GRAPH = Graph([DagStep("a"), DagStep("b", ("a",)), DagStep("c", ("b",))])
STEP_C = Claimed(
    "step", "dag", "dag", 0, 1, 1, 1, 0, 0, 1, "null", None, None, None, 0, 0, None,
    dag_id="run", dag_step="c", graph=GRAPH.version,
)  # fmt: skip


class Store:
    """A dag run of which two steps are completed. The answer to a question can be held back, or lost."""

    def __init__(self) -> None:
        self.asked: list[int] = []
        self.gate: Gate | None = None
        self.lost = False

    async def graph(self, name: str, version: str, dag_id: str) -> str:
        return GRAPH.text

    async def dag_outputs(self, wanted: Sequence[tuple[str, int]]) -> dict[str, DagOutputs]:
        [(dag_id, since)] = wanted
        self.asked.append(since)
        if self.gate is not None:
            await self.gate.passing()
        if self.lost:
            self.lost = False
            raise DatabaseUnavailable("the connection broke")
        outputs = [("a", '"A"', 1, 100), ("b", '"B"', 1, 200)]
        return {dag_id: DagOutputs("null", 1, [output for output in outputs if output[3] >= since])}


async def known_to(graphs: DagCache) -> list[str]:
    """The steps whose outputs the last step would see."""
    view = await asyncio.wait_for(graphs.view("dag", STEP_C), PATIENCE)
    assert view is not None
    return sorted(view.known)


async def test_what_is_known_is_not_asked_for_again() -> None:
    store = Store()
    graphs = DagCache(make_kit(store))
    assert await known_to(graphs) == ["a", "b"]
    assert await known_to(graphs) == ["a", "b"]
    assert store.asked == [0, 200]


@pytest.mark.parametrize("lost", [False, True], ids=["another connection", "its own connection"])
async def test_outputs_forgotten_while_newer_ones_are_asked_for_are_asked_for_too(lost: bool) -> None:
    """A connection breaks meanwhile. The newer ones alone, taken for all, would hide the older from later steps."""
    store = Store()
    graphs = DagCache(make_kit(store))
    await known_to(graphs)
    store.gate, store.lost = Gate(), lost
    question = asyncio.create_task(known_to(graphs))
    await store.gate.reached()
    graphs.forget_outputs()
    store.gate.open()
    assert await question == ["a", "b"]
    assert await known_to(graphs) == ["a", "b"]
    assert store.asked == [0, 200, 0, 200]
