"""Mail for runs that went on as others: it goes on with them, in the order in which it was sent, and once."""

from __future__ import annotations

import asyncio

import pytest

from stepfast.model.records import Claimed
from stepfast.store import Store
from stepfast.store.postgres import PostgresStore
from tests.store.conftest import ON_POSTGRES, only_on
from tests.store.scene import Scene, completed, joint, move, new_run, signal


async def names(scene: Scene, run_id: str) -> list[str]:
    return [mail.name for mail in (await scene.mailbox(run_id)).mail]


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
