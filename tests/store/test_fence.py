"""The fence (rule 1): every write names (worker, claim), and whoever lost the run writes nothing."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from stepfast.model.ids import new_id
from stepfast.model.records import (
    CallbackOutcome,
    Claimed,
    Entry,
    NewCallback,
    QuestionAnswer,
    StepWith,
    StreamItem,
    StreamItems,
)
from tests.store.scene import (
    Scene,
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

ENTRIES: dict[str, Callable[[Claimed], Entry]] = {
    "step": step,
    "try": failed_try,
    "progress": under_way,
    "completion": completed,
    "failure": failed,
    "next attempt": lambda run: retried(run, forget=[("", 9)]),
    "wait": waiting,
    "release": lambda run: move(run, "queued", delay_ms=0),
    "mail": lambda run: joint(run, takes=[new_id()]),
    "value": lambda run: value(run, "key", "1"),
    "stream": lambda run: StreamItems(run.id, run.claim, 9, 99, [StreamItem(run.id, "s", "/", None, 0, 1, "1", 1)]),
}


@pytest.fixture(params=ENTRIES)
def entry(request: pytest.FixtureRequest) -> Callable[[Claimed], Entry]:
    """Each kind of entry that a journal can hold."""
    return ENTRIES[request.param]


async def held(scene: Scene) -> Claimed:
    """A run in its second claim, with a record for the forgetful entry to forget."""
    run = await scene.again(await scene.running())
    await scene.flush(step(run, 9))
    return run


async def test_the_owner_may_write(scene: Scene, entry: Callable[[Claimed], Entry]) -> None:
    """The other tests of this file prove something only because of this one."""
    run = await held(scene)
    before = await scene.rows.dump()
    answer = await scene.flush(entry(run))
    assert answer.lost == set()
    assert await scene.rows.dump() != before


async def test_only_the_owner_refuses_a_question(scene: Scene, run: Claimed) -> None:
    mail = signal(run.id, "q")
    await scene.store.ask_question(mail)
    refusal = QuestionAnswer(mail.id, "refused", '"no"', 1)
    before = await scene.rows.dump()
    for worker, claim in ((await scene.add_worker(), run.claim), (scene.worker, run.claim - 1)):
        assert not await scene.store.refuse_question(worker, run.id, claim, refusal)
    assert not await scene.store.refuse_question(scene.worker, new_id(), run.claim, refusal)
    assert await scene.rows.dump() == before
    assert await scene.store.refuse_question(scene.worker, run.id, run.claim, refusal)
    [row] = await scene.store.questions([mail.id])
    assert (row.state, (await scene.mailbox(run.id)).mail) == ("refused", [])


async def test_only_the_owner_rejects_the_value_of_a_callback(scene: Scene, run: Claimed) -> None:
    made = NewCallback(new_id(), run.id, "paid", None, None, None, 1)
    await scene.flush(StepWith(step(run), callbacks=[made]))
    await scene.store.end_callback(made.id, CallbackOutcome("completed", '"x"', None, 1))
    before = await scene.rows.dump()
    for worker, claim in ((await scene.add_worker(), run.claim), (scene.worker, run.claim - 1)):
        assert await scene.store.reject_callback(worker, claim, made.id, '"x"') is None
    assert await scene.rows.dump() == before
    assert await scene.store.reject_callback(scene.worker, run.claim, made.id, '"x"')
    [row] = await scene.store.callbacks_of(run.id)
    assert (row.state, (await scene.mailbox(run.id)).mail) == ("open", [])


async def refused(scene: Scene, entry: Entry, worker: str | None = None) -> None:
    before = await scene.rows.dump()
    answer = await scene.flush(entry, worker=worker)
    assert answer.lost == {entry.run_id}
    assert answer.busy == set()
    assert await scene.rows.dump() == before


@pytest.mark.parametrize("how", ["another worker", "an older claim", "a newer claim", "finished", "waits", "unknown"])
async def test_who_does_not_hold_the_run_may_not(scene: Scene, entry: Callable[[Claimed], Entry], how: str) -> None:
    """A timed-out attempt must not pass the fence of the next one, and a run ends once; D9, D15."""
    run = await held(scene)
    if how in ("finished", "waits"):
        await scene.flush(completed(run) if how == "finished" else waiting(run))
    run.claim += {"an older claim": -1, "a newer claim": 1}.get(how, 0)
    run.id = new_id() if how == "unknown" else run.id
    await refused(scene, entry(run), worker=await scene.add_worker() if how == "another worker" else None)


async def test_a_worker_declared_dead_may_not_write(scene: Scene, entry: Callable[[Claimed], Entry]) -> None:
    victim = await scene.add_worker()
    run = await scene.running(worker=victim)
    await scene.bury(victim)
    await refused(scene, entry(run), worker=victim)
    await scene.claim()
    await refused(scene, entry(run), worker=victim)


@pytest.mark.parametrize("count", [3, 100])
async def test_one_lost_run_takes_no_other_along(scene: Scene, count: int) -> None:
    await scene.start_many(count)
    runs = await scene.claim(count)
    lost = runs[count // 2]
    await scene.store.give_back(scene.worker, [(lost.id, lost.claim)])
    answer = await scene.flush(
        *(step(run, 0, f'"{run.id}"') for run in runs),
        *(under_way(run, 1) for run in runs),
        *(completed(run) for run in runs),
    )
    assert answer.lost == {lost.id}
    written = await scene.rows.fetch("SELECT run_id FROM [steps]")
    assert {str(run_id) for (run_id,) in written} == {run.id for run in runs} - {lost.id}
    ended = {outcome.id for outcome in await scene.store.outcomes([run.id for run in runs])}
    assert ended == {run.id for run in runs} - {lost.id}
    assert (await scene.info(lost.id)).status == "queued"


async def test_an_entry_of_an_old_claim_does_not_pass_beside_one_of_the_new(scene: Scene) -> None:
    """Rule 1, when both attempts of one run meet in one batch."""
    old = await scene.running()
    new = await scene.again(old)
    await scene.flush(step(old, 0, '"old"'), step(new, 1, '"new"'))
    await scene.flush(step(old, 2, '"old"'), under_way(new, 3))
    await scene.flush(step(new, 4, '"more"'), completed(old, '"old"'))
    assert [record.output for record in await scene.store.steps(new.id)] == ['"new"', '"more"']
    row = await scene.info(new.id)
    assert (row.status, row.output, row.claim) == ("running", None, new.claim)


async def test_a_place_recorded_by_another_claim_means_the_run_is_lost(scene: Scene) -> None:
    """Rule 7: under our own number a conflict is success; under another nothing of the run is written."""
    old = await scene.running()
    await scene.flush(step(old, 0, '"theirs"'))
    new = await scene.again(old)
    before = await scene.rows.dump()
    answer = await scene.flush(step(new, 0, '"ours"'), step(new, 1), failed_try(new, 2), under_way(new, 3))
    assert answer.lost == {new.id}
    assert await scene.rows.dump() == before
    answer = await scene.flush(step(new, 0, '"ours"'), completed(new))
    assert answer.lost == {new.id}
    assert await scene.rows.dump() == before


async def test_a_conflict_in_one_run_takes_no_other_along(scene: Scene) -> None:
    old = await scene.running()
    await scene.flush(step(old, 0))
    new = await scene.again(old)
    other = await scene.running()
    answer = await scene.flush(step(new, 0), step(other, 0), completed(other))
    assert answer.lost == {new.id}
    assert (await scene.info(other.id)).status == "completed"
    assert len(await scene.store.steps(other.id)) == 1


async def test_giving_back_needs_the_worker_and_the_claim_too(scene: Scene, run: Claimed) -> None:
    before = await scene.rows.dump()
    await scene.store.give_back(await scene.add_worker(), [(run.id, run.claim)])
    await scene.store.give_back(scene.worker, [(run.id, run.claim + 1), (run.id, run.claim - 1), (new_id(), 1)])
    assert await scene.rows.dump() == before
    await scene.store.give_back(scene.worker, [(run.id, run.claim)])
    assert await scene.rows.dump() != before


async def words(scene: Scene, run: Claimed) -> dict[int, str | None]:
    return {row.position: row.detail for row in await scene.store.last_words(run.id, ("", -1), ("", 99))}


@pytest.mark.parametrize("leaving", [completed, waiting, retried])
async def test_a_word_of_progress_may_come_when_the_run_has_left(
    scene: Scene, run: Claimed, leaving: Callable[[Claimed], Entry]
) -> None:
    """Progress is written beside the journal, which does not wait for it: the run may have left the worker by then."""
    await scene.flush(step(run), leaving(run))
    await scene.store.tell_progress([under_way(run, 0, "all done"), under_way(run, -1, "no more")])
    assert await words(scene, run) == {0: "all done", -1: "no more"}


async def test_a_word_of_an_older_claim_is_only_taken_of_what_that_claim_recorded(scene: Scene) -> None:
    """No later word of a step can exist that ended under that claim; of all others a newer claim may have spoken."""
    old = await scene.running()
    await scene.flush(step(old, 0), opened(old, 1))
    new = await scene.again(old)
    await scene.flush(step(new, 2))
    positions = (-1, 0, 1, 2, 3)
    await scene.store.tell_progress([under_way(new, position, "new") for position in positions if position])
    await scene.store.tell_progress([under_way(old, position, "old") for position in positions])
    assert await words(scene, new) == {-1: "new", 0: "old", 1: "new", 2: "new", 3: "new"}
