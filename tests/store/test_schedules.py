"""Schedules in the store: each tick starts one run, whoever comes to it; one that fails keeps no other (rule 37)."""

from __future__ import annotations

import asyncio
from typing import Any

import msgspec
import pytest

from stepfast.model.cron import tick_key
from stepfast.model.ids import new_id
from stepfast.model.records import NewRun
from stepfast.model.schedules import ScheduleRow, ScheduleSpec
from stepfast.store import Store
from stepfast.store.flows.schedules import DueSchedule, Fired
from tests.store.scene import MINUTE, Scene, completed, new_run

GRACE = MINUTE
HOUR = 60 * MINUTE


def spec(name: str = "feed", **changes: Any) -> ScheduleSpec:
    plain = ScheduleSpec(name, "order", None, 1000, "UTC", '"in"', 1, "{}", "latest", "allow", 0)
    return msgspec.structs.replace(plain, **changes)


async def put(store: Store, name: str = "feed", **changes: Any) -> ScheduleRow:
    found = await store.put_schedule(spec(name, **changes))
    assert found.row is not None and not found.refused
    return found.row


async def pass_by(scene: Scene, name: str, by_ms: int = HOUR + 1) -> None:
    """Let so much time have passed since a schedule was looked at."""
    for column in ("next_at", "due_at", "woken_at", "created_at"):
        await scene.rows.fetch(f"UPDATE [schedules] SET {column} = {column} - ? WHERE name = ?", by_ms, name)


def shot(row: ScheduleRow, input: str | None = None) -> DueSchedule:
    def make(tick: int) -> list[NewRun]:
        return [new_run(row.workflow, key=tick_key(row.name, tick), input=row.input if input is None else input)]

    return DueSchedule(row, row.timetable(), make)


async def fire(store: Store, declared: tuple[str, ...] = (), most: int = 1000) -> Fired:
    rows = await store.due_schedules(declared, 100)
    return await store.fire([shot(row) for row in rows], most, GRACE)


async def keys(scene: Scene) -> list[str]:
    return sorted(str(key) for (key,) in await scene.rows.fetch("SELECT key FROM [runs]"))


async def one(store: Store, name: str = "feed") -> ScheduleRow:
    [row] = await store.schedules([name])
    return row


async def test_a_schedule_is_read_as_it_was_put(scene: Scene) -> None:
    asked = spec(
        "nightly", cron="0 3 * * *", every_ms=None, tz="Europe/Berlin", missed="all", overlap="skip", jitter_ms=5
    )
    assert (await scene.store.put_schedule(asked)).row is not None
    row = await one(scene.store, "nightly")
    assert row.spec == asked
    assert (row.declared, row.paused, row.last_at, row.last_run, row.error) == (False, False, None, None, None)
    assert row.next_at is not None and row.next_at > row.now_ms and row.due_at == row.next_at
    assert [found.name for found in await scene.store.schedules()] == ["nightly"]


async def test_the_tick_tells_when_the_next_schedule_is_due(scene: Scene) -> None:
    assert (await scene.store.tick(scene.worker, None, False)).schedule_ms is None
    await put(scene.store, every_ms=HOUR)
    await put(scene.store, "later", every_ms=2 * HOUR)
    soon = (await scene.store.tick(scene.worker, None, False)).schedule_ms
    assert soon is not None and HOUR - MINUTE < soon <= HOUR
    await scene.store.hold_schedule("feed", True)
    soon = (await scene.store.tick(scene.worker, None, False)).schedule_ms
    assert soon is not None and soon > HOUR


async def test_a_declared_one_is_due_only_to_those_who_declare_it(scene: Scene) -> None:
    worker = await scene.add_worker(schedules=["feed"])
    await scene.store.declare_schedules(worker, [spec()])
    await pass_by(scene, "feed")
    assert (await scene.store.tick(scene.worker, None, False)).schedule_ms is None
    assert await scene.store.due_schedules([], 10) == []
    due = (await scene.store.tick(worker, None, False, None, ["feed"])).schedule_ms
    assert due is not None and due <= 0
    assert [row.name for row in await scene.store.due_schedules(["feed", "other"], 10)] == ["feed"]


async def test_a_tick_starts_a_run_and_moves_the_schedule_on(scene: Scene) -> None:
    await put(scene.store, every_ms=HOUR)
    await pass_by(scene, "feed")
    done = await fire(scene.store)
    assert (done.moved, len(done.runs), done.overlapped, done.dropped) == (1, 1, [], [])
    row = await one(scene.store)
    assert await keys(scene) == [tick_key("feed", row.last_at or 0)]
    assert row.last_run == done.runs[0].id
    assert row.last_at is not None and row.next_at == row.due_at == row.last_at + HOUR
    assert (await fire(scene.store)).runs == []
    assert [run.id for run in await scene.claim()] == [row.last_run]


async def test_many_who_come_at_once_start_one_run_for_each_tick(scene: Scene, twin: Store) -> None:
    """Rows that somebody has in hand are stepped over; what was moved on meanwhile is left alone."""
    for number in range(5):
        await put(scene.store, f"s{number}", every_ms=HOUR)
        await pass_by(scene, f"s{number}")
    shots = [shot(row) for row in await scene.store.due_schedules([], 100)]
    stores = [scene.store, twin] * 4
    done = await asyncio.gather(*(store.fire(shots, 10, GRACE) for store in stores))
    assert sum(each.moved for each in done) == 5
    assert len(await keys(scene)) == 5


async def test_a_tick_whose_run_is_there_starts_no_other(scene: Scene) -> None:
    await put(scene.store, every_ms=HOUR)
    await pass_by(scene, "feed")
    row = await one(scene.store)
    earlier = await scene.start(key=tick_key("feed", row.next_at or 0))
    assert (await fire(scene.store)).moved == 1
    assert (await one(scene.store)).last_run == earlier
    assert len(await keys(scene)) == 1


async def test_a_schedule_that_was_changed_meanwhile_is_left_for_the_next_round(scene: Scene) -> None:
    await put(scene.store, every_ms=HOUR)
    await pass_by(scene, "feed")
    [row] = await scene.store.due_schedules([], 10)
    await scene.store.hold_schedule("feed", True)
    assert (await scene.store.fire([shot(row)], 10, GRACE)).moved == 0
    assert await keys(scene) == []


async def test_all_missed_ticks_are_started_in_order(scene: Scene) -> None:
    await put(scene.store, every_ms=HOUR, missed="all")
    await pass_by(scene, "feed", 5 * HOUR + 1)
    assert (await fire(scene.store, most=3)).dropped == ["feed"]
    assert len(await keys(scene)) == 3
    row = await one(scene.store)
    assert row.last_at is not None and await keys(scene) == [
        tick_key("feed", row.last_at - n * HOUR) for n in (2, 1, 0)
    ]


async def test_a_tick_is_skipped_while_the_run_before_goes_on(scene: Scene) -> None:
    await put(scene.store, every_ms=HOUR, overlap="skip")
    await pass_by(scene, "feed")
    first = (await fire(scene.store)).runs[0].id
    await pass_by(scene, "feed")
    done = await fire(scene.store)
    assert (done.runs, done.overlapped, (await one(scene.store)).last_run) == ([], ["feed"], first)
    [claimed] = await scene.claim()
    await scene.flush(completed(claimed))
    await pass_by(scene, "feed")
    assert len((await fire(scene.store)).runs) == 1


async def test_a_run_that_went_on_as_another_ends_with_that_one(scene: Scene) -> None:
    await put(scene.store, every_ms=HOUR, overlap="skip")
    await pass_by(scene, "feed")
    first = (await fire(scene.store)).runs[0].id
    successor = await scene.start()
    for column, value in (("status", "completed"), ("reason", "continued"), ("output", f'"{successor}"')):
        await scene.rows.set(first, column, value)
    await pass_by(scene, "feed")
    assert (await fire(scene.store)).overlapped == ["feed"]
    await scene.rows.set(successor, "status", "completed")
    await pass_by(scene, "feed")
    assert len((await fire(scene.store)).runs) == 1


async def test_one_that_cannot_be_started_says_so_and_waits(scene: Scene) -> None:
    await put(scene.store, every_ms=HOUR)
    await put(scene.store, "well", every_ms=HOUR)
    for name in ("feed", "well"):
        await pass_by(scene, name)
    [broken, _] = sorted(await scene.store.due_schedules([], 10), key=lambda row: row.name)
    assert await scene.store.fail_schedule(broken, "no such workflow")
    assert not await scene.store.fail_schedule(broken, "again"), "it is not as it was"
    row = await one(scene.store)
    assert (row.error, row.next_at) == ("no such workflow", broken.next_at)
    assert row.due_at is not None and row.due_at > row.now_ms
    assert [run.key for run in (await fire(scene.store)).runs] == [
        tick_key("well", (await one(scene.store, "well")).last_at or 0)
    ]
    await pass_by(scene, "feed", MINUTE)
    await fire(scene.store)
    assert (await one(scene.store)).error is None


async def test_pause_and_resume(scene: Scene) -> None:
    await put(scene.store, every_ms=HOUR, missed="all")
    assert (await scene.store.hold_schedule("feed", True)).row is not None
    await pass_by(scene, "feed", 3 * HOUR)
    assert (await fire(scene.store)).moved == 0
    await scene.store.hold_schedule("feed", False)
    row = await one(scene.store)
    assert row.next_at is not None and row.next_at > row.now_ms and row.due_at == row.next_at
    assert (await scene.store.hold_schedule("other", True)).row is None


async def test_what_is_put_again_keeps_its_time_unless_it_has_another(scene: Scene) -> None:
    before = await put(scene.store, every_ms=HOUR)
    same = await put(scene.store, every_ms=HOUR, input='"other"')
    assert (same.next_at, same.created_at, same.input) == (before.next_at, before.created_at, '"other"')
    other = await put(scene.store, every_ms=2 * HOUR)
    assert other.next_at == before.created_at + 2 * HOUR


async def test_what_live_workers_declare_is_neither_changed_nor_deleted(scene: Scene) -> None:
    worker = await scene.add_worker(schedules=["feed"])
    await scene.store.declare_schedules(worker, [spec()])
    assert (await scene.store.put_schedule(spec(every_ms=5000))).refused
    assert (await scene.store.delete_schedule("feed")).refused
    assert (await one(scene.store)).every_ms == 1000
    await scene.rows.silence(worker)
    assert not (await scene.store.delete_schedule("feed")).refused
    assert await scene.store.schedules() == []
    assert (await scene.store.delete_schedule("feed")).row is None


async def test_the_newest_declaration_wins_and_says_what_it_changed(scene: Scene) -> None:
    old, new = [await scene.add_worker(schedules=["feed"]) for _ in range(2)]
    assert (await scene.store.declare_schedules(old, [spec()])).changed == []
    assert (await scene.store.declare_schedules(old, [spec()])).changed == []
    assert (await scene.store.declare_schedules(new, [spec(every_ms=5000)])).changed == ["feed"]
    assert (await one(scene.store)).every_ms == 5000


async def test_a_process_that_is_no_worker_only_stores_what_is_not_there(scene: Scene) -> None:
    await scene.store.declare_schedules(None, [spec()])
    await scene.store.declare_schedules(None, [spec(every_ms=5000)])
    row = await one(scene.store)
    assert (row.every_ms, row.declared) == (1000, True)


async def test_a_schedule_sleeps_while_nobody_declares_it(scene: Scene) -> None:
    """Ticks that passed meanwhile are missed ones for who declares it first; who comes to others changes nothing."""
    first = await scene.add_worker(schedules=["feed"])
    await scene.store.declare_schedules(first, [spec(missed="skip", every_ms=HOUR)])
    await pass_by(scene, "feed")
    second = await scene.add_worker(schedules=["feed"])
    assert (await scene.store.declare_schedules(second, [spec(missed="skip", every_ms=HOUR)])).woken == []
    late = await one(scene.store)
    await scene.store.unregister(first)
    await scene.store.unregister(second)
    third = await scene.add_worker(schedules=["feed"])
    assert (await scene.store.declare_schedules(third, [spec(missed="skip", every_ms=HOUR)])).woken == ["feed"]
    row = await one(scene.store)
    assert row.next_at == late.next_at and row.woken_at > (row.next_at or 0)
    assert (await fire(scene.store, ("feed",))).runs == []
    assert ((await one(scene.store)).next_at or 0) > row.now_ms


async def test_one_made_at_run_time_sleeps_while_there_is_no_worker(scene: Scene) -> None:
    """The first worker that comes has missed what passed; one that comes to others has not."""
    await put(scene.store, missed="skip", every_ms=HOUR)
    await pass_by(scene, "feed")
    second = await scene.add_worker()
    await scene.store.declare_schedules(second, [])
    late = await one(scene.store)
    assert late.woken_at < (late.next_at or 0)
    for worker in (scene.worker, second):
        await scene.store.unregister(worker)
    await scene.store.declare_schedules(await scene.add_worker(), [])
    assert (await one(scene.store)).woken_at > (late.next_at or 0)
    assert (await fire(scene.store)).runs == []


async def test_of_workers_that_come_at_the_same_time_one_is_the_first(scene: Scene) -> None:
    await scene.store.unregister(scene.worker)
    workers = [await scene.add_worker(schedules=["feed"]) for _ in range(3)]
    await scene.rows.fetch("UPDATE [workers] SET started_at = 5")
    done = [(await scene.store.declare_schedules(worker, [spec()])).woken for worker in workers]
    assert sorted(done) == [[], [], ["feed"]]


@pytest.mark.parametrize("missed", ["latest", "all"])
async def test_what_was_slept_over_is_made_good_for(scene: Scene, missed: str) -> None:
    worker = await scene.add_worker(schedules=["feed"])
    await scene.store.declare_schedules(worker, [spec(missed=missed, every_ms=HOUR)])
    await scene.store.unregister(worker)
    await pass_by(scene, "feed", 3 * HOUR)
    worker = await scene.add_worker(schedules=["feed"])
    await scene.store.declare_schedules(worker, [spec(missed=missed, every_ms=HOUR)])
    await fire(scene.store, ("feed",))
    assert len(await keys(scene)) == (1 if missed == "latest" else 3)


async def test_who_declares_at_the_same_time_makes_one_schedule(scene: Scene, twin: Store) -> None:
    workers = [new_id() for _ in range(6)]
    both = [scene.store, twin] * 3
    await asyncio.gather(
        *(store.declare_schedules(worker, [spec("b"), spec("a")]) for store, worker in zip(both, workers, strict=True))
    )
    assert [row.name for row in await scene.store.schedules()] == ["a", "b"]


async def test_what_is_deleted_and_made_again_at_the_same_time_is_there_or_not(scene: Scene, twin: Store) -> None:
    async def delete() -> None:
        for _ in range(20):
            await twin.delete_schedule("feed")

    async def make() -> None:
        for _ in range(20):
            assert (await scene.store.put_schedule(spec())).row is not None

    await asyncio.gather(delete(), make(), make())
    await put(scene.store)
    assert [row.name for row in await scene.store.schedules()] == ["feed"]
