"""The ends of children: gathered, kept for a parent that is held, brought about by no worker, and cancelling."""

from __future__ import annotations

from typing import Any

import pytest

from stepfast.model.records import Claimed, Lane, Transition
from tests.store.scene import DAY, MINUTE, Scene, child_of, completed, failed, joint, move, signal, step, undo, waiting

LANE = Lane("order", "order", 0)


def ended(child: Claimed, status: str = "completed", **changes: Any) -> Transition:
    """The end of a run that has a parent."""
    return move(child, status, child=True, **changes)


async def reply_to(scene: Scene, child_id: str) -> str:
    return str(await scene.rows.get(child_id, "reply_to"))


async def status(scene: Scene, run_id: str) -> str:
    return (await scene.info(run_id)).status


async def generations(scene: Scene) -> tuple[Claimed, Claimed, Claimed]:
    """A parent, its child and its grandchild, each held by the worker."""
    parent, [child] = await scene.family()
    await scene.flush(joint(child, 0, starts=[child_of(child, 0, "report")]))
    [grandchild] = await scene.claim()
    return parent, child, grandchild


# -- lingering: ends are gathered before they wake ------------------------------------------------------------


async def test_ends_are_gathered_for_a_while_before_they_wake(scene: Scene) -> None:
    parent, children = await scene.family(3)
    await scene.flush(waiting(parent, None, awaits=1, linger_ms=5 * MINUTE))
    await scene.flush(ended(children[0]))
    assert (await scene.deliver()).lanes == set()
    row = await scene.info(parent.id)
    assert (row.status, row.ready) == ("waiting", False)
    assert row.visible_at is not None and 4 * MINUTE < row.visible_at - row.now_ms <= 5 * MINUTE
    await scene.rows.make_due(parent.id)
    assert (await scene.store.promote(10)).moved == 1
    assert (await scene.info(parent.id)).ready


async def test_further_ends_do_not_put_the_waking_off(scene: Scene) -> None:
    parent, children = await scene.family(3)
    await scene.flush(waiting(parent, None, awaits=1, linger_ms=5 * MINUTE))
    await scene.flush(ended(children[0]))
    await scene.deliver()
    await scene.rows.shift(parent.id, "visible_at", -4 * MINUTE)
    before = (await scene.info(parent.id)).visible_at
    await scene.flush(ended(children[1]), ended(children[2]))
    await scene.deliver()
    row = await scene.info(parent.id)
    assert (row.status, row.visible_at) == ("waiting", before)


async def test_gathering_does_not_put_off_what_is_due_earlier(scene: Scene) -> None:
    parent, [child] = await scene.family()
    await scene.flush(waiting(parent, MINUTE, awaits=1, linger_ms=DAY))
    before = (await scene.info(parent.id)).visible_at
    await scene.flush(ended(child))
    await scene.deliver()
    assert (await scene.info(parent.id)).visible_at == before


async def test_gathering_begins_only_when_the_count_is_reached(scene: Scene) -> None:
    parent, children = await scene.family(2)
    await scene.flush(waiting(parent, None, awaits=2, linger_ms=MINUTE))
    await scene.flush(ended(children[0]))
    await scene.deliver()
    assert (await scene.info(parent.id)).visible_at is None
    await scene.flush(ended(children[1]))
    await scene.deliver()
    assert (await scene.info(parent.id)).visible_at is not None


async def test_a_signal_does_not_linger(scene: Scene) -> None:
    parent, [child] = await scene.family()
    await scene.flush(waiting(parent, None, awaits=1, linger_ms=DAY))
    await scene.flush(ended(child))
    await scene.post(signal(parent.id))
    assert (await scene.deliver()).lanes == {LANE}
    assert (await scene.info(parent.id)).ready


# -- a parent that is held by an operator ---------------------------------------------------------------------


async def test_a_paused_parent_acts_on_the_ends_when_it_goes_on(scene: Scene) -> None:
    parent, children = await scene.family(2)
    await scene.flush(waiting(parent, DAY, waiting_for="child", awaits=2))
    await scene.store.pause(parent.id)
    await scene.flush(*(ended(child) for child in children))
    assert (await scene.deliver()).lanes == set()
    row = await scene.info(parent.id)
    assert (row.status, row.waiting_for) == ("paused", None)
    assert await scene.rows.get(parent.id, "held_due") is None
    assert (await scene.store.resume(parent.id)).lane == LANE
    assert (await scene.info(parent.id)).ready


async def test_a_paused_parent_that_has_not_all_its_ends_waits_on(scene: Scene) -> None:
    parent, children = await scene.family(2)
    await scene.flush(waiting(parent, None, waiting_for="child", awaits=2))
    await scene.store.pause(parent.id)
    await scene.flush(ended(children[0]))
    await scene.deliver()
    await scene.store.resume(parent.id)
    assert await status(scene, parent.id) == "waiting"
    await scene.flush(ended(children[1]))
    assert (await scene.deliver()).lanes == {LANE}


async def test_a_wait_whose_ends_are_there_meets_a_pause_and_goes_on_at_resume(scene: Scene) -> None:
    parent, [child] = await scene.family()
    await scene.flush(ended(child))
    await scene.deliver()
    await scene.store.pause(parent.id)
    await scene.flush(waiting(parent, DAY, waiting_for="child", awaits=1))
    row = await scene.info(parent.id)
    assert (row.status, row.waiting_for) == ("paused", None)
    await scene.store.resume(parent.id)
    assert (await scene.info(parent.id)).ready


# -- ends that no worker brings about -------------------------------------------------------------------------


async def heard(scene: Scene, parent: Claimed, child_id: str) -> tuple[str, str | None]:
    """What the waiting parent is told of its child: its status and its error. It is woken by it."""
    assert (await scene.store.tick(scene.worker, ["order"], False)).mail
    assert LANE in (await scene.deliver()).lanes
    [mail] = (await scene.mailbox(parent.id)).mail
    assert (mail.kind, mail.id) == ("child", await reply_to(scene, child_id))
    return mail.name, mail.error


async def test_a_parent_hears_that_its_child_was_cancelled(scene: Scene) -> None:
    parent, [child] = await scene.family()
    await scene.flush(waiting(parent, None, awaits=1), waiting(child))
    assert (await scene.store.cancel(child.id)).ended
    assert (await heard(scene, parent, child.id))[0] == "cancelled"


async def test_a_parent_hears_that_its_child_missed_its_deadline(scene: Scene) -> None:
    parent, [child] = await scene.family(deadline_ms=DAY)
    await scene.flush(waiting(parent, None, awaits=1), waiting(child, None))
    await scene.rows.make_due(child.id)
    assert (await scene.store.promote(10)).ended == [child.id]
    name, error = await heard(scene, parent, child.id)
    assert name == "failed"
    assert error is not None and "deadline" in error


async def test_a_parent_hears_that_nobody_picked_its_child_up_in_time(scene: Scene) -> None:
    parent = await scene.running()
    child = child_of(parent, expires_ms=MINUTE)
    await scene.flush(joint(parent, 0, starts=[child]), waiting(parent, None, awaits=1))
    for column in ("expires_at", "visible_at"):
        await scene.rows.shift(child.id, column, -2 * MINUTE)
    assert (await scene.store.promote(10)).ended == [child.id]
    name, error = await heard(scene, parent, child.id)
    assert name == "failed"
    assert error is not None and "picked" in error


async def test_a_parent_hears_that_its_child_is_a_dead_letter(scene: Scene) -> None:
    parent = await scene.running()
    child = child_of(parent)
    await scene.flush(joint(parent, 0, starts=[child]), waiting(parent, None, awaits=1))
    await scene.lose(child.id, max_losses=1)
    assert await status(scene, child.id) == "failed"
    name, error = await heard(scene, parent, child.id)
    assert name == "failed"
    assert error is not None and "worker" in error


async def test_a_parent_does_not_hear_of_a_child_that_is_only_promoted_or_reaped(scene: Scene) -> None:
    parent = await scene.running()
    child = child_of(parent, delay_ms=DAY)
    await scene.flush(joint(parent, 0, starts=[child]), waiting(parent, None, awaits=1))
    await scene.rows.make_due(child.id)
    await scene.store.promote(10)
    await scene.lose(child.id)
    assert (await scene.mailbox(parent.id)).mail == []
    assert not (await scene.store.tick(scene.worker, ["order"], False)).mail


async def test_a_parent_hears_of_its_child_only_when_all_is_undone(scene: Scene) -> None:
    parent, [child] = await scene.family()
    await scene.flush(step(child, 0, undo="refund"), undo(child, child=True), waiting(parent, None, awaits=1))
    assert (await scene.mailbox(parent.id)).mail == []
    [again] = await scene.claim()
    await scene.flush(ended(again, "compensated"))
    assert await heard(scene, parent, child.id) == ("compensated", '{"type":"ValueError"}')


# -- cancelling goes down -------------------------------------------------------------------------------------


async def test_children_are_cancelled_with_their_parent_and_theirs_with_them(scene: Scene) -> None:
    """Rule 26."""
    parent, child, grandchild = await generations(scene)
    await scene.flush(*(waiting(run, None, awaits=9) for run in (parent, child, grandchild)))
    assert (await scene.store.cancel(parent.id)).ended
    assert (await scene.store.tick(scene.worker, ["order"], False)).mail
    assert (await scene.deliver()).ended
    for run in (child, grandchild):
        row = await scene.info(run.id)
        assert (row.status, row.reason) == ("cancelled", "cancelled")
    assert not (await scene.store.tick(scene.worker, ["order"], False)).mail
    assert await scene.rows.fetch("SELECT * FROM [mailbox]") == [], "no mail is left to runs that have ended"


async def test_children_that_a_worker_holds_are_marked(scene: Scene) -> None:
    parent, [child] = await scene.family()
    await scene.flush(waiting(parent, None, awaits=1))
    await scene.store.cancel(parent.id)
    delivery = await scene.deliver()
    assert (delivery.ended, delivery.running) == (False, True)
    row = await scene.info(child.id)
    assert (row.status, row.asked) == ("running", "cancel")
    assert (await scene.flush(step(child))).asked == {child.id: "cancel"}


@pytest.mark.parametrize(("reason", "ends"), [("non_determinism", "cancelled"), ("code", "failed")])
async def test_a_child_that_fails_before_it_hears_of_its_cancellation(scene: Scene, reason: str, ends: str) -> None:
    """What may still be cancelled then is, as if the word had come in time; on each database alike."""
    parent, [child] = await scene.family()
    await scene.flush(waiting(parent, None, awaits=1))
    await scene.store.cancel(parent.id)
    await scene.flush(failed(child, reason=reason))
    await scene.deliver()
    assert (await scene.info(child.id)).status == ends


async def test_an_owner_that_ends_a_cancelled_run_cancels_its_children_too(scene: Scene) -> None:
    parent, child, grandchild = await generations(scene)
    await scene.flush(waiting(child), waiting(grandchild))
    answer = await scene.flush(move(parent, "cancelled", reason="cancelled"))
    assert answer.undelivered
    await scene.deliver()
    assert [await status(scene, run.id) for run in (child, grandchild)] == ["cancelled", "cancelled"]


@pytest.mark.parametrize("end", [completed, failed])
async def test_children_outlive_a_parent_that_completes_or_fails(scene: Scene, end: Any) -> None:
    parent, [child] = await scene.family()
    await scene.flush(waiting(child))
    assert not (await scene.flush(end(parent))).undelivered
    assert (await scene.deliver()).moved == 0
    assert await status(scene, child.id) == "waiting"


async def test_only_its_own_children_are_cancelled_and_only_those_that_go_on(scene: Scene) -> None:
    parent, children = await scene.family(2)
    await scene.flush(ended(children[0]), waiting(children[1]))
    bystander = await scene.running(workflow="report")
    await scene.flush(waiting(bystander), waiting(parent, None))
    await scene.store.cancel(parent.id)
    await scene.deliver()
    found = [await status(scene, run.id) for run in (*children, bystander)]
    assert found == ["completed", "cancelled", "waiting"]


async def test_children_that_have_ended_are_told_nothing(scene: Scene) -> None:
    parent, children = await scene.family(2)
    await scene.flush(ended(children[0]), ended(children[1], "failed"))
    await scene.deliver()
    assert not (await scene.flush(move(parent, "cancelled", reason="cancelled"))).undelivered
    assert not (await scene.store.tick(scene.worker, ["order"], False)).mail


async def test_a_cancelled_child_with_something_to_undo_is_undone(scene: Scene) -> None:
    parent, [child] = await scene.family()
    await scene.flush(step(child, 0, undo="refund"), waiting(child))
    await scene.flush(waiting(parent, None))
    await scene.store.cancel(parent.id)
    delivery = await scene.deliver()
    assert (delivery.ended, delivery.lanes) == (False, {Lane("mail", "mail", 0)})
    row = await scene.info(child.id)
    assert (row.status, row.reason, row.ready) == ("compensating", "cancelled", True)


async def test_children_are_cancelled_when_the_undo_of_a_cancelled_parent_begins(scene: Scene) -> None:
    parent, [child] = await scene.family()
    await scene.flush(waiting(child))
    await scene.flush(step(parent, 1, undo="refund"), waiting(parent))
    assert (await scene.store.cancel(parent.id)).lane == LANE
    assert (await scene.deliver()).ended
    assert await status(scene, child.id) == "cancelled"


async def test_children_are_cancelled_when_the_owner_begins_to_undo_for_that_reason(scene: Scene) -> None:
    parent, [child] = await scene.family()
    await scene.flush(waiting(child))
    answer = await scene.flush(step(parent, 1, undo="refund"), undo(parent, reason="cancelled", error=None))
    assert answer.undelivered
    await scene.deliver()
    assert await status(scene, child.id) == "cancelled"


async def test_children_are_left_alone_when_their_parent_is_undone_for_a_failure(scene: Scene) -> None:
    parent, [child] = await scene.family()
    await scene.flush(waiting(child))
    answer = await scene.flush(step(parent, 1, undo="refund"), undo(parent))
    assert not answer.undelivered
    assert (await scene.deliver()).moved == 0
    assert await status(scene, child.id) == "waiting"


async def test_a_cancellation_finds_a_paused_child(scene: Scene) -> None:
    parent, [child] = await scene.family()
    await scene.flush(waiting(child), waiting(parent))
    await scene.store.pause(child.id)
    await scene.store.cancel(parent.id)
    await scene.deliver()
    assert await status(scene, child.id) == "cancelled"


async def test_one_delivery_may_bring_a_signal_and_a_cancellation(scene: Scene) -> None:
    parent, [child] = await scene.family()
    await scene.flush(waiting(child), waiting(parent))
    await scene.post(signal(child.id))
    await scene.store.cancel(parent.id)
    await scene.deliver()
    assert await status(scene, child.id) == "cancelled"
    assert await scene.claim() == []
