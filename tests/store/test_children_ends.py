"""The ends of children: gathered, kept for a parent that is held, brought about by no worker, and cancelling."""

from __future__ import annotations

from typing import Any

import pytest

from stepfast.model.records import Claimed, Lane
from tests.store.scene import DAY, MINUTE, Scene, child_of, completed, failed, joint, move, signal, step, undo, waiting
from tests.store.test_children import LANE, ended, reply_to, status


async def generations(scene: Scene) -> tuple[Claimed, Claimed, Claimed]:
    """A parent, its child and its grandchild, each held by the worker."""
    parent, [child] = await scene.family()
    await scene.flush(joint(child, 0, starts=[child_of(child, 0, "report")]))
    [grandchild] = await scene.claim()
    return parent, child, grandchild


# -- lingering: ends are gathered before they wake ------------------------------------------------------------


async def test_ends_are_gathered_for_a_while_before_they_wake(scene: Scene) -> None:
    """Further ends do not put the waking off."""
    parent, children = await scene.family(3)
    await scene.flush(waiting(parent, None, awaits=1, linger_ms=5 * MINUTE))
    await scene.flush(ended(children[0]))
    assert (await scene.deliver()).lanes == set()
    row = await scene.info(parent.id)
    assert (row.status, row.ready) == ("waiting", False)
    assert row.visible_at is not None and 4 * MINUTE < row.visible_at - row.now_ms <= 5 * MINUTE
    await scene.rows.shift(parent.id, "visible_at", -4 * MINUTE)
    await scene.flush(ended(children[1]), ended(children[2]))
    await scene.deliver()
    assert (await scene.info(parent.id)).visible_at == row.visible_at - 4 * MINUTE
    await scene.rows.make_due(parent.id)
    assert (await scene.store.promote(10)).moved == 1
    assert (await scene.info(parent.id)).ready


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


@pytest.mark.parametrize("before", [True, False], ids=["before it waits", "while it waits"])
async def test_a_paused_parent_acts_on_the_ends_when_it_goes_on(scene: Scene, before: bool) -> None:
    parent, children = await scene.family(2)
    ends, wait = [ended(child) for child in children], waiting(parent, DAY, waiting_for="child", awaits=2)
    await scene.flush(*(ends if before else [wait]))
    await scene.deliver()
    await scene.store.pause(parent.id)
    await scene.flush(*([wait] if before else ends))
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


# -- ends that no worker brings about -------------------------------------------------------------------------


async def heard(scene: Scene, parent: Claimed, child_id: str) -> tuple[str, str | None]:
    """What the waiting parent is told of its child: its status and its error. It is woken by it."""
    assert (await scene.store.tick(scene.worker, ["order"], False)).mail
    assert LANE in (await scene.deliver()).lanes
    [mail] = (await scene.mailbox(parent.id)).mail
    assert (mail.kind, mail.id) == ("child", await reply_to(scene, child_id))
    return mail.name, mail.error


async def cancel(scene: Scene, child_id: str) -> None:
    assert (await scene.store.cancel(child_id)).ended


async def miss_its_time(scene: Scene, child_id: str) -> None:
    column = "deadline_at" if (await scene.info(child_id)).deadline_at is not None else "expires_at"
    for each in (column, "visible_at"):
        await scene.rows.shift(child_id, each, -2 * MINUTE)
    assert (await scene.store.promote(10)).ended == [child_id]


async def lose_its_worker(scene: Scene, child_id: str) -> None:
    await scene.lose(child_id, max_losses=1)
    assert await status(scene, child_id) == "failed"


@pytest.mark.parametrize(
    ("shape", "end", "name", "said"),
    [
        ({}, cancel, "cancelled", ""),
        ({"deadline_ms": MINUTE}, miss_its_time, "failed", "deadline"),
        ({"expires_ms": MINUTE}, miss_its_time, "failed", "picked"),
        ({}, lose_its_worker, "failed", "worker"),
    ],
)
async def test_a_parent_hears_of_an_end_that_no_worker_brings_about(
    scene: Scene, shape: dict[str, Any], end: Any, name: str, said: str
) -> None:
    parent = await scene.running()
    child = child_of(parent, **shape)
    await scene.flush(joint(parent, 0, starts=[child]), waiting(parent, None, awaits=1))
    await end(scene, child.id)
    told, error = await heard(scene, parent, child.id)
    assert told == name and said in (error or "")


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
    """By the cancellation, or by the owner that heard of it."""
    for by_owner in (False, True):
        parent, [child] = await scene.family()
        await scene.flush(waiting(child), step(parent, 1, undo="refund"))
        if by_owner:
            assert (await scene.flush(undo(parent, reason="cancelled", error=None))).undelivered
        else:
            await scene.flush(waiting(parent))
            assert (await scene.store.cancel(parent.id)).lane == LANE
        assert (await scene.deliver()).ended
        assert await status(scene, child.id) == "cancelled"
        await scene.claim()


@pytest.mark.parametrize("end", [completed, failed, undo])
async def test_children_outlive_a_parent_that_completes_or_fails(scene: Scene, end: Any) -> None:
    """Also if it is undone for that."""
    parent, [child] = await scene.family()
    await scene.flush(waiting(child), step(parent, 1, undo="refund"))
    assert not (await scene.flush(end(parent))).undelivered
    assert (await scene.deliver()).moved == 0
    assert await status(scene, child.id) == "waiting"


@pytest.mark.parametrize("beside", ["pause", "signal"])
async def test_a_cancellation_finds_a_child_that_is_paused_or_just_woken(scene: Scene, beside: str) -> None:
    parent, [child] = await scene.family()
    await scene.flush(waiting(child), waiting(parent))
    await (scene.store.pause(child.id) if beside == "pause" else scene.post(signal(child.id)))
    await scene.store.cancel(parent.id)
    await scene.deliver()
    assert await status(scene, child.id) == "cancelled"
    assert await scene.claim() == []
