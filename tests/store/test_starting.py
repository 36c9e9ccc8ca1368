"""Starts: what they store, their keys, and how a run stands then: as the functions of model/ say (rule 55)."""

from __future__ import annotations

import asyncio
import itertools
from typing import Any

import pytest

from stepfast.errors import DatabaseRefused
from stepfast.model.ids import new_id
from stepfast.model.records import NewRun, RunShape
from stepfast.model.transitions.start import Beginning, begin
from stepfast.settings import Settings
from stepfast.store import Store
from tests.store.conftest import EVERYWHERE, Stores
from tests.store.graph_scene import graph_of, rows_of
from tests.store.scene import DAY, MINUTE, Scene, child_of, new_run

pytestmark = EVERYWHERE


async def test_a_start_stores_all_it_was_given(scene: Scene) -> None:
    run_id = await scene.start(
        "order", input='{"id":"ä\'1"}', key="o-1", queue="vip", priority=7, expires_ms=2 * MINUTE,
        deadline_ms=9 * MINUTE, max_attempts=4, timeout_ms=1500, tags=("red", "blue"),
    )  # fmt: skip
    row = await scene.info(run_id)
    assert (row.workflow, row.version, row.queue, row.input, row.key) == ("order", "v1", "vip", '{"id":"ä\'1"}', "o-1")
    assert (row.priority, row.max_attempts, row.tags) == (7, 4, ["red", "blue"])
    assert (row.status, row.attempt, row.claim, row.losses, row.ready) == ("queued", 0, 0, 0, True)
    assert row.deadline_at == row.created_at + 9 * MINUTE
    assert row.expires_at == row.created_at + 2 * MINUTE
    assert (row.worker, row.started_at, row.completed_at, row.output, row.error) == (None,) * 5
    assert abs(row.now_ms - row.created_at) < MINUTE
    [claimed] = await scene.claim()
    assert (claimed.timeout_ms, claimed.max_attempts) == (1500, 4)
    assert claimed.deadline_in_ms is not None and 8 * MINUTE < claimed.deadline_in_ms <= 9 * MINUTE


async def test_what_is_not_given_stays_empty(scene: Scene) -> None:
    row = await scene.info(await scene.start())
    assert (row.key, row.tags, row.max_attempts, row.deadline_at, row.expires_at, row.visible_at) == (
        None,
        [],
        None, None, None, None,
    )  # fmt: skip


async def test_an_immediate_start_is_born_ready_and_a_delayed_one_is_not(scene: Scene) -> None:
    now = (await scene.info(await scene.start())).now_ms
    assert (await scene.info(await scene.start(at_ms=now - MINUTE))).ready
    laters: list[dict[str, Any]] = [{"delay_ms": MINUTE}, {"at_ms": now + MINUTE}]
    for later in laters:
        row = await scene.info(await scene.start(**later))
        assert not row.ready
        assert row.visible_at is not None and row.visible_at > row.now_ms


async def test_the_expiry_of_a_delayed_run_counts_from_when_it_is_due(scene: Scene) -> None:
    row = await scene.info(await scene.start(delay_ms=5 * MINUTE, expires_ms=MINUTE))
    assert row.expires_at == row.created_at + 6 * MINUTE
    assert row.visible_at == row.created_at + 5 * MINUTE


async def test_a_repeated_start_changes_nothing(scene: Scene) -> None:
    """Rule 7: the reply of the first may have been lost."""
    run = new_run(tags=("red",))
    assert await scene.store.start([run]) == [run.id]
    [claimed] = await scene.claim()
    before = await scene.rows.dump()
    assert await scene.store.start([run]) == [run.id]
    assert await scene.rows.dump() == before
    assert claimed.id == run.id


async def test_the_same_key_is_the_same_run(scene: Scene) -> None:
    """Rule 35."""
    first = await scene.start(key="o-1")
    assert await scene.start(key="o-1", input='"another"') == first
    assert await scene.start(key="o-2") != first
    assert await scene.start("mail", key="o-1") != first
    assert len(await scene.store.runs()) == 3
    assert (await scene.info(first)).input == "{}"


async def test_a_key_stays_taken_after_its_run_has_ended(scene: Scene) -> None:
    first = await scene.start(key="o-1")
    await scene.rows.set(first, "status", "completed")
    assert await scene.start(key="o-1") == first


async def test_a_start_that_lost_its_key_leaves_no_tags_behind(scene: Scene) -> None:
    first = await scene.start(key="o-1", tags=("first",))
    await scene.start(key="o-1", tags=("second",))
    assert await scene.rows.fetch("SELECT tag FROM [run_tags]") == [("first",)]
    assert [row.id for row in await scene.store.runs(tag="first")] == [first]


async def test_keyed_and_unkeyed_starts_are_answered_in_their_order(scene: Scene) -> None:
    taken = await scene.start(key="b")
    runs = [new_run(key="c"), new_run(), new_run(key="b"), new_run(key="a"), new_run(key="c")]
    assert await scene.store.start(runs) == [runs[0].id, runs[1].id, taken, runs[3].id, runs[0].id]
    assert len(await scene.store.runs()) == 4


async def test_a_key_that_is_used_again_tells_what_it_was_first_used_for(scene: Scene) -> None:
    """By an earlier call, or by an earlier run of the same one."""
    await scene.start(key="a", input='"first"')
    runs = [new_run(key="a", input='"second"'), new_run(key="b", input='"third"'), new_run(key="b", input='"fourth"')]
    await scene.store.start(runs)
    assert [run.earlier and run.earlier[0] for run in runs] == ['"first"', None, '"third"']


async def test_concurrent_starts_of_one_key_are_one_run(scene: Scene, twin: Store) -> None:
    keys = ("o-1", "o-2", "o-3")
    starts = [
        store.start([new_run(key=key) for key in order])
        for _ in range(5)
        for store in (scene.store, twin)
        for order in (keys, keys[::-1])
    ]
    answers = await asyncio.gather(*starts)
    straight = {tuple(answer) for answer in answers[0::2]} | {tuple(answer[::-1]) for answer in answers[1::2]}
    assert len(straight) == 1, "the same key was answered with different runs"
    assert len(await scene.store.runs()) == 3


async def test_many_are_started_all_or_none(scene: Scene) -> None:
    bad = NewRun(new_id(), RunShape("mail", "v1", "mail"), None)  # type: ignore[arg-type]
    before = await scene.rows.dump()
    with pytest.raises(DatabaseRefused, match=r"(?i)null"):
        await scene.store.start([new_run(), new_run(tags=("red",)), new_run(key="k"), bad])
    assert await scene.rows.dump() == before
    assert len(await scene.store.start([new_run(), new_run(tags=("red",)), new_run(key="k")])) == 3


async def test_a_failed_start_leaves_the_ones_beside_it_alone(scene: Scene) -> None:
    bad = NewRun(new_id(), RunShape("mail", "v1", "mail"), None)  # type: ignore[arg-type]
    starts = [scene.store.start([new_run()]) for _ in range(5)]
    starts.insert(2, scene.store.start([bad]))
    answers = await asyncio.gather(*starts, return_exceptions=True)
    assert [isinstance(answer, DatabaseRefused) for answer in answers] == [False, False, True, False, False, False]
    assert len(await scene.store.runs()) == 5


async def test_a_call_larger_than_a_batch_keeps_its_order(stores: Stores, store: Store) -> None:
    small = store if not stores.shared else await stores.open(settings=Settings(start_batch=10))
    scene = await stores.scene(small)
    ids = await scene.start_many(25)
    assert [run.id for run in await scene.claim(25)] == ids


async def test_one_call_may_start_runs_of_many_shapes(scene: Scene) -> None:
    runs = [new_run(workflow, priority=priority) for priority in (1, 5) for workflow in ("order", "mail", "order")]
    assert await scene.store.start(runs) == [run.id for run in runs]
    rows = {run.id: await scene.info(run.id) for run in runs}
    assert all(
        (rows[run.id].workflow, rows[run.id].priority) == (run.shape.workflow, run.shape.priority) for run in runs
    )


async def test_starting_nothing_is_nothing(scene: Scene) -> None:
    assert await scene.store.start([]) == []


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
