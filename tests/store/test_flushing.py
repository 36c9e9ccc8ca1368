"""The journal: what a flush writes, what it answers, and that it may be repeated; values and open records."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from stepfast.errors import DatabaseRefused
from stepfast.model.ids import new_id
from stepfast.model.records import Claimed, Entry, StepDone, StepWith, Tries
from tests.store.scene import (
    DAY,
    MINUTE,
    Scene,
    child_of,
    completed,
    failed,
    failed_try,
    joint,
    move,
    opened,
    retried,
    signal,
    step,
    under_way,
    value,
    waiting,
)

# -- steps and tries ----------------------------------------------------------------------------------------


async def test_a_step_is_recorded_with_the_database_s_time(scene: Scene, run: Claimed) -> None:
    answer = await scene.flush(step(run, 0, '{"a":1}', duration_ms=250))
    [record] = await scene.store.steps(run.id)
    assert (record.output, record.status, record.attempts) == ('{"a":1}', "completed", 1)
    assert record.completed_at == answer.now_ms
    assert record.started_at == answer.now_ms - 250
    assert abs(answer.now_ms - (await scene.info(run.id)).now_ms) < MINUTE


async def test_a_repeated_flush_is_success_and_changes_nothing(scene: Scene, run: Claimed) -> None:
    """Rule 7."""
    entries: list[Entry] = [step(run, 0), step(run, 1), failed_try(run, 2), failed_try(run, -1)]
    await scene.flush(*entries)
    before = await scene.rows.dump()
    answer = await scene.flush(*entries)
    assert answer.lost == set()
    assert await scene.rows.dump() == before


async def test_a_repeated_flush_with_something_new_writes_what_is_new(scene: Scene, run: Claimed) -> None:
    await scene.flush(step(run, 0, '"first"'))
    answer = await scene.flush(step(run, 0, '"again"'), step(run, 1, '"new"'), completed(run))
    assert answer.lost == set()
    assert [record.output for record in await scene.store.steps(run.id)] == ['"first"', '"new"']
    assert (await scene.info(run.id)).status == "completed"


@pytest.mark.parametrize("end", [completed, failed, waiting, retried])
async def test_a_repeated_transition_changes_nothing(scene: Scene, run: Claimed, end: Any) -> None:
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


async def test_tries_are_kept_with_their_numbers(scene: Scene, run: Claimed) -> None:
    await scene.flush(failed_try(run, 0, 1, duration_ms=5, arguments="[1]"), failed_try(run, 0, 2))
    rows = await scene.store.activity(run.id)
    assert [(row.position, row.attempt, row.number, row.status) for row in rows] == [
        (0, 1, 1, "failed"),
        (0, 1, 2, "failed"),
    ]
    assert rows[0].arguments == "[1]"
    assert rows[0].completed_at - rows[0].started_at == 5


# -- progress -----------------------------------------------------------------------------------------


async def test_the_latest_progress_wins_and_keeps_its_start_and_its_details(scene: Scene) -> None:
    """Until its step has an outcome."""
    run, other = await scene.running(), await scene.running()
    await scene.flush(under_way(run, 0, "10 of 100", data="10", since_ms=1000), under_way(other, 0, "theirs"))
    await scene.flush(under_way(run, 0, "70 of 100", data="70"), under_way(run, 1))
    first, second = await scene.store.progress(run.id)
    assert (first.name, first.detail, first.data) == ("step 0", "70 of 100", "70")
    await scene.flush(under_way(run, 0, since_ms=1))
    assert await scene.store.progress(run.id) == [first, second]
    assert [row.detail for row in await scene.store.progress(other.id)] == ["theirs"]
    await scene.flush(step(run, 0))
    assert [row.position for row in await scene.store.progress(run.id)] == [1]


async def test_within_one_flush_the_last_word_wins(scene: Scene, run: Claimed) -> None:
    await scene.flush(
        under_way(run, 0, "1"), under_way(run, 0, "2"), under_way(run, 1, "other"), under_way(run, 0, "3")
    )
    assert [row.detail for row in await scene.store.progress(run.id)] == ["3", "other"]


async def test_within_one_flush_a_later_word_keeps_what_it_does_not_repeat(scene: Scene, run: Claimed) -> None:
    """Two words may share a flush or not: what is shown does not depend on that."""
    await scene.flush(
        under_way(run, 0, "1 of 2", data="1", since_ms=5000), under_way(run, 0, "2 of 2"), under_way(run, 0, since_ms=1)
    )
    [row] = await scene.store.progress(run.id)
    assert (row.detail, row.data) == ("2 of 2", "1")
    [(lasted,)] = await scene.rows.fetch("SELECT updated_at - started_at FROM [progress]")
    assert lasted == 5000


# -- how runs end ------------------------------------------------------------------------------------------


async def test_a_completed_run_has_its_result_and_no_owner(scene: Scene, run: Claimed) -> None:
    answer = await scene.flush(step(run, 0), completed(run, '{"total":3}'))
    row = await scene.info(run.id)
    assert (row.status, row.output, row.error, row.reason) == ("completed", '{"total":3}', None, None)
    assert (row.worker, row.ready, row.visible_at, row.completed_at) == (None, False, None, answer.now_ms)
    [outcome] = await scene.store.outcomes([run.id])
    assert (outcome.id, outcome.status, outcome.output) == (run.id, "completed", '{"total":3}')


@pytest.mark.parametrize("company", [False, True])
async def test_success_after_a_failed_attempt_leaves_no_error_behind(scene: Scene, run: Claimed, company: bool) -> None:
    """Alone, and in a flush that carries other freight too."""
    await scene.flush(retried(run, reason="code", forget=[("", 0)]))
    [again] = await scene.claim()
    await scene.flush(*([under_way(again, 5)] if company else []), completed(again))
    row = await scene.info(run.id)
    assert (row.status, row.error, row.reason, row.waiting_for) == ("completed", None, None, None)


async def test_a_failure_below_the_maximum_is_queued_again_later_with_its_error(scene: Scene, run: Claimed) -> None:
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


async def test_a_failure_at_the_maximum_is_the_end(scene: Scene, run: Claimed) -> None:
    answer = await scene.flush(failed(run, reason="code", error='{"type":"KeyError"}'))
    row = await scene.info(run.id)
    assert (row.status, row.reason, row.error, row.attempt) == ("failed", "code", '{"type":"KeyError"}', 1)
    assert (row.completed_at, row.ready, row.visible_at) == (answer.now_ms, False, None)
    assert [outcome.status for outcome in await scene.store.outcomes([run.id])] == ["failed"]


async def test_a_released_run_is_ready_at_once_and_costs_no_attempt(scene: Scene, run: Claimed) -> None:
    await scene.flush(move(run, "queued", delay_ms=0))
    [again] = await scene.claim()
    assert (again.id, again.attempt, again.claim, again.losses) == (run.id, 1, 2, 0)


# -- waiting, and being woken (rule 6) ---------------------------------------------------------------------


@pytest.mark.parametrize("delay", [DAY, None])
async def test_a_wait_is_due_at_its_time_and_without_one_never(scene: Scene, run: Claimed, delay: int | None) -> None:
    answer = await scene.flush(waiting(run, delay, waiting_for="signal approved", version="v9"))
    row = await scene.info(run.id)
    due = None if delay is None else answer.now_ms + delay
    assert (row.status, row.waiting_for, row.visible_at, row.version) == ("waiting", "signal approved", due, "v9")
    assert (row.worker, row.ready, row.attempt) == (None, False, 1)
    tick = await scene.store.tick(scene.worker, ["order"], True)
    assert (tick.due, tick.next_due_ms is None, tick.lanes) == (False, delay is None, [])


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


async def test_only_a_wait_is_undone_by_a_wake(scene: Scene, run: Claimed) -> None:
    await scene.rows.fetch("UPDATE [runs] SET wakes = wakes + 1 WHERE id = ?", run.id)
    await scene.flush(failed(run, wakes=0))
    assert (await scene.info(run.id)).status == "failed"


@pytest.mark.parametrize("leave", [lambda run: waiting(run, DAY), lambda run: waiting(run, None), retried])
async def test_a_wait_is_no_longer_than_the_deadline(scene: Scene, leave: Any) -> None:
    """A ready run keeps it in view, too."""
    run = await scene.running(deadline_ms=MINUTE)
    await scene.flush(leave(run))
    row = await scene.info(run.id)
    assert row.visible_at == row.deadline_at is not None
    assert row.ready == (leave is retried)


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
    """Rule 27. A run that waits keeps it."""
    for leave, asked in ((completed, None), (waiting, "cancel")):
        run = await scene.running()
        await scene.rows.set(run.id, "asked", "cancel")
        await scene.flush(leave(run))
        row = await scene.info(run.id)
        assert (row.asked, row.status == "completed") == (asked, leave is completed)


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


async def test_a_failed_run_keeps_its_records_until_it_is_retried(scene: Scene, run: Claimed) -> None:
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


async def test_a_value_can_be_read_by_its_key(scene: Scene, run: Claimed) -> None:
    await scene.flush(value(run, "stage", '"packing ä"'), value(run, "count", "3", format=2))
    assert await scene.store.value(run.id, "stage") == ('"packing ä"', 1)
    assert await scene.store.value(run.id, "count") == ("3", 2)


async def test_what_was_never_set_is_none(scene: Scene) -> None:
    run, other = await scene.running(), await scene.running()
    await scene.flush(value(run, "stage", "1"))
    assert await scene.store.value(run.id, "Stage") is None
    assert await scene.store.value(other.id, "stage") is None
    assert await scene.store.value(new_id(), "stage") is None


async def test_a_value_that_is_null_is_a_value(scene: Scene, run: Claimed) -> None:
    await scene.flush(value(run, "stage", "null"))
    assert await scene.store.value(run.id, "stage") == ("null", 1)


async def test_a_later_value_takes_the_place_of_an_earlier_one(scene: Scene, run: Claimed) -> None:
    await scene.flush(value(run, "stage", "1"), value(run, "other", "7"))
    await scene.flush(value(run, "stage", "2", format=2))
    assert await scene.store.value(run.id, "stage") == ("2", 2)
    assert await scene.store.value(run.id, "other") == ("7", 1)


async def test_within_one_flush_the_last_value_wins(scene: Scene) -> None:
    run, other = await scene.running(), await scene.running()
    await scene.flush(
        value(run, "stage", "3"), value(run, "stage", "1"), value(other, "stage", "9"), value(run, "stage", "2")
    )
    assert await scene.store.value(run.id, "stage") == ("2", 1)
    assert await scene.store.value(other.id, "stage") == ("9", 1)


@pytest.mark.parametrize("how", ["another worker", "another claim"])
async def test_only_the_owner_sets_values(scene: Scene, run: Claimed, how: str) -> None:
    await scene.flush(value(run, "stage", "1"))
    worker = await scene.add_worker() if how == "another worker" else None
    if how == "another claim":
        await scene.again(run)
    before = await scene.rows.dump()
    answer = await scene.flush(value(run, "stage", "2"), value(run, "new", "2"), worker=worker)
    assert answer.lost == {run.id}
    assert await scene.rows.dump() == before


async def test_a_value_of_an_old_claim_does_not_pass_beside_one_of_the_new(scene: Scene) -> None:
    old = await scene.running()
    new = await scene.again(old)
    await scene.flush(value(old, "stage", '"old"'), step(new, 0))
    assert await scene.store.value(new.id, "stage") is None


async def test_a_value_set_again_after_a_lost_reply_is_the_same_value(scene: Scene, run: Claimed) -> None:
    for _ in range(2):
        assert (await scene.flush(value(run, "stage", "1"))).lost == set()
    assert await scene.store.value(run.id, "stage") == ("1", 1)


async def test_values_go_with_the_other_entries_of_their_run(scene: Scene, run: Claimed) -> None:
    await scene.flush(step(run, 0), under_way(run, 1), value(run, "stage", "1"), completed(run))
    assert (await scene.info(run.id)).status == "completed"
    assert len(await scene.store.steps(run.id)) == 1
    assert await scene.store.value(run.id, "stage") == ("1", 1)


async def test_values_outlive_their_claim_and_their_run(scene: Scene, run: Claimed) -> None:
    await scene.flush(value(run, "stage", "1"))
    again = await scene.again(run)
    await scene.flush(value(again, "count", "2"))
    await scene.flush(completed(again))
    assert [await scene.store.value(run.id, key) for key in ("stage", "count")] == [("1", 1), ("2", 1)]


async def test_a_lost_run_takes_no_values_of_others_along(scene: Scene) -> None:
    await scene.start_many(60)
    runs = await scene.claim(60)
    lost = runs[30]
    await scene.store.give_back(scene.worker, [(lost.id, lost.claim)])
    answer = await scene.flush(*(value(run, "id", f'"{run.id}"') for run in runs))
    assert answer.lost == {lost.id}
    for run in runs:
        assert await scene.store.value(run.id, "id") == (None if run is lost else (f'"{run.id}"', 1))


Form = Callable[[StepDone], Entry]


@pytest.fixture(params=["alone", "joint"])
def form(request: pytest.FixtureRequest) -> Form:
    """A record by itself, and one that may bring mail and children along: the rules are the same."""
    return StepWith if request.param == "joint" else lambda record: record


async def outputs(scene: Scene, run: Claimed) -> list[tuple[str, str | None]]:
    return [(record.status, record.output) for record in await scene.store.steps(run.id)]


# -- opening and closing --------------------------------------------------------------------------------------


async def test_an_open_record_is_part_of_the_history(scene: Scene, run: Claimed, form: Form) -> None:
    await scene.flush(form(opened(run, 0, "1700", name="nap")))
    again = await scene.again(run)
    [record] = again.records
    assert (record.name, record.kind, record.status, record.output) == ("nap", "sleep", "waiting", "1700")


@pytest.mark.parametrize("later_claim", [False, True])
@pytest.mark.parametrize("status", ["completed", "failed", "cancelled"])
async def test_the_outcome_takes_the_place_of_what_was_open(
    scene: Scene, run: Claimed, form: Form, status: str, later_claim: bool
) -> None:
    """Any later claim may close what another opened."""
    await scene.flush(form(opened(run, 0, '"open"')))
    owner = await scene.again(await scene.again(run)) if later_claim else run
    answer = await scene.flush(form(step(owner, 0, '"done"', kind="sleep", status=status)))
    assert answer.lost == set()
    assert await outputs(scene, run) == [(status, '"done"')]


async def test_the_outcome_replaces_all_that_the_open_record_said(scene: Scene, run: Claimed) -> None:
    await scene.flush(opened(run, 0, '"open"', seq=1, name="a", attempts=0, line="x.py:1", arguments="[1]"))
    await scene.rows.fetch("UPDATE [steps] SET started_at = 1, completed_at = 2")
    again = await scene.again(run)
    answer = await scene.flush(
        step(again, 0, None, seq=5, name="b", kind="child", status="failed", error='{"type":"KeyError"}', attempts=3,
             line="x.py:2", arguments="[2]", format=2, undo="refund", duration_ms=10)
    )  # fmt: skip
    [record] = await scene.store.steps(run.id)
    assert (record.seq, record.name, record.kind, record.status, record.attempts) == (5, "b", "child", "failed", 3)
    assert (record.output, record.error, record.arguments) == (None, '{"type":"KeyError"}', "[2]")
    assert (record.line, record.format, record.undo) == ("x.py:2", 2, "refund")
    assert (record.started_at, record.completed_at) == (answer.now_ms - 10, answer.now_ms)
    assert await scene.rows.fetch("SELECT claim FROM [steps]") == [(again.claim,)]


async def test_opened_and_closed_in_one_flush_is_closed(scene: Scene, run: Claimed, form: Form) -> None:
    """A sleep that was over before the journal went out."""
    answer = await scene.flush(form(opened(run, 0, '"open"')), form(step(run, 0, '"done"', kind="sleep")))
    assert answer.lost == set()
    assert await outputs(scene, run) == [("completed", '"done"')]


async def test_a_start_and_its_outcome_in_one_flush_are_both_written(scene: Scene, run: Claimed) -> None:
    """The joint entry opens, and one without company closes."""
    child = child_of(run)
    await scene.flush(joint(run, 0, '"open"', status="waiting", starts=[child]), step(run, 0, '"done"'))
    assert await outputs(scene, run) == [("completed", '"done"')]
    assert (await scene.info(child.id)).ready


async def test_opening_and_lying_down_go_together(scene: Scene, run: Claimed) -> None:
    await scene.flush(opened(run, 0), waiting(run, DAY, recorded=True))
    assert (await scene.info(run.id)).status == "waiting"
    assert await outputs(scene, run) == [("waiting", "1")]


async def test_a_flush_may_open_and_close_for_many_runs(scene: Scene) -> None:
    await scene.start_many(60)
    runs = await scene.claim(60)
    await scene.flush(*(opened(run, n, '"open"') for run in runs for n in range(3)))
    answer = await scene.flush(
        *(step(run, 1, '"done"', kind="sleep") for run in runs), *(opened(run, 3, '"open"') for run in runs)
    )
    assert answer.lost == set()
    for run in (runs[0], runs[59]):
        assert [status for status, _ in await outputs(scene, run)] == ["waiting", "completed", "waiting", "waiting"]


# -- decided once -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("later_claim", [False, True])
async def test_what_was_decided_once_stays_decided(scene: Scene, run: Claimed, form: Form, later_claim: bool) -> None:
    """A sleep that is opened again would sleep anew after every crash."""
    await scene.flush(form(opened(run, 0, '"first"')))
    owner = await scene.again(run) if later_claim else run
    answer = await scene.flush(form(opened(owner, 0, '"second"')))
    assert answer.lost == set()
    assert await outputs(scene, run) == [("waiting", '"first"')]


async def test_an_outcome_is_neither_opened_again_nor_replaced(scene: Scene, run: Claimed, form: Form) -> None:
    """By a lost reply, say."""
    await scene.flush(form(opened(run, 0, '"open"')))
    await scene.flush(form(step(run, 0, '"first"', kind="sleep")))
    before = await scene.rows.dump()
    for again in (opened(run, 0, '"open"'), step(run, 0, '"second"', kind="sleep")):
        assert (await scene.flush(form(again))).lost == set()
        assert await scene.rows.dump() == before


@pytest.mark.parametrize("status", ["completed", "waiting"])
async def test_a_place_closed_by_another_claim_means_the_run_is_lost(scene: Scene, form: Form, status: str) -> None:
    """Whoever opened it: the history is not what this owner believes."""
    run = await scene.running()
    await scene.flush(form(opened(run, 0, '"open"')))
    await scene.flush(form(step(run, 0, '"theirs"', kind="sleep")))
    again = await scene.again(run)
    before = await scene.rows.dump()
    answer = await scene.flush(form(step(again, 0, '"ours"', status=status)), step(again, 1))
    assert answer.lost == {run.id}
    assert await scene.rows.dump() == before


async def test_one_foreign_place_keeps_all_records_out(scene: Scene, run: Claimed) -> None:
    """The open one beside it stays open, mail is not taken, and no child is started."""
    await scene.flush(opened(run, 0, '"open"'), step(run, 1, '"theirs"'))
    again = await scene.again(run)
    await scene.store.send(mail := signal(run.id))
    before = await scene.rows.dump()
    for entry in (step(again, 0, '"done"'), joint(again, 0, takes=[mail.id], starts=[child_of(again)])):
        assert (await scene.flush(entry, step(again, 1, '"ours"'), completed(again))).lost == {run.id}
        assert await scene.rows.dump() == before


async def test_a_foreign_place_in_a_large_batch_keeps_out_its_run_alone(scene: Scene) -> None:
    """Last of so many records that some databases write them by several statements."""
    await scene.start_many(8)
    *others, run = await scene.claim(8)
    await scene.flush(step(run, 2, '"theirs"'))
    again = await scene.again(run)
    before = await outputs(scene, run)
    entries = [step(each, position) for each in (*others, again) for position in range(3)]
    answer = await scene.flush(*entries, *map(completed, others))
    assert answer.lost == {run.id}
    assert await outputs(scene, run) == before
    for other in others:
        assert len(await outputs(scene, other)) == 3


async def test_who_lost_the_run_closes_nothing(scene: Scene, run: Claimed, form: Form) -> None:
    await scene.flush(form(opened(run, 0, '"open"')))
    await scene.again(run)
    answer = await scene.flush(form(step(run, 0, '"done"', kind="sleep")))
    assert answer.lost == {run.id}
    assert await outputs(scene, run) == [("waiting", '"open"')]


async def test_a_run_that_ends_leaves_open_what_is_open(scene: Scene, run: Claimed) -> None:
    await scene.flush(opened(run, 0, '"open"'), completed(run))
    assert await outputs(scene, run) == [("waiting", '"open"')]


async def test_branches_are_opened_and_closed_apart(scene: Scene, run: Claimed) -> None:
    await scene.flush(opened(run, 0, '"main"'), opened(run, 0, '"branch"', branch="0.1"))
    await scene.flush(step(run, 0, '"done"', branch="0.1", kind="sleep"))
    assert await outputs(scene, run) == [("waiting", '"main"'), ("completed", '"done"')]


async def test_an_open_record_is_no_call_in_the_activity_log(scene: Scene, run: Claimed) -> None:
    await scene.flush(opened(run, 0), step(run, 1))
    assert [row.position for row in await scene.store.activity(run.id)] == [1]
    await scene.flush(step(run, 0, kind="sleep"))
    assert {row.position for row in await scene.store.activity(run.id)} == {0, 1}


async def test_the_next_attempt_may_forget_what_is_open(scene: Scene, run: Claimed) -> None:
    await scene.flush(opened(run, 0, '"first"'), retried(run, forget=[("", 0)]))
    [again] = await scene.claim()
    assert again.records == []
    await scene.flush(opened(again, 0, '"second"'))
    assert await outputs(scene, run) == [("waiting", '"second"')]


# -- when the next try is due: decided once, too --------------------------------------------------------------


async def test_a_claim_brings_the_failed_tries_and_when_the_next_is_due(scene: Scene, run: Claimed) -> None:
    await scene.flush(failed_try(run, 0, 1, retry_ms=MINUTE))
    answer = await scene.flush(failed_try(run, 0, 2, retry_ms=DAY), failed_try(run, 0, 1, branch="1", retry_ms=5))
    again = await scene.again(run)
    assert again.tries == {("", 0): Tries(2, answer.now_ms + DAY), ("1", 0): Tries(1, answer.now_ms + 5)}


async def test_a_try_without_a_delay_is_due_at_once(scene: Scene, run: Claimed) -> None:
    await scene.flush(failed_try(run, 0, 1))
    again = await scene.again(run)
    assert again.tries[("", 0)].failures == 1
    assert again.tries[("", 0)].due_at <= again.now_ms


async def test_a_claim_tells_the_database_s_time(scene: Scene) -> None:
    before = (await scene.info(await scene.start())).now_ms
    [run] = await scene.claim()
    assert before <= run.now_ms <= (await scene.info(run.id)).now_ms


async def test_records_bring_the_name_of_their_undo(scene: Scene, run: Claimed) -> None:
    await scene.flush(step(run, 0, undo="refund"), step(run, 1), joint(run, 2, undo="unship"))
    assert [record.undo for record in await scene.store.steps(run.id)] == ["refund", None, "unship"]
    assert [record.undo for record in (await scene.again(run)).records] == ["refund", None, "unship"]


async def test_what_is_under_way_and_open_is_listed_once_in_each_list_until_it_has_its_outcome(scene: Scene) -> None:
    """As a check that is made again and again: its record is open while it is under way."""
    run = await scene.running()
    await scene.flush(opened(run, 0, kind="check"), under_way(run, 0, "not yet"))
    assert [(row.position, row.detail) for row in await scene.store.progress(run.id)] == [(0, "not yet")]
    assert [record.status for record in await scene.store.steps(run.id)] == ["waiting"]
    await scene.flush(step(run, 0, kind="check"))
    assert await scene.store.progress(run.id) == []
    assert [record.status for record in await scene.store.steps(run.id)] == ["completed"]
