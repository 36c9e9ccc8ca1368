"""Queues: a paused one gives nothing to any claim, and how much there is in each is told as it stands."""

from __future__ import annotations

import pytest

from stepfast.model import queue_config
from stepfast.model.records import Lane
from stepfast.store import Store
from tests.store.scene import MINUTE, Scene, waiting

ORDER, MAIL = Lane("order", "order", 0), Lane("mail", "mail", 0)


async def pause(store: Store, name: str) -> None:
    await store.change_queue(name, queue_config.pause)


@pytest.mark.parametrize("lanes", [[ORDER], [ORDER, MAIL]], ids=["one lane", "several"])
async def test_no_claim_that_begins_after_a_pause_takes_anything(scene: Scene, twin: Store, lanes: list[Lane]) -> None:
    """Also by a worker that has not heard of it."""
    run_id, other = await scene.start(), await scene.start("mail")
    await pause(twin, "order")
    assert [run.id for run in await scene.claim(lanes=lanes)] == ([other] if MAIL in lanes else [])
    await twin.change_queue("order", queue_config.resume)
    assert [run.id for run in await scene.claim(lanes=lanes)] == [run_id]


async def test_suspects_of_a_paused_queue_wait_too(scene: Scene) -> None:
    run_id = await scene.start()
    await scene.rows.set(run_id, "losses", 2)
    await pause(scene.store, "order")
    assert await scene.suspect(room=(10,)) == []
    assert not (await scene.store.tick(scene.worker, None, True)).suspects
    await scene.store.change_queue("order", queue_config.resume)
    assert [run.id for run in await scene.suspect(room=(10,))] == [run_id]


async def test_a_tick_tells_which_queues_are_gated_and_leaves_their_lanes_out(scene: Scene) -> None:
    await scene.start()
    await scene.start("mail")
    await pause(scene.store, "order")
    tick = await scene.store.tick(scene.worker, None, True)
    assert (tick.lanes, tick.limited, tick.gated) == ([MAIL], [], frozenset({"order"}))


async def test_a_pause_is_kept_and_told_once(scene: Scene) -> None:
    before, after = await scene.store.change_queue("order", queue_config.pause)
    assert (before.paused, after.paused, after.paused_at is not None) == (False, True, True)
    again, still = await scene.store.change_queue("order", queue_config.pause)
    assert (again.paused_at, still.paused_at) == (after.paused_at, after.paused_at)
    assert [(each.name, each.paused) for each in await scene.store.queues()] == [("order", True)]


async def test_how_much_there_is_in_each_queue(scene: Scene) -> None:
    sleeping = await scene.running(workflow="mail")
    await scene.flush(waiting(sleeping, delay_ms=MINUTE))
    await scene.running(workflow="mail")
    first = await scene.start()
    await scene.rows.shift(first, "place", -5_000_000)
    await scene.rows.set(await scene.start(), "losses", 2)
    await scene.start(delay_ms=MINUTE)
    due = await scene.start(delay_ms=MINUTE)
    await scene.rows.shift(due, "visible_at", -2 * MINUTE)
    depths = {depth.queue: depth for depth in await scene.store.queue_depths()}
    order, mail = depths.pop("order"), depths.pop("mail")
    assert not depths
    assert (order.ready, order.running, order.waiting, order.delayed) == (3, 0, 0, 1)
    assert order.oldest is not None and 59 < order.oldest < 120
    assert (mail.ready, mail.running, mail.waiting, mail.delayed, mail.oldest) == (0, 1, 1, 0, None)
