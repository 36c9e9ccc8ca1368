"""Open records: what was decided when a step began stays decided, and is replaced once by its outcome (rule 7)."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from stepfast.model.records import Claimed, Entry, StepDone, StepWith, Tries
from tests.store.scene import (
    DAY,
    MINUTE,
    Scene,
    child_of,
    completed,
    failed_try,
    joint,
    opened,
    retried,
    signal,
    step,
    under_way,
    waiting,
)

Form = Callable[[StepDone], Entry]


@pytest.fixture(params=["alone", "joint"])
def form(request: pytest.FixtureRequest) -> Form:
    """A record by itself, and one that may bring mail and children along: the rules are the same."""
    return StepWith if request.param == "joint" else lambda record: record


async def outputs(scene: Scene, run: Claimed) -> list[tuple[str, str | None]]:
    return [(record.status, record.output) for record in await scene.store.steps(run.id)]


# -- opening and closing --------------------------------------------------------------------------------------


async def test_an_open_record_is_part_of_the_history(scene: Scene, form: Form) -> None:
    run = await scene.running()
    await scene.flush(form(opened(run, 0, "1700", name="nap")))
    again = await scene.again(run)
    [record] = again.records
    assert (record.name, record.kind, record.status, record.output) == ("nap", "sleep", "waiting", "1700")


@pytest.mark.parametrize("status", ["completed", "failed", "cancelled"])
async def test_the_outcome_takes_the_place_of_what_was_open(scene: Scene, form: Form, status: str) -> None:
    run = await scene.running()
    await scene.flush(form(opened(run, 0, '"open"')))
    answer = await scene.flush(form(step(run, 0, '"done"', kind="sleep", status=status)))
    assert answer.lost == set()
    assert await outputs(scene, run) == [(status, '"done"')]


async def test_any_later_claim_may_close_what_another_opened(scene: Scene, form: Form) -> None:
    run = await scene.running()
    await scene.flush(form(opened(run, 0, '"open"')))
    again = await scene.again(await scene.again(run))
    answer = await scene.flush(form(step(again, 0, '"done"', kind="sleep")))
    assert answer.lost == set()
    assert await outputs(scene, run) == [("completed", '"done"')]


async def test_the_outcome_replaces_all_that_the_open_record_said(scene: Scene) -> None:
    run = await scene.running()
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


async def test_opened_and_closed_in_one_flush_is_closed(scene: Scene, form: Form) -> None:
    """A sleep that was over before the journal went out."""
    run = await scene.running()
    answer = await scene.flush(form(opened(run, 0, '"open"')), form(step(run, 0, '"done"', kind="sleep")))
    assert answer.lost == set()
    assert await outputs(scene, run) == [("completed", '"done"')]


async def test_a_start_and_its_outcome_in_one_flush_are_both_written(scene: Scene) -> None:
    """The joint entry opens, and one without company closes."""
    run = await scene.running()
    child = child_of(run)
    await scene.flush(joint(run, 0, '"open"', status="waiting", starts=[child]), step(run, 0, '"done"'))
    assert await outputs(scene, run) == [("completed", '"done"')]
    assert (await scene.info(child.id)).ready


async def test_opening_and_lying_down_go_together(scene: Scene) -> None:
    run = await scene.running()
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
async def test_what_was_decided_once_stays_decided(scene: Scene, form: Form, later_claim: bool) -> None:
    """A sleep that is opened again would sleep anew after every crash."""
    run = await scene.running()
    await scene.flush(form(opened(run, 0, '"first"')))
    owner = await scene.again(run) if later_claim else run
    answer = await scene.flush(form(opened(owner, 0, '"second"')))
    assert answer.lost == set()
    assert await outputs(scene, run) == [("waiting", '"first"')]


async def test_an_outcome_is_not_opened_again_by_a_lost_reply(scene: Scene, form: Form) -> None:
    run = await scene.running()
    await scene.flush(form(opened(run, 0, '"open"')))
    await scene.flush(form(step(run, 0, '"done"', kind="sleep")))
    before = await scene.rows.dump()
    answer = await scene.flush(form(opened(run, 0, '"open"')))
    assert answer.lost == set()
    assert await scene.rows.dump() == before


async def test_an_outcome_is_replaced_by_no_other_outcome(scene: Scene, form: Form) -> None:
    run = await scene.running()
    await scene.flush(form(opened(run, 0, '"open"')))
    await scene.flush(form(step(run, 0, '"first"', kind="sleep")))
    answer = await scene.flush(form(step(run, 0, '"second"', kind="sleep")))
    assert answer.lost == set()
    assert await outputs(scene, run) == [("completed", '"first"')]


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


async def test_a_lost_run_closes_nothing_either(scene: Scene) -> None:
    """One foreign place, and the open one beside it stays open."""
    run = await scene.running()
    await scene.flush(opened(run, 0, '"open"'), step(run, 1, '"theirs"'))
    again = await scene.again(run)
    before = await scene.rows.dump()
    answer = await scene.flush(step(again, 0, '"done"'), step(again, 1, '"ours"'), completed(again))
    assert answer.lost == {run.id}
    assert await scene.rows.dump() == before


async def test_one_foreign_place_keeps_the_company_of_all_records_out(scene: Scene) -> None:
    run = await scene.running()
    await scene.flush(step(run, 1, '"theirs"'))
    again = await scene.again(run)
    await scene.store.send(mail := signal(run.id))
    before = await scene.rows.dump()
    answer = await scene.flush(joint(again, 0, takes=[mail.id], starts=[child_of(again)]), step(again, 1, '"ours"'))
    assert answer.lost == {run.id}
    assert await scene.rows.dump() == before


async def test_who_lost_the_run_closes_nothing(scene: Scene, form: Form) -> None:
    run = await scene.running()
    await scene.flush(form(opened(run, 0, '"open"')))
    await scene.again(run)
    answer = await scene.flush(form(step(run, 0, '"done"', kind="sleep")))
    assert answer.lost == {run.id}
    assert await outputs(scene, run) == [("waiting", '"open"')]


async def test_a_run_that_ends_leaves_open_what_is_open(scene: Scene) -> None:
    run = await scene.running()
    await scene.flush(opened(run, 0, '"open"'), completed(run))
    assert await outputs(scene, run) == [("waiting", '"open"')]


async def test_branches_are_opened_and_closed_apart(scene: Scene) -> None:
    run = await scene.running()
    await scene.flush(opened(run, 0, '"main"'), opened(run, 0, '"branch"', branch="0.1"))
    await scene.flush(step(run, 0, '"done"', branch="0.1", kind="sleep"))
    assert await outputs(scene, run) == [("waiting", '"main"'), ("completed", '"done"')]


async def test_an_open_record_is_no_call_in_the_activity_log(scene: Scene) -> None:
    run = await scene.running()
    await scene.flush(opened(run, 0), step(run, 1))
    assert [row.position for row in await scene.store.activity(run.id)] == [1]
    await scene.flush(step(run, 0, kind="sleep"))
    assert {row.position for row in await scene.store.activity(run.id)} == {0, 1}


async def test_the_next_attempt_may_forget_what_is_open(scene: Scene) -> None:
    run = await scene.running()
    await scene.flush(opened(run, 0, '"first"'), retried(run, forget=[("", 0)]))
    [again] = await scene.claim()
    assert again.records == []
    await scene.flush(opened(again, 0, '"second"'))
    assert await outputs(scene, run) == [("waiting", '"second"')]


# -- when the next try is due: decided once, too --------------------------------------------------------------


async def test_a_claim_brings_the_failed_tries_and_when_the_next_is_due(scene: Scene) -> None:
    run = await scene.running()
    await scene.flush(failed_try(run, 0, 1, retry_ms=MINUTE))
    answer = await scene.flush(failed_try(run, 0, 2, retry_ms=DAY), failed_try(run, 0, 1, branch="1", retry_ms=5))
    again = await scene.again(run)
    assert again.tries == {("", 0): Tries(2, answer.now_ms + DAY), ("1", 0): Tries(1, answer.now_ms + 5)}


async def test_a_try_without_a_delay_is_due_at_once(scene: Scene) -> None:
    run = await scene.running()
    await scene.flush(failed_try(run, 0, 1))
    again = await scene.again(run)
    assert again.tries[("", 0)].failures == 1
    assert again.tries[("", 0)].due_at <= again.now_ms


async def test_a_claim_tells_the_database_s_time(scene: Scene) -> None:
    before = (await scene.info(await scene.start())).now_ms
    [run] = await scene.claim()
    assert before <= run.now_ms <= (await scene.info(run.id)).now_ms


async def test_records_bring_the_name_of_their_undo(scene: Scene) -> None:
    run = await scene.running()
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
