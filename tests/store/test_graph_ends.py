"""How dag runs end that do not complete: failing, lost workers, deadlines, cancelling."""

from __future__ import annotations

import pytest

from stepfast.model.ids import new_id
from stepfast.model.records import Claimed, Parent
from tests.store.graph_scene import CHAIN, ITSELF, Dag, graph_of, lane, rows_of
from tests.store.scene import DAY, MINUTE, Scene, child_of, completed, joint, move, retried, waiting


async def started(scene: Scene, steps: dict[str, str], **options: object) -> Dag:
    return await Dag(scene, graph_of(steps)).start(**options)


# -- failing ------------------------------------------------------------------------------------------------


FAILING = {"bad": "", "held": "", "asleep": "", "ready": "", "blocked": "bad", "far": "blocked held"}


async def falling(scene: Scene, outcome: str = "failed") -> tuple[Dag, dict[str, Claimed]]:
    """A run of which one step fails while the others are in every state there is."""
    dag = await started(scene, FAILING)
    held = await dag.claim(limit=3)
    assert set(held) == {"bad", "held", "asleep"}
    await scene.flush(waiting(held["asleep"], None, waiting_for="signal"))
    answer = await scene.flush(dag.end(held["bad"], outcome))
    assert answer.lanes == set()
    return dag, held


@pytest.mark.parametrize("outcome", ["failed", "cancelled"])
async def test_when_a_step_fails_the_steps_that_nobody_holds_end(scene: Scene, outcome: str) -> None:
    dag, _ = await falling(scene, outcome)
    assert await dag.states() == {
        "bad": outcome, "held": "running", "asleep": "cancelled", "ready": "skipped", "blocked": "skipped",
        "far": "skipped",
    }  # fmt: skip
    dag_steps = await dag.dag_steps()
    assert {name: dag_steps[name].reason for name in ("asleep", "ready", "blocked")} == {
        "asleep": "cancelled",
        "ready": None,
        "blocked": None,
    }
    for name in ("asleep", "ready", "blocked", "far"):
        row = await scene.info(dag_steps[name].id)
        assert (row.ready, row.visible_at, row.waiting_for) == (False, None, None)
        assert row.completed_at is not None


async def test_when_a_step_fails_the_steps_that_are_held_are_asked_to_end(scene: Scene) -> None:
    dag, held = await falling(scene)
    row = await scene.info(held["held"].id)
    assert (row.status, row.asked) == ("running", "cancel")
    assert await scene.rows.get(row.id, "wakes") == held["held"].wakes + 1
    assert await dag.get("pending") == 1
    assert bool(await dag.get("failing"))


@pytest.mark.parametrize("outcome", ["completed", "cancelled", "skipped", "failed", "caught:far"])
async def test_a_failing_run_is_in_line_when_the_last_held_step_is_settled(scene: Scene, outcome: str) -> None:
    dag, held = await falling(scene)
    assert await dag.claim() == {}
    assert (await scene.flush(dag.end(held["held"], outcome))).lanes == {lane()}
    itself = (await dag.claim())[ITSELF]
    assert itself.failing is True
    assert (await dag.states())["far"] == "skipped"


async def test_a_run_whose_only_held_step_fails_is_in_line_at_once(scene: Scene, dag: Dag) -> None:
    step = (await dag.claim())["a"]
    assert (await scene.flush(dag.end(step, "failed"))).lanes == {lane()}
    assert await dag.states() == {"a": "failed", "b": "skipped", "c": "skipped"}
    assert (await dag.claim())[ITSELF].failing is True


@pytest.mark.parametrize("first", ["good", "bad", "apart"])
async def test_a_failing_run_releases_nothing(scene: Scene, first: str) -> None:
    """Whether an end comes after the failure, or in one flush with it."""
    dag = await started(scene, {"bad": "", "good": "", "after": "good", "last": "after"})
    held = await dag.claim()
    ends = [dag.end(held["bad"], "failed"), dag.end(held["good"])]
    if first == "apart":
        assert (await scene.flush(ends.pop(0))).lanes == set()
    answer = await scene.flush(*(reversed(ends) if first == "good" else ends))
    assert answer.lanes == {lane()}
    assert await dag.states() == {"bad": "failed", "good": "completed", "after": "skipped", "last": "skipped"}
    assert await dag.get("pending") == 0


@pytest.mark.parametrize("first", ["bad", "other"])
@pytest.mark.parametrize("way", ["waiting", "retried", "paused"])
async def test_a_step_that_is_let_go_with_the_failure_of_another_ends_too(scene: Scene, way: str, first: str) -> None:
    """It is not held any more when its run begins to fail: nobody else would come to it."""
    dag = await started(scene, {"bad": "", "other": "", "after": "other"})
    held = await dag.claim()
    if way == "paused":
        await scene.store.pause(dag.id)
    leaves = retried(held["other"]) if way != "waiting" else waiting(held["other"], None, waiting_for="signal:paid")
    moves = [dag.end(held["bad"], "failed"), leaves]
    answer = await scene.flush(*(reversed(moves) if first == "other" else moves))
    assert answer.lanes == {lane()}
    assert await dag.states() == {"bad": "failed", "other": "cancelled", "after": "skipped"}
    assert await dag.get("pending") == 0
    assert (await dag.claim())[ITSELF].failing is True


async def test_two_failures_in_one_flush_and_one_later_count_once_each(scene: Scene) -> None:
    """And a step is asked to end once."""
    dag = await started(scene, {"a": "", "b": "", "c": "", "after": "a b c"})
    held = await dag.claim()
    await scene.flush(dag.end(held["a"], "failed"))
    await scene.flush(dag.end(held["b"], "failed"))
    assert await dag.get("pending") == 1
    assert await scene.rows.get(held["c"].id, "wakes") == held["c"].wakes + 1
    assert (await scene.flush(dag.end(held["c"], "failed"))).lanes == {lane()}
    assert await dag.get("pending") == 0
    other = await started(scene, {"a": "", "b": "", "after": "a b"})
    held = await other.claim()
    await scene.flush(*(other.end(step, "failed") for name, step in held.items() if name))
    assert await other.get("pending") == 0


async def test_who_reports_a_failure_hears_at_once_which_of_its_steps_are_to_end(scene: Scene) -> None:
    dag = await started(scene, {"bad": "", "mine": "", "theirs": ""})
    held = await dag.claim(limit=2)
    assert set(held) == {"bad", "mine"}
    other = await scene.add_worker()
    theirs = (await dag.claim(worker=other))["theirs"]
    answer = await scene.flush(dag.end(held["bad"], "failed"))
    assert answer.asked == {held["mine"].id: "cancel"}
    assert (await scene.info(theirs.id)).asked == "cancel"


@pytest.mark.parametrize("elsewhere", [True, False])
async def test_who_reports_a_failure_hears_whether_others_hold_steps_that_are_to_end(
    scene: Scene, elsewhere: bool
) -> None:
    """So that they can be told before their next heartbeat."""
    dag = await started(scene, {"bad": "", "held": ""})
    bad = (await dag.claim(limit=1))["bad"]
    await dag.claim(worker=await scene.add_worker() if elsewhere else None)
    answer = await scene.flush(dag.end(bad, "failed"))
    assert answer.asked_elsewhere is elsewhere


async def test_only_the_run_of_the_failed_step_fails(scene: Scene) -> None:
    dag = await (await started(scene, CHAIN)).start()
    steps = {run.dag_id: run for run in await dag.claim_all()}
    await scene.flush(dag.end(steps[dag.ids[0]], "failed"), dag.end(steps[dag.ids[1]]))
    assert (await dag.states(dag.ids[0]))["b"] == "skipped"
    assert (await dag.states(dag.ids[1]))["b"] == "queued"


async def test_an_asked_step_that_gives_up_its_worker_can_still_be_ended(scene: Scene) -> None:
    dag, held = await falling(scene)
    await scene.flush(waiting(held["held"], DAY))
    again = (await dag.claim())["held"]
    assert again.asked == "cancel"
    assert (await scene.flush(dag.end(again, "cancelled"))).lanes == {lane()}


async def test_children_of_a_cancelled_step_are_cancelled(scene: Scene) -> None:
    dag = await started(scene, {"bad": "", "calls": ""})
    held = await dag.claim()
    child = child_of(held["calls"])
    await scene.flush(joint(held["calls"], 0, starts=[child]), waiting(held["calls"], None, waiting_for="child"))
    assert (await scene.flush(dag.end(held["bad"], "failed"))).undelivered is True
    await scene.deliver()
    assert (await scene.info(child.id)).status == "cancelled"


async def test_a_run_can_be_undone_after_it_failed(scene: Scene, dag: Dag) -> None:
    step = (await dag.claim())["a"]
    await scene.flush(dag.end(step, "failed"))
    itself = (await dag.claim())[ITSELF]
    await scene.flush(move(itself, "compensating", reason="code", error="{}"))
    itself = (await dag.claim())[ITSELF]
    assert itself.undoing is True
    await scene.flush(move(itself, "compensated"))
    assert (await dag.run()).status == "compensated"


# -- ends that nobody reports -------------------------------------------------------------------------------


async def test_a_dead_letter_fails_its_run(scene: Scene) -> None:
    dag = await started(scene, {"deadly": "", "other": "", "after": "deadly"})
    victim = await scene.add_worker()
    held = await dag.claim(worker=victim)
    mine = held["other"]
    await scene.store.give_back(victim, [(mine.id, mine.claim)])
    mine = (await dag.claim())["other"]
    await scene.bury(victim, max_losses=1)
    assert await dag.states() == {"deadly": "failed", "other": "running", "after": "skipped"}
    assert (await dag.dag_step("deadly")).reason == "workers_lost"
    assert (await scene.info(mine.id)).asked == "cancel"
    assert (await scene.flush(dag.end(mine, "cancelled"))).lanes == {lane()}
    assert (await dag.claim())[ITSELF].failing is True


@pytest.mark.parametrize("held", [True, False])
async def test_who_buries_a_step_hears_whether_workers_hold_others_of_its_run(scene: Scene, held: bool) -> None:
    dag = await started(scene, {"dead": "", "other": ""})
    victim = await scene.add_worker()
    await dag.claim(worker=victim, limit=1)
    if held:
        await dag.claim()
    await scene.rows.silence(victim)
    assert (await scene.store.reap(scene.worker, 100, 1)).asked is held


@pytest.mark.parametrize("steps", [{"a": ""}, {"a": "", "b": ""}], ids=["one", "two"])
async def test_dead_letters_that_were_the_last_steps_put_their_run_in_line(scene: Scene, steps: dict[str, str]) -> None:
    """Each counts once, also if they die together."""
    dag = await started(scene, {**steps, "after": " ".join(steps)})
    victim = await scene.add_worker()
    await dag.claim(worker=victim)
    await scene.rows.silence(victim)
    assert lane() in (await scene.store.reap(scene.worker, 100, 1)).lanes
    assert await dag.states() == {**dict.fromkeys(steps, "failed"), "after": "skipped"}
    assert await dag.get("pending") == 0
    assert set(await dag.claim()) == {ITSELF}


async def test_a_step_that_is_lost_and_not_dead_yet_fails_nothing(scene: Scene, dag: Dag) -> None:
    victim = await scene.add_worker()
    await dag.claim(worker=victim)
    await scene.bury(victim)
    assert set(await dag.claim()) == {"a"}
    assert await dag.get("pending") == 3


async def test_a_run_whose_first_step_expired_fails(scene: Scene) -> None:
    dag = await started(scene, CHAIN, expires_ms=MINUTE)
    await expire(dag, "a")
    assert lane() in (await scene.store.promote(100)).lanes
    assert await dag.states() == {"a": "failed", "b": "skipped", "c": "skipped"}
    assert (await dag.dag_step("a")).reason == "expired"
    assert (await dag.claim())[ITSELF].failing is True


async def expire(dag: Dag, name: str) -> None:
    """The time passes in which a step was to be picked up."""
    step = await dag.dag_step(name)
    await dag.scene.rows.shift(step.id, "expires_at", -DAY)
    await dag.scene.rows.shift(step.id, "visible_at", -DAY)


@pytest.mark.parametrize("done", [True, False])
async def test_once_a_step_was_picked_up_the_others_do_not_expire(scene: Scene, done: bool) -> None:
    """The run was picked up in time."""
    dag = await started(scene, {"a": "", "b": "", "c": ""}, expires_ms=MINUTE)
    a = (await dag.claim(limit=1))["a"]
    place = await scene.rows.get((await dag.dag_step("b")).id, "place")
    if done:
        await scene.flush(dag.end(a))
    await expire(dag, "b")
    await expire(dag, "c")
    promotion = await scene.store.promote(100)
    assert (promotion.lanes, promotion.ended, promotion.moved) == ({lane("b"), lane("c")}, [], 2)
    assert await scene.rows.get((await dag.dag_step("b")).id, "place") == place, "it keeps its place"
    assert (await dag.run()).status == "running"
    assert (await scene.store.promote(100)).moved == 0
    assert list(await dag.claim(limit=2)) == ["b", "c"]
    assert await dag.get("failing") in (False, 0)


async def test_a_delayed_step_that_no_longer_expires_is_ready_when_it_is_due(scene: Scene) -> None:
    """Nobody swept meanwhile: its time came, and the end of it."""
    dag = await started(scene, {"a": "", "b": ""}, delay_ms=MINUTE, expires_ms=MINUTE)
    await scene.rows.make_due((await dag.dag_step("a")).id)
    await scene.store.promote(100)
    assert set(await dag.claim()) == {"a"}
    await expire(dag, "b")
    assert (await scene.store.promote(100)).lanes == {lane("b")}
    assert set(await dag.claim()) == {"b"}


async def test_a_step_of_another_run_does_not_keep_one_from_expiring(scene: Scene) -> None:
    dag = await (await started(scene, {"a": "", "b": ""}, expires_ms=MINUTE)).start(expires_ms=MINUTE)
    [first] = await dag.claim_all(limit=1)
    dag.ids.remove(first.dag_id or "")
    await expire(dag, "b")
    assert (await scene.store.promote(100)).ended == [(await dag.dag_step("b")).id]
    assert await dag.states() == {"a": "skipped", "b": "failed"}


async def test_steps_released_later_and_the_run_itself_do_not_expire(scene: Scene) -> None:
    dag = await started(scene, {"a": "", "b": "a"}, expires_ms=MINUTE)
    await dag.finish("a")
    assert (await dag.dag_step("b")).visible_at is None
    assert await scene.rows.get((await dag.dag_step("b")).id, "expires_at") is None
    await dag.finish("b")
    assert await dag.get("expires_at") is None
    assert (await scene.store.promote(100)).moved == 0
    assert set(await dag.claim()) == {ITSELF}


# -- deadlines ----------------------------------------------------------------------------------------------


async def test_a_late_run_fails_and_its_steps_end(scene: Scene) -> None:
    dag = await started(scene, {"held": "", "after": "held"}, deadline_ms=DAY)
    held = await dag.claim()
    await scene.rows.make_due(dag.id)
    promotion = await scene.store.promote(100)
    assert promotion.ended == []
    row = await dag.run()
    assert (row.status, row.reason, row.visible_at, row.deadline_at) == ("running", "deadline", None, None)
    assert row.error is not None and "eadline" in row.error
    assert await dag.states() == {"held": "running", "after": "skipped"}
    assert (await scene.info(held["held"].id)).asked == "cancel"
    await scene.flush(dag.end(held["held"], "cancelled"))
    itself = (await dag.claim())[ITSELF]
    assert (itself.failing, itself.reason) == (True, "deadline")


@pytest.mark.parametrize("held", [True, False])
async def test_who_ends_a_late_run_hears_whether_workers_hold_steps_of_it(scene: Scene, held: bool) -> None:
    """So that they can be told before their next heartbeat. If nobody does, it is in line at once."""
    dag = await started(scene, CHAIN, deadline_ms=DAY)
    if held:
        await dag.claim()
    await scene.rows.make_due(dag.id)
    promotion = await scene.store.promote(100)
    assert (promotion.asked, lane() in promotion.lanes) == (held, not held)
    if not held:
        assert set((await dag.states()).values()) == {"skipped"}
        assert (await dag.claim())[ITSELF].reason == "deadline"
    assert (await scene.store.promote(100)).moved == 0


async def test_a_run_that_is_late_before_it_is_finished_fails_and_can_be_undone(scene: Scene) -> None:
    dag = await started(scene, {"a": ""}, deadline_ms=DAY)
    await dag.finish("a")
    await scene.rows.make_due(dag.id)
    assert await dag.claim() == {}
    promotion = await scene.store.promote(100)
    assert (promotion.lanes, promotion.ended) == ({lane()}, [])
    itself = (await dag.claim())[ITSELF]
    assert (itself.failing, itself.reason, itself.deadline_in_ms) == (True, "deadline", None)


async def test_a_run_that_fails_is_not_late_any_more(scene: Scene) -> None:
    dag = await started(scene, {"bad": "", "held": ""}, deadline_ms=DAY)
    held = await dag.claim()
    await scene.flush(dag.end(held["bad"], "failed"))
    row = await dag.run()
    assert (row.deadline_at, row.visible_at, row.reason) == (None, None, None)


# -- cancelling ---------------------------------------------------------------------------------------------


async def test_steps_that_are_held_are_asked_when_their_run_is_cancelled(scene: Scene, dag: Dag) -> None:
    step = (await dag.claim())["a"]
    asked = await scene.store.cancel(dag.id)
    assert (asked.done, asked.running, asked.lane) == (True, True, None)
    assert (await scene.info(step.id)).asked == "cancel"
    assert (await scene.flush(dag.end(step))).lanes == {lane()}
    itself = (await dag.claim())[ITSELF]
    assert (itself.failing, itself.reason) == (True, "cancelled")


async def test_a_run_that_is_cancelled_before_it_is_finished_can_be_undone(scene: Scene) -> None:
    dag = await started(scene, {"a": ""})
    await dag.finish("a")
    asked = await scene.store.cancel(dag.id)
    assert (asked.done, asked.ended, asked.lane) == (True, False, lane())
    itself = (await dag.claim())[ITSELF]
    assert (itself.failing, itself.reason) == (True, "cancelled")
    assert await dag.states() == {"a": "completed"}


async def test_a_run_that_failed_by_itself_is_not_cancelled(scene: Scene) -> None:
    dag = await started(scene, {"bad": "", "held": ""})
    held = await dag.claim()
    await scene.flush(dag.end(held["bad"], "failed"))
    assert (await scene.store.cancel(dag.id)).done is False
    assert await dag.get("reason") is None


async def test_a_run_that_is_being_finished_is_only_marked(scene: Scene) -> None:
    dag = await started(scene, {"a": ""})
    await dag.finish("a")
    await dag.claim()
    asked = await scene.store.cancel(dag.id)
    assert (asked.done, asked.running) == (True, True)
    assert (await dag.run()).asked == "cancel"


async def test_a_dag_run_that_ended_is_not_cancelled(scene: Scene) -> None:
    dag = await started(scene, {"a": ""})
    await dag.finish("a")
    await scene.flush(completed((await dag.claim())[ITSELF]))
    assert (await scene.store.cancel(dag.id)).done is False


async def test_a_dag_run_is_cancelled_with_its_parent(scene: Scene) -> None:
    parent = await scene.running()
    rows = rows_of(graph_of(CHAIN), parent=Parent(parent.id, "", 0, new_id()))
    await scene.flush(joint(parent, 0, starts=rows))
    await scene.flush(move(parent, "cancelled", reason="cancelled"))
    delivery = await scene.deliver()
    assert delivery.ended and lane() not in delivery.lanes, "nothing has begun, so there is nothing to finish"
    dag = Dag(scene, graph_of(CHAIN))
    dag.ids = [rows[0].id]
    assert set((await dag.states()).values()) == {"skipped"}
    row = await scene.store.run(dag.id)
    assert row is not None and (row.status, row.reason) == ("cancelled", "cancelled")
