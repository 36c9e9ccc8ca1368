"""A run is cancelled whose worker died since its last record: a step may have acted that nothing records."""

from __future__ import annotations

import json

from stepfast.model.records import Lane
from tests.store.scene import MINUTE, Scene, move, step, under_way, waiting

LANE = Lane("order", "order", 0)


async def test_after_one_loss_it_stands_in_line_marked(scene: Scene) -> None:
    run_id = await scene.start(deadline_ms=MINUTE)
    await scene.lose(run_id)
    asked = await scene.store.cancel(run_id)
    assert (asked.done, asked.ended, asked.lane) == (True, False, LANE)
    row = await scene.info(run_id)
    assert (row.status, row.asked, row.ready, row.visible_at) == ("queued", "cancel", True, row.deadline_at)
    [run] = await scene.claim()
    assert (run.asked, run.losses) == ("cancel", 1)


async def test_one_that_is_held_up_goes_on_too(scene: Scene) -> None:
    """Paused, or waiting for its next attempt: what may have acted is not left to a later day."""
    for wish in ("pause", "retry"):
        run_id = await scene.start()
        await scene.lose(run_id)
        if wish == "pause":
            await scene.store.pause(run_id)
        else:
            [run] = await scene.claim()
            await scene.flush(move(run, "queued", delay_ms=MINUTE, next_attempt=True, error="{}"))
        await scene.store.cancel(run_id)
        [run] = await scene.claim()
        assert (run.id, run.asked) == (run_id, "cancel")


async def test_one_that_waits_has_nothing_left_to_record(scene: Scene) -> None:
    run_id = await scene.start()
    await scene.lose(run_id)
    [run] = await scene.claim()
    await scene.flush(waiting(run, MINUTE))
    assert (await scene.store.cancel(run_id)).ended
    assert (await scene.info(run_id)).error is None


async def test_a_record_since_then_clears_it(scene: Scene) -> None:
    run_id = await scene.start()
    await scene.lose(run_id)
    [run] = await scene.claim()
    await scene.flush(step(run, 0))
    await scene.store.give_back(scene.worker, [(run.id, run.claim)])
    assert (await scene.store.cancel(run_id)).ended


async def test_a_suspect_is_cancelled_at_once_and_names_the_step(scene: Scene) -> None:
    run_id = await scene.start()
    victim = await scene.add_worker()
    [run] = await scene.claim(worker=victim)
    await scene.flush(step(run, 0, name="reserve"), worker=victim)
    await scene.bury(victim)
    await scene.lose(run_id)
    assert (await scene.store.cancel(run_id)).ended
    row = await scene.info(run_id)
    assert (row.status, row.reason) == ("cancelled", "cancelled")
    assert row.error is not None
    assert json.loads(row.error)["message"].startswith("the step after 'reserve' may have acted: 2 workers died")


async def test_a_suspect_that_can_be_undone_is_and_names_the_step_that_was_under_way(scene: Scene) -> None:
    run_id = await scene.start()
    victim = await scene.add_worker()
    [run] = await scene.claim(worker=victim)
    await scene.flush(step(run, 0, undo="put_back"), under_way(run, 1, name="charge"), worker=victim)
    await scene.bury(victim)
    await scene.lose(run_id)
    asked = await scene.store.cancel(run_id)
    assert (asked.done, asked.ended, asked.lane) == (True, False, LANE)
    row = await scene.info(run_id)
    assert (row.status, row.reason, row.undoing) == ("compensating", "cancelled", True)
    assert row.error is not None and "step 'charge' may have acted" in row.error
