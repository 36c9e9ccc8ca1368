"""Values that a run lets others read: the latest wins, and only the owner writes."""

from __future__ import annotations

import pytest

from stepfast.model.ids import new_id
from tests.store.scene import Scene, completed, step, under_way, value


async def test_a_value_can_be_read_by_its_key(scene: Scene) -> None:
    run = await scene.running()
    await scene.flush(value(run, "stage", '"packing ä"'), value(run, "count", "3", format=2))
    assert await scene.store.value(run.id, "stage") == ('"packing ä"', 1)
    assert await scene.store.value(run.id, "count") == ("3", 2)


async def test_what_was_never_set_is_none(scene: Scene) -> None:
    run, other = await scene.running(), await scene.running()
    await scene.flush(value(run, "stage", "1"))
    assert await scene.store.value(run.id, "Stage") is None
    assert await scene.store.value(other.id, "stage") is None
    assert await scene.store.value(new_id(), "stage") is None


async def test_a_value_that_is_null_is_a_value(scene: Scene) -> None:
    run = await scene.running()
    await scene.flush(value(run, "stage", "null"))
    assert await scene.store.value(run.id, "stage") == ("null", 1)


async def test_a_later_value_takes_the_place_of_an_earlier_one(scene: Scene) -> None:
    run = await scene.running()
    await scene.flush(value(run, "stage", "1"), value(run, "other", "7"))
    await scene.flush(value(run, "stage", "2", format=2))
    assert await scene.store.value(run.id, "stage") == ("2", 2)
    assert await scene.store.value(run.id, "other") == ("7", 1)


async def test_within_one_flush_the_last_value_wins(scene: Scene) -> None:
    run, other = await scene.running(), await scene.running()
    await scene.flush(
        value(run, "stage", "3"), value(run, "stage", "1"), value(other, "stage", "9"), value(run, "stage", "2")
    )
    assert await scene.store.value(run.id, "stage") == ("2", 1)
    assert await scene.store.value(other.id, "stage") == ("9", 1)


@pytest.mark.parametrize("how", ["another worker", "another claim"])
async def test_only_the_owner_sets_values(scene: Scene, how: str) -> None:
    run = await scene.running()
    await scene.flush(value(run, "stage", "1"))
    worker = await scene.add_worker() if how == "another worker" else None
    if how == "another claim":
        await scene.again(run)
    before = await scene.rows.dump()
    answer = await scene.flush(value(run, "stage", "2"), value(run, "new", "2"), worker=worker)
    assert answer.lost == {run.id}
    assert await scene.rows.dump() == before


async def test_a_value_of_an_old_claim_does_not_pass_beside_one_of_the_new(scene: Scene) -> None:
    old = await scene.running()
    new = await scene.again(old)
    await scene.flush(value(old, "stage", '"old"'), step(new, 0))
    assert await scene.store.value(new.id, "stage") is None


async def test_a_value_set_again_after_a_lost_reply_is_the_same_value(scene: Scene) -> None:
    run = await scene.running()
    for _ in range(2):
        assert (await scene.flush(value(run, "stage", "1"))).lost == set()
    assert await scene.store.value(run.id, "stage") == ("1", 1)


async def test_values_go_with_the_other_entries_of_their_run(scene: Scene) -> None:
    run = await scene.running()
    await scene.flush(step(run, 0), under_way(run, 1), value(run, "stage", "1"), completed(run))
    assert (await scene.info(run.id)).status == "completed"
    assert len(await scene.store.steps(run.id)) == 1
    assert await scene.store.value(run.id, "stage") == ("1", 1)


async def test_values_outlive_their_claim_and_their_run(scene: Scene) -> None:
    run = await scene.running()
    await scene.flush(value(run, "stage", "1"))
    again = await scene.again(run)
    await scene.flush(value(again, "count", "2"))
    await scene.flush(completed(again))
    assert [await scene.store.value(run.id, key) for key in ("stage", "count")] == [("1", 1), ("2", 1)]


async def test_a_lost_run_takes_no_values_of_others_along(scene: Scene) -> None:
    await scene.start_many(60)
    runs = await scene.claim(60)
    lost = runs[30]
    await scene.store.give_back(scene.worker, [(lost.id, lost.claim)])
    answer = await scene.flush(*(value(run, "id", f'"{run.id}"') for run in runs))
    assert answer.lost == {lost.id}
    for run in runs:
        assert await scene.store.value(run.id, "id") == (None if run is lost else (f'"{run.id}"', 1))
