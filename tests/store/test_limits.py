"""Limits, rates and pauses of queues, at the claim."""

from __future__ import annotations

import asyncio
import itertools
from functools import partial
from typing import Any

import pytest

from stepfast.model import queue_config
from stepfast.model.queue_config import Rate
from stepfast.model.rate_limiter import Admission, KeysSeen, WantedRuns
from stepfast.model.records import Claimed, Lane, Transition
from stepfast.settings import SUSPECT_LOSSES
from stepfast.store import Store
from tests.store.conftest import SHARED, only_on
from tests.store.scene import MINUTE, VERSIONS, Scene, retried, waiting

ORDER = Lane("order", "order", 0)
TOKENS = itertools.count(1000)


async def limit(scene: Scene, queue: str = "order", **limits: Any) -> None:
    """Set limits, long enough ago for everything to be counted already."""
    await scene.store.change_queue(queue, partial(_choose, limits=limits))


def _choose(said: queue_config.Gate, now: int, limits: dict[str, Any]) -> queue_config.Gate:
    return queue_config.choose(said, limits, now)


async def admit(scene: Scene, room: int = 100, *, store: Store | None = None, **changes: Any) -> Admission:
    """One claim of the queue `order`."""
    token, worker = changes.pop("token", next(TOKENS)), changes.pop("worker", scene.worker)
    queue, lanes = changes.pop("queue", "order"), changes.pop("lanes", None)
    if lanes is None:
        tick = await scene.store.tick(scene.worker, None, True)
        lanes = [lane for lane in tick.limited if lane.queue == queue]
    want = WantedRuns(queue, [(lane, 0) for lane in lanes], dict(VERSIONS), room, **changes)
    return await (store or scene.store).claim_limited(worker, token, want)


async def take(scene: Scene, room: int = 100, **changes: Any) -> list[Claimed]:
    return (await admit(scene, room, **changes)).runs


def end(run: Claimed) -> Transition:
    return Transition(run.id, run.claim, "completed", output="1")


# -- concurrency ----------------------------------------------------------------------------------------------------


async def test_no_more_are_held_than_the_limit_says(scene: Scene) -> None:
    ids = await scene.start_many(5)
    await limit(scene, concurrency=2)
    first = await admit(scene)
    assert ([run.id for run in first.runs], first.left, first.again) == (ids[:2], True, False)
    assert all(run.limited for run in first.runs)
    assert (await admit(scene)).runs == []
    await scene.flush(end(first.runs[0]))
    assert [run.id for run in await take(scene)] == ids[2:3]


async def test_the_usual_claim_leaves_a_limited_queue_alone(scene: Scene) -> None:
    await scene.start_many(2)
    await limit(scene, concurrency=1)
    assert await scene.claim(lanes=[ORDER]) == []
    assert await scene.claim(lanes=[ORDER, Lane("mail", "mail", 0)]) == []
    tick = await scene.store.tick(scene.worker, None, True)
    assert (tick.lanes, tick.limited) == ([], [ORDER])


async def test_what_was_claimed_before_the_limit_counts(scene: Scene) -> None:
    await scene.start_many(4)
    held = await scene.claim(3)
    await limit(scene, concurrency=2)
    assert await take(scene) == []
    await scene.flush(end(held[0]), end(held[1]))
    assert len(await take(scene)) == 1


async def test_a_run_that_waits_does_not_count(scene: Scene) -> None:
    """Rule 36: a parent that waits cannot keep its own child out."""
    await scene.start_many(2)
    await limit(scene, concurrency=1)
    [parent] = await take(scene)
    await scene.flush(waiting(parent, delay_ms=MINUTE))
    [child] = await take(scene)
    await scene.rows.make_due(parent.id)
    await scene.store.promote(10)
    assert await take(scene) == []
    await scene.flush(end(child))
    assert [run.id for run in await take(scene)] == [parent.id]


async def test_what_a_dead_worker_held_counts_until_it_is_given_back(scene: Scene) -> None:
    await scene.start_many(3)
    await limit(scene, concurrency=2)
    other = await scene.add_worker()
    assert len(await take(scene, worker=other)) == 2
    assert await take(scene) == []
    await scene.rows.silence(other)
    assert (await scene.store.reap(scene.worker, 100, 5)).moved == 2
    assert len(await take(scene)) == 2


async def test_a_queue_without_limits_says_so(scene: Scene) -> None:
    await scene.start()
    assert not (await admit(scene, lanes=[ORDER])).limited
    await limit(scene, concurrency=1)
    await scene.store.change_queue("order", queue_config.pause)
    assert not (await admit(scene, lanes=[ORDER])).limited
    await scene.store.change_queue("order", queue_config.resume)
    await scene.store.change_queue("order", queue_config.reset)
    assert not (await admit(scene, lanes=[ORDER])).limited
    assert len(await scene.claim()) == 1


@only_on(*SHARED)
async def test_many_workers_together_hold_no_more(scene: Scene, twin: Store) -> None:
    await scene.start_many(40)
    await limit(scene, concurrency=7)
    stores = [scene.store, twin] * 3
    found = await asyncio.gather(*(admit(scene, 3, store=store, lanes=[ORDER]) for store in stores))
    assert sum(len(each.runs) for each in found) == 7


async def test_a_claim_whose_reply_was_lost_is_asked_again(scene: Scene) -> None:
    await scene.start_many(3)
    await limit(scene, concurrency=2)
    first = await admit(scene, token=7)
    again = await admit(scene, token=7)
    assert {run.id for run in again.runs} == {run.id for run in first.runs} and len(again.runs) == 2


async def test_priority_goes_before_age(scene: Scene) -> None:
    low, high = await scene.start(), await scene.start(priority=5)
    await limit(scene, concurrency=1)
    [first] = await take(scene)
    assert first.id == high
    await scene.flush(end(first))
    assert [run.id for run in await take(scene)] == [low]


async def test_suspects_of_a_limited_queue_are_tried_in_groups_within_its_limits(scene: Scene) -> None:
    ids = await scene.start_many(4)
    for run_id in ids[1:]:
        await scene.rows.set(run_id, "losses", SUSPECT_LOSSES)
    await limit(scene, concurrency=2)
    assert (await scene.store.tick(scene.worker, None, True)).limited_suspects == ["order"]
    assert await scene.suspect(room=(10,)) == []
    assert [run.id for run in await take(scene, suspects=(1, 1))] == ids[1:2]
    assert [run.id for run in await take(scene)] == ids[:1]
    assert await take(scene, suspects=(9, 9)) == []


# -- rates ----------------------------------------------------------------------------------------------------------


async def pass_time(scene: Scene, ms: int) -> None:
    """As if everything that was logged had been so much earlier."""
    await scene.rows.fetch("UPDATE [queue_starts] SET at = at - ?", ms)


async def test_no_more_begin_than_the_rate_allows(scene: Scene) -> None:
    await scene.start_many(9)
    await limit(scene, rate=Rate(3, per=60))
    first = await admit(scene)
    assert (len(first.runs), first.left) == (3, True)
    await scene.flush(*map(end, first.runs))
    blocked = await admit(scene)
    assert (blocked.runs, blocked.left) == ([], True)
    assert blocked.wait_ms is not None and 55_000 < blocked.wait_ms <= 60_100
    await pass_time(scene, 30_000)
    half = await admit(scene)
    assert half.wait_ms is not None and half.wait_ms <= 30_100
    await pass_time(scene, 31_000)
    assert len(await take(scene)) == 3


async def test_the_window_slides(scene: Scene) -> None:
    await scene.start_many(9)
    await limit(scene, rate=Rate(3, per=60))
    assert len(await take(scene, 2)) == 2
    await pass_time(scene, 40_000)
    assert len(await take(scene)) == 1
    await pass_time(scene, 21_000)
    assert len(await take(scene)) == 2
    assert len(await take(scene)) == 0


async def test_a_rate_counts_attempts_and_not_resumes(scene: Scene) -> None:
    await scene.start_many(3)
    await limit(scene, rate=Rate(2, per=60))
    sleeper, failing = await take(scene)
    await scene.flush(waiting(sleeper, delay_ms=MINUTE), retried(failing))
    await scene.rows.make_due(sleeper.id)
    await scene.store.promote(10)
    assert [run.id for run in await take(scene)] == [sleeper.id]
    await pass_time(scene, 61_000)
    assert failing.id in [run.id for run in await take(scene)]


async def test_a_lower_rate_waits_until_enough_is_out_of_its_window(scene: Scene) -> None:
    await scene.start_many(9)
    await limit(scene, rate=Rate(5, per=60))
    await take(scene, 4)
    await pass_time(scene, 20_000)
    await take(scene, 1)
    await limit(scene, rate=Rate(2, per=60))
    blocked = await admit(scene)
    assert blocked.wait_ms is not None and 35_000 < blocked.wait_ms <= 40_100


async def test_old_starts_are_deleted(scene: Scene) -> None:
    await scene.start_many(9)
    await limit(scene, rate=Rate(2, per=60), key_rate=Rate(9, per=1))
    await take(scene)
    await pass_time(scene, 100_000)
    await scene.rows.fetch("UPDATE [queues] SET pruned_at = 0")
    await take(scene)
    [(rows,)] = await scene.rows.fetch("SELECT count(*) FROM [queue_starts]")
    assert rows == 1


async def test_a_clock_that_steps_back_keeps_nothing_from_beginning_for_long(scene: Scene) -> None:
    await scene.start_many(4)
    await limit(scene, rate=Rate(2, per=1))
    assert len(await take(scene)) == 2
    await pass_time(scene, -3_600_000)
    assert len(await take(scene)) == 2


# -- keys -----------------------------------------------------------------------------------------------------------


async def test_each_key_has_a_limit_of_its_own(scene: Scene) -> None:
    many = await scene.start_many(5, concurrency_key="a")
    other, free = await scene.start(concurrency_key="b"), await scene.start()
    await limit(scene, key_concurrency=2)
    first = await take(scene)
    assert {run.id for run in first} == {*many[:2], other, free}
    assert await take(scene) == []
    await scene.flush(end(next(run for run in first if run.id == many[0])))
    assert [run.id for run in await take(scene)] == [many[2]]


async def test_a_run_without_a_key_is_found_behind_a_backlog_with_keys(
    scene: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("stepfast.store.flows.limits._UNKEYED", 3)
    ids = await scene.start_many(8, concurrency_key="a")
    free = await scene.start()
    await scene.rows.shift(free, "place", 1_000_000)
    await limit(scene, key_concurrency=1)
    first = await admit(scene)
    assert [run.id for run in first.runs] == ids[:1]
    second = await admit(scene, seen=first.seen)
    assert (second.runs, second.again) == ([], True)
    third = await admit(scene, seen=first.seen | second.seen)
    assert [run.id for run in third.runs] == [free]
    last = await admit(scene, seen=first.seen | second.seen)
    assert (last.runs, last.again, last.left) == ([], False, True)


async def test_each_key_has_a_rate_of_its_own(scene: Scene) -> None:
    for _ in range(3):
        for key in "ab":
            await scene.start(concurrency_key=key)
    await limit(scene, key_rate=Rate(2, per=60))
    admission = await admit(scene)
    assert len(admission.runs) == 4
    blocked = await admit(scene)
    assert (blocked.runs, blocked.left) == ([], True)
    assert blocked.wait_ms is not None and 55_000 < blocked.wait_ms <= 60_100


async def test_limits_of_keys_and_of_the_queue_hold_together(scene: Scene) -> None:
    for key in "abc":
        for _ in range(3):
            await scene.start(concurrency_key=key)
    await limit(scene, concurrency=5, key_concurrency=2, rate=Rate(4, per=60))
    first = await take(scene)
    assert len(first) == 4
    await pass_time(scene, 61_000)
    assert len(await take(scene)) == 1
    assert await take(scene) == []


async def test_claims_go_on_behind_the_keys_that_were_looked_at(scene: Scene, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("stepfast.store.flows.limits._KEYS", 3)
    for key in "abcdefgh":
        await scene.start(concurrency_key=key)
        await scene.start(concurrency_key=key)
    await limit(scene, key_concurrency=1)
    keys_seen, taken = KeysSeen(), list[Claimed]()
    for _ in range(3):
        admission = await admit(scene, keys_seen=keys_seen)
        taken += admission.runs
        keys_seen = admission.keys_seen
        assert admission.again == (keys_seen != KeysSeen())
    assert len(taken) == 8 and keys_seen == KeysSeen()


async def test_the_keys_of_several_workflows(scene: Scene, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("stepfast.store.flows.limits._KEYS", 2)
    for workflow in ("order", "mail"):
        for key in "abc":
            await scene.start(workflow, queue="both", concurrency_key=key)
    await limit(scene, "both", key_concurrency=1)
    keys_seen, taken = KeysSeen(), list[Claimed]()
    for _ in range(4):
        admission = await admit(scene, queue="both", keys_seen=keys_seen)
        taken += admission.runs
        keys_seen = admission.keys_seen
    assert len(taken) == 3  # one of each key, whichever workflow it is of


# -- who says what ----------------------------------------------------------------------------------------------------


async def test_what_an_operator_sets_wins_until_it_is_reset(scene: Scene) -> None:
    declare = partial(_declare, limits={"concurrency": 3, "rate": Rate(9, per=1)})
    await scene.store.change_queue("order", declare)
    await limit(scene, concurrency=1)
    [said] = await scene.store.queues()
    assert (said.limits.concurrency, said.limits.rate, said.overridden) == (1, Rate(9, per=1), ("concurrency",))
    await limit(scene, rate=None)
    [said] = await scene.store.queues()
    assert (said.limits.concurrency, said.limits.rate) == (1, None)
    await scene.store.change_queue("order", queue_config.reset)
    [said] = await scene.store.queues()
    assert (said.limits.concurrency, said.limits.rate, said.overridden) == (3, Rate(9, per=1), ())


def _declare(said: queue_config.Gate, now: int, limits: dict[str, Any]) -> queue_config.Gate:
    return queue_config.declare(said, limits, "here:1", now)


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


async def test_suspects_of_a_paused_queue_wait_too(scene: Scene, run_id: str) -> None:
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
