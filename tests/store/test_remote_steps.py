"""Remote steps in the store: numbers that are given once, steps that are settled once, what is due (rules 44, 46)."""

from __future__ import annotations

from random import Random
from typing import Any

from stepfast.model.ids import child_id
from stepfast.model.records import Claimed, StepWith
from stepfast.model.remote_steps import Dispatch, RemoteStep, Result, Task
from stepfast.store.answers import Due, Judgement
from tests.store.scene import Scene, completed, opened, retried, step, waiting

SWEEP = 5_000
WAY = 30_000


def sent(run: Claimed, position: int = 0, *, branch: str = "", **changes: Any) -> StepWith:
    """A remote step that goes out with the record that it has begun."""
    id_ = child_id(run.id, f"{run.claim}/{branch}", position)
    send = Dispatch(id_, "echo", "echo", "1", "durable", False, 1, "{}", run.attempt, SWEEP)
    for name, value in changes.items():
        setattr(send, name, value)
    record = opened(run, position, f'{{"id": "{id_}"}}', branch=branch, kind="remote", name="echo")
    return StepWith(record, sends=[send])


async def rows(scene: Scene, run: Claimed) -> list[RemoteStep]:
    return await scene.store.remote_steps([run.id])


async def due(scene: Scene, carrier: str = "durable") -> Due:
    return await scene.store.due_remote(carrier, False, SWEEP, WAY, 100)


async def judge(scene: Scene, *results: Result) -> Judgement:
    return await scene.store.judge_remote(results, False, SWEEP, Random(1))


def result(run: Claimed, seq: int = 0, status: str = "completed", **columns: Any) -> Result:
    row = {"output": "5", "error": None, "started_at": None, **columns}
    return Result(f"{run.id}:{seq}", run.id, seq, status, created_at=1, **row)


async def make_due(scene: Scene) -> None:
    await scene.rows.fetch("UPDATE [remote_steps] SET due_at = 1 WHERE due_at IS NOT NULL")


# -- numbers ---------------------------------------------------------------------------------------------------------


async def test_numbers_go_up_over_all_flushes_and_down_for_undos(scene: Scene) -> None:
    run, other = await scene.running(), await scene.running()
    await scene.flush(sent(run, 0), sent(run, 1), sent(other, 0))
    await scene.flush(sent(run, 2), sent(run, 9, branch="~undo", undo=True))
    await scene.flush(sent(run, 8, branch="~undo", undo=True), sent(run, 3))
    numbers = {(row.branch, row.position): row.seq for row in await rows(scene, run)}
    assert numbers == {("", 0): 0, ("", 1): 1, ("", 2): 2, ("", 3): 3, ("~undo", 9): -1, ("~undo", 8): -2}
    assert [row.seq for row in await rows(scene, other)] == [0]


async def test_a_flush_that_is_repeated_sends_nothing_twice(scene: Scene, run: Claimed) -> None:
    """Its reply was lost."""
    for _ in range(2):
        await scene.flush(sent(run, 0), sent(run, 1))
    assert [row.seq for row in await rows(scene, run)] == [0, 1]


async def test_a_number_is_not_given_again_when_its_record_was_forgotten(scene: Scene, run: Claimed) -> None:
    await scene.flush(sent(run, 0))
    await scene.flush(step(run, 0, None, status="failed", error="{}", kind="remote", name="echo"))
    await scene.flush(retried(run, forget=[("", 0)]))
    [again] = await scene.claim()
    await scene.flush(sent(again, 0))
    assert [(row.seq, row.state, row.run_attempt) for row in await rows(scene, run)] == [
        (0, "withdrawn", 1),
        (1, "outbox", 2),
    ]


async def test_nothing_is_sent_for_a_run_that_is_not_ours_or_being_cancelled(scene: Scene) -> None:
    run, lost = await scene.running(), await scene.running()
    await scene.again(lost)
    assert (await scene.flush(sent(lost, 0))).lost == {lost.id}
    await scene.store.cancel(run.id)
    assert (await scene.flush(sent(run, 0))).barred == {run.id}
    assert await rows(scene, run) == await rows(scene, lost) == []


# -- what is due -----------------------------------------------------------------------------------------------------


async def test_what_is_to_be_sent_is_given_out_once(scene: Scene, run: Claimed) -> None:
    await scene.flush(sent(run, 0))
    assert (await scene.store.tick(scene.worker, None, False)).remote
    assert (await due(scene, "another")).tasks == [], "another transport's"
    assert (await due(scene)).tasks == [Task(f"{run.id}:0", run.id, 0, "echo", "echo", "1", 1)]
    assert await due(scene) == Due()
    [row] = await rows(scene, run)
    assert (row.state, row.due_at) == ("sent", row.dispatched_at + WAY)


async def test_what_is_out_is_looked_for_later_and_sent_again_if_it_vanished(scene: Scene, run: Claimed) -> None:
    await scene.flush(sent(run, 0))
    await due(scene)
    await make_due(scene)
    doubtful = (await due(scene)).doubtful
    assert [task.step_id for task in doubtful] == [f"{run.id}:0"]
    assert await scene.store.resend_remote(doubtful, "it vanished") == 0
    assert [row.resent for row in await rows(scene, run)] == [1]
    assert [task.attempt for task in (await due(scene)).tasks] == [1]
    later = [task._replace(attempt=2) for task in doubtful]
    await scene.store.resend_remote(later, "it vanished")
    assert [row.resent for row in await rows(scene, run)] == [1], "another attempt is out by now"


async def test_what_a_transport_keeps_is_not_looked_for(scene: Scene) -> None:
    """It cannot be asked: only while it is not known to have the task, the task is missed."""
    run = await scene.running()
    await scene.flush(sent(run, 0))
    tasks = (await due(scene)).tasks
    await scene.store.hand_over_remote([task._replace(attempt=2) for task in tasks], 60_000)
    assert [(row.due_at or 0) - row.dispatched_at for row in await rows(scene, run)] == [WAY], "another attempt"
    await scene.store.hand_over_remote(tasks, 3_600_000)
    [row] = await rows(scene, run)
    assert row.state == "sent" and (row.due_at or 0) - row.dispatched_at >= 3_600_000


# -- results ---------------------------------------------------------------------------------------------------------


async def test_a_result_settles_its_step_once_and_wakes_the_run(scene: Scene, run: Claimed) -> None:
    await scene.flush(sent(run, 0), waiting(run, None, waiting_for="remote:echo", wakes=0, awaits=1))
    await due(scene)
    assert await judge(scene, result(run)) == Judgement(1, [])
    assert await judge(scene, result(run, output="6")) == Judgement(0, []), "a second copy"
    assert (await scene.deliver()).lanes
    box = await scene.mailbox(run.id)
    assert [(mail.kind, mail.name.split(":")[:2], mail.value) for mail in box.mail] == [
        ("remote", ["completed", "1"], "5")
    ]
    [row] = await rows(scene, run)
    assert (row.state, row.due_at is not None) == ("settled", True), "its result is to be removed"
    await scene.store.clear_remote([row.step_id])
    assert not (await scene.store.tick(scene.worker, None, False)).remote
    assert await scene.store.closed_remote([(run.id, 0), (run.id, 1)]) == [(run.id, 0)]


async def test_a_failure_is_a_try_and_the_next_attempt_is_due_after_its_backoff(scene: Scene, run: Claimed) -> None:
    await scene.flush(sent(run, 0, backoff='{"base": 60, "jitter": 0}'))
    await due(scene)
    assert await judge(scene, result(run, status="failed", error='{"message": "no"}')) == Judgement(0, [])
    [row] = await rows(scene, run)
    assert (row.state, row.attempt) == ("outbox", 2)
    assert row.due_at is not None and row.due_at > row.dispatched_at + 50_000
    assert (await due(scene)).tasks == []
    await make_due(scene)
    assert [task.attempt for task in (await due(scene)).tasks] == [2]
    assert [(call.status, call.number) for call in await scene.store.activity(run.id)] == [("failed", 1)]


async def test_results_that_are_not_ours_mean_nothing(scene: Scene, run: Claimed) -> None:
    await scene.flush(sent(run, 0))
    strange = [Result(id_, "x", 0, "completed", "1", None, None) for id_ in ("x:0", "", f"{run.id}:7", f"{run.id}:z")]
    assert await judge(scene, *strange) == Judgement(0, [])
    assert [row.state for row in await rows(scene, run)] == ["outbox"]


# -- what is over ----------------------------------------------------------------------------------------------------


async def test_what_nobody_waits_for_is_found_and_withdrawn(scene: Scene) -> None:
    ended, given_up, alive = [await scene.running() for _ in range(3)]
    await scene.flush(sent(ended, 0), sent(given_up, 0), sent(alive, 0))
    await scene.flush(completed(ended), step(given_up, 0, None, status="cancelled", kind="remote", name="echo"))
    first = ("00000000-0000-0000-0000-000000000000", 0)
    over = await scene.store.over_remote("durable", first, 100)
    assert sorted(over) == sorted([(ended.id, 0), (given_up.id, 0)])
    everything = [*over, (alive.id, 0)]
    assert await scene.store.withdraw_remote(everything) == 2, "what is waited for stays, whoever asks"
    assert sorted((await due(scene)).over) == sorted(f"{run_id}:{seq}" for run_id, seq in over)
    assert await judge(scene, result(ended)) == Judgement(0, [])
    assert await scene.store.alive_remote(alive.id) == {(await rows(scene, alive))[0].id: None}
    assert await scene.store.alive_remote(ended.id) == {}
    await scene.store.clear_remote([f"{run_id}:{seq}" for run_id, seq in over])
    assert [key[0] for key in await scene.store.open_remote("durable", first, 100)] == [alive.id]


async def test_the_rows_of_a_deleted_run_go_when_nothing_of_it_is_out(scene: Scene, run: Claimed) -> None:
    await scene.flush(sent(run, 0), sent(run, 1))
    await due(scene)
    await judge(scene, result(run))
    await scene.store.clear_remote([f"{run.id}:0"])
    await scene.flush(completed(run))
    assert await scene.store.delete(run.id) is not None
    assert [row.seq for row in await rows(scene, run)] == [1], "it has to be taken back first"
    first = ("00000000-0000-0000-0000-000000000000", 0)
    assert await scene.store.over_remote("durable", first, 100) == [(run.id, 1)]
    assert await scene.store.withdraw_remote([(run.id, 1)]) == 1
    await scene.store.clear_remote([f"{run.id}:1"])
    assert await rows(scene, run) == []
