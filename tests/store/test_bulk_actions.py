"""A bulk action has the same effect as the action on each run."""

from __future__ import annotations

from typing import Any

import pytest

from stepfast.model.bulk_actions import BATCHED
from stepfast.model.records import Lane
from stepfast.store import Store
from tests.store.conftest import only_on
from tests.store.graph_scene import Dag
from tests.store.scene import Scene, completed, failed, move, step, undo, waiting

COLUMNS = (
    "status", "reason", "waiting_for", "asked", "claim", "visible_at IS NULL", "place IS NULL", "wakes", "attempt",
    "first_attempt", "undoing", "paused_at IS NULL", "held_due IS NULL", "completed_at IS NULL", "error",
)  # fmt: skip


async def every_state(scene: Scene) -> list[str]:
    """A run in each state that an operator can meet, but for one that is in line."""
    made = []
    for how in (None, waiting, completed, failed, undo):
        run = await scene.running()
        await scene.flush(step(run, 0, undo="refund" if how is undo else None))
        if how is not None:
            await scene.flush(how(run))
        if how is undo:
            await scene.claim()
        made.append(run.id)
    paused = await scene.running()
    await scene.flush(waiting(paused))
    await scene.store.pause(paused.id)
    cancelled = await scene.running()
    await scene.flush(move(cancelled, "cancelled", reason="cancelled"))
    return [*made, paused.id, cancelled.id]


async def standing(scene: Scene, ids: list[str]) -> list[tuple[Any, ...]]:
    found = []
    for run_id in ids:
        found += await scene.rows.fetch(f"SELECT {', '.join(COLUMNS)} FROM [runs] WHERE id = ?", run_id)
    return found


@pytest.mark.parametrize("verb", [verb for verb in BATCHED if verb != "delete"])
async def test_many_at_once_is_the_same_as_one_by_one(scene: Scene, verb: str) -> None:
    one_by_one, together = await every_state(scene), await every_state(scene)
    one_by_one.append(await scene.start())
    together.append(await scene.start())
    done = []
    for run_id in one_by_one:
        answer = await getattr(scene.store, verb)(run_id)
        done.append(answer is not None if verb == "retry" else answer.done)
    outcome = await scene.store.apply_bulk(verb, together)
    assert [run_id in outcome.done for run_id in together] == done
    assert [run_id in outcome.refused for run_id in together] == [not each for each in done]
    assert await standing(scene, together) == await standing(scene, one_by_one)
    assert outcome.apart == []
    assert outcome.lanes in (set(), {Lane("order", "order", 0)})


async def test_ended_runs_are_deleted_with_what_belongs_to_them(scene: Scene) -> None:
    ids = await every_state(scene)
    ended = [run_id for run_id, row in zip(ids, await standing(scene, ids), strict=True) if not row[13]]
    outcome = await scene.store.apply_bulk("delete", ids)
    assert (set(outcome.done), set(outcome.apart)) == (set(ended), set(ids) - set(ended))
    assert len(ended) == 3
    for table in ("steps", "tries", "run_values"):
        found = await scene.rows.fetch(f"SELECT DISTINCT run_id FROM [{table}]")
        assert not {str(row[0]) for row in found} & set(ended)


async def test_dag_runs_are_left_to_be_asked_by_themselves(scene: Scene, dag: Dag) -> None:
    outcome = await scene.store.apply_bulk("cancel", [dag.id])
    assert (outcome.done, outcome.apart) == ([], [dag.id])


@only_on("postgres")
async def test_a_locked_run_is_left_to_be_waited_for_alone(scene: Scene, twin: Store) -> None:
    one, two = await scene.start(), await scene.start()
    await scene.rows.fetch("BEGIN")
    await scene.rows.fetch("SELECT 1 FROM [runs] WHERE id = ? FOR UPDATE", one)
    outcome = await twin.apply_bulk("cancel", [one, two])
    assert (outcome.done, outcome.apart, outcome.ended) == ([two], [one], True)
    await scene.rows.fetch("ROLLBACK")


async def test_many_runs_that_nobody_had_claimed_are_retried_at_once(scene: Scene) -> None:
    """Each of them leaves the key that it may have been debounced by, which takes a statement for many rows."""
    ids = [await scene.start() for _ in range(7)]
    assert set((await scene.store.apply_bulk("cancel", ids)).done) == set(ids)
    assert set((await scene.store.apply_bulk("retry", ids)).done) == set(ids)
    assert [row[:2] for row in await standing(scene, ids)] == [("queued", None)] * 7
