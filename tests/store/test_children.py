"""Children: started with a record, heard of when they end, cancelled with their parent (rules 25–27)."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from msgspec.structs import replace

from stepfast.model.ids import new_id
from stepfast.model.records import Claimed, Lane, NewRun, Parent, Transition
from stepfast.store import Store
from stepfast.store.answers import Delivery
from tests.store.scene import (
    DAY,
    MINUTE,
    Scene,
    child_of,
    completed,
    failed,
    joint,
    move,
    new_run,
    signal,
    step,
    value,
    waiting,
)

LANE = Lane("order", "order", 0)
ORIGIN = ("parent_id", "parent_branch", "parent_position", "reply_to")


def ended(child: Claimed, status: str = "completed", **changes: Any) -> Transition:
    """The end of a run that has a parent."""
    return move(child, status, child=True, **changes)


async def reply_to(scene: Scene, child_id: str) -> str:
    return str(await scene.rows.get(child_id, "reply_to"))


async def status(scene: Scene, run_id: str) -> str:
    return (await scene.info(run_id)).status


async def reclaimed(scene: Scene, run: Claimed) -> Claimed:
    """Given back and claimed once more, while others are ready too."""
    await scene.store.give_back(scene.worker, [(run.id, run.claim)])
    return next(again for again in await scene.claim() if again.id == run.id)


# -- starting -----------------------------------------------------------------------------------------------


async def test_a_child_is_started_with_the_record_that_says_so(scene: Scene) -> None:
    """It knows whose it is and where it was started."""
    parent = await scene.running()
    child = child_of(parent, 3, branch="1.2", input='{"a":1}', priority=4, tags=("red",), deadline_ms=DAY)
    answer = await scene.flush(joint(parent, 3, branch="1.2", starts=[child], kind="child", status="waiting"))
    assert (answer.lost, answer.barred) == (set(), set())
    assert [(record.kind, record.status) for record in await scene.store.steps(parent.id)] == [("child", "waiting")]
    row = await scene.info(child.id)
    assert (row.workflow, row.input, row.priority, row.tags) == ("mail", '{"a":1}', 4, ["red"])
    assert (row.status, row.ready, row.parent_id) == ("queued", True, parent.id)
    assert row.deadline_at == row.created_at + DAY
    assert [tagged.id for tagged in await scene.store.runs(tag="red")] == [child.id]
    found = [str(await scene.rows.get(child.id, column)) for column in ORIGIN]
    assert child.parent is not None
    assert found == [parent.id, "1.2", "3", child.parent.reply_to]
    [claimed] = await scene.claim()
    assert (claimed.id, claimed.parent_id, parent.parent_id) == (child.id, parent.id, None)


async def test_a_start_may_name_a_parent_and_an_origin_too(scene: Scene) -> None:
    """Beside plain ones, in one call and in its order."""
    parent, origin = await scene.running(), await scene.running()
    child, again, plain = child_of(parent, 0, "order"), new_run(), new_run()
    again.origin = origin.id
    assert await scene.store.start([plain, child, again]) == [plain.id, child.id, again.id]
    rows = [await scene.info(run.id) for run in (plain, child, again)]
    assert [(row.parent_id, row.origin_id) for row in rows] == [(None, None), (parent.id, None), (None, origin.id)]
    assert await reply_to(scene, child.id) == child.parent.reply_to  # type: ignore[union-attr]
    assert {run.id for run in await scene.claim()} == {plain.id, child.id, again.id}


async def test_many_children_may_start_with_one_record(scene: Scene) -> None:
    """One that is delayed is not ready before its time."""
    parent = await scene.running()
    children = [child_of(parent, n, workflow) for n in range(50) for workflow in ("mail", "report")]
    delayed = child_of(parent, 50, delay_ms=DAY)
    await scene.flush(joint(parent, 0, starts=[*children, delayed]))
    assert {run.id for run in await scene.claim(200)} == {child.id for child in children}
    row = await scene.info(delayed.id)
    assert (row.ready, row.visible_at) == (False, row.created_at + DAY)


async def test_who_lost_the_run_starts_no_children(scene: Scene) -> None:
    parent = await scene.running()
    await scene.again(parent)
    before = await scene.rows.dump()
    answer = await scene.flush(joint(parent, 0, starts=[child_of(parent)]))
    assert answer.lost == {parent.id}
    assert await scene.rows.dump() == before


async def test_a_start_whose_reply_was_lost_is_made_once(scene: Scene) -> None:
    """Rule 7: even when the child has got on in the meantime."""
    parent = await scene.running()
    entry = joint(parent, 0, starts=[child_of(parent)])
    await scene.flush(entry)
    [child] = await scene.claim()
    await scene.flush(completed(child))
    before = await scene.rows.dump()
    assert (await scene.flush(entry)).lost == set()
    assert await scene.rows.dump() == before


async def test_the_next_owner_starts_nothing_a_second_time(scene: Scene) -> None:
    """The record is open: decided is decided, by whichever claim."""
    parent = await scene.running()
    child = child_of(parent)
    await scene.flush(joint(parent, 0, '"first"', starts=[child], status="waiting"))
    again = await reclaimed(scene, parent)
    assert (await scene.flush(joint(again, 0, '"second"', starts=[child], status="waiting"))).lost == set()
    assert [record.output for record in await scene.store.steps(parent.id)] == ['"first"']
    assert len(await scene.store.runs(workflow="mail")) == 1


async def test_a_child_is_not_started_beside_a_record_of_another_claim(scene: Scene) -> None:
    """Nothing of the run is written, so nothing is started either."""
    parent = await scene.running()
    await scene.flush(step(parent, 0))
    again = await scene.again(parent)
    before = await scene.rows.dump()
    answer = await scene.flush(joint(again, 0, starts=[child_of(again)]), step(again, 1))
    assert answer.lost == {parent.id}
    assert await scene.rows.dump() == before


async def test_a_run_that_is_being_cancelled_starts_no_children(scene: Scene) -> None:
    """Rule 27. Everything else that it says is written, and so is what others say; a barred record takes no mail."""
    parent, other = await scene.running(), await scene.running()
    await scene.store.send(mail := signal(parent.id))
    await scene.store.cancel(parent.id)
    child, theirs = child_of(parent), child_of(other)
    answer = await scene.flush(
        step(parent, 0), joint(parent, 1, starts=[child], takes=[mail.id]), joint(parent, 2),
        value(parent, "stage", "1"), joint(other, 0, starts=[theirs]),
    )  # fmt: skip
    assert (answer.barred, answer.lost, answer.asked) == ({parent.id}, set(), {parent.id: "cancel"})
    assert [row.id for row in await scene.store.runs(workflow="mail")] == [theirs.id]
    assert [record.position for record in await scene.store.steps(parent.id)] == [0, 2]
    assert await scene.store.value(parent.id, "stage") == ("1", 1)
    assert (await scene.mailbox(parent.id)).mail == [mail]


async def test_a_start_that_was_written_before_the_cancellation_is_not_barred_when_it_is_repeated(scene: Scene) -> None:
    """Rule 7: the child is there, and its parent must know of it."""
    parent = await scene.running()
    entry = joint(parent, 0, starts=[child_of(parent)])
    await scene.flush(entry)
    await scene.store.cancel(parent.id)
    answer = await scene.flush(entry)
    assert (answer.barred, answer.lost) == (set(), set())


async def test_a_run_that_is_to_be_paused_may_still_start_children(scene: Scene) -> None:
    parent = await scene.running()
    await scene.store.pause(parent.id)
    answer = await scene.flush(joint(parent, 0, starts=[child := child_of(parent)]))
    assert answer.barred == set()
    assert (await scene.info(child.id)).ready


# -- the end of a child -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("end", "output", "error"),
    [("completed", '{"total":3}', None), ("failed", None, '{"type":"KeyError"}'), ("cancelled", None, None)],
)
async def test_the_end_of_a_child_lies_in_its_parent_s_mailbox(
    scene: Scene, end: str, output: str | None, error: str | None
) -> None:
    """Rule 26: in the transaction that ends it."""
    parent, [child] = await scene.family()
    answer = await scene.flush(ended(child, end, output=output, error=error, format=2))
    assert answer.undelivered
    assert (await scene.store.tick(scene.worker, ["order"], False)).mail
    [mail] = (await scene.mailbox(parent.id)).mail
    assert (mail.run_id, mail.id, mail.kind) == (parent.id, await reply_to(scene, child.id), "child")
    assert (mail.name, mail.value, mail.error) == (end, output, error)
    if output is not None:
        assert mail.format == 2


async def test_ends_go_beside_steps_and_ends_of_others(scene: Scene) -> None:
    """Hot completions and those that must tell a parent, in one flush."""
    parent, children = await scene.family(20)
    plain = await scene.running(workflow="report")
    await scene.flush(
        *(step(child, 0) for child in children),
        completed(plain),
        *(ended(child, output=f'"{child.id}"') for child in children),
    )
    assert await status(scene, plain.id) == "completed"
    box = await scene.mailbox(parent.id)
    assert {mail.value for mail in box.mail} == {f'"{child.id}"' for child in children}
    assert {mail.id for mail in box.mail} == {await reply_to(scene, child.id) for child in children}


async def test_only_the_end_of_a_run_with_a_parent_is_mail(scene: Scene) -> None:
    """Neither is a wait, nor the word of a worker that lost the child."""
    for end in (completed, failed):
        assert not (await scene.flush(end(await scene.running()))).undelivered
    _, children = await scene.family(2)
    assert not (await scene.flush(ended(children[0], "waiting", delay_ms=DAY))).undelivered
    await scene.store.give_back(scene.worker, [(children[1].id, children[1].claim)])
    answer = await scene.flush(ended(children[1]))
    assert (answer.lost, answer.undelivered) == ({children[1].id}, False)
    assert await scene.rows.fetch("SELECT * FROM [mailbox]") == []


async def test_a_delivered_end_is_counted_and_is_no_wake(scene: Scene) -> None:
    """A parent that waits for something else must not be woken by it."""
    parent, [child] = await scene.family()
    await scene.flush(waiting(parent, None, waiting_for="signal"))
    await scene.flush(ended(child))
    assert await scene.store.deliver(10) == Delivery(set(), False, False, 1)
    box = await scene.mailbox(parent.id)
    assert (box.wakes, box.ends, len(box.mail)) == (parent.wakes, 1, 1)
    assert await status(scene, parent.id) == "waiting"


async def test_an_end_wakes_the_parent_that_waits_for_it(scene: Scene) -> None:
    parent, [child] = await scene.family()
    await scene.flush(waiting(parent, DAY, waiting_for="child", awaits=1))
    await scene.flush(ended(child))
    assert await scene.store.deliver(10) == Delivery({LANE}, False, False, 1)
    row = await scene.info(parent.id)
    assert (row.status, row.ready, row.waiting_for, row.visible_at) == ("queued", True, None, None)
    [again] = await scene.claim()
    assert (again.id, again.ends) == (parent.id, 1)


@pytest.mark.parametrize("together", [False, True])
async def test_the_parent_of_many_is_woken_once_by_the_last(scene: Scene, together: bool) -> None:
    """Rule 25. One after the other, or in one flush."""
    parent, children = await scene.family(10)
    await scene.flush(waiting(parent, None, awaits=10))
    for child in [] if together else children[:9]:
        await scene.flush(ended(child))
        assert (await scene.deliver()).lanes == set()
    assert await status(scene, parent.id) == "waiting"
    await scene.flush(*(ended(child) for child in (children if together else children[9:])))
    assert await scene.store.deliver(100) == Delivery({LANE}, False, False, 10 if together else 1)
    [again] = await scene.claim()
    assert (again.ends, again.claim) == (10, parent.claim + 1)
    assert len((await scene.mailbox(parent.id)).mail) == 10


async def test_ends_delivered_before_the_wait_are_not_slept_over(scene: Scene) -> None:
    parent, children = await scene.family(3)
    await scene.flush(*(ended(child) for child in children[:2]))
    await scene.deliver()
    await scene.flush(waiting(parent, None, awaits=2))
    row = await scene.info(parent.id)
    assert (row.status, row.ready) == ("queued", True)
    [again] = await scene.claim()
    await scene.flush(waiting(again, None, awaits=3))
    assert await status(scene, parent.id) == "waiting"


async def test_an_end_for_a_parent_that_a_worker_holds_is_only_counted(scene: Scene) -> None:
    """And once."""
    parent, [child] = await scene.family()
    await scene.flush(ended(child))
    assert await scene.store.deliver(10) == Delivery(set(), False, True, 1)
    row = await scene.info(parent.id)
    assert (row.status, row.worker) == ("running", scene.worker)
    assert (await scene.mailbox(parent.id)).ends == 1
    before = await scene.rows.dump()
    assert (await scene.store.deliver(10)).moved == 0
    assert await scene.rows.dump() == before


async def test_a_parent_woken_by_its_time_waits_for_no_count_any_more(scene: Scene) -> None:
    parent, [child] = await scene.family()
    await scene.flush(waiting(parent, DAY, awaits=1))
    await scene.rows.make_due(parent.id)
    await scene.store.promote(10)
    assert await scene.rows.get(parent.id, "awaits") is None
    [again] = await scene.claim()
    await scene.flush(waiting(again, None, waiting_for="signal"), ended(child))
    await scene.deliver()
    assert await status(scene, parent.id) == "waiting"


async def test_the_end_of_a_child_is_taken_with_a_record(scene: Scene) -> None:
    """Of one that is taken before its delivery nothing is counted."""
    parent, children = await scene.family(3)
    await scene.flush(*(ended(child) for child in children))
    early, first, second = [await reply_to(scene, child.id) for child in children]
    await scene.flush(joint(parent, 1, takes=[early]))
    assert (await scene.deliver()).moved == 2
    await scene.flush(joint(parent, 2, takes=[first]))
    box = await scene.mailbox(parent.id)
    assert (box.ends, [mail.id for mail in box.mail]) == (2, [second])


async def test_the_end_of_an_orphan_is_thrown_away(scene: Scene) -> None:
    parent, [child] = await scene.family()
    await scene.flush(completed(parent))
    await scene.flush(ended(child))
    assert (await scene.deliver()).moved == 1
    assert await scene.rows.fetch("SELECT * FROM [mailbox]") == []


async def test_a_retried_parent_hears_of_children_that_ended_before_the_retry(scene: Scene) -> None:
    """Their mail was thrown away; without it the parent would wait for them for ever."""
    parent = await scene.running()
    child = child_of(parent)
    await scene.flush(joint(parent, 0, starts=[child], kind="child", status="waiting"), failed(parent))
    [claimed] = await scene.claim()
    await scene.flush(ended(claimed, output="42"))
    await scene.deliver()
    await scene.store.retry(parent.id)
    [again] = await scene.claim()
    await scene.flush(waiting(again, None, awaits=again.ends + 1))
    await scene.deliver()
    assert (await scene.info(parent.id)).ready
    assert [mail.value for mail in (await scene.mailbox(parent.id)).mail] == ["42"]


async def test_a_child_that_is_retried_ends_again(scene: Scene) -> None:
    parent, [child] = await scene.family()
    await scene.flush(ended(child, "failed", error='{"type":"KeyError"}'))
    await scene.deliver()
    await scene.store.retry(child.id)
    [again] = await scene.claim()
    answer = await scene.flush(ended(again, output='"at last"'))
    assert answer.undelivered
    assert (await scene.deliver()).moved == 1
    box = await scene.mailbox(parent.id)
    assert [(mail.name, mail.value, mail.error) for mail in box.mail] == [("completed", '"at last"', None)]
    assert box.ends == 2


# -- many at once -------------------------------------------------------------------------------------------


async def test_children_that_end_at_once_are_all_counted_and_wake_once(scene: Scene, twin: Store) -> None:
    parent, children = await scene.family(30)
    await scene.flush(waiting(parent, None, awaits=30))

    async def end(child: Claimed) -> None:
        await scene.flush_through(ended(child))
        await twin.deliver(10)

    await asyncio.gather(*(end(child) for child in children))
    await scene.deliver()
    box = await scene.mailbox(parent.id)
    assert (box.ends, len(box.mail)) == (30, 30)
    [again] = await scene.claim()
    assert (again.id, again.claim) == (parent.id, parent.claim + 1)


async def test_a_parent_that_lies_down_while_its_child_ends_is_never_left_asleep(scene: Scene, twin: Store) -> None:
    """By trying: whoever is first, the parent is ready afterwards."""
    for _ in range(10):
        parent, [child] = await scene.family()
        await scene.flush(ended(child))
        await asyncio.gather(scene.flush_through(waiting(parent, None, awaits=1)), twin.deliver(10))
        await scene.deliver()
        [again] = await scene.claim()
        assert again.id == parent.id
        await scene.flush(completed(again))


# -- a successor takes over (rule 23) -------------------------------------------------------------------------


def continued(run: Claimed, successor: NewRun, **changes: Any) -> Transition:
    return move(
        run, "completed", reason="continued", output=f'"{successor.id}"', successor=successor, **changes
    )  # fmt: skip


def successor_of(run: Claimed, **shape: Any) -> NewRun:
    successor = new_run(run.workflow, **shape)
    successor.origin = run.id
    return successor


async def test_a_run_ends_and_its_successor_starts_together(scene: Scene, run: Claimed) -> None:
    successor = successor_of(run, input='{"page":2}')
    await scene.flush(step(run, 0), continued(run, successor))
    row = await scene.info(run.id)
    assert (row.status, row.reason, row.output) == ("completed", "continued", f'"{successor.id}"')
    [again] = await scene.claim()
    assert (again.id, again.input, again.records, again.attempt) == (successor.id, '{"page":2}', [], 1)
    assert (await scene.info(successor.id)).origin_id == run.id


async def test_a_successor_is_started_once_and_by_the_owner(scene: Scene) -> None:
    old = await scene.running()
    new = await scene.again(old)
    for held, lost in ((old, {old.id}), (new, set())):
        entry = continued(held, successor_of(held))
        if not lost:
            await scene.flush(entry)
        before = await scene.rows.dump()
        answer = await scene.flush(entry)
        assert await scene.rows.dump() == before
        assert answer.lost >= lost


async def test_a_successor_takes_over_the_signals(scene: Scene) -> None:
    run, other = await scene.running(), await scene.running()
    for mail in (first := signal(run.id, "a"), second := signal(run.id, "b"), signal(other.id, "c")):
        await scene.store.send(mail)
    await scene.post(signal(run.id, "d"))
    successor = successor_of(run)
    await scene.flush(joint(run, 0, takes=[first.id]), continued(run, successor))
    box = await scene.mailbox(successor.id)
    assert {mail.name for mail in box.mail} == {"b", "d"}
    assert second.id in {mail.id for mail in box.mail}
    assert [mail.name for mail in (await scene.mailbox(other.id)).mail] == ["c"]
    assert (await scene.mailbox(run.id)).mail == []


async def test_a_signal_on_its_way_is_delivered_to_the_successor(scene: Scene, run: Claimed) -> None:
    await scene.post(signal(run.id))
    successor = successor_of(run)
    await scene.flush(continued(run, successor))
    [again] = await scene.claim()
    assert again.wakes == 0
    await scene.deliver()
    assert (await scene.mailbox(successor.id)).wakes == 1


async def test_a_signal_on_its_way_goes_on_before_one_that_was_sent_later(scene: Scene) -> None:
    """Sent in a transaction to the first of three links, and not delivered yet when the next is sent to the last."""
    first = await scene.running()
    links = [successor_of(first)]
    await scene.flush(continued(first, links[0]))
    [second] = await scene.claim()
    links.append(successor_of(second))
    await scene.flush(continued(second, links[1]))
    await scene.post(signal(first.id, "word", '"sent first"'))
    later = signal(first.id, "word", '"sent later"')
    asked = await scene.store.send(later)
    assert (asked.done, asked.reason) == (False, "continued")
    last = await scene.store.continuation(first.id)
    assert (await scene.store.send(replace(later, run_id=last))).done
    assert [mail.value for mail in (await scene.mailbox(last)).mail] == ['"sent first"', '"sent later"']
    await scene.deliver()
    assert (await scene.mailbox(last)).wakes == 2


async def test_a_parent_hears_of_the_successor_s_end_and_not_of_the_change(scene: Scene) -> None:
    parent, [child] = await scene.family()
    expected = await reply_to(scene, child.id)
    await scene.flush(waiting(parent, None, awaits=1))
    successor = successor_of(child)
    answer = await scene.flush(continued(child, successor, child=True))
    assert not answer.undelivered
    assert (await scene.mailbox(parent.id)).mail == []
    [again] = await scene.claim()
    assert (again.id, again.parent_id) == (successor.id, parent.id)
    await scene.flush(ended(again, output='"at last"'))
    assert (await scene.deliver()).lanes == {LANE}
    [mail] = (await scene.mailbox(parent.id)).mail
    assert (mail.id, mail.value) == (expected, '"at last"')


async def test_a_successor_stands_where_the_run_stood_whatever_it_says_of_itself(scene: Scene) -> None:
    _, [child] = await scene.family(tags=("red", "blue"))
    successor = successor_of(child, tags=("green",))
    successor.parent = Parent(new_id(), "9", 9, new_id())
    await scene.flush(continued(child, successor, child=True))
    for column in ORIGIN:
        assert await scene.rows.get(successor.id, column) == await scene.rows.get(child.id, column)
    assert (await scene.info(successor.id)).tags == ["red", "blue"]
    assert {row.id for row in await scene.store.runs(tag="red")} == {child.id, successor.id}
    assert await scene.store.runs(tag="green") == []


@pytest.mark.parametrize("when", ["after", "before"])
async def test_a_successor_is_cancelled_with_the_parent(scene: Scene, when: str) -> None:
    """Also by a cancellation that was on its way when it was started."""
    parent, [child] = await scene.family()
    successor = successor_of(child)
    entries = [waiting(parent), continued(child, successor, child=True)]
    await scene.flush(*(entries if when == "after" else entries[:1]))
    await scene.store.cancel(parent.id)
    if when == "before":
        await scene.flush(entries[1])
    await scene.deliver()
    assert await status(scene, successor.id) == "cancelled"


async def test_a_mark_that_the_owner_did_not_hear_of_reaches_the_successor(scene: Scene, run: Claimed) -> None:
    """A completion that meets the mark wins; but a run that goes on as another has not completed anything."""
    await scene.store.cancel(run.id)
    successor = successor_of(run)
    await scene.flush(continued(run, successor))
    await scene.deliver()
    assert await status(scene, successor.id) == "cancelled"


async def test_a_pause_that_the_owner_did_not_hear_of_holds_the_successor(scene: Scene, run: Claimed) -> None:
    """At once, and not only when a worker comes to claim it; its deadline goes on meanwhile."""
    await scene.store.pause(run.id)
    successor = successor_of(run, deadline_ms=MINUTE)
    await scene.flush(continued(run, successor))
    row = await scene.info(successor.id)
    assert (row.status, row.asked, row.visible_at) == ("paused", None, row.deadline_at)
    assert await scene.claim() == []
    assert (await scene.store.resume(successor.id)).lane == LANE
    assert [claimed.id for claimed in await scene.claim()] == [successor.id]


async def test_a_run_that_goes_on_as_another_leaves_its_children_alone(scene: Scene) -> None:
    run, [child] = await scene.family()
    await scene.flush(waiting(child))
    await scene.flush(continued(run, successor_of(run)))
    assert (await scene.deliver()).moved == 0
    assert await status(scene, child.id) == "waiting"


async def test_a_suspect_brings_its_parent_too(scene: Scene) -> None:
    parent = await scene.running()
    child = child_of(parent)
    await scene.flush(joint(parent, 0, starts=[child]))
    await scene.rows.set(child.id, "losses", 2)
    [claimed] = await scene.suspect()
    assert (claimed.id, claimed.parent_id) == (child.id, parent.id)


async def test_an_open_start_is_closed_by_the_end_that_is_taken(scene: Scene) -> None:
    """The whole life of a call: opened with the start, waited for, closed by the mail, in any claim."""
    parent = await scene.running()
    child = child_of(parent)
    await scene.flush(
        joint(parent, 0, "null", starts=[child], kind="child", status="waiting"), waiting(parent, None, awaits=1)
    )
    [claimed] = await scene.claim()
    await scene.flush(ended(claimed, output="42"))
    await scene.deliver()
    [again] = await scene.claim()
    assert [(record.kind, record.status) for record in again.records] == [("child", "waiting")]
    [mail] = (await scene.mailbox(parent.id)).mail
    answer = await scene.flush(joint(again, 0, mail.value, takes=[mail.id], kind="child"), completed(again))
    assert answer.lost == set()
    [record] = await scene.store.steps(parent.id)
    assert (record.status, record.output) == ("completed", "42")
