"""Undoing: a run whose completed steps are undone stays ``compensating`` until it ends (rule 28)."""

from __future__ import annotations

import pytest

from stepfast.model.records import Claimed, Lane
from tests.store.scene import DAY, Scene, failed, joint, move, retried, step, undo, waiting

LANE = Lane("order", "order", 0)
ERROR = '{"type":"ValueError"}'


async def begun(scene: Scene, run_id: str) -> None:
    """In line to be undone, for the reason it was begun for."""
    row = await scene.info(run_id)
    assert (row.status, row.undoing, row.ready, row.worker) == ("compensating", True, True, None)
    assert (row.reason, row.error, row.completed_at) == ("code", ERROR, None)


@pytest.fixture
async def again(scene: Scene) -> Claimed:
    """A run that failed after a step which can be undone, claimed to be undone."""
    await scene.undoing()
    [again] = await scene.claim()
    return again


# -- where it stands ----------------------------------------------------------------------------------------


async def test_an_undo_begins_at_once(scene: Scene, run: Claimed) -> None:
    answer = await scene.flush(step(run, 0, undo="refund"), undo(run))
    assert answer.lost == set()
    await begun(scene, run.id)
    assert await scene.lanes() == [LANE]
    assert await scene.store.outcomes([run.id]) == []
    assert [row.id for row in await scene.store.runs(status="compensating")] == [run.id]


async def test_the_deadline_and_the_wishes_of_operators_end_where_an_undo_begins(scene: Scene) -> None:
    run = await scene.running(deadline_ms=DAY)
    await scene.store.cancel(run.id)
    await scene.flush(step(run, 0, undo="refund"), undo(run, reason="cancelled", error=None))
    row = await scene.info(run.id)
    assert (row.deadline_at, row.visible_at, row.asked) == (None, None, None)


async def test_a_claim_brings_what_is_to_be_undone(scene: Scene) -> None:
    run = await scene.undoing()
    [again] = await scene.claim()
    assert (again.id, again.undoing, run.undoing) == (run.id, True, False)
    assert [(record.status, record.undo) for record in again.records] == [("completed", "refund")]


async def test_a_run_is_compensating_while_a_worker_holds_it(scene: Scene) -> None:
    run = await scene.undoing()
    await scene.claim()
    row = await scene.info(run.id)
    assert (row.status, row.ready, row.worker, row.reason, row.error) == (
        "compensating", False, scene.worker, "code", ERROR,
    )  # fmt: skip


async def test_a_claim_whose_reply_was_lost_is_asked_again(scene: Scene) -> None:
    run = await scene.undoing()
    lanes = await scene.lanes()
    [first] = await scene.claim(token=77, lanes=lanes)
    [second] = await scene.claim(token=77, lanes=lanes)
    assert (first.id, first.claim, first.undoing) == (second.id, second.claim, second.undoing) == (run.id, 2, True)


@pytest.mark.parametrize("moment", [True, False])
async def test_an_undo_may_wait_for_its_next_try(scene: Scene, again: Claimed, moment: bool) -> None:
    due: dict[str, int] = {"due_at": again.now_ms + DAY} if moment else {"delay_ms": DAY}
    answer = await scene.flush(move(again, "compensating", **due))
    row = await scene.info(again.id)
    assert (row.status, row.reason, row.error) == ("compensating", "code", ERROR)
    assert (row.ready, row.visible_at) == (False, due.get("due_at", answer.now_ms + DAY))
    await scene.rows.make_due(again.id)
    promotion = await scene.store.promote(10)
    assert (promotion.lanes, promotion.ended, promotion.moved) == ({LANE}, [], 1)
    await begun(scene, again.id)


@pytest.mark.parametrize("status", ["waiting", "queued"])
async def test_an_undo_stays_one_however_it_is_put_down(scene: Scene, status: str) -> None:
    run = await scene.undoing()
    [again] = await scene.claim()
    await scene.flush(move(again, status, delay_ms=DAY, waiting_for="time" if status == "waiting" else None))
    row = await scene.info(run.id)
    assert (row.status, row.undoing, row.ready) == ("compensating", True, False)


async def test_a_woken_wait_of_an_undo_is_in_line_to_be_undone(scene: Scene, again: Claimed) -> None:
    await scene.rows.fetch("UPDATE [runs] SET wakes = wakes + 1 WHERE id = ?", again.id)
    await scene.flush(waiting(again, None))
    row = await scene.info(again.id)
    assert (row.status, row.ready) == ("compensating", True)


async def test_an_undo_given_back_goes_on_elsewhere(scene: Scene) -> None:
    """Also by a worker that leaves."""
    run, leaver = await scene.undoing(), await scene.add_worker()
    [again] = await scene.claim()
    await scene.store.give_back(scene.worker, [(run.id, again.claim)])
    await begun(scene, run.id)
    await scene.claim(worker=leaver)
    await scene.store.unregister(leaver)
    await begun(scene, run.id)


async def test_an_undo_survives_the_death_of_its_worker(scene: Scene) -> None:
    run = await scene.undoing()
    victim = await scene.add_worker()
    await scene.claim(worker=victim)
    await scene.rows.silence(victim)
    reaping = await scene.store.reap(scene.worker, 100, 5)
    assert (reaping.lanes, reaping.dead_letters, reaping.moved) == ({LANE}, [], 1)
    await begun(scene, run.id)
    assert (await scene.info(run.id)).losses == 1
    [again] = await scene.claim()
    assert again.undoing


async def test_an_undo_that_workers_die_with_is_taken_alone(scene: Scene) -> None:
    run = await scene.undoing()
    await scene.lose(run.id)
    await scene.lose(run.id)
    assert await scene.claim(lanes=[LANE]) == []
    [suspect] = await scene.suspect()
    assert (suspect.id, suspect.undoing) == (run.id, True)
    row = await scene.info(run.id)
    assert (row.status, row.reason, row.error) == ("compensating", "code", ERROR)


async def test_an_undo_has_its_lost_workers_counted_too(scene: Scene) -> None:
    run = await scene.undoing()
    await scene.lose(run.id, max_losses=1)
    row = await scene.info(run.id)
    assert (row.status, row.ready) == ("failed", False)
    assert row.completed_at is not None


async def test_what_is_undone_is_recorded(scene: Scene, again: Claimed) -> None:
    answer = await scene.flush(step(again, 0, branch="undo", kind="undo"), move(again, "compensating", recorded=True))
    assert answer.lost == set()
    [last] = await scene.claim()
    assert [(record.branch, record.position) for record in last.records] == [("", 0), ("undo", 0)]
    row = await scene.info(again.id)
    assert (row.status, row.reason, row.error) == ("compensating", "code", ERROR)


# -- how it ends --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("waited", [False, True])
async def test_a_run_that_is_undone_keeps_the_reason_and_the_error(scene: Scene, again: Claimed, waited: bool) -> None:
    if waited:
        await scene.flush(move(again, "compensating", delay_ms=DAY))
        await scene.rows.make_due(again.id)
        await scene.store.promote(10)
        [again] = await scene.claim()
    answer = await scene.flush(move(again, "compensated"))
    row = await scene.info(again.id)
    assert (row.status, row.reason, row.error) == ("compensated", "code", ERROR)
    assert (row.completed_at, row.ready, row.visible_at, row.worker) == (answer.now_ms, False, None, None)
    [outcome] = await scene.store.outcomes([again.id])
    assert (outcome.status, outcome.reason, outcome.error) == ("compensated", "code", ERROR)


async def test_a_cancelled_run_that_is_undone_was_cancelled(scene: Scene, run: Claimed) -> None:
    await scene.flush(step(run, 0, undo="refund"), waiting(run))
    await scene.store.cancel(run.id)
    [again] = await scene.claim()
    await scene.flush(move(again, "compensated"))
    row = await scene.info(run.id)
    assert (row.status, row.reason) == ("compensated", "cancelled")


@pytest.mark.parametrize("error", [None, '{"type":"KeyError"}'])
async def test_a_failed_undo_keeps_the_error_that_began_it_or_brings_its_own(
    scene: Scene, again: Claimed, error: str | None
) -> None:
    await scene.flush(move(again, "failed", reason="undo_failed", error=error))
    row = await scene.info(again.id)
    assert (row.status, row.reason, row.error) == ("failed", "undo_failed", error or ERROR)


@pytest.mark.parametrize("state", ["in line", "held", "waiting", "compensated", "failed"])
async def test_a_retry_is_refused_once_an_undo_has_begun(scene: Scene, state: str) -> None:
    """Rule 28: its records tell of steps that are undone."""
    run = await scene.undoing()
    if state != "in line":
        [again] = await scene.claim()
        ends = {"waiting": move(again, "compensating", delay_ms=DAY)}
        if state != "held":
            await scene.flush(ends.get(state) or move(again, state))
    before = await scene.rows.dump()
    assert await scene.store.retry(run.id) is None
    assert await scene.rows.dump() == before


async def test_a_failed_run_that_never_began_to_undo_can_be_retried(scene: Scene, run: Claimed) -> None:
    await scene.flush(step(run, 0, undo="refund"), failed(run))
    assert await scene.store.retry(run.id) == {LANE}


# -- deadlines and dead letters -------------------------------------------------------------------------------


@pytest.mark.parametrize("state", ["waiting", "in line", "between attempts", "paused"])
async def test_a_run_past_its_deadline_is_undone_if_it_can_be(scene: Scene, state: str) -> None:
    run = await scene.running(deadline_ms=DAY)
    moves = {"in line": move(run, "queued", delay_ms=0), "between attempts": retried(run, 2 * DAY)}
    await scene.flush(step(run, 0, undo="refund"), moves.get(state, waiting(run, None, awaits=3)))
    if state == "paused":
        await scene.store.pause(run.id)
    await scene.rows.make_due(run.id)
    promotion = await scene.store.promote(10)
    assert (promotion.lanes, promotion.ended, promotion.moved) == ({LANE}, [], 1)
    row = await scene.info(run.id)
    assert (row.status, row.reason, row.undoing, row.ready) == ("compensating", "deadline", True, True)
    assert (row.deadline_at, row.visible_at, row.waiting_for, row.completed_at) == (None,) * 4
    assert row.error is not None and "deadline" in row.error
    [again] = await scene.claim()
    assert again.undoing


async def test_a_deadline_ends_some_and_undoes_others(scene: Scene) -> None:
    plain, saga = await scene.running(deadline_ms=DAY), await scene.running(deadline_ms=DAY)
    await scene.flush(step(plain, 0), waiting(plain, None), joint(saga, 0, undo="refund"), waiting(saga, None))
    sleeper = await scene.start("mail", delay_ms=DAY)
    for run_id in (plain.id, saga.id, sleeper):
        await scene.rows.make_due(run_id)
    promotion = await scene.store.promote(10)
    assert (promotion.lanes, promotion.ended, promotion.moved) == ({LANE, Lane("mail", "mail", 0)}, [plain.id], 3)
    found = [(await scene.info(run_id)).status for run_id in (plain.id, saga.id, sleeper)]
    assert found == ["failed", "compensating", "queued"]


async def test_a_deadline_undoes_only_what_is_completed_and_has_an_undo(scene: Scene) -> None:
    run = await scene.running(deadline_ms=DAY)
    await scene.flush(step(run, 0), step(run, 1, status="failed", undo="refund"), waiting(run, None))
    await scene.rows.make_due(run.id)
    assert (await scene.store.promote(10)).ended == [run.id]
    row = await scene.info(run.id)
    assert (row.status, row.undoing) == ("failed", False)


async def test_a_run_that_is_being_undone_has_no_deadline(scene: Scene) -> None:
    run = await scene.undoing(deadline_ms=DAY)
    assert (await scene.store.tick(scene.worker, ["order"], True)).next_due_ms is None
    await scene.lose(run.id)
    row = await scene.info(run.id)
    assert (row.deadline_at, row.visible_at) == (None, None)


async def test_a_dead_letter_is_not_undone(scene: Scene, run: Claimed) -> None:
    """Rule 28."""
    await scene.flush(step(run, 0, undo="refund"), move(run, "queued", delay_ms=0))
    await scene.lose(run.id, max_losses=1)
    row = await scene.info(run.id)
    assert (row.status, row.reason, row.undoing) == ("failed", "workers_lost", False)
    assert await scene.store.retry(run.id) == {LANE}
