"""Time: what is due becomes ready, what expired or missed its deadline ends (rule 31)."""

from __future__ import annotations

from stepfast.model.records import Lane
from tests.store.scene import DAY, MINUTE, Scene, move, retried, waiting


async def test_due_sleepers_become_ready_in_the_order_they_were_due(scene: Scene) -> None:
    ids = await scene.start_many(4, delay_ms=DAY)
    for minutes, run_id in zip((1, 4, 2, 3), ids, strict=True):
        await scene.rows.shift(run_id, "visible_at", -DAY - minutes * MINUTE)
    later = await scene.start(delay_ms=MINUTE)
    promotion = await scene.store.promote(100)
    assert (promotion.lanes, promotion.ended, promotion.moved) == ({Lane("order", "order", 0)}, [], 4)
    assert [run.id for run in await scene.claim()] == [ids[1], ids[3], ids[2], ids[0]]
    assert not (await scene.info(later)).ready


async def test_promotion_is_bounded_and_takes_the_longest_due_first(scene: Scene) -> None:
    ids = await scene.start_many(5, delay_ms=DAY)
    for n, run_id in enumerate(ids):
        await scene.rows.shift(run_id, "visible_at", -DAY - (n + 1) * MINUTE)
    assert (await scene.store.promote(2)).moved == 2
    assert {run.id for run in await scene.claim()} == set(ids[3:])
    assert [(await scene.store.promote(2)).moved for _ in range(3)] == [2, 1, 0]


async def test_a_promoted_run_stands_behind_those_already_ready(scene: Scene) -> None:
    """A wait that is over goes back in line, with the attempt it had."""
    sleeper = await scene.start(delay_ms=MINUTE)
    waits = await scene.running()
    await scene.flush(waiting(waits, DAY))
    ready = await scene.start()
    await scene.rows.shift(ready, "place", -DAY * 2000)
    await scene.rows.shift(sleeper, "visible_at", -2 * MINUTE)
    await scene.rows.shift(waits.id, "visible_at", -DAY - MINUTE // 2)
    assert (await scene.store.promote(10)).moved == 2
    row = await scene.info(waits.id)
    assert (row.status, row.ready, row.waiting_for, row.visible_at, row.attempt) == ("queued", True, None, None, 1)
    assert [run.id for run in await scene.claim()] == [ready, sleeper, waits.id]


async def test_the_tick_tells_what_is_due_and_when_the_next_is(scene: Scene) -> None:
    tick = await scene.store.tick(scene.worker, ["order"], True)
    assert (tick.due, tick.next_due_ms) == (False, None)
    run_id = await scene.start(delay_ms=10 * MINUTE)
    await scene.start(delay_ms=DAY)
    tick = await scene.store.tick(scene.worker, ["order"], True)
    assert not tick.due
    assert tick.next_due_ms is not None and 9 * MINUTE < tick.next_due_ms <= 10 * MINUTE
    await scene.rows.shift(run_id, "visible_at", -11 * MINUTE)
    assert (await scene.store.tick(scene.worker, ["order"], True)).due
    await scene.store.promote(10)
    assert not (await scene.store.tick(scene.worker, ["order"], True)).due


async def test_what_nobody_picked_up_in_time_fails_and_says_so(scene: Scene) -> None:
    run_id = await scene.start(expires_ms=MINUTE)
    assert (await scene.store.promote(10)).moved == 0
    for column in ("expires_at", "visible_at"):
        await scene.rows.shift(run_id, column, -2 * MINUTE)
    promotion = await scene.store.promote(10)
    assert (promotion.ended, promotion.lanes, promotion.moved) == ([run_id], set(), 1)
    row = await scene.info(run_id)
    assert (row.status, row.reason, row.ready, row.visible_at) == ("failed", "expired", False, None)
    assert row.completed_at is not None
    assert row.error is not None and "picked" in row.error
    assert (await scene.store.outcomes([run_id]))[0].status == "failed"
    assert await scene.claim(lanes=[Lane("order", "order", 0)]) == []


async def test_a_run_picked_up_in_time_is_not_expired_by_a_sweep(scene: Scene) -> None:
    """The expiry of a run that was claimed once no longer matters, wherever it stands."""
    run = await scene.running(expires_ms=MINUTE)
    await scene.rows.shift(run.id, "expires_at", -2 * MINUTE)
    assert (await scene.store.promote(10)).moved == 0
    await scene.flush(retried(run, delay_ms=MINUTE))
    await scene.rows.shift(run.id, "visible_at", -2 * MINUTE)
    assert (await scene.store.promote(10)).ended == []
    row = await scene.info(run.id)
    assert (row.status, row.ready, row.visible_at) == ("queued", True, None)


async def test_a_delayed_run_expires_counted_from_when_it_was_due(scene: Scene) -> None:
    run_id = await scene.start(delay_ms=DAY, expires_ms=MINUTE)
    for column in ("expires_at", "visible_at"):
        await scene.rows.shift(run_id, column, -DAY)
    assert (await scene.store.promote(10)).ended == []
    row = await scene.info(run_id)
    assert (row.ready, row.visible_at) == (True, row.expires_at)
    for column in ("expires_at", "visible_at"):
        await scene.rows.shift(run_id, column, -2 * MINUTE)
    assert (await scene.store.promote(10)).ended == [run_id]


async def test_the_deadline_ends_what_waits_and_what_stands_in_line(scene: Scene) -> None:
    waits = await scene.running(deadline_ms=DAY)
    await scene.flush(waiting(waits, None))
    in_line = await scene.start(deadline_ms=DAY)
    for run_id in (waits.id, in_line):
        for column in ("deadline_at", "visible_at"):
            await scene.rows.shift(run_id, column, -2 * DAY)
    assert set((await scene.store.promote(10)).ended) == {waits.id, in_line}
    for run_id in (waits.id, in_line):
        row = await scene.info(run_id)
        assert (row.status, row.reason, row.ready) == ("failed", "deadline", False)
        assert row.error is not None and "deadline" in row.error


async def test_a_deadline_that_passed_while_a_worker_holds_the_run_is_the_worker_s_to_see(scene: Scene) -> None:
    """And a run that has ended is never due."""
    run = await scene.running(deadline_ms=MINUTE, expires_ms=MINUTE)
    await scene.rows.shift(run.id, "deadline_at", -2 * MINUTE)
    assert (await scene.store.promote(10)).moved == 0
    assert (await scene.info(run.id)).status == "running"
    await scene.flush(move(run, "cancelled", reason="cancelled"))
    row = await scene.info(run.id)
    assert (row.status, row.visible_at, row.ready) == ("cancelled", None, False)
