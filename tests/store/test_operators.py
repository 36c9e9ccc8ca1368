"""What operators ask: cancel, pause, resume, in every state a run can be in (rules 4, 6, 27)."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

from stepfast.model.ids import new_id
from stepfast.model.records import RUN_ITSELF, Claimed, Entry, Held, Lane
from stepfast.model.rows import RunRow
from stepfast.store import Store
from tests.store.scene import (
    DAY,
    MINUTE,
    Scene,
    completed,
    failed,
    failed_try,
    move,
    opened,
    retried,
    signal,
    step,
    undo,
    waiting,
)

LANE = Lane("order", "order", 0)
ENDED = ("completed", "failed", "cancelled", "compensated")
UNDOING = ("undoing", "held while undoing", "between two undos")
AT_REST = ("queued", "delayed", "between attempts", "waiting for a time", "waiting for a signal", "paused")


async def in_state(scene: Scene, state: str) -> str:
    """A run that has got there in the usual way."""
    run_id = await scene.start(delay_ms=DAY if state == "delayed" else 0)
    if state in ("queued", "delayed"):
        return run_id
    [run] = await scene.claim()
    moves = {
        "between attempts": retried(run, DAY), "waiting for a time": waiting(run, DAY),
        "waiting for a signal": waiting(run, None, waiting_for="signal"), "paused": waiting(run, DAY),
        "completed": completed(run), "failed": failed(run), "cancelled": move(run, "cancelled", reason="cancelled"),
    }  # fmt: skip
    if state in moves:
        await scene.flush(moves[state])
    elif state != "running":
        await scene.flush(step(run, 0, undo="refund"), undo(run))
    if state == "paused":
        await scene.store.pause(run_id)
    elif state in ("held while undoing", "between two undos", "compensated"):
        [run] = await scene.claim()
        if state == "between two undos":
            await scene.flush(undo(run, delay_ms=DAY))
        elif state == "compensated":
            await scene.flush(move(run, "compensated"))
    return run_id


async def refused(scene: Scene, wish: str, run_id: str) -> None:
    """The answer names the state the run is in, and nothing is changed."""
    before, row = await scene.rows.dump(), await scene.info(run_id)
    asked = await getattr(scene.store, wish)(run_id)
    assert (asked.status, asked.done, asked.lane, asked.ended) == (row.status, False, None, False)
    assert await scene.rows.dump() == before


async def asked_of(scene: Scene, run_id: str) -> str | None:
    return (await scene.info(run_id)).asked


# -- all of them --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("state", ENDED)
@pytest.mark.parametrize("wish", ["cancel", "pause", "resume"])
async def test_a_run_that_has_ended_is_left_as_it_is(scene: Scene, wish: str, state: str) -> None:
    await refused(scene, wish, await in_state(scene, state))


@pytest.mark.parametrize("state", UNDOING)
@pytest.mark.parametrize("wish", ["cancel", "pause", "resume"])
async def test_an_undo_that_has_begun_is_neither_stopped_nor_hurried(scene: Scene, wish: str, state: str) -> None:
    await refused(scene, wish, await in_state(scene, state))


@pytest.mark.parametrize("wish", ["cancel", "pause", "resume"])
async def test_of_a_run_that_does_not_exist_nothing_can_be_asked(scene: Scene, wish: str) -> None:
    """And a refusal tells why a run has ended."""
    asked = await getattr(scene.store, wish)(new_id())
    assert (asked.status, asked.done) == (None, False)
    assert (await getattr(scene.store, wish)(await in_state(scene, "failed"))).reason == "code"


# -- cancel -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("state", AT_REST)
async def test_a_run_that_nobody_holds_is_cancelled_at_once(scene: Scene, state: str) -> None:
    """Before it is claimed it ends without running."""
    run_id = await in_state(scene, state)
    before = await scene.info(run_id)
    asked = await scene.store.cancel(run_id)
    assert (asked.status, asked.done, asked.ended, asked.running) == (before.status, True, True, False)
    assert asked.lane is None
    row = await scene.info(run_id)
    assert (row.status, row.reason, row.ready, row.visible_at) == ("cancelled", "cancelled", False, None)
    assert (row.waiting_for, row.asked) == (None, None)
    assert row.completed_at is not None
    assert [outcome.status for outcome in await scene.store.outcomes([run_id])] == ["cancelled"]
    assert await scene.claim(lanes=[LANE]) == []


async def test_a_cancelled_run_is_never_due_again(scene: Scene) -> None:
    run = await scene.running(deadline_ms=DAY)
    await scene.flush(waiting(run, MINUTE, awaits=2))
    await scene.store.cancel(run.id)
    assert [await scene.rows.get(run.id, column) for column in ("visible_at", "awaits", "held_due")] == [None] * 3
    tick = await scene.store.tick(scene.worker, ["order"], True)
    assert (tick.due, tick.next_due_ms) == (False, None)


async def test_a_run_that_a_worker_holds_is_marked_for_its_owner(scene: Scene, run: Claimed) -> None:
    """Rule 27."""
    asked = await scene.store.cancel(run.id)
    assert (asked.status, asked.done, asked.running, asked.ended, asked.lane) == ("running", True, True, False, None)
    row = await scene.info(run.id)
    assert (row.status, row.asked, row.worker, row.claim) == ("running", "cancel", scene.worker, run.claim)


@pytest.mark.parametrize("wish", ["cancel", "pause"])
async def test_the_owner_hears_of_a_mark_by_heartbeat_and_by_flush(scene: Scene, run: Claimed, wish: str) -> None:
    """Rule 4."""
    await getattr(scene.store, wish)(run.id)
    assert (await asyncio.to_thread(scene.beat)).held == [Held(run.id, run.claim, wish)]
    assert (await scene.flush(step(run))).asked == {run.id: wish}


async def test_the_step_in_flight_is_recorded_after_the_mark(scene: Scene, run: Claimed) -> None:
    await scene.store.cancel(run.id)
    answer = await scene.flush(step(run, 0), move(run, "cancelled", reason="cancelled"))
    assert answer.lost == set()
    row = await scene.info(run.id)
    assert (row.status, row.asked) == ("cancelled", None)
    assert len(await scene.store.steps(run.id)) == 1


@pytest.mark.parametrize("status", ["waiting", "queued"])
async def test_a_marked_run_that_lies_down_goes_to_the_next_owner_with_its_mark(scene: Scene, status: str) -> None:
    """The owner had not heard of it: nobody may sleep over a cancellation."""
    run = await scene.running()
    look = await scene.mailbox(run.id)
    await scene.store.cancel(run.id)
    await scene.flush(move(run, status, delay_ms=DAY, wakes=look.wakes if status == "waiting" else None))
    row = await scene.info(run.id)
    assert (row.status, row.ready) == ("queued", True)
    [again] = await scene.claim()
    assert (again.id, again.asked) == (run.id, "cancel")


async def test_a_cancellation_is_a_wake_even_of_a_wait_that_looked_after_it(scene: Scene, run: Claimed) -> None:
    """Rule 6."""
    await scene.store.cancel(run.id)
    wakes = (await scene.mailbox(run.id)).wakes
    assert wakes == run.wakes + 1
    await scene.flush(waiting(run, None, wakes=wakes))
    assert (await scene.info(run.id)).ready


@pytest.mark.parametrize("wishes", [("pause", "cancel"), ("cancel", "pause")])
async def test_a_cancellation_takes_the_place_of_a_pause_only(scene: Scene, run: Claimed, wishes: Any) -> None:
    for wish in wishes:
        await getattr(scene.store, wish)(run.id)
    assert await asked_of(scene, run.id) == "cancel"
    await refused(scene, "resume", run.id)


@pytest.mark.parametrize("state", ["queued", "delayed", "between attempts", "waiting for a time", "paused"])
async def test_a_cancelled_run_with_something_to_undo_is_undone(scene: Scene, state: str) -> None:
    run = await scene.running(deadline_ms=DAY)
    moves = {
        "queued": move(run, "queued", delay_ms=0),
        "delayed": move(run, "queued", delay_ms=MINUTE),
        "between attempts": retried(run, MINUTE),
    }
    await scene.flush(step(run, 0, undo="refund"), moves.get(state, waiting(run, MINUTE, awaits=3)))
    if state == "paused":
        await scene.store.pause(run.id)
    asked = await scene.store.cancel(run.id)
    assert (asked.done, asked.ended, asked.lane, asked.running) == (True, False, LANE, False)
    row = await scene.info(run.id)
    assert (row.status, row.reason, row.undoing, row.ready) == ("compensating", "cancelled", True, True)
    assert (row.visible_at, row.deadline_at, row.waiting_for, row.completed_at) == (None,) * 4
    assert [await scene.rows.get(run.id, column) for column in ("awaits", "held_due")] == [None, None]
    [again] = await scene.claim()
    assert (again.id, again.undoing, again.asked) == (run.id, True, None)


@pytest.mark.parametrize(
    "record",
    [
        lambda run: step(run, 0),
        lambda run: step(run, 0, status="failed", undo="refund"),
        lambda run: opened(run, 0, undo="refund"),
    ],
    ids=["no undo", "failed", "not completed yet"],
)
async def test_only_completed_steps_that_have_an_undo_are_undone(
    scene: Scene, run: Claimed, record: Callable[[Claimed], Entry]
) -> None:
    await scene.flush(record(run), waiting(run))
    assert (await scene.store.cancel(run.id)).ended
    row = await scene.info(run.id)
    assert (row.status, row.undoing) == ("cancelled", False)


async def test_the_steps_of_another_run_are_not_undone(scene: Scene) -> None:
    """And what was cancelled once is left as it is."""
    other = await scene.running()
    await scene.flush(step(other, 0, undo="refund"))
    run_id = await scene.start()
    assert (await scene.store.cancel(run_id)).ended
    await refused(scene, "cancel", run_id)


async def test_a_completion_and_a_cancellation_at_once_end_completed(scene: Scene, twin: Store) -> None:
    """Whoever is first: the run was held until it completed."""
    for _ in range(10):
        run = await scene.running()
        _, asked = await asyncio.gather(scene.flush_through(completed(run)), twin.cancel(run.id))
        row = await scene.info(run.id)
        assert (row.status, row.asked) == ("completed", None)
        assert asked.status in ("running", "completed")
        assert not asked.ended


# -- pause --------------------------------------------------------------------------------------------------


async def test_a_ready_run_is_held_and_stands_in_no_line(scene: Scene) -> None:
    run_id = await in_state(scene, "queued")
    asked = await scene.store.pause(run_id)
    assert (asked.status, asked.done, asked.running, asked.ended) == ("queued", True, False, False)
    row = await scene.info(run_id)
    assert (row.status, row.ready, row.visible_at, row.waiting_for) == ("paused", False, None, None)
    assert await scene.lanes() == []
    assert await scene.claim(lanes=[LANE]) == []


@pytest.mark.parametrize("state", ["delayed", "between attempts", "waiting for a time"])
async def test_a_held_run_keeps_the_time_it_is_due(scene: Scene, state: str) -> None:
    run_id = await in_state(scene, state)
    before = await scene.info(run_id)
    assert (await scene.store.pause(run_id)).done
    row = await scene.info(run_id)
    assert (row.status, row.visible_at, row.waiting_for) == ("paused", None, before.waiting_for)
    assert await scene.rows.get(run_id, "held_due") == before.visible_at


@pytest.mark.parametrize("column", ["held_due", "visible_at"])
async def test_a_held_run_is_not_promoted_whatever_time_it_shows(scene: Scene, column: str) -> None:
    run_id = await in_state(scene, "paused")
    await scene.rows.set(run_id, column, (await scene.info(run_id)).now_ms - MINUTE)
    promotion = await scene.store.promote(10)
    assert (promotion.lanes, promotion.ended) == (set(), [])
    row = await scene.info(run_id)
    assert (row.status, row.ready) == ("paused", False)


async def test_a_held_run_is_not_due(scene: Scene) -> None:
    """One that is held already stays so."""
    run_id = await in_state(scene, "paused")
    await scene.rows.shift(run_id, "held_due", -2 * DAY)
    assert not (await scene.store.tick(scene.worker, ["order"], True)).due
    before = await scene.rows.dump()
    asked = await scene.store.pause(run_id)
    assert (asked.status, asked.done) == ("paused", True)
    assert await scene.rows.dump() == before


@pytest.mark.parametrize("state", ["queued", "waiting"])
async def test_the_deadline_goes_on_while_a_run_is_held(scene: Scene, state: str) -> None:
    run = await scene.running(deadline_ms=DAY)
    await scene.flush(waiting(run, None) if state == "waiting" else move(run, "queued", delay_ms=0))
    await scene.store.pause(run.id)
    row = await scene.info(run.id)
    assert row.deadline_at is not None and row.visible_at == row.deadline_at
    assert await scene.rows.get(run.id, "held_due") is None, "a deadline is not a time to go on"
    await scene.rows.make_due(run.id)
    assert (await scene.store.promote(10)).ended == [run.id]
    row = await scene.info(run.id)
    assert (row.status, row.reason) == ("failed", "deadline")


async def test_a_pause_only_marks_a_run_that_a_worker_holds(scene: Scene, run: Claimed) -> None:
    asked = await scene.store.pause(run.id)
    assert (asked.status, asked.done, asked.running) == ("running", True, True)
    row = await scene.info(run.id)
    assert (row.status, row.asked, row.worker) == ("running", "pause", scene.worker)


# -- a run that leaves its worker meets the mark of a pause ---------------------------------------------------


async def let_go(scene: Scene, run: Claimed, status: str = "waiting", **changes: Any) -> RunRow:
    """The owner lets go of a run without having heard of the pause."""
    await scene.store.pause(run.id)
    await scene.flush(move(run, status, **changes))
    row = await scene.info(run.id)
    assert (row.status, row.ready, row.worker, row.asked) == ("paused", False, None, None)
    assert row.visible_at == row.deadline_at
    return row


@pytest.mark.parametrize("kind", ["time", "signal", None])
async def test_a_wait_becomes_a_pause_that_keeps_what_it_waits_for(scene: Scene, kind: str | None) -> None:
    """A run that would stand in line waits for nothing."""
    run = await scene.running(deadline_ms=9 * DAY)
    due = (await scene.info(run.id)).now_ms + DAY if kind == "time" else None
    wait: dict[str, Any] = {"delay_ms": 0} if kind is None else {"due_at": due, "waiting_for": kind}
    row = await let_go(scene, run, "waiting" if kind else "queued", **wait)
    assert row.waiting_for == kind
    assert await scene.rows.get(run.id, "held_due") == due


async def test_a_wait_that_was_woken_becomes_a_pause_that_waits_for_nothing(scene: Scene, run: Claimed) -> None:
    await scene.store.send(signal(run.id))
    row = await let_go(scene, run, delay_ms=DAY, waiting_for="time", wakes=run.wakes)
    assert row.waiting_for is None
    assert await scene.rows.get(run.id, "held_due") is None
    await scene.store.resume(run.id)
    assert (await scene.info(run.id)).ready


async def test_a_backoff_becomes_a_pause_that_keeps_the_time(scene: Scene, run: Claimed) -> None:
    await scene.store.pause(run.id)
    answer = await scene.flush(retried(run, DAY))
    row = await scene.info(run.id)
    assert (row.status, row.attempt, row.waiting_for, row.error) == ("paused", 2, None, '{"type":"ValueError"}')
    assert await scene.rows.get(run.id, "held_due") == answer.now_ms + DAY


@pytest.mark.parametrize(("end", "status"), [(completed, "completed"), (undo, "compensating")])
async def test_an_end_that_meets_the_mark_of_a_pause_wins(scene: Scene, run: Claimed, end: Any, status: str) -> None:
    """So does the beginning of an undo."""
    await scene.store.pause(run.id)
    await scene.flush(step(run, 0, undo="refund"), end(run))
    row = await scene.info(run.id)
    assert (row.status, row.asked, row.ready) == (status, None, end is undo)


async def test_an_owner_that_heard_of_the_pause_lets_the_run_be_held(scene: Scene) -> None:
    run = await scene.running(deadline_ms=9 * DAY)
    await scene.store.pause(run.id)
    answer = await scene.flush(step(run, 0), move(run, "paused", delay_ms=DAY, waiting_for="time"))
    row = await scene.info(run.id)
    assert (row.status, row.waiting_for, row.asked, row.worker) == ("paused", "time", None, None)
    assert (row.ready, row.visible_at) == (False, row.deadline_at)
    assert await scene.rows.get(run.id, "held_due") == answer.now_ms + DAY


async def test_a_run_given_back_with_the_mark_of_a_pause_keeps_it(scene: Scene, run: Claimed) -> None:
    await scene.store.pause(run.id)
    again = await scene.again(run)
    assert again.asked == "pause"


# -- resume -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("state", [state for state in (*AT_REST, "running") if state != "paused"])
async def test_a_run_that_is_not_held_cannot_be_let_go(scene: Scene, state: str) -> None:
    await refused(scene, "resume", await in_state(scene, state))


async def test_a_held_run_that_was_ready_is_ready_again(scene: Scene) -> None:
    run_id = await in_state(scene, "queued")
    await scene.store.pause(run_id)
    asked = await scene.store.resume(run_id)
    assert (asked.status, asked.done, asked.lane) == ("paused", True, LANE)
    assert [run.id for run in await scene.claim()] == [run_id]


@pytest.mark.parametrize("state", ["delayed", "between attempts", "waiting for a time"])
async def test_resume_never_shortens_a_sleep(scene: Scene, state: str) -> None:
    run_id = await in_state(scene, state)
    before = await scene.info(run_id)
    await scene.store.pause(run_id)
    asked = await scene.store.resume(run_id)
    assert (asked.done, asked.lane) == (True, None)
    row = await scene.info(run_id)
    assert (row.status, row.ready, row.visible_at) == (before.status, False, before.visible_at)
    assert row.waiting_for == before.waiting_for
    assert await scene.rows.get(run_id, "held_due") is None
    await scene.rows.make_due(run_id)
    assert (await scene.store.promote(10)).moved == 1
    assert (await scene.info(run_id)).ready


@pytest.mark.parametrize(
    ("shape", "column", "ready"),
    [
        ({"delay_ms": 2 * DAY, "deadline_ms": DAY}, "deadline_at", False),
        ({"deadline_ms": MINUTE}, "deadline_at", True),
        ({"expires_ms": MINUTE}, "expires_at", True),
    ],
    ids=["asleep beyond its deadline", "with a deadline", "with an expiry"],
)
async def test_a_run_that_goes_on_has_its_limits_still(
    scene: Scene, shape: dict[str, Any], column: str, ready: bool
) -> None:
    run_id = await scene.start(**shape)
    before = await scene.info(run_id)
    await scene.store.pause(run_id)
    await scene.store.resume(run_id)
    row = await scene.info(run_id)
    assert (row.ready, row.visible_at) == (ready, getattr(before, column))
    assert row.visible_at is not None


@pytest.mark.parametrize("state", ["delayed", "between attempts", "waiting for a time"])
async def test_a_sleep_that_ended_while_the_run_was_held_is_over(scene: Scene, state: str) -> None:
    run_id = await in_state(scene, state)
    await scene.store.pause(run_id)
    await scene.rows.shift(run_id, "held_due", -2 * DAY)
    assert (await scene.store.resume(run_id)).lane == LANE
    row = await scene.info(run_id)
    assert (row.status, row.ready, row.waiting_for) == ("queued", True, None)


@pytest.mark.parametrize("deadline", [None, DAY])
async def test_a_wait_for_a_signal_goes_on_after_a_pause(scene: Scene, deadline: int | None) -> None:
    run = await scene.running(deadline_ms=deadline)
    await scene.flush(waiting(run, None, waiting_for="signal"))
    before = await scene.info(run.id)
    await scene.store.pause(run.id)
    await scene.store.resume(run.id)
    row = await scene.info(run.id)
    assert (row.status, row.ready, row.waiting_for) == ("waiting", False, "signal")
    assert row.visible_at == before.deadline_at
    await scene.store.send(signal(run.id))
    assert (await scene.info(run.id)).ready


async def test_a_held_run_does_not_expire_before_it_is_let_go(scene: Scene) -> None:
    """Only its deadline ends a run that an operator holds. Let go too late it is not handed out, and a sweep ends it
    rather than leave it in line for ever."""
    run_id = await scene.start(expires_ms=MINUTE)
    await scene.store.pause(run_id)
    for column in ("expires_at", "visible_at"):
        await scene.rows.shift(run_id, column, -2 * MINUTE)
    assert (await scene.store.promote(10)).ended == []
    assert (await scene.info(run_id)).status == "paused"
    await scene.store.resume(run_id)
    assert await scene.claim(lanes=[LANE]) == []
    assert (await scene.store.promote(10)).ended == [run_id]
    assert (await scene.info(run_id)).reason == "expired"


async def test_a_pause_is_taken_back_before_the_owner_heard_of_it(scene: Scene, run: Claimed) -> None:
    await scene.store.pause(run.id)
    asked = await scene.store.resume(run.id)
    assert (asked.status, asked.done, asked.running) == ("running", True, True)
    assert await asked_of(scene, run.id) is None
    await scene.flush(waiting(run, wakes=(await scene.mailbox(run.id)).wakes))
    assert (await scene.info(run.id)).status == "waiting"


@pytest.mark.parametrize("wish", ["resume", "cancel"])
async def test_a_pause_is_taken_back_also_after_the_owner_heard_of_it(scene: Scene, run: Claimed, wish: str) -> None:
    """The operator was told that it is done: the run must not be held after that, and a cancellation not slept over."""
    await scene.store.pause(run.id)
    assert (await scene.flush(step(run, 0))).asked == {run.id: "pause"}
    assert (await getattr(scene.store, wish)(run.id)).done
    await scene.flush(move(run, "paused"))
    row = await scene.info(run.id)
    assert (row.status, row.ready) == ("queued", True)
    [again] = await scene.claim()
    assert again.asked == ("cancel" if wish == "cancel" else None)


async def test_resume_makes_the_next_check_due_at_once(scene: Scene, run: Claimed) -> None:
    await scene.flush(waiting(run, DAY, waiting_for="check"))
    asked = await scene.store.resume(run.id)
    assert (asked.status, asked.done, asked.lane) == ("waiting", True, LANE)
    row = await scene.info(run.id)
    assert (row.status, row.ready, row.waiting_for, row.visible_at) == ("queued", True, None, None)


async def test_a_held_check_is_due_at_once_when_it_goes_on(scene: Scene, run: Claimed) -> None:
    await scene.flush(waiting(run, DAY, waiting_for="check"))
    await scene.store.pause(run.id)
    assert (await scene.store.resume(run.id)).lane == LANE
    assert (await scene.info(run.id)).ready


@pytest.mark.parametrize("state", ["queued", "delayed", "between attempts", "waiting for a time"])
async def test_a_resume_is_a_wake(scene: Scene, state: str) -> None:
    """Rule 6."""
    run_id = await in_state(scene, state)
    await scene.store.pause(run_id)
    before = (await scene.mailbox(run_id)).wakes
    await scene.store.resume(run_id)
    assert (await scene.mailbox(run_id)).wakes == before + 1


async def test_a_held_parent_is_woken_at_the_same_count_of_ends_as_before(scene: Scene, run: Claimed) -> None:
    await scene.flush(waiting(run, None, waiting_for="child", awaits=2))
    await scene.store.pause(run.id)
    await scene.store.resume(run.id)
    assert (await scene.info(run.id)).status == "waiting"
    assert await scene.rows.get(run.id, "awaits") == 2


async def test_a_run_retried_after_a_pause_has_nothing_left_of_it(scene: Scene) -> None:
    run_id = await in_state(scene, "paused")
    await scene.store.cancel(run_id)
    assert await scene.store.retry(run_id) == {LANE}
    assert await scene.rows.get(run_id, "held_due") is None
    assert [run.id for run in await scene.claim()] == [run_id]


async def test_a_run_cancelled_between_two_attempts_counts_only_those_it_had(scene: Scene, run: Claimed) -> None:
    await scene.flush(failed_try(run, RUN_ITSELF, attempt=1), retried(run, MINUTE))
    assert (await scene.info(run.id)).attempt == 2
    await scene.store.cancel(run.id)
    row = await scene.info(run.id)
    assert (row.status, row.attempt) == ("cancelled", 1)
    await scene.store.retry(run.id)
    assert (await scene.info(run.id)).attempt == 2
