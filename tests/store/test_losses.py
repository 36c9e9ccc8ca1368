"""Workers that die: reaping, losses, suspects, and runs that are cancelled after a loss."""

from __future__ import annotations

import asyncio
import json
import random

import pytest

from stepfast.model.health import room_for_suspects
from stepfast.model.records import Claimed, Lane
from stepfast.model.status import REASON_LOST
from stepfast.settings import SUSPECT_LOSSES
from tests.store.scene import MINUTE, Scene, completed, move, step, under_way, waiting


async def test_a_silent_worker_s_runs_are_queued_again_as_a_loss_not_an_attempt(scene: Scene) -> None:
    victim = await scene.add_worker()
    run = await scene.running(worker=victim)
    await scene.rows.silence(victim)
    reaping = await scene.store.reap(scene.worker, 100, 5)
    assert (reaping.dead_workers, reaping.lanes) == ([victim], {Lane("order", "order", 0)})
    assert (reaping.dead_letters, reaping.moved) == ([], 1)
    row = await scene.info(run.id)
    assert (row.status, row.ready, row.worker, row.losses, row.attempt) == ("queued", True, None, 1, 1)
    [again] = await scene.claim()
    assert (again.claim, again.attempt, again.losses) == (2, 1, 1)


async def test_a_live_worker_keeps_its_runs(scene: Scene) -> None:
    stopping, live = await scene.add_worker(), await scene.add_worker()
    first, second = await scene.running(worker=stopping), await scene.running(worker=live)
    await scene.store.worker_state(stopping, "stopping")
    before = await scene.rows.dump()
    reaping = await scene.store.reap(scene.worker, 100, 5)
    assert (reaping.dead_workers, reaping.moved) == ([], 0)
    assert await scene.rows.dump() == before
    assert {(await scene.info(run.id)).worker for run in (first, second)} == {stopping, live}


async def test_a_worker_does_not_bury_itself(scene: Scene, run: Claimed) -> None:
    await scene.rows.silence(scene.worker)
    assert (await scene.store.reap(scene.worker, 100, 5)).dead_workers == []
    assert (await scene.info(run.id)).worker == scene.worker


async def test_only_those_are_buried_whose_silence_was_seen(scene: Scene) -> None:
    """The clock of the database may have stepped; the reaper says whom it has seen silent itself."""
    one, two = await scene.add_worker(), await scene.add_worker()
    kept, lost = await scene.running(worker=one), await scene.running(worker=two)
    for worker in (one, two):
        await scene.rows.silence(worker)
    assert {beat.worker for beat in await scene.store.beats(scene.worker)} == {one, two}
    assert (await scene.store.reap(scene.worker, 100, 5, [])).dead_workers == []
    assert (await scene.store.reap(scene.worker, 100, 5, [two, scene.worker])).dead_workers == [two]
    assert ((await scene.info(kept.id)).worker, (await scene.info(lost.id)).worker) == (one, None)
    assert [beat.worker for beat in await scene.store.beats(two)].count(one) == 1


async def test_runs_that_name_no_worker_at_all_are_reclaimed(scene: Scene) -> None:
    gone = await scene.add_worker()
    run = await scene.running(worker=gone)
    await scene.rows.fetch("DELETE FROM [workers] WHERE id = ?", gone)
    assert (await scene.store.reap(scene.worker, 100, 5)).moved == 1
    assert (await scene.info(run.id)).ready
    assert (await scene.store.reap(scene.worker, 100, 5)).moved == 0


async def test_a_worker_that_leaves_with_runs_in_hand_gives_them_back(scene: Scene) -> None:
    """A claim that was under way when it stopped. At once, and not as a loss."""
    leaver = await scene.add_worker()
    run = await scene.running(worker=leaver)
    await scene.store.unregister(leaver)
    info = await scene.info(run.id)
    assert (info.status, info.ready, info.losses, info.worker) == ("queued", True, 0, None)


async def test_reaping_is_bounded_and_goes_on_where_it_stopped(scene: Scene) -> None:
    victim = await scene.add_worker()
    ids = set(await scene.start_many(10))
    await scene.claim(10, worker=victim)
    await scene.rows.silence(victim)
    counts = [(await scene.store.reap(scene.worker, 4, 5)).moved for _ in range(4)]
    assert counts == [4, 4, 2, 0]
    assert {run.id for run in await scene.claim(20)} == ids
    assert victim not in {worker.id for worker in await scene.store.workers()}


async def test_a_dead_worker_hears_that_it_is(scene: Scene) -> None:
    """Its runs are not given away twice: while any is left to reap, the worker stays known as dead."""
    victim = await scene.add_worker()
    await scene.start_many(3)
    await scene.claim(3, worker=victim)
    await scene.rows.silence(victim)
    await scene.store.reap(scene.worker, 2, 5)
    assert not (await asyncio.to_thread(scene.beat, victim)).alive
    await scene.store.reap(scene.worker, 2, 5)
    answer = await asyncio.to_thread(scene.beat, victim)
    assert (answer.alive, answer.held) == (False, [])


# -- counting (rule 5) -------------------------------------------------------------------------------------


async def test_losses_add_up_while_nothing_new_is_recorded(scene: Scene, run_id: str) -> None:
    for losses in (1, 2, 3):
        await scene.lose(run_id)
        assert (await scene.info(run_id)).losses == losses


async def test_losses_are_counted_from_the_last_new_record(scene: Scene, run_id: str) -> None:
    """A month-long run survives daily deploys."""
    await scene.lose(run_id)
    victim = await scene.add_worker()
    [run] = await scene.claim(worker=victim)
    await scene.flush(step(run, 0), worker=victim)
    await scene.bury(victim)
    assert (await scene.info(run_id)).losses == 1, "the loss after the record is the first"
    await scene.lose(run_id)
    assert (await scene.info(run_id)).losses == 2, "an old record does not count again"


@pytest.mark.parametrize("given_back", [False, True])
async def test_a_claim_that_recorded_something_wipes_the_losses_out_when_it_ends(
    scene: Scene, run_id: str, given_back: bool
) -> None:
    await scene.lose(run_id)
    for records, losses in (([], 1), ([0], 0)):
        [run] = await scene.claim()
        await scene.flush(*(step(run, position) for position in records))
        if given_back:
            await scene.store.give_back(scene.worker, [(run.id, run.claim)])
        else:
            await scene.flush(move(run, "queued", delay_ms=0, recorded=bool(records)))
        assert (await scene.info(run_id)).losses == losses


async def test_failures_losses_and_resumes_are_counted_apart(scene: Scene, run_id: str) -> None:
    await scene.lose(run_id)
    [run] = await scene.claim()
    for _ in range(3):
        await scene.flush(waiting(run, 0))
        await scene.store.promote(10)
        [run] = await scene.claim()
    assert (run.attempt, run.losses, run.claim) == (1, 0, 5)
    await scene.store.give_back(scene.worker, [(run.id, run.claim)])
    await scene.lose(run_id)
    [run] = await scene.claim()
    await scene.flush(move(run, "queued", delay_ms=0, next_attempt=True, error="{}"))
    [run] = await scene.claim()
    assert (run.attempt, run.losses, run.unrecorded_losses) == (2, 0, 2)


async def test_too_many_losses_are_a_dead_letter(scene: Scene, run_id: str) -> None:
    for _ in range(2):
        await scene.lose(run_id, max_losses=3)
    assert (await scene.info(run_id)).status == "queued"
    victim = await scene.add_worker()
    [run] = await scene.suspect(worker=victim)
    await scene.rows.silence(victim)
    reaping = await scene.store.reap(scene.worker, 100, 3)
    assert (reaping.dead_letters, reaping.lanes, reaping.moved) == ([run_id], set(), 1)
    row = await scene.info(run_id)
    assert (row.status, row.reason, row.losses, row.worker, row.ready) == ("failed", "workers_lost", 3, None, False)
    assert row.completed_at is not None
    assert row.error is not None and "worker" in row.error
    assert [letter.id for letter in await scene.store.runs(reason="workers_lost")] == [run_id]
    assert await scene.suspect() == []
    assert run.id == run_id


async def test_a_dead_letter_can_be_retried_with_a_clean_slate(scene: Scene, run_id: str) -> None:
    await scene.lose(run_id, max_losses=1)
    assert (await scene.info(run_id)).status == "failed"
    await scene.store.retry(run_id)
    [run] = await scene.claim()
    assert (run.id, run.losses) == (run_id, 0)


# -- what a wait clears --------------------------------------------------------------------------------------


async def test_a_run_that_came_to_a_wait_has_survived_its_claim(scene: Scene, run_id: str) -> None:
    """Lone deaths, months apart, each after a wake-up: no number of them makes a dead letter."""
    for _ in range(6):
        await scene.lose(run_id)
        assert (await scene.info(run_id)).losses == 1
        [run] = await scene.claim()
        await scene.flush(waiting(run, 0))
        assert (await scene.info(run_id)).losses == 0
        await scene.store.promote(10)


@pytest.mark.parametrize("claims", [1, 3])
async def test_a_suspect_that_came_to_a_wait_is_a_suspect_no_more(scene: Scene, run_id: str, claims: int) -> None:
    await scene.rows.set(run_id, "losses", 4)
    [run] = await scene.suspect()
    await scene.flush(waiting(run, 0))
    await scene.store.promote(10)
    for _ in range(claims):
        [run] = await scene.claim()
        await scene.flush(waiting(run, 0))
        await scene.store.promote(10)
    assert (await scene.info(run_id)).losses == 0


async def test_a_stop_of_the_worker_clears_nothing(scene: Scene, run_id: str) -> None:
    """Its handlers were interrupted wherever they were; so they are by a pause."""
    await scene.lose(run_id)
    [run] = await scene.claim()
    await scene.flush(move(run, "queued", delay_ms=0))  # as a stopping worker releases what it executes
    again = await scene.again((await scene.claim())[0])  # as it gives back what it has not begun
    await scene.flush(move(again, "paused"))
    await scene.store.resume(run_id)
    leaver = await scene.add_worker()
    await scene.claim(worker=leaver)
    await scene.store.unregister(leaver)
    assert (await scene.info(run_id)).losses == 1


async def test_an_attempt_that_failed_was_survived_too(scene: Scene, run_id: str) -> None:
    """How often it is tried again has a limit of its own."""
    await scene.lose(run_id)
    [run] = await scene.claim()
    await scene.flush(move(run, "queued", delay_ms=0, next_attempt=True, error="{}"))
    assert (await scene.info(run_id)).losses == 0


async def test_losses_since_the_last_record_are_counted_on_across_waits(scene: Scene, run_id: str) -> None:
    """A step may have acted: only a record tells."""
    for expected in (1, 2, 3):
        await scene.lose(run_id)
        [run] = await scene.claim()
        assert (run.losses, run.unrecorded_losses) == (1, expected)
        await scene.flush(waiting(run, 0))
        await scene.store.promote(10)
    [run] = await scene.claim()
    assert (run.losses, run.unrecorded_losses) == (0, 3)
    await scene.flush(step(run, 0), waiting(run, 0, recorded=True))
    await scene.store.promote(10)
    [run] = await scene.claim()
    assert (run.losses, run.unrecorded_losses) == (0, 0)


# -- suspects ----------------------------------------------------------------------------------------------


async def test_a_run_with_two_losses_stands_apart(scene: Scene, run_id: str) -> None:
    await scene.lose(run_id)
    assert not (await scene.store.tick(scene.worker, ["order"], True)).suspects
    await scene.lose(run_id)
    lane = Lane("order", "order", 0)
    tick = await scene.store.tick(scene.worker, ["order"], True)
    assert (tick.suspects, tick.lanes) == (True, [])
    assert await scene.claim(lanes=[lane]) == []
    assert await scene.claim(lanes=[lane, Lane("mail", "mail", 0)]) == []
    [run] = await scene.suspect()
    assert (run.id, run.losses, run.claim, run.attempt) == (run_id, 2, 3, 1)
    assert not (await scene.store.tick(scene.worker, ["order"], True)).suspects


async def test_suspects_with_equal_losses_are_taken_in_the_usual_order(scene: Scene) -> None:
    low, high, old = [await scene.start(priority=priority) for priority in (0, 5, 0)]
    for run_id in (low, high, old):
        await scene.rows.set(run_id, "losses", 2)
    await scene.rows.shift(old, "place", -1_000_000)
    assert [[run.id for run in await scene.suspect()] for _ in range(4)] == [[high], [old], [low], []]


async def test_a_group_has_equal_losses_and_those_with_the_fewest_come_first(scene: Scene) -> None:
    ids = await scene.start_many(9)
    for run_id, losses in zip(ids, (4, 4, 3, 3, 3, 2, 2, 2, 7), strict=True):
        await scene.rows.set(run_id, "losses", losses)
    room = [2, 5, 1]
    groups = [{run.id for run in await scene.suspect(room=room)} for _ in range(6)]
    assert [len(group) for group in groups] == [2, 1, 3, 1, 1, 1]
    assert groups[0] | groups[1] == set(ids[5:8])
    assert groups[2] == set(ids[2:5])
    assert groups[3] | groups[4] == set(ids[:2])
    assert groups[5] == {ids[8]}, "beyond the last number, that holds"
    assert await scene.suspect(room=room) == []


async def test_without_room_for_the_first_in_line_no_suspect_is_taken(scene: Scene, run_id: str) -> None:
    await scene.rows.set(run_id, "losses", 3)
    assert await scene.suspect(room=[5, 0, 0]) == []
    assert [run.id for run in await scene.suspect(room=[0, 1, 0])] == [run_id]


async def test_suspects_in_line_are_counted(scene: Scene) -> None:
    ids = [*await scene.start_many(3), *await scene.start_many(2, "mail", queue="vip")]
    assert await scene.store.suspects() == []
    for run_id in ids[1:]:
        await scene.rows.set(run_id, "losses", 2)
    assert await scene.store.suspects() == [("order", "order", 2), ("vip", "mail", 2)]


@pytest.mark.parametrize("culprits", [1, 3])
async def test_a_culprit_is_found_in_few_crashes_and_the_innocent_live(scene: Scene, culprits: int) -> None:
    """The whole search, by rows alone: one worker after the other dies of whatever culprit it holds, before any of the
    others got on. The culprits die alone; nobody else ends as a dead letter, and all of them get through."""
    ids = await scene.start_many(100)
    guilty = set(random.Random(7).sample(ids, culprits))
    done: set[str] = set()
    crashes = 0
    while len(done) < 100 - culprits or len(await scene.store.runs(status="failed")) < culprits:
        worker = await scene.add_worker()
        held = await scene.claim(100, worker=worker)
        while group := await scene.suspect(worker=worker, room=_room(held)):
            held += group
        if guilty & {run.id for run in held}:
            crashes += 1
            await scene.bury(worker)
        else:
            await scene.flush(*(completed(run) for run in held), worker=worker)
            done |= {run.id for run in held}
    assert crashes <= 5 * culprits
    assert {letter.id for letter in await scene.store.runs(reason=REASON_LOST)} == guilty
    assert done == set(ids) - guilty


def _room(held: list[Claimed]) -> list[int]:
    """As a worker with a hundred slots has it."""
    return room_for_suspects([run.losses for run in held if run.losses >= SUSPECT_LOSSES], 5, 100)


async def test_a_suspect_is_taken_only_by_who_knows_its_workflow_and_serves_its_queue(scene: Scene) -> None:
    run_id = await scene.start("mail", queue="vip")
    await scene.rows.set(run_id, "losses", 3)
    assert not (await scene.store.tick(scene.worker, ["order"], True)).suspects
    assert await scene.suspect(workflows=["order"]) == []
    assert await scene.suspect(queues=["mail"]) == []
    assert await scene.suspect(queues=[]) == []
    assert [run.id for run in await scene.suspect(queues=["other", "vip"])] == [run_id]


async def test_a_suspect_brings_its_history_and_is_none_any_more_if_it_gets_on(scene: Scene, run: Claimed) -> None:
    await scene.flush(step(run, 0, '"kept"'))
    await scene.store.give_back(scene.worker, [(run.id, run.claim)])
    await scene.rows.set(run.id, "losses", 2)
    [suspect] = await scene.suspect()
    assert [record.output for record in suspect.records] == ['"kept"']
    await scene.flush(step(suspect, 1), waiting(suspect, 0, recorded=True))
    await scene.store.promote(10)
    assert [again.id for again in await scene.claim()] == [run.id]


@pytest.mark.parametrize("losses", [0, 2])
async def test_a_lost_run_keeps_its_deadline_in_view(scene: Scene, losses: int) -> None:
    run_id = await scene.start(deadline_ms=MINUTE)
    await scene.rows.set(run_id, "losses", losses)
    await scene.lose(run_id)
    row = await scene.info(run_id)
    assert row.visible_at == row.deadline_at
    await scene.rows.shift(run_id, "deadline_at", -2 * MINUTE)
    await scene.rows.shift(run_id, "visible_at", -2 * MINUTE)
    assert await scene.suspect() == []
    assert await scene.claim(lanes=[Lane("order", "order", 0)]) == []
    assert (await scene.store.promote(10)).ended == [run_id]


async def test_a_completed_run_is_never_reaped(scene: Scene) -> None:
    victim = await scene.add_worker()
    run = await scene.running(worker=victim)
    await scene.flush(completed(run), worker=victim)
    await scene.bury(victim)
    row = await scene.info(run.id)
    assert (row.status, row.losses) == ("completed", 0)


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


async def test_one_that_waits_has_nothing_left_to_record(scene: Scene, run_id: str) -> None:
    await scene.lose(run_id)
    [run] = await scene.claim()
    await scene.flush(waiting(run, MINUTE))
    assert (await scene.store.cancel(run_id)).ended
    assert (await scene.info(run_id)).error is None


async def test_a_record_since_then_clears_it(scene: Scene, run_id: str) -> None:
    await scene.lose(run_id)
    [run] = await scene.claim()
    await scene.flush(step(run, 0))
    await scene.store.give_back(scene.worker, [(run.id, run.claim)])
    assert (await scene.store.cancel(run_id)).ended


async def test_a_suspect_is_cancelled_at_once_and_names_the_step(scene: Scene, run_id: str) -> None:
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


async def test_a_suspect_that_can_be_undone_is_and_names_the_step_that_was_under_way(scene: Scene, run_id: str) -> None:
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
