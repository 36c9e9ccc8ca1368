"""Workers: registration, heartbeats; and the audit of what people did by the console."""

from __future__ import annotations

import asyncio

from stepfast.model.ids import new_id
from stepfast.model.records import Held, WorkerInfo
from stepfast.store.answers import AuditEntry
from tests.store.conftest import EVERYWHERE
from tests.store.scene import DAY, MINUTE, Scene, completed

pytestmark = EVERYWHERE


async def test_a_worker_is_listed_as_it_registered(scene: Scene) -> None:
    worker = WorkerInfo(new_id(), "host-1", 42, ["a", "b"], {"order": "v1"}, 50, 20_000)
    await scene.store.register(worker)
    [row] = [row for row in await scene.store.workers() if row.id == worker.id]
    assert (row.host, row.pid, row.queues, row.workflows) == ("host-1", 42, ["a", "b"], {"order": "v1"})
    assert (row.concurrency, row.lease_ms, row.state, row.running) == (50, 20_000, "live", 0)
    assert row.started_at == row.beat_at and 0 <= row.age_ms < MINUTE
    assert [other.queues for other in await scene.store.workers() if other.id == scene.worker] == [None]


async def test_registering_twice_is_registering_once(scene: Scene) -> None:
    worker = await scene.add_worker()
    await scene.rows.silence(worker)
    first = await scene.store.workers()
    await scene.add_worker(id=worker)
    assert [row.id for row in await scene.store.workers()] == [row.id for row in first]
    assert [row.state for row in await scene.store.workers() if row.id == worker] == ["dead"]


async def test_a_heartbeat_renews_the_lease(scene: Scene) -> None:
    await scene.rows.fetch("UPDATE [workers] SET beat_at = beat_at - ?, expires_at = expires_at - ?", MINUTE, MINUTE)
    [row] = await scene.store.workers()
    assert row.state == "dead" and row.age_ms >= MINUTE
    answer = await asyncio.to_thread(scene.beat, None, 17)
    assert (answer.alive, answer.held) == (True, [])
    [row] = await scene.store.workers()
    assert (row.state, row.running) == ("live", 17)
    assert row.age_ms < MINUTE


async def test_a_heartbeat_brings_back_what_the_worker_holds(scene: Scene) -> None:
    """Rules 2 and 4."""
    await scene.start_many(3)
    first, second, third = await scene.claim()
    other = await scene.add_worker()
    await scene.running(worker=other)
    await scene.rows.set(second.id, "asked", "cancel")
    await scene.flush(completed(third))
    answer = await asyncio.to_thread(scene.beat)
    assert sorted(answer.held) == sorted([Held(first.id, 1, None), Held(second.id, 1, "cancel")])


async def test_nobody_s_heartbeat_is_refused(scene: Scene) -> None:
    assert not (await asyncio.to_thread(scene.beat, new_id())).alive


async def test_a_worker_that_left_is_listed_no_more(scene: Scene) -> None:
    worker = await scene.add_worker()
    await scene.store.unregister(worker)
    assert [row.id for row in await scene.store.workers()] == [scene.worker]
    assert not (await asyncio.to_thread(scene.beat, worker)).alive


async def test_a_stopping_worker_says_so_and_still_beats(scene: Scene) -> None:
    await scene.store.worker_state(scene.worker, "stopping")
    assert [row.state for row in await scene.store.workers()] == ["stopping"]
    assert (await asyncio.to_thread(scene.beat)).alive
    assert [row.state for row in await scene.store.workers()] == ["stopping"]


async def test_runs_given_back_are_ready_at_once_and_cost_nothing(scene: Scene) -> None:
    ids = await scene.start_many(3, deadline_ms=MINUTE)
    held = await scene.claim()
    await scene.store.give_back(scene.worker, [(run.id, run.claim) for run in held])
    for run_id in ids:
        row = await scene.info(run_id)
        assert (row.status, row.ready, row.worker, row.attempt, row.losses) == ("queued", True, None, 1, 0)
        assert row.visible_at == row.deadline_at
    assert {run.id for run in await scene.claim()} == set(ids)


async def test_beats_of_several_threads_do_not_disturb_each_other(scene: Scene) -> None:
    workers = [await scene.add_worker() for _ in range(5)]
    answers = await asyncio.gather(*(asyncio.to_thread(scene.beat, worker) for worker in workers))
    assert all(answer.alive for answer in answers)


def deed(what: str = "run.cancel", which: str = "a", detail: str | None = None) -> AuditEntry:
    return AuditEntry(new_id(), "ada", what, which, "192.0.2.7", detail)


async def test_a_line_is_begun_and_closed(scene: Scene) -> None:
    first, second = deed(detail='{"n": 1}'), deed("queue.pause", "mail")
    await scene.store.audit_begin(first, DAY)
    await scene.store.audit_begin(first, DAY)  # a lost reply: the same line
    await scene.store.audit_begin(second, None)
    await scene.store.audit_end(first.id, "refused", "it has ended")
    newest, oldest = await scene.store.audit()
    assert oldest[2:] == ("ada", "run.cancel", "a", "192.0.2.7", '{"n": 1}', "refused", "it has ended")
    assert newest[2:] == ("ada", "queue.pause", "mail", "192.0.2.7", None, "begun", None)
    [(now,)] = await scene.rows.fetch("SELECT max(at) FROM [audit]")
    assert 0 <= now - oldest.at < DAY


async def test_pages_go_back_in_time_and_those_of_one_run_leave_the_others_out(scene: Scene) -> None:
    deeds = [deed(which=which) for which in "abab"]
    for each in deeds:
        await scene.store.audit_begin(each, DAY)
    ids = [each.id for each in reversed(deeds)]
    page = await scene.store.audit(limit=3)
    assert [line.id for line in page] == ids[:3]
    assert [line.id for line in await scene.store.audit(before=page[-1].id)] == ids[3:]
    assert [line.id for line in await scene.store.audit("a")] == [ids[1], ids[3]]
    assert [line.id for line in await scene.store.audit("a", before=ids[1])] == [ids[3]]


async def test_lines_whose_time_is_over_go_when_others_come(scene: Scene) -> None:
    for _ in range(30):
        await scene.store.audit_begin(deed(), DAY)
    await scene.rows.fetch("UPDATE [audit] SET at = at - ?", 2 * DAY)
    await scene.store.audit_begin(deed(), None)
    assert len(await scene.store.audit()) == 31
    for left in (12, 3, 4):  # twenty go at a time, and those of this minute stay
        await scene.store.audit_begin(deed(), DAY)
        assert len(await scene.store.audit()) == left
