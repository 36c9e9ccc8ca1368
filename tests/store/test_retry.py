"""An operator's retry: the same run again, with a new budget."""

from __future__ import annotations

import pytest

from stepfast.model.records import Claimed, Lane
from tests.store.conftest import EVERYWHERE
from tests.store.scene import DAY, MINUTE, Scene, completed, failed, move, retried, step, waiting

pytestmark = EVERYWHERE


async def test_a_failed_run_is_queued_again_with_a_new_budget(scene: Scene) -> None:
    run = await scene.running(priority=3, queue="vip", expires_ms=MINUTE)
    await scene.flush(retried(run))
    [second] = await scene.claim()
    await scene.flush(step(second, 0, '"kept"'), failed(second))
    await scene.rows.set(run.id, "losses", 4)
    assert await scene.store.retry(run.id) == {Lane("vip", "order", 3)}
    row = await scene.info(run.id)
    assert (row.status, row.reason, row.error, row.completed_at, row.ready) == ("queued", None, None, None, True)
    assert row.losses == 0
    [again] = await scene.claim()
    assert (again.attempt, again.first_attempt) == (3, 3)
    assert [record.output for record in again.records] == ['"kept"']


async def test_a_retry_moves_the_claim_number_on(scene: Scene, run: Claimed) -> None:
    """So that a worker which remembers the run does not trust what it remembers."""
    await scene.flush(failed(run))
    await scene.store.retry(run.id)
    [again] = await scene.claim()
    assert again.claim == run.claim + 2


async def test_a_cancelled_run_can_be_retried_too(scene: Scene, run: Claimed) -> None:
    await scene.flush(move(run, "cancelled", reason="cancelled"))
    assert await scene.store.retry(run.id) == {Lane("order", "order", 0)}
    assert [again.id for again in await scene.claim()] == [run.id]


@pytest.mark.parametrize("state", ["queued", "running", "waiting", "completed"])
async def test_a_run_that_did_not_fail_is_left_as_it_is(scene: Scene, run_id: str, state: str) -> None:
    if state != "queued":
        [run] = await scene.claim()
        if state != "running":
            await scene.flush(waiting(run) if state == "waiting" else completed(run))
    before = await scene.rows.dump()
    assert await scene.store.retry(run_id) is None
    assert await scene.rows.dump() == before


async def test_a_retry_forgets_only_what_the_error_belongs_to_and_only_once(scene: Scene, run: Claimed) -> None:
    """Rule 15."""
    await scene.flush(
        step(run, 0),
        step(run, 1, status="failed"),
        step(run, 0, branch="1.0"),
        failed(run, forget=[("", 1), ("1.0", 0)]),
    )
    await scene.store.retry(run.id)
    [again] = await scene.claim()
    assert [(r.branch, r.position) for r in again.records] == [("", 0)]
    await scene.flush(step(again, 1), step(again, 0, branch="1.0"), failed(again))
    await scene.store.retry(run.id)
    assert len(await scene.store.steps(run.id)) == 3


async def test_a_retry_has_as_much_time_as_the_first_start_had(scene: Scene) -> None:
    run = await scene.running(deadline_ms=DAY, expires_ms=MINUTE)
    await scene.flush(failed(run))
    for column in ("created_at", "deadline_at", "expires_at"):
        await scene.rows.shift(run.id, column, -10 * DAY)
    await scene.store.retry(run.id)
    row = await scene.info(run.id)
    assert row.deadline_at is not None and abs(row.deadline_at - row.now_ms - DAY) < MINUTE
    assert (row.visible_at, row.expires_at) == (row.deadline_at, None)


async def test_a_second_retry_has_no_more_time_than_the_first(scene: Scene) -> None:
    run = await scene.running(deadline_ms=DAY)
    await scene.flush(failed(run))
    for column in ("created_at", "deadline_at"):
        await scene.rows.shift(run.id, column, -10 * DAY)
    await scene.store.retry(run.id)
    [again] = await scene.claim()
    await scene.flush(failed(again))
    await scene.store.retry(run.id)
    row = await scene.info(run.id)
    assert row.deadline_at is not None and abs(row.deadline_at - row.now_ms - DAY) < MINUTE
