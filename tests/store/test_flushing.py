"""The journal: what a flush writes, what it answers, and that it may be repeated."""

from __future__ import annotations

from typing import Any

import pytest

from stepfast.errors import DatabaseRefused
from stepfast.model.records import Entry
from tests.store.scene import (
    DAY,
    MINUTE,
    Scene,
    completed,
    failed,
    failed_try,
    move,
    retried,
    step,
    under_way,
    waiting,
)

# -- steps and tries ----------------------------------------------------------------------------------------


async def test_a_step_is_recorded_with_the_database_s_time(scene: Scene) -> None:
    run = await scene.running()
    answer = await scene.flush(step(run, 0, '{"a":1}', duration_ms=250))
    [record] = await scene.store.steps(run.id)
    assert (record.output, record.status, record.attempts) == ('{"a":1}', "completed", 1)
    assert record.completed_at == answer.now_ms
    assert record.started_at == answer.now_ms - 250
    assert abs(answer.now_ms - (await scene.info(run.id)).now_ms) < MINUTE


async def test_a_repeated_flush_is_success_and_changes_nothing(scene: Scene) -> None:
    """Rule 7."""
    run = await scene.running()
    entries: list[Entry] = [step(run, 0), step(run, 1), failed_try(run, 2), failed_try(run, -1)]
    await scene.flush(*entries)
    before = await scene.rows.dump()
    answer = await scene.flush(*entries)
    assert answer.lost == set()
    assert await scene.rows.dump() == before


async def test_a_repeated_flush_with_something_new_writes_what_is_new(scene: Scene) -> None:
    run = await scene.running()
    await scene.flush(step(run, 0, '"first"'))
    answer = await scene.flush(step(run, 0, '"again"'), step(run, 1, '"new"'), completed(run))
    assert answer.lost == set()
    assert [record.output for record in await scene.store.steps(run.id)] == ['"first"', '"new"']
    assert (await scene.info(run.id)).status == "completed"


@pytest.mark.parametrize("end", [completed, failed, waiting, retried])
async def test_a_repeated_transition_changes_nothing(scene: Scene, end: Any) -> None:
    run = await scene.running()
    await scene.flush(step(run, 0), end(run))
    before = await scene.rows.dump()
    await scene.flush(step(run, 0), end(run))
    assert await scene.rows.dump() == before


async def test_a_full_flush_is_written(scene: Scene) -> None:
    await scene.start_many(100)
    runs = await scene.claim(100)
    answer = await scene.flush(*(step(run, n, str(n)) for n in range(10) for run in runs))
    assert answer.lost == set()
    assert await scene.rows.fetch("SELECT count(*) FROM [steps]") == [(1000,)]


async def test_an_empty_flush_is_answered(scene: Scene) -> None:
    answer = await scene.flush()
    assert (answer.lost, answer.asked, answer.busy) == (set(), {}, set())


async def test_a_record_that_is_refused_leaves_no_trace_of_its_batch(scene: Scene) -> None:
    """Rule 9: the journal halves the batch, so a refused one must have written nothing."""
    good, bad = await scene.running(), await scene.running()
    before = await scene.rows.dump()
    refused = step(bad, 0, name=None)
    with pytest.raises(DatabaseRefused, match=r"(?i)null"):
        await scene.flush(step(good, 0), refused, completed(good))
    assert await scene.rows.dump() == before
    assert (await scene.flush(step(good, 0), completed(good))).lost == set()


async def test_tries_are_kept_with_their_numbers(scene: Scene) -> None:
    run = await scene.running()
    await scene.flush(failed_try(run, 0, 1, duration_ms=5, arguments="[1]"), failed_try(run, 0, 2))
    rows = await scene.store.activity(run.id)
    assert [(row.position, row.attempt, row.number, row.status) for row in rows] == [
        (0, 1, 1, "failed"),
        (0, 1, 2, "failed"),
    ]
    assert rows[0].arguments == "[1]"
    assert rows[0].completed_at - rows[0].started_at == 5


# -- progress -----------------------------------------------------------------------------------------


async def test_the_latest_progress_wins(scene: Scene) -> None:
    run, other = await scene.running(), await scene.running()
    await scene.flush(under_way(run, 0, "10 of 100", data="10", since_ms=1000), under_way(other, 0, "theirs"))
    await scene.flush(under_way(run, 0, "70 of 100", data="70"))
    [row] = await scene.store.progress(run.id)
    assert (row.name, row.detail, row.data) == ("step 0", "70 of 100", "70")
    [theirs] = await scene.store.progress(other.id)
    assert theirs.detail == "theirs"


async def test_within_one_flush_the_last_word_wins(scene: Scene) -> None:
    run = await scene.running()
    await scene.flush(
        under_way(run, 0, "1"), under_way(run, 0, "2"), under_way(run, 1, "other"), under_way(run, 0, "3")
    )
    assert [row.detail for row in await scene.store.progress(run.id)] == ["3", "other"]


async def test_within_one_flush_a_later_word_keeps_what_it_does_not_repeat(scene: Scene) -> None:
    """Two words may share a flush or not: what is shown does not depend on that."""
    run = await scene.running()
    await scene.flush(
        under_way(run, 0, "1 of 2", data="1", since_ms=5000), under_way(run, 0, "2 of 2"), under_way(run, 0, since_ms=1)
    )
    [row] = await scene.store.progress(run.id)
    assert (row.detail, row.data) == ("2 of 2", "1")
    [(lasted,)] = await scene.rows.fetch("SELECT updated_at - started_at FROM [progress]")
    assert lasted == 5000


async def test_progress_keeps_its_start_and_its_details(scene: Scene) -> None:
    run = await scene.running()
    await scene.flush(under_way(run, 0, "10 of 100", data="10", since_ms=5000))
    [first] = await scene.store.progress(run.id)
    await scene.flush(under_way(run, 0, since_ms=1))
    assert await scene.store.progress(run.id) == [first]


async def test_a_step_with_an_outcome_is_no_longer_under_way(scene: Scene) -> None:
    run = await scene.running()
    await scene.flush(under_way(run, 0), under_way(run, 1))
    await scene.flush(step(run, 0))
    assert [row.position for row in await scene.store.progress(run.id)] == [1]


# -- how runs end ------------------------------------------------------------------------------------------


async def test_a_completed_run_has_its_result_and_no_owner(scene: Scene) -> None:
    run = await scene.running()
    answer = await scene.flush(step(run, 0), completed(run, '{"total":3}'))
    row = await scene.info(run.id)
    assert (row.status, row.output, row.error, row.reason) == ("completed", '{"total":3}', None, None)
    assert (row.worker, row.ready, row.visible_at, row.completed_at) == (None, False, None, answer.now_ms)
    [outcome] = await scene.store.outcomes([run.id])
    assert (outcome.id, outcome.status, outcome.output) == (run.id, "completed", '{"total":3}')


@pytest.mark.parametrize("company", [False, True])
async def test_success_after_a_failed_attempt_leaves_no_error_behind(scene: Scene, company: bool) -> None:
    """Alone, and in a flush that carries other freight too."""
    run = await scene.running()
    await scene.flush(retried(run, reason="code", forget=[("", 0)]))
    [again] = await scene.claim()
    await scene.flush(*([under_way(again, 5)] if company else []), completed(again))
    row = await scene.info(run.id)
    assert (row.status, row.error, row.reason, row.waiting_for) == ("completed", None, None, None)


async def test_a_failure_below_the_maximum_is_queued_again_later_with_its_error(scene: Scene) -> None:
    run = await scene.running()
    answer = await scene.flush(retried(run, delay_ms=4000))
    row = await scene.info(run.id)
    assert (row.status, row.attempt, row.error, row.worker) == ("queued", 2, '{"type":"ValueError"}', None)
    assert (row.ready, row.visible_at, row.completed_at) == (False, answer.now_ms + 4000, None)
    assert await scene.lanes() == []
    await scene.rows.shift(run.id, "visible_at", -MINUTE)
    await scene.store.promote(10)
    [again] = await scene.claim()
    assert (again.attempt, again.claim) == (2, 2)
    assert (await scene.info(run.id)).error == '{"type":"ValueError"}'


async def test_a_failure_at_the_maximum_is_the_end(scene: Scene) -> None:
    run = await scene.running()
    answer = await scene.flush(failed(run, reason="code", error='{"type":"KeyError"}'))
    row = await scene.info(run.id)
    assert (row.status, row.reason, row.error, row.attempt) == ("failed", "code", '{"type":"KeyError"}', 1)
    assert (row.completed_at, row.ready, row.visible_at) == (answer.now_ms, False, None)
    assert [outcome.status for outcome in await scene.store.outcomes([run.id])] == ["failed"]


async def test_a_released_run_is_ready_at_once_and_costs_no_attempt(scene: Scene) -> None:
    run = await scene.running()
    await scene.flush(move(run, "queued", delay_ms=0))
    [again] = await scene.claim()
    assert (again.id, again.attempt, again.claim, again.losses) == (run.id, 1, 2, 0)


async def test_the_code_that_leaves_a_run_is_noted(scene: Scene) -> None:
    run = await scene.running()
    await scene.flush(waiting(run, version="v9"))
    assert (await scene.info(run.id)).version == "v9"


# -- waiting, and being woken (rule 6) ---------------------------------------------------------------------


async def test_a_wait_for_a_time_is_due_then(scene: Scene) -> None:
    run = await scene.running()
    answer = await scene.flush(waiting(run, DAY, waiting_for="time"))
    row = await scene.info(run.id)
    assert (row.status, row.waiting_for, row.visible_at) == ("waiting", "time", answer.now_ms + DAY)
    assert (row.worker, row.ready, row.attempt) == (None, False, 1)


async def test_a_wait_without_a_time_is_never_due(scene: Scene) -> None:
    run = await scene.running()
    await scene.flush(waiting(run, None, waiting_for="signal approved"))
    row = await scene.info(run.id)
    assert (row.status, row.visible_at, row.ready) == ("waiting", None, False)
    tick = await scene.store.tick(scene.worker, ["order"], True)
    assert (tick.due, tick.next_due_ms, tick.lanes) == (False, None, [])


@pytest.mark.parametrize("delay", [None, DAY])
async def test_a_run_woken_between_look_and_wait_is_ready_at_once(scene: Scene, delay: int | None) -> None:
    run = await scene.running()
    await scene.rows.fetch("UPDATE [runs] SET wakes = wakes + 1 WHERE id = ?", run.id)
    await scene.flush(waiting(run, delay))
    row = await scene.info(run.id)
    assert (row.status, row.ready, row.worker, row.visible_at) == ("queued", True, None, None)
    [again] = await scene.claim()
    assert (again.wakes, again.attempt) == (run.wakes + 1, 1)
    await scene.flush(waiting(again, delay))
    assert (await scene.info(run.id)).status == "waiting"


async def test_only_a_wait_is_undone_by_a_wake(scene: Scene) -> None:
    run = await scene.running()
    await scene.rows.fetch("UPDATE [runs] SET wakes = wakes + 1 WHERE id = ?", run.id)
    await scene.flush(failed(run, wakes=0))
    assert (await scene.info(run.id)).status == "failed"


async def test_a_wait_is_no_longer_than_the_deadline(scene: Scene) -> None:
    run = await scene.running(deadline_ms=MINUTE)
    row = await scene.info(run.id)
    await scene.flush(waiting(run, DAY))
    assert (await scene.info(run.id)).visible_at == row.deadline_at
    late = await scene.running(deadline_ms=MINUTE)
    await scene.flush(waiting(late, None))
    assert (await scene.info(late.id)).visible_at == (await scene.info(late.id)).deadline_at


async def test_a_ready_run_keeps_its_deadline_in_view(scene: Scene) -> None:
    run = await scene.running(deadline_ms=MINUTE)
    await scene.flush(retried(run))
    row = await scene.info(run.id)
    assert (row.ready, row.visible_at) == (True, row.deadline_at)


# -- what operators ask (rule 4) ---------------------------------------------------------------------------


@pytest.mark.parametrize("count", [1, 60])
async def test_a_flush_hears_what_is_asked_of_its_runs(scene: Scene, count: int) -> None:
    await scene.start_many(count + 1)
    *runs, absent = await scene.claim(count + 1)
    for run in (runs[0], absent):
        await scene.rows.set(run.id, "asked", "cancel")
    answer = await scene.flush(*(step(run) for run in runs))
    assert answer.asked == {runs[0].id: "cancel"}
    answer = await scene.flush(*(under_way(run, 1) for run in runs))
    assert answer.asked == {runs[0].id: "cancel"}


async def test_a_completion_that_meets_the_mark_of_a_cancel_wins(scene: Scene) -> None:
    """Rule 27."""
    run = await scene.running()
    await scene.rows.set(run.id, "asked", "cancel")
    await scene.flush(completed(run))
    row = await scene.info(run.id)
    assert (row.status, row.asked) == ("completed", None)


async def test_a_run_that_waits_keeps_what_is_asked_of_it(scene: Scene) -> None:
    run = await scene.running()
    await scene.rows.set(run.id, "asked", "cancel")
    await scene.flush(waiting(run))
    assert (await scene.info(run.id)).asked == "cancel"


# -- forgetting (rule 15) ----------------------------------------------------------------------------------


async def test_the_next_attempt_forgets_what_it_is_to_make_anew(scene: Scene) -> None:
    run, other = await scene.running(), await scene.running()
    await scene.flush(*(step(r, n, branch=branch) for r in (run, other) for branch in ("", "1") for n in range(3)))
    await scene.flush(step(run, 3, status="failed"), retried(run, forget=[("", 2), ("", 3), ("1", 0)]))
    kept = [("", 0), ("", 1), ("1", 1), ("1", 2)]
    assert [(r.branch, r.position) for r in await scene.store.steps(run.id)] == kept
    assert len(await scene.store.steps(other.id)) == 6
    [again] = await scene.claim()
    assert [(r.branch, r.position) for r in again.records] == kept
    assert (await scene.flush(step(again, 2, '"anew"'))).lost == set()


async def test_a_failed_run_keeps_its_records_until_it_is_retried(scene: Scene) -> None:
    run = await scene.running()
    await scene.flush(step(run, 0), step(run, 1, status="failed"), failed(run, forget=[("", 1)]))
    assert len(await scene.store.steps(run.id)) == 2
    assert await scene.store.retry(run.id) is not None
    assert [record.position for record in await scene.store.steps(run.id)] == [0]


@pytest.mark.parametrize("also_tried", [False, True], ids=["usual freight", "more than the usual"])
async def test_a_step_may_take_months(scene: Scene, also_tried: bool) -> None:
    """More milliseconds than 32 bits count: 24.8 days."""
    months = 90 * 86_400_000
    run = await scene.running()
    more = [failed_try(run, 1, 1, duration_ms=months)] if also_tried else []
    answer = await scene.flush(step(run, 0, "1", duration_ms=months), *more)
    assert not answer.lost
    [record] = await scene.store.steps(run.id)
    assert record.completed_at - record.started_at == months
