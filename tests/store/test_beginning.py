"""How a run stands when it is started is the same on every database, and what the functions of model/ say (rule 55).

What callers from SQL start is compared with what the code starts in ``tests/engine/test_from_sql.py``.
"""

from __future__ import annotations

import itertools
from typing import Any

from stepfast.model.records import NewRun
from stepfast.model.transitions.start import Beginning, begin
from tests.store.graph_scene import graph_of, rows_of
from tests.store.scene import DAY, MINUTE, Scene, child_of, new_run

SHAPES: list[dict[str, Any]] = [
    {"delay_ms": delay, "at_ms": at, "expires_ms": expires, "deadline_ms": deadline}
    for delay, at, expires, deadline in itertools.product(
        (0, 5000), (None, -MINUTE, MINUTE), (None, 0, 700), (None, DAY)
    )
]
"""Every way to be due, late and expired; ``at`` counts from the database's time."""
COLUMNS = "status, waiting_for, place IS NOT NULL, visible_at, expires_at, deadline_at, started_at, ready_at"


async def shapes(scene: Scene) -> list[dict[str, Any]]:
    now = (await scene.info(await scene.start())).now_ms
    return [{**shape, "at_ms": None if shape["at_ms"] is None else now + shape["at_ms"]} for shape in SHAPES]


async def began(scene: Scene, run: NewRun) -> tuple[int, Beginning]:
    """When a run was started, and how its row stood then."""
    query = f"SELECT created_at, {COLUMNS} FROM [runs] WHERE id = ?"
    [(created_at, status, waiting_for, ready, *times)] = await scene.rows.fetch(query, run.id)
    return created_at, Beginning(status, waiting_for, bool(ready), *times)


async def test_runs_of_every_shape_begin_as_the_function_says(scene: Scene) -> None:
    """Alone, as children, as heirs, and as part of a trace; each shape by itself and many in one call."""
    parent = await scene.running()
    runs = []
    for number, shape in enumerate(await shapes(scene)):
        continuation, traced = new_run(**shape), new_run(**shape)
        continuation.origin, traced.trace = parent.id, "{}"
        runs += [new_run(**shape), child_of(parent, number, **shape), continuation, traced]
    await scene.store.start(runs)
    for run in runs:
        created_at, stood = await began(scene, run)
        assert stood == begin(run, created_at)


async def test_dag_runs_and_their_steps_begin_as_the_function_says(scene: Scene) -> None:
    for shape in await shapes(scene):
        dag, *steps = rows_of(graph_of({"a": "", "b": "a", "c": "a b"}), **shape)
        await scene.store.start([dag, *steps])
        begun_at, stood = await began(scene, dag)
        assert stood == begin(dag, begun_at)
        assert len(steps) == 3
        for step in steps:
            created_at, stood = await began(scene, step)
            wanted = begin(step, created_at)
            ready_at = None if wanted.ready_at is None else begun_at  # as seen by its dag run
            assert stood == wanted._replace(ready_at=ready_at)
