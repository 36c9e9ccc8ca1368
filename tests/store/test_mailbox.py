"""The mailbox: signals are kept, wake, and are taken once; also along chains of runs."""

from __future__ import annotations

import asyncio
from typing import Any

import asyncpg
import pytest
from msgspec.structs import replace

from stepfast.errors import InvalidState
from stepfast.model.ids import new_id
from stepfast.model.records import Claimed, Lane, Look
from stepfast.settings import Settings
from stepfast.store import Store
from stepfast.store.answers import Delivery
from stepfast.store.postgres import PostgresStore
from tests.store.conftest import ON_POSTGRES, SHARED, Stores, only_on
from tests.store.scene import (
    DAY,
    MINUTE,
    Scene,
    completed,
    failed,
    joint,
    move,
    new_run,
    retried,
    signal,
    undo,
    waiting,
)
from tests.store.test_children import continued, successor_of

LANE = Lane("order", "order", 0)


async def names(scene: Scene, run_id: str) -> list[str]:
    return [mail.name for mail in (await scene.mailbox(run_id)).mail]


# -- sending ------------------------------------------------------------------------------------------------


async def test_a_signal_wakes_the_run_that_waits_for_it(scene: Scene, run: Claimed) -> None:
    await scene.flush(waiting(run, None, waiting_for="signal"))
    asked = await scene.store.send(signal(run.id))
    assert (asked.status, asked.done, asked.lane, asked.running, asked.ended) == ("waiting", True, LANE, False, False)
    row = await scene.info(run.id)
    assert (row.status, row.ready, row.waiting_for, row.visible_at) == ("queued", True, None, None)
    [again] = await scene.claim()
    assert (again.id, again.wakes, again.attempt) == (run.id, run.wakes + 1, 1)


async def test_of_signals_of_one_id_one_is_kept_also_along_a_chain(scene: Scene, run: Claimed) -> None:
    first, again = replace(signal(run.id, "a"), given="1"), replace(signal(run.id, "b"), given="1")
    assert (await scene.store.send(first)).done and (await scene.store.send(again)).done
    assert await names(scene, run.id) == ["a"]
    successor = successor_of(run)
    await scene.flush(joint(run, 0, takes=[first.id]), continued(run, successor))
    again = replace(signal(successor.id, "b"), given="1")
    assert (await scene.store.send(again)).done and (await scene.store.send(replace(again, given="2"))).done
    assert await names(scene, successor.id) == ["b"]
    assert await scene.store.values(successor.id) == []


@pytest.mark.parametrize("deadline", [None, DAY])
async def test_a_signal_ends_a_wait_that_has_a_time_too(scene: Scene, deadline: int | None) -> None:
    """The deadline stays in view; children are waited for no more."""
    run = await scene.running(deadline_ms=deadline)
    await scene.flush(waiting(run, MINUTE, waiting_for="signal", awaits=3))
    await scene.store.send(signal(run.id))
    row = await scene.info(run.id)
    assert (row.ready, row.visible_at) == (True, row.deadline_at)
    assert await scene.rows.get(run.id, "awaits") is None


async def test_a_signal_is_kept_as_it_was_sent(scene: Scene, run_id: str) -> None:
    mails = [
        signal(run_id, "größe", '{"a":"ä\'1"}', format=2),
        signal(run_id, "go", None),
        signal(run_id, "go", "null"),
    ]
    for mail in mails:
        await scene.store.send(mail)
    assert (await scene.mailbox(run_id)).mail == mails


async def test_a_signal_to_a_run_that_a_worker_holds_is_only_counted(scene: Scene, run: Claimed) -> None:
    asked = await scene.store.send(signal(run.id))
    assert (asked.status, asked.done, asked.lane, asked.running) == ("running", True, None, True)
    row = await scene.info(run.id)
    assert (row.status, row.ready, row.worker, row.claim) == ("running", False, scene.worker, run.claim)
    assert (await scene.mailbox(run.id)).wakes == run.wakes + 1


@pytest.mark.parametrize("seen", [False, True])
async def test_a_wait_that_has_not_seen_a_signal_is_none(scene: Scene, run: Claimed, seen: bool) -> None:
    """It came between the look into the mailbox and the wait."""
    look = await scene.mailbox(run.id)
    await scene.store.send(signal(run.id, "another"))
    look = await scene.mailbox(run.id) if seen else look
    await scene.flush(waiting(run, None, wakes=look.wakes))
    row = await scene.info(run.id)
    assert (row.status, row.ready) == (("waiting", False) if seen else ("queued", True))


async def test_a_signal_does_not_move_a_ready_run_in_its_line(scene: Scene, run_id: str) -> None:
    place = await scene.rows.get(run_id, "place")
    asked = await scene.store.send(signal(run_id))
    assert (asked.status, asked.done, asked.lane, asked.running) == ("queued", True, None, False)
    assert await scene.rows.get(run_id, "place") == place
    [run] = await scene.claim()
    assert run.wakes == 1


@pytest.mark.parametrize("kind", ["a delayed start", "between two attempts"])
async def test_a_signal_does_not_hurry_what_is_not_due(scene: Scene, kind: str) -> None:
    run_id = await scene.start(delay_ms=DAY if kind == "a delayed start" else 0)
    if kind != "a delayed start":
        [run] = await scene.claim()
        await scene.flush(retried(run, DAY))
    before = await scene.info(run_id)
    await scene.store.send(signal(run_id))
    row = await scene.info(run_id)
    assert (row.status, row.ready, row.visible_at) == ("queued", False, before.visible_at)
    assert await names(scene, run_id) == ["approved"]


async def test_a_signal_does_not_hurry_an_undo(scene: Scene) -> None:
    await scene.undoing()
    [run] = await scene.claim()
    await scene.flush(undo(run, delay_ms=DAY))
    before = await scene.info(run.id)
    asked = await scene.store.send(signal(run.id))
    assert (asked.status, asked.done, asked.lane) == ("compensating", True, None)
    row = await scene.info(run.id)
    assert (row.status, row.ready, row.visible_at) == ("compensating", False, before.visible_at)


async def test_a_paused_run_collects_its_signals_and_acts_on_them_when_it_goes_on(scene: Scene, run: Claimed) -> None:
    await scene.flush(waiting(run, DAY, waiting_for="signal"))
    await scene.store.pause(run.id)
    asked = await scene.store.send(signal(run.id))
    assert (asked.status, asked.done, asked.lane) == ("paused", True, None)
    row = await scene.info(run.id)
    assert (row.status, row.ready, row.waiting_for) == ("paused", False, None)
    assert (await scene.store.resume(run.id)).lane == LANE
    assert (await scene.info(run.id)).ready


async def test_a_paused_run_that_did_not_wait_keeps_its_time_when_a_signal_comes(scene: Scene) -> None:
    run_id = await scene.start(delay_ms=DAY)
    due = (await scene.info(run_id)).visible_at
    await scene.store.pause(run_id)
    await scene.store.send(signal(run_id))
    await scene.store.resume(run_id)
    row = await scene.info(run_id)
    assert (row.status, row.ready, row.visible_at) == ("queued", False, due)


@pytest.mark.parametrize(
    ("end", "reason"),
    [(completed, None), (failed, "code"), (lambda run: move(run, "cancelled", reason="cancelled"), "cancelled")],
)
async def test_a_signal_to_a_run_that_has_ended_is_refused(scene: Scene, end: Any, reason: str | None) -> None:
    run = await scene.running()
    await scene.flush(end(run))
    before = await scene.rows.dump()
    asked = await scene.store.send(signal(run.id))
    assert (asked.status, asked.reason, asked.done) == (end(run).status, reason, False)
    assert await scene.rows.dump() == before


async def test_mail_to_a_run_that_does_not_exist_is_refused_or_thrown_away(scene: Scene) -> None:
    asked = await scene.store.send(signal(new_id()))
    assert (asked.status, asked.done) == (None, False)
    assert await scene.rows.fetch("SELECT * FROM [mailbox]") == []
    assert await scene.store.mail([]) == {}
    assert await scene.store.deliver(10) == Delivery(set(), False, False, 0)
    await scene.post(signal(new_id()))
    assert (await scene.store.deliver(10)).moved == 1
    assert await scene.rows.fetch("SELECT * FROM [mailbox]") == []


async def test_a_signal_sent_twice_is_one_signal_and_one_wake(scene: Scene, run: Claimed) -> None:
    """Rule 7: the reply to the first may have been lost. A run that saw it is not woken."""
    mail = signal(run.id)
    await scene.store.send(mail)
    before = await scene.rows.dump()
    assert (await scene.store.send(mail)).done
    assert await scene.rows.dump() == before
    wakes = (await scene.mailbox(run.id)).wakes
    assert wakes == run.wakes + 1
    await scene.flush(waiting(run, None, wakes=wakes))
    asked = await scene.store.send(mail)
    assert (asked.done, asked.lane) == (True, None)
    assert (await scene.info(run.id)).status == "waiting"


# -- looking ------------------------------------------------------------------------------------------------


async def test_mail_lies_in_the_order_it_was_sent(scene: Scene, run_id: str) -> None:
    """By the database's clock and not by the ids that senders made; within a millisecond by these."""
    ids = [new_id() for _ in range(3)]
    for name, mail_id in zip("abc", reversed(ids), strict=True):
        await scene.store.send(signal(run_id, name, id=mail_id))
        await scene.rows.fetch("UPDATE [mailbox] SET sent_at = sent_at - ? WHERE id <> ?", MINUTE, mail_id)
    assert await names(scene, run_id) == ["a", "b", "c"]
    await scene.rows.fetch("UPDATE [mailbox] SET sent_at = ?", 1)
    assert await names(scene, run_id) == ["c", "b", "a"]


async def test_one_look_serves_many_runs(scene: Scene) -> None:
    first, second, empty = await scene.start_many(3)
    await scene.store.send(signal(first, "a"))
    await scene.store.send(signal(second, "b"))
    await scene.store.send(signal(second, "c"))
    nobody = new_id()
    boxes = await scene.store.mail([Look(run_id) for run_id in (second, empty, first, nobody)])
    assert {run_id: [mail.name for mail in box.mail] for run_id, box in boxes.items()} == {
        first: ["a"],
        second: ["b", "c"],
        empty: [],
    }
    assert {run_id: box.wakes for run_id, box in boxes.items()} == {first: 1, second: 2, empty: 0}


async def test_a_look_sees_what_is_not_delivered_yet_but_no_cancellation(scene: Scene, run_id: str) -> None:
    await scene.post(signal(run_id, "posted"))
    await scene.post(signal(run_id, "", kind="cancel"))
    assert await names(scene, run_id) == ["posted"]


# -- taking -------------------------------------------------------------------------------------------------


async def test_a_look_brings_only_what_is_asked_for_and_is_new(scene: Scene, run_id: str) -> None:
    letters = [signal(run_id, name) for name in ("other", "word", "other", "word", "word")]
    for mail in letters:
        await scene.store.send(mail)
    await scene.post(child := signal(run_id, "completed", kind="child"))

    async def look(names: dict[str, int], *seen: str) -> set[str]:
        return {mail.id for mail in (await scene.store.mail([Look(run_id, names, seen)]))[run_id].mail}

    assert await look({}) == {child.id}
    assert await look({"word": 2}, child.id) == {letters[1].id, letters[3].id}
    assert await look({"word": 2}, child.id, letters[1].id) == {letters[3].id, letters[4].id}
    assert await look({"word": 2, "none": 1}, child.id, *(mail.id for mail in letters)) == set()


@only_on(*SHARED)
async def test_a_look_brings_so_many_bytes_at_most_but_of_each_name_the_first(stores: Stores, bare: Store) -> None:
    await bare.migrate()
    scene = await stores.scene(await stores.open(settings=Settings(mail_bytes=100_000)))
    run_id, large = await scene.start(), '"' + 80_000 * "x" + '"'
    letters = [signal(run_id, name, large) for name in ("a", "a", "a", "b")]
    for mail in letters:
        await scene.store.send(mail)
    for _ in range(3):
        await scene.post(signal(run_id, "completed", large, kind="child"))
    box = (await scene.store.mail([Look(run_id, {"a": 9, "b": 9})]))[run_id]
    signals = [mail.id for mail in box.mail if mail.kind == "signal"]
    assert signals == [letters[0].id, letters[1].id, letters[3].id]
    assert (sum(mail.kind == "child" for mail in box.mail), box.more) == (2, True)
    assert {mail.value for mail in box.mail} == {large}
    box = (await scene.store.mail([Look(run_id, {}, tuple(mail.id for mail in box.mail))]))[run_id]
    assert [mail.kind for mail in box.mail] == ["child"]


@only_on(*SHARED)
async def test_a_run_keeps_so_many_signals_and_no_more(stores: Stores, bare: Store) -> None:
    await bare.migrate()
    scene = await stores.scene(await stores.open(settings=Settings(max_signals=3)))
    run = await scene.running()
    letters = [signal(run.id) for _ in range(3)]
    for mail in letters:
        assert (await scene.store.send(mail)).done
    with pytest.raises(InvalidState, match=r"has 3 signals.*max_signals"):
        await scene.store.send(signal(run.id))
    assert (await scene.store.send(letters[0], again=True)).done, "it is there already"
    assert (await scene.mailbox(run.id)).wakes == 3
    await scene.flush(joint(run, takes=[letters[0].id]))
    assert (await scene.store.send(signal(run.id))).done


async def test_mail_is_taken_with_the_record_that_names_it(scene: Scene, run: Claimed) -> None:
    """One or several; and once, though the reply was lost."""
    mails = [signal(run.id, name) for name in "abc"]
    for mail in mails:
        await scene.store.send(mail)
    entry = joint(run, 0, "true", takes=[mails[0].id, mails[2].id], kind="signal")
    assert (await scene.flush(entry)).lost == set()
    assert [(record.kind, record.output) for record in await scene.store.steps(run.id)] == [("signal", "true")]
    assert (await scene.mailbox(run.id)).mail == [mails[1]]
    before = await scene.rows.dump()
    assert (await scene.flush(entry)).lost == set()
    assert await scene.rows.dump() == before


@pytest.mark.parametrize("lost", [True, False], ids=["an old claim", "a record of another claim"])
async def test_who_lost_the_run_takes_no_mail(scene: Scene, run: Claimed, lost: bool) -> None:
    await scene.flush(*([] if lost else [joint(run, 0, '"theirs"')]))
    again = await scene.again(run)
    await scene.store.send(mail := signal(run.id))
    before = await scene.rows.dump()
    answer = await scene.flush(joint(run if lost else again, 0, '"ours"', takes=[mail.id]))
    assert answer.lost == {run.id}
    assert await scene.rows.dump() == before


async def test_a_run_takes_no_mail_of_another_run(scene: Scene) -> None:
    """The same id may lie in two mailboxes: a broadcast."""
    run, other = await scene.running(), await scene.running()
    mail_id = new_id()
    await scene.store.send(signal(run.id, id=mail_id))
    await scene.store.send(signal(other.id, id=mail_id))
    await scene.flush(joint(run, 0, takes=[mail_id]))
    assert (await names(scene, run.id), await names(scene, other.id)) == ([], ["approved"])


async def test_taken_mail_and_the_end_of_the_run_go_together(scene: Scene, run: Claimed) -> None:
    await scene.store.send(mail := signal(run.id))
    await scene.flush(joint(run, 0, takes=[mail.id]), completed(run))
    assert (await scene.info(run.id)).status == "completed"
    assert await scene.rows.fetch("SELECT * FROM [mailbox]") == []


# -- delivering ---------------------------------------------------------------------------------------------


async def test_posted_mail_wakes_its_run_when_it_is_delivered(scene: Scene, run: Claimed) -> None:
    await scene.flush(waiting(run, DAY, waiting_for="signal"))
    await scene.post(signal(run.id))
    assert (await scene.info(run.id)).status == "waiting"
    assert await scene.store.deliver(10) == Delivery({LANE}, False, False, 1)
    row = await scene.info(run.id)
    assert (row.status, row.ready, row.waiting_for, row.visible_at) == ("queued", True, None, None)
    assert await names(scene, run.id) == ["approved"]


async def test_the_tick_tells_of_mail_until_it_is_delivered(scene: Scene, run_id: str) -> None:
    await scene.store.send(signal(run_id))
    assert not (await scene.store.tick(scene.worker, ["order"], True)).mail
    await scene.post(signal(run_id))
    assert (await scene.store.tick(scene.worker, ["order"], True)).mail
    await scene.store.deliver(10)
    assert not (await scene.store.tick(scene.worker, ["order"], True)).mail


async def test_mail_is_delivered_once_and_every_signal_counts(scene: Scene, run: Claimed) -> None:
    await scene.post(signal(run.id))
    await scene.post(signal(run.id))
    assert (await scene.store.deliver(10)).moved == 2
    assert (await scene.mailbox(run.id)).wakes == run.wakes + 2
    before = await scene.rows.dump()
    assert (await scene.store.deliver(10)).moved == 0
    assert await scene.rows.dump() == before


async def test_mail_for_a_run_that_is_held_is_told_so(scene: Scene, run: Claimed) -> None:
    """Its worker is to hear of a cancellation at once, whichever it is."""
    await scene.post(signal(run.id))
    assert await scene.store.deliver(10) == Delivery(set(), False, True, 1)
    await scene.post(signal(run.id, "", kind="cancel"))
    assert (await scene.store.deliver(10)).asked
    await scene.flush(waiting(run, None))
    assert (await scene.info(run.id)).ready, "the wait had not seen it"


async def test_delivery_wakes_no_paused_run_but_is_not_forgotten(scene: Scene, run: Claimed) -> None:
    await scene.flush(waiting(run, DAY))
    await scene.store.pause(run.id)
    await scene.post(signal(run.id))
    assert await scene.store.deliver(10) == Delivery(set(), False, False, 1)
    assert (await scene.info(run.id)).status == "paused"
    await scene.store.resume(run.id)
    assert (await scene.info(run.id)).ready


async def test_delivery_is_bounded_and_takes_the_oldest_first(scene: Scene) -> None:
    ids = await scene.start_many(5)
    for run_id in reversed(ids):
        await scene.post(signal(run_id))
    assert (await scene.store.deliver(2)).moved == 2
    boxes = await scene.store.mail([Look(run_id) for run_id in ids])
    assert [boxes[run_id].wakes for run_id in ids] == [0, 0, 0, 1, 1]
    assert [(await scene.store.deliver(2)).moved for _ in range(3)] == [2, 1, 0]


async def test_mail_to_a_run_that_has_ended_is_thrown_away(scene: Scene, run: Claimed) -> None:
    await scene.post(signal(run.id))
    await scene.flush(completed(run))
    before = await scene.info(run.id)
    assert await scene.store.deliver(10) == Delivery(set(), False, False, 1)
    assert await scene.rows.fetch("SELECT * FROM [mailbox]") == []
    assert (await scene.info(run.id)).status == before.status


@pytest.mark.parametrize("how", ["failed", "cancelled"])
async def test_a_signal_committed_before_the_end_of_a_run_that_can_be_retried_is_kept_for_that(
    scene: Scene, run: Claimed, how: str
) -> None:
    """As one that was sent directly. What is not for a retry is not: the answers of children come again."""
    await scene.post(mail := signal(run.id))
    await scene.post(signal(run.id, "completed", kind="child"))
    await scene.flush(failed(run) if how == "failed" else move(run, "cancelled", reason="cancelled"))
    assert await scene.store.deliver(10) == Delivery(set(), False, False, 2)
    assert (await scene.info(run.id)).status == how
    assert not (await scene.store.tick(scene.worker, ["order"], True)).mail
    await scene.store.retry(run.id)
    [again] = await scene.claim()
    assert again.wakes == 1, "it would not look for its mail"
    assert [found.id for found in (await scene.mailbox(run.id)).mail] == [mail.id]


async def test_mail_that_nobody_can_get_does_not_hold_up_the_rest(scene: Scene, run_id: str) -> None:
    for _ in range(3):
        await scene.post(signal(new_id()))
    await scene.post(signal(run_id))
    assert (await scene.deliver(limit=1)).moved == 4
    assert (await scene.mailbox(run_id)).wakes == 1


async def test_mail_taken_before_its_delivery_wakes_nobody(scene: Scene, run: Claimed) -> None:
    await scene.post(mail := signal(run.id))
    await scene.flush(joint(run, 0, takes=[mail.id]), waiting(run, None))
    assert (await scene.store.deliver(10)).moved == 0
    assert (await scene.info(run.id)).status == "waiting"


@only_on(*ON_POSTGRES)
async def test_delivery_does_not_wait_for_a_run_that_somebody_holds_locked(scene: Scene, stores: Stores) -> None:
    """Rule 8. What could not be delivered is delivered later."""
    locked, free = await scene.start_many(2)
    await scene.post(signal(locked))
    await scene.post(signal(free))
    other = await asyncpg.connect(stores.url.text)
    try:
        async with asyncio.timeout(20), other.transaction():
            await other.execute("SELECT 1 FROM stepfast.runs WHERE id = $1 FOR UPDATE", locked)
            assert (await scene.store.deliver(10)).moved == 1
            assert (await scene.mailbox(free)).wakes == 1
    finally:
        await other.close()
    assert (await scene.store.deliver(10)).moved == 1
    assert (await scene.mailbox(locked)).wakes == 1


async def test_a_resume_that_was_left_in_the_mailbox_does_what_an_operators_does(scene: Scene) -> None:
    """Of a run that is paused, of one that was about to be, of one that waits for a check; and of no other."""
    held = await scene.running()
    await scene.store.pause(held.id)
    checks = await scene.running()
    await scene.flush(waiting(checks, DAY, waiting_for="check"))
    sleeps = await scene.running()
    await scene.flush(waiting(sleeps, DAY, waiting_for="time"))
    paused, late = await scene.start_many(2)
    await scene.store.pause(paused)
    await scene.store.pause(late)
    for run_id in (held.id, checks.id, sleeps.id, paused, late):
        await scene.post(signal(run_id, "", None, kind="resume"))
    await scene.post(signal(late, "", None, kind="cancel"))
    delivery = await scene.deliver()
    assert (delivery.moved, delivery.running, delivery.lanes) == (6, True, {LANE})
    found = [await scene.info(run_id) for run_id in (held.id, checks.id, sleeps.id, paused, late)]
    assert [info.status for info in found] == ["running", "queued", "waiting", "queued", "cancelled"]
    assert [info.asked for info in found] == [None] * 5
    assert {run.id for run in await scene.claim(limit=5)} == {checks.id, paused}


# -- many at once -------------------------------------------------------------------------------------------


async def test_senders_at_once_lose_nothing_and_the_run_stands_in_line_once(scene: Scene, twin: Store) -> None:
    run = await scene.running()
    await scene.flush(waiting(run, None, waiting_for="signal"))
    mails = [signal(run.id, str(n)) for n in range(40)]
    answers = await asyncio.gather(*((scene.store, twin)[n % 2].send(mail) for n, mail in enumerate(mails)))
    assert all(asked.done for asked in answers)
    assert [asked.lane for asked in answers if asked.lane] == [LANE]
    box = await scene.mailbox(run.id)
    assert {mail.id for mail in box.mail} == {mail.id for mail in mails}
    assert box.wakes == run.wakes + 40
    assert [again.id for again in await scene.claim()] == [run.id]


async def test_a_signal_sent_while_the_run_lies_down_is_never_slept_over(scene: Scene, twin: Store) -> None:
    """Rule 6, by trying: whoever is first, the run is ready afterwards."""
    for _ in range(20):
        run = await scene.running()
        look = await scene.mailbox(run.id)
        await asyncio.gather(
            scene.flush_through(waiting(run, None, wakes=look.wakes)),
            twin.send(signal(run.id)),
        )
        [again] = await scene.claim()
        assert again.id == run.id
        await scene.flush(completed(again))


async def test_deliverers_at_once_count_nothing_twice(scene: Scene, twin: Store) -> None:
    ids = await scene.start_many(10)
    for _ in range(3):
        for run_id in ids:
            await scene.post(signal(run_id))
    moved = 0
    while (await scene.store.tick(scene.worker, ["order"], False)).mail:
        deliveries = await asyncio.gather(*(store.deliver(7) for store in (scene.store, twin, scene.store, twin)))
        moved += sum(delivery.moved for delivery in deliveries)
    assert moved == 30
    assert {box.wakes for box in (await scene.store.mail([Look(run_id) for run_id in ids])).values()} == {3}


# -- when a wait is due -------------------------------------------------------------------------------------


async def test_a_wait_may_name_the_moment_it_ends(scene: Scene, run: Claimed) -> None:
    """A time of the database, which stays the same however often the run is woken in between."""
    due = (await scene.info(run.id)).now_ms + DAY
    await scene.flush(waiting(run, None, due_at=due))
    assert (await scene.info(run.id)).visible_at == due
    await scene.store.send(signal(run.id))
    [again] = await scene.claim()
    await scene.flush(waiting(again, None, due_at=due))
    assert (await scene.info(run.id)).visible_at == due


async def test_a_moment_that_is_past_keeps_nobody_waiting(scene: Scene, run: Claimed) -> None:
    await scene.flush(waiting(run, None, due_at=(await scene.info(run.id)).now_ms - MINUTE))
    await scene.store.promote(10)
    assert (await scene.info(run.id)).ready


async def test_a_moment_after_the_deadline_is_cut_short_by_it(scene: Scene) -> None:
    run = await scene.running(deadline_ms=MINUTE)
    row = await scene.info(run.id)
    await scene.flush(waiting(run, None, due_at=row.now_ms + DAY))
    assert row.deadline_at is not None and (await scene.info(run.id)).visible_at == row.deadline_at


async def chain(scene: Scene, length: int) -> list[str]:
    """Runs of which each went on as the next; the last is being executed."""
    ids = []
    run = await scene.running()
    for _ in range(length - 1):
        ids.append(run.id)
        run = await go_on(scene, run)
    return [*ids, run.id]


async def test_mail_that_is_left_with_any_of_a_chain_goes_on_before_the_sender_does(scene: Scene) -> None:
    """Whichever of the chain is named by who sends: what was left with it, or with one after it, was sent earlier."""
    first, *between, last = await chain(scene, 5)
    await scene.post(signal(between[1], "a"))
    await scene.post(signal(first, "b"))
    await scene.post(signal(between[2], "c"))
    answer = await scene.store.send(signal(first, "d"))
    assert (answer.done, answer.reason) == (False, "continued")
    assert (await scene.store.send(signal(last, "d"))).done
    assert await names(scene, last) == ["a", "b", "c", "d"]
    assert [await names(scene, run_id) for run_id in (first, *between)] == [[]] * 4


LATER = pytest.mark.parametrize("later", ["goes on", "went on as another", "has ended"])


@LATER
async def test_a_signal_sent_again_is_not_sent_twice_though_one_after_the_named_run_took_it(
    scene: Scene, later: str
) -> None:
    """The reply was lost; the run went on as another before it took the signal, which went along."""
    await taken_by_the_next(scene, later)


@only_on(*ON_POSTGRES)
@LATER
async def test_nor_by_a_user_who_may_change_no_run(scene: Scene, later: str) -> None:
    assert isinstance(scene.store, PostgresStore)
    await taken_by_the_next(scene, later, only_leaves=True)


async def taken_by_the_next(scene: Scene, later: str, only_leaves: bool = False) -> None:
    first = await scene.running()
    mail = signal(first.id)
    assert (await scene.store.send(mail)).done
    reader = taker = await go_on(scene, first)
    await scene.flush(joint(taker, 0, kind="signal", takes=[mail.id]))
    if later == "went on as another":
        reader = await go_on(scene, taker)
    elif later == "has ended":
        await scene.flush(completed(taker))
    if only_leaves:
        scene.store._only_leaves = True  # type: ignore[attr-defined]
    assert (await scene.store.send(mail, again=True)).done
    await scene.store.deliver(10)
    assert (await scene.mailbox(reader.id)).mail == []


async def go_on(scene: Scene, run: Claimed) -> Claimed:
    """The run that one goes on as, claimed."""
    continuation = new_run()
    await scene.flush(move(run, "completed", reason="continued", output=f'"{continuation.id}"', successor=continuation))
    [claimed] = await scene.claim()
    return claimed


async def test_senders_to_a_chain_wait_for_each_other_in_no_circle(scene: Scene, twin: Store) -> None:
    ids = await chain(scene, 6)
    for number in range(5):
        for run_id in ids[:-1]:
            await scene.post(signal(run_id, f"{number}"))
        await asyncio.gather(*(store.send(signal(run_id)) for run_id in ids[:-1] for store in (scene.store, twin)))
    assert await names(scene, ids[-1]) == [f"{number}" for number in range(5) for _ in range(5)]
