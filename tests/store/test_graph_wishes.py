"""What operators ask of dag runs: to be held and let go, and to be tried again; and steps that undo what they did."""

from __future__ import annotations

import pytest

from stepfast.errors import InvalidState
from stepfast.model.graph import DagStep, Graph
from stepfast.model.records import RUN_ITSELF
from stepfast.model.rows import Definition
from tests.store.graph_scene import CHAIN, DIAMOND, ITSELF, Dag, graph_of, lane
from tests.store.scene import (
    DAY,
    MINUTE,
    Scene,
    child_of,
    completed,
    failed_try,
    joint,
    move,
    retried,
    signal,
    step,
    waiting,
)


async def started(scene: Scene, graph: Graph, **options: object) -> Dag:
    """With its graph on record, as any start brings it."""
    await scene.store.put_definitions([Definition("dag", graph.version, "dag", "graphs", "{}", None, graph.text)])
    return await Dag(scene, graph).start(**options)


async def end(dag: Dag, status: str = "failed") -> None:
    """Finish the dag run itself, with nothing to undo."""
    itself = (await dag.claim())[ITSELF]
    await dag.scene.flush(move(itself, status, reason="code" if status == "failed" else "cancelled"))


async def retry(dag: Dag) -> None:
    """The dag run has failed, and is retried."""
    await end(dag)
    await dag.store.retry(dag.id)


async def fail(dag: Dag, *names: str, **changes: object) -> None:
    """Steps of those that are ready fail, and so does their run."""
    held = await dag.claim()
    await dag.scene.flush(*(dag.end(held[name], "failed", **changes) for name in names))


# -- pausing ------------------------------------------------------------------------------------------------


async def test_of_a_paused_dag_run_nothing_is_claimed(scene: Scene) -> None:
    dag = await started(scene, graph_of(DIAMOND | {"aside": ""}))
    asked = await scene.store.pause(dag.id)
    assert (asked.done, asked.running, asked.lane, asked.lanes) == (True, False, None, set())
    assert (await dag.run()).status == "paused"
    assert await dag.states() == {"a": "paused", "b": "blocked", "c": "blocked", "d": "blocked", "aside": "paused"}
    assert await dag.claim() == {}
    assert await scene.lanes(dag.workflows) == []


async def test_a_resumed_dag_run_goes_on_with_its_steps(scene: Scene) -> None:
    dag = await started(scene, graph_of(DIAMOND | {"aside": ""}), deadline_ms=DAY)
    before = await dag.states(), (await dag.run()).visible_at
    await scene.store.pause(dag.id)
    asked = await scene.store.resume(dag.id)
    assert (asked.done, asked.lane, asked.lanes) == (True, None, {lane("a"), lane("aside")})
    assert (await dag.run()).status == "running"
    assert (await dag.states(), (await dag.run()).visible_at) == before
    assert set(await dag.claim()) == {"a", "aside"}


async def test_what_is_under_way_when_its_run_is_paused_finishes_and_releases_no_one(scene: Scene, dag: Dag) -> None:
    held = (await dag.claim())["a"]
    asked = await scene.store.pause(dag.id)
    assert (asked.done, asked.running) == (True, True)
    assert (await scene.info(held.id)).asked == "pause"
    assert (await scene.flush(dag.end(held))).lanes == set()
    assert await dag.states() == {"a": "completed", "b": "paused", "c": "blocked"}
    assert (await dag.dag_step("b")).ready_at is not None
    assert await dag.claim() == {}
    assert (await scene.store.resume(dag.id)).lanes == {lane("b")}
    assert set(await dag.claim()) == {"b"}


async def test_a_step_that_waits_on_or_is_tried_again_in_a_paused_run_is_held(scene: Scene) -> None:
    dag = await started(scene, graph_of({"asleep": "", "again": "", "back": ""}))
    held = await dag.claim()
    await scene.store.pause(dag.id)
    await scene.flush(
        waiting(held["asleep"], None, waiting_for="signal"),
        move(held["again"], "queued", next_attempt=True, delay_ms=DAY),
        move(held["back"], "paused"),
    )
    assert set((await dag.states()).values()) == {"paused"}
    assert (await scene.store.resume(dag.id)).lanes == {lane("back")}
    assert await dag.states() == {"asleep": "waiting", "again": "queued", "back": "queued"}
    assert set(await dag.claim()) == {"back"}


async def test_a_resume_before_a_step_has_heard_of_the_pause_takes_that_back(scene: Scene) -> None:
    dag = await started(scene, graph_of({"a": "", "b": ""}))
    held = await dag.claim()
    await scene.store.pause(dag.id)
    assert (await scene.store.resume(dag.id)).done is True
    assert {(await scene.info(step.id)).asked for step in held.values()} == {None}
    await scene.flush(move(held["a"], "paused"), dag.end(held["b"]))
    assert await dag.states() == {"a": "queued", "b": "completed"}


async def test_a_pause_makes_no_sleep_shorter_or_longer(scene: Scene) -> None:
    dag = await started(scene, graph_of({"long": "", "short": ""}))
    held = await dag.claim()
    await scene.flush(waiting(held["long"], DAY), waiting(held["short"], MINUTE))
    due = (await scene.info(held["long"].id)).visible_at
    await scene.store.pause(dag.id)
    assert (await scene.info(held["long"].id)).visible_at is None
    await scene.rows.shift(held["short"].id, "held_due", -DAY)
    assert (await scene.store.resume(dag.id)).lanes == {lane("short")}
    row = await scene.info(held["long"].id)
    assert (row.status, row.waiting_for, row.visible_at) == ("waiting", "time", due)


async def test_a_signal_to_a_step_of_a_paused_run_is_kept(scene: Scene) -> None:
    dag = await started(scene, graph_of({"gate": "", "later": "gate"}))
    await scene.flush(waiting((await dag.claim())["gate"], None, waiting_for="signal"))
    await scene.store.pause(dag.id)
    for name in ("gate", "later"):
        asked = await scene.store.send(signal(dag.id, name))
        assert (asked.status, asked.done, asked.lane) == ("paused", True, None)
    assert await dag.claim() == {}
    assert (await scene.store.resume(dag.id)).lanes == {lane("gate")}
    assert await dag.states() == {"gate": "queued", "later": "blocked"}


async def test_a_run_whose_last_step_ends_while_it_is_paused_is_finished_when_it_goes_on(scene: Scene) -> None:
    dag = await started(scene, graph_of({"a": ""}))
    held = (await dag.claim())["a"]
    await scene.store.pause(dag.id)
    assert (await scene.flush(dag.end(held))).lanes == set()
    assert (await dag.run()).status == "paused"
    assert await dag.claim() == {}
    asked = await scene.store.resume(dag.id)
    assert asked.lane == lane()
    assert set(await dag.claim()) == {ITSELF}


@pytest.mark.parametrize("at_work", [False, True])
async def test_a_run_that_is_to_be_finished_can_be_paused(scene: Scene, at_work: bool) -> None:
    """If a worker is about to, it is only marked."""
    dag = await started(scene, graph_of({"a": ""}))
    await dag.finish("a")
    held = await dag.claim() if at_work else {}
    asked = await scene.store.pause(dag.id)
    assert (asked.done, asked.running) == (True, at_work)
    assert await dag.claim() == {}
    if not at_work:
        await scene.store.resume(dag.id)
        held = await dag.claim()
    await scene.flush(completed(held[ITSELF]))
    assert ((await dag.run()).status, (await dag.run()).asked) == ("completed", None)


async def test_a_skip_in_a_paused_run_goes_through_the_graph(scene: Scene) -> None:
    dag = await started(scene, graph_of({"a": "", "b": "a", "c": "b", "d": "", "end": "c d"}))
    held = await dag.claim()
    await scene.store.pause(dag.id)
    await scene.flush(dag.end(held["a"], "skipped"), dag.end(held["d"]))
    assert await dag.states() == {"a": "skipped", "b": "skipped", "c": "skipped", "d": "completed", "end": "paused"}


async def test_a_step_that_fails_ends_the_pause_of_its_run(scene: Scene) -> None:
    dag = await started(scene, graph_of({"bad": "", "asleep": "", "ready": "", "after": "bad"}))
    held = await dag.claim(limit=2)
    await scene.flush(waiting(held["asleep"], DAY))
    await scene.store.pause(dag.id)
    assert (await scene.flush(dag.end(held["bad"], "failed"))).lanes == {lane()}
    assert await dag.states() == {"bad": "failed", "asleep": "cancelled", "ready": "skipped", "after": "skipped"}
    assert (await dag.run()).status == "running"
    assert (await dag.claim())[ITSELF].failing is True


@pytest.mark.parametrize("status", ["running", "paused"])
async def test_a_cancelled_run_ends_its_steps_and_is_in_line(scene: Scene, dag: Dag, status: str) -> None:
    await dag.finish("a")
    if status == "paused":
        await scene.store.pause(dag.id)
    asked = await scene.store.cancel(dag.id)
    assert (asked.status, asked.done, asked.running, asked.ended, asked.lane) == (status, True, False, False, lane())
    assert await dag.states() == {"a": "completed", "b": "skipped", "c": "skipped"}
    itself = (await dag.claim())[ITSELF]
    assert (itself.failing, itself.reason) == (True, "cancelled")


@pytest.mark.parametrize("cause", ["cancelled", "deadline"])
@pytest.mark.parametrize("how", ["leaves it", "gives it back", "unregisters", "dies"])
async def test_a_run_that_its_finisher_does_not_finish_has_its_cause_still(scene: Scene, how: str, cause: str) -> None:
    """The next one must know why it failed, or it would end as failed instead of cancelled."""
    dag = await started(scene, graph_of(CHAIN), deadline_ms=DAY)
    await dag.finish("a")
    if cause == "cancelled":
        await scene.store.cancel(dag.id)
    else:
        await scene.rows.make_due(dag.id)
        await scene.store.promote(100)
    finisher = await scene.add_worker()
    itself = (await dag.claim(worker=finisher))[ITSELF]
    assert (itself.failing, itself.reason) == (True, cause)
    if how == "leaves it":
        await scene.flush(move(itself, "queued", delay_ms=0), worker=finisher)
    elif how == "gives it back":
        await scene.store.give_back(finisher, [(itself.id, itself.claim)])
    elif how == "unregisters":
        await scene.store.unregister(finisher)
    else:
        await scene.bury(finisher)
    again = (await dag.claim())[ITSELF]
    assert (again.failing, again.reason) == (True, cause)


async def test_the_deadline_ends_a_paused_run(scene: Scene) -> None:
    dag = await started(scene, graph_of(CHAIN), deadline_ms=DAY)
    await scene.store.pause(dag.id)
    assert (await scene.store.promote(100)).moved == 0
    await scene.rows.make_due(dag.id)
    assert (await scene.store.promote(100)).lanes == {lane()}
    assert set((await dag.states()).values()) == {"skipped"}
    assert (await dag.run()).status == "running"
    assert (await dag.claim())[ITSELF].reason == "deadline"


async def test_only_a_paused_run_is_resumed_and_a_second_pause_changes_nothing(scene: Scene, dag: Dag) -> None:
    for wish, done in (("resume", False), ("pause", True)):
        before = await scene.rows.dump()
        assert (await getattr(scene.store, wish)(dag.id)).done is done
        assert await scene.rows.dump() == before
        await scene.store.pause(dag.id)
    assert [run.id for run in await scene.store.runs(status="paused")] == [dag.id]


async def test_a_resume_makes_the_check_of_a_step_due(scene: Scene) -> None:
    dag = await started(scene, graph_of({"a": "", "b": ""}))
    held = await dag.claim()
    await scene.flush(waiting(held["a"], DAY, waiting_for="check"), waiting(held["b"], DAY))
    asked = await scene.store.resume(dag.id)
    assert (asked.done, asked.lanes) == (True, {lane("a")})
    assert await dag.states() == {"a": "queued", "b": "waiting"}


@pytest.mark.parametrize("how", ["failing", "undoing", "ended"])
async def test_a_run_that_comes_to_its_end_is_not_paused(scene: Scene, how: str) -> None:
    dag = await started(scene, graph_of({"bad": "", "held": ""}))
    held = await dag.claim()
    await scene.flush(dag.end(held["bad"], "failed"))
    if how != "failing":
        await scene.flush(dag.end(held["held"]))
        itself = (await dag.claim())[ITSELF]
        await scene.flush(move(itself, "compensating" if how == "undoing" else "failed", reason="code"))
    before = await scene.rows.dump()
    assert (await scene.store.pause(dag.id)).done is False
    assert await scene.rows.dump() == before


async def test_a_step_that_is_undoing_what_it_did_is_not_held_up(scene: Scene) -> None:
    dag = await started(scene, graph_of({}, pay=DagStep("pay", catch={"Declined": "tell"}), tell=DagStep("tell")))
    pay = (await dag.claim())["pay"]
    await scene.flush(step(pay, undo="refund"), move(pay, "compensating", reason="caught:tell"))
    await scene.store.pause(dag.id)
    again = (await dag.claim())["pay"]
    await scene.flush(dag.end(again, "caught:tell", reason="caught:tell"))
    assert await dag.states() == {"pay": "failed", "tell": "paused"}


async def test_the_steps_of_other_runs_are_not_held(scene: Scene) -> None:
    dag = await (await started(scene, graph_of(CHAIN))).start()
    await scene.store.pause(dag.ids[0])
    assert [run.dag_id for run in await dag.claim_all()] == [dag.ids[1]]


# -- trying again -------------------------------------------------------------------------------------------


async def test_a_failed_run_goes_on_with_the_step_that_failed(scene: Scene) -> None:
    dag = await started(scene, graph_of(DIAMOND))
    await dag.finish("a")
    held = await dag.claim()
    await scene.flush(dag.end(held["b"]))
    await scene.flush(dag.end(held["c"], "failed"))
    await end(dag)
    assert await scene.store.retry(dag.id) == {lane("c")}
    row = await dag.run()
    assert (row.status, row.reason, row.error, row.completed_at, row.ready) == ("running", None, None, None, False)
    assert await dag.states() == {"a": "completed", "b": "completed", "c": "queued", "d": "blocked"}
    await dag.finish("c")
    await dag.finish("d")
    itself = (await dag.claim())[ITSELF]
    assert (itself.failing, itself.reason) == (False, None)


async def test_everything_that_came_to_nothing_is_opened_again(scene: Scene) -> None:
    steps = {"bad": "", "asleep": "", "done": "", "ready": "", "after": "bad", "far": "after asleep", "next": "done"}
    dag = await started(scene, graph_of(steps))
    held = await dag.claim(limit=3)
    assert set(held) == {"bad", "asleep", "done"}
    await scene.flush(waiting(held["asleep"], DAY), dag.end(held["done"]))
    await scene.flush(dag.end(held["bad"], "failed"))
    await end(dag)
    assert await scene.store.retry(dag.id) == {lane("bad"), lane("asleep"), lane("ready"), lane("next")}
    assert await dag.states() == {
        "bad": "queued", "asleep": "queued", "done": "completed", "ready": "queued", "after": "blocked",
        "far": "blocked", "next": "queued",
    }  # fmt: skip
    assert await dag.get("pending") == 6


async def test_a_retried_run_ends_with_the_last_of_its_steps(scene: Scene) -> None:
    """Whatever ended while it failed is counted once."""
    dag = await started(scene, graph_of(DIAMOND | {"aside": "a", "last": "d aside"}))
    await dag.finish("a")
    held = await dag.claim()
    await scene.flush(dag.end(held["b"], "failed"))
    await scene.flush(dag.end(held["c"]), dag.end(held["aside"], "cancelled"))
    await retry(dag)
    for names in ({"aside", "b"}, {"d"}, {"last"}):
        held = await dag.claim()
        assert set(held) == names
        await scene.flush(*(dag.end(run) for run in held.values()))
    assert set(await dag.claim()) == {ITSELF}
    assert await dag.get("pending") == 0


async def test_a_step_that_is_tried_again_keeps_its_records_and_has_a_new_budget(scene: Scene, dag: Dag) -> None:
    first = (await dag.claim())["a"]
    await scene.flush(step(first, 0), step(first, 1, None, status="failed", error="{}"))
    await scene.flush(dag.end(first, "failed", forget=[("", 1)]))
    await retry(dag)
    again = (await dag.claim())["a"]
    assert [record.position for record in again.records] == [0]
    assert (again.attempt, again.first_attempt, again.losses) == (2, 2, 0)
    assert again.claim > first.claim + 1
    assert again.ready_at == first.ready_at


async def between_tries(dag: Dag, name: str) -> None:
    """A step has failed, and is to be tried again later."""
    first = (await dag.claim())[name]
    await dag.scene.flush(failed_try(first, RUN_ITSELF), retried(first, MINUTE))


@pytest.mark.parametrize("during", [1, 2])
async def test_a_step_that_was_cancelled_after_a_try_goes_on_with_the_next(scene: Scene, during: int) -> None:
    """Between the first and the second, or during the second."""
    dag = await started(scene, graph_of({"a": ""}))
    await between_tries(dag, "a")
    if during == 2:
        await scene.rows.make_due((await dag.dag_step("a")).id)
        await scene.store.promote(100)
        await scene.flush(waiting((await dag.claim())["a"]))
    await scene.store.cancel(dag.id)
    assert ((await dag.dag_step("a")).status, (await dag.dag_step("a")).attempt) == ("cancelled", during)
    await end(dag, "cancelled")
    await scene.store.retry(dag.id)
    again = (await dag.claim())["a"]
    assert (again.attempt, again.first_attempt) == (during + 1, during + 1)


async def test_a_step_that_fails_while_it_is_to_end_has_no_other_attempt(scene: Scene) -> None:
    """Its worker did not know yet."""
    dag = await started(scene, graph_of({"a": ""}))
    held = (await dag.claim())["a"]
    await scene.store.cancel(dag.id)
    await scene.flush(failed_try(held, RUN_ITSELF), retried(held, MINUTE))
    again = (await dag.claim())["a"]
    assert (again.attempt, again.asked) == (1, "cancel")


async def test_two_retries_before_a_step_is_picked_up_are_one_attempt(scene: Scene) -> None:
    dag = await started(scene, graph_of({"a": "", "b": ""}))
    await fail(dag, "a", "b")
    for _ in range(2):
        await end(dag)
        await scene.store.retry(dag.id)
        await scene.store.cancel(dag.id)
    assert [dag_step.attempt for dag_step in (await dag.dag_steps()).values()] == [1, 1]
    await retry(dag)
    assert [(run.attempt, run.first_attempt) for run in (await dag.claim()).values()] == [(2, 2), (2, 2)]


async def test_a_step_that_never_began_begins_as_if_nothing_had_happened(scene: Scene) -> None:
    dag = await started(scene, graph_of({"bad": "", "other": "", "after": "other"}), expires_ms=DAY)
    held = await dag.claim(limit=1)
    await scene.flush(dag.end(held["bad"], "failed"))
    await retry(dag)
    other = (await dag.claim())["other"]
    assert (other.attempt, other.first_attempt, other.claim) == (1, 1, 1)
    assert other.ready_at is not None and held["bad"].ready_at is not None
    assert other.ready_at > held["bad"].ready_at
    assert (await scene.info(other.id)).expires_at is None
    await scene.flush(dag.end(other))
    assert (await dag.states())["after"] == "queued"


async def test_what_was_skipped_for_a_reason_of_its_own_stays_so(scene: Scene) -> None:
    dag = await started(scene, graph_of({"no": "", "hangs": "no", "bad": "", "both": "hangs bad"}))
    held = await dag.claim()
    await scene.flush(dag.end(held["no"], "skipped"))
    await scene.flush(dag.end(held["bad"], "failed"))
    await retry(dag)
    assert await dag.states() == {"no": "skipped", "hangs": "skipped", "bad": "queued", "both": "blocked"}
    await dag.finish("bad")
    assert (await dag.states())["both"] == "queued"


async def test_an_error_that_was_caught_stays_so(scene: Scene) -> None:
    dag_steps = (
        DagStep("pay", catch={"Declined": "tell"}),
        DagStep("tell"),
        DagStep("ship", ("pay",)),
        DagStep("bad", ("tell",)),
    )
    dag = await started(scene, Graph(dag_steps))
    pay = (await dag.claim())["pay"]
    await scene.flush(dag.end(pay, "caught:tell", reason="caught:tell"))
    await fail(dag, "tell")
    await end(dag)
    assert await scene.store.retry(dag.id) == {lane("tell")}
    assert await dag.states() == {"pay": "failed", "tell": "queued", "ship": "skipped", "bad": "blocked"}


async def test_a_join_of_a_few_is_counted_anew(scene: Scene) -> None:
    dag = await started(scene, graph_of({"a": "", "b": "", "c": ""}, join=DagStep("join", ("a", "b", "c"), 2)))
    held = await dag.claim()
    await scene.flush(dag.end(held["a"], "failed"))
    await scene.flush(dag.end(held["b"]), dag.end(held["c"], "skipped"))
    await retry(dag)
    assert await dag.states() == {"a": "queued", "b": "completed", "c": "skipped", "join": "blocked"}
    await dag.finish("a")
    assert (await dag.states())["join"] == "queued"


async def test_a_gate_that_was_refused_asks_again(scene: Scene) -> None:
    dag = await started(scene, Graph([DagStep("gate", kind="approval"), DagStep("after", ("gate",))]))
    gate = (await dag.claim())["gate"]
    no = signal(dag.id, "gate", "false")
    await scene.store.send(no)
    await scene.flush(joint(gate, 0, "false", kind="signal", takes=[no.id]), dag.end(gate, "failed"))
    await retry(dag)
    again = (await dag.claim())["gate"]
    assert again.records == []
    assert (await scene.mailbox(again.id)).mail == []


async def test_a_signal_that_the_failed_step_took_is_there_again(scene: Scene) -> None:
    dag = await started(scene, graph_of({"a": ""}))
    a = (await dag.claim())["a"]
    word = signal(dag.id, "a", '"word"')
    await scene.store.send(word)
    await scene.flush(joint(a, 0, '"word"', kind="signal", takes=[word.id]))
    await scene.flush(dag.end(a, "failed", forget=[("", 0)]))
    await retry(dag)
    assert [mail.value for mail in (await scene.mailbox(a.id)).mail] == ['"word"']


async def test_a_child_that_completed_after_its_step_had_ended_is_told_of_again(scene: Scene) -> None:
    dag = await started(scene, graph_of({"a": ""}))
    a = (await dag.claim())["a"]
    await scene.flush(joint(a, 0, starts=[child_of(a)]))
    [child] = await scene.claim()
    await scene.flush(dag.end(a, "failed"))
    await end(dag)
    await scene.flush(move(child, "completed", output="7", child=True))
    await scene.deliver()
    assert (await scene.mailbox(a.id)).mail == []
    await scene.store.retry(dag.id)
    assert [mail.value for mail in (await scene.mailbox(a.id)).mail] == ["7"]


async def test_a_cancelled_run_goes_on_where_it_was(scene: Scene, dag: Dag) -> None:
    await dag.finish("a")
    await scene.store.cancel(dag.id)
    await end(dag, "cancelled")
    assert await scene.store.retry(dag.id) == {lane("b")}
    assert await dag.states() == {"a": "completed", "b": "queued", "c": "blocked"}


async def test_a_late_run_has_a_new_deadline_of_the_old_length(scene: Scene) -> None:
    dag = await started(scene, graph_of(CHAIN), deadline_ms=DAY)
    await scene.rows.make_due(dag.id)
    await scene.store.promote(100)
    await retry(dag)
    row = await dag.run()
    assert row.deadline_at is not None and row.deadline_at == row.visible_at
    assert abs(row.deadline_at - row.now_ms - DAY) < MINUTE


async def test_a_run_that_failed_when_all_its_steps_were_done_is_to_be_finished_again(scene: Scene) -> None:
    dag = await started(scene, graph_of({"a": ""}))
    await dag.finish("a")
    await end(dag)
    assert await scene.store.retry(dag.id) == {lane()}
    itself = (await dag.claim())[ITSELF]
    assert (itself.failing, itself.attempt, itself.first_attempt) == (False, 2, 2)


async def test_a_dead_letter_among_the_steps_goes_on_with_no_losses(scene: Scene, dag: Dag) -> None:
    victim = await scene.add_worker()
    await dag.claim(worker=victim)
    await scene.bury(victim, max_losses=1)
    await end(dag)
    assert await scene.store.retry(dag.id) == {lane("a")}
    assert (await dag.claim())["a"].losses == 0


async def test_a_run_that_fails_again_is_retried_again(scene: Scene, dag: Dag) -> None:
    for attempt in (1, 2, 3):
        held = (await dag.claim())["a"]
        assert held.attempt == attempt
        await scene.flush(dag.end(held, "failed"))
        await end(dag)
        assert await scene.store.retry(dag.id) == {lane("a")}


async def test_a_second_retry_is_refused_and_changes_nothing(scene: Scene, dag: Dag) -> None:
    await fail(dag, "a")
    assert await scene.store.retry(dag.id) is None
    await retry(dag)
    before = await scene.rows.dump()
    assert await scene.store.retry(dag.id) is None
    assert await scene.rows.dump() == before


async def test_what_the_old_claim_says_after_a_retry_is_refused(scene: Scene, dag: Dag) -> None:
    held = (await dag.claim())["a"]
    await scene.flush(dag.end(held, "failed"))
    await retry(dag)
    assert (await scene.flush(dag.end(held))).lost == {held.id}
    assert await dag.states() == {"a": "queued", "b": "blocked", "c": "blocked"}


@pytest.mark.parametrize("whole", [True, False], ids=["the run", "a step"])
@pytest.mark.parametrize("how", ["compensated", "failed"])
async def test_a_run_that_was_undone_is_not_retried(scene: Scene, dag: Dag, how: str, whole: bool) -> None:
    if whole:
        await dag.finish("a")
        await fail(dag, "b")
        await scene.flush(move((await dag.claim())[ITSELF], "compensating", reason="code"))
        await scene.flush(move((await dag.claim())[ITSELF], how))
    else:
        a = (await dag.claim())["a"]
        await scene.flush(step(a, undo="refund"), move(a, "compensating", reason="code"))
        await scene.flush(dag.end((await dag.claim())["a"], how))
        await end(dag)
    before = await scene.rows.dump()
    assert await scene.store.retry(dag.id) is None
    assert await scene.rows.dump() == before


async def test_a_step_by_itself_is_not_retried(scene: Scene, dag: Dag) -> None:
    await fail(dag, "a")
    await end(dag)
    before = await scene.rows.dump()
    assert await scene.store.retry((await dag.dag_step("a")).id) is None
    assert await scene.rows.dump() == before


async def test_without_its_graph_a_run_is_not_retried(scene: Scene) -> None:
    dag = await Dag(scene, graph_of(CHAIN)).start()
    await fail(dag, "a")
    await end(dag)
    with pytest.raises(InvalidState, match="not stored any more"):
        await scene.store.retry(dag.id)


# -- steps that undo what they did --------------------------------------------------------------------------


@pytest.mark.parametrize("cause", ["failed", "cancelled", "late"])
async def test_a_step_that_waits_undoes_what_it_did_before_its_run_is_finished(scene: Scene, cause: str) -> None:
    dag = await started(scene, graph_of({"bad": "", "asleep": "", "plain": ""}), deadline_ms=DAY)
    held = await dag.claim()
    await scene.flush(step(held["asleep"], undo="refund"), step(held["plain"]))
    await scene.flush(waiting(held["asleep"], DAY), waiting(held["plain"], DAY))
    if cause == "failed":
        lanes = (await scene.flush(dag.end(held["bad"], "failed"))).lanes
    elif cause == "cancelled":
        await scene.flush(dag.end(held["bad"]))
        lanes = (await scene.store.cancel(dag.id)).lanes
    else:
        await scene.flush(dag.end(held["bad"]))
        await scene.rows.make_due(dag.id)
        lanes = (await scene.store.promote(100)).lanes
    assert lanes == {lane("asleep")}
    states = await dag.states()
    assert (states["asleep"], states["plain"]) == ("compensating", "cancelled")
    assert await dag.get("pending") == 1
    again = await dag.claim()
    assert set(again) == {"asleep"}
    assert (again["asleep"].undoing, again["asleep"].reason) == (True, "cancelled")
    assert (await scene.flush(dag.end(again["asleep"], "compensated"))).lanes == {lane()}
    assert (await dag.claim())[ITSELF].failing is True


async def test_a_paused_step_undoes_what_it_did_when_its_run_is_cancelled(scene: Scene) -> None:
    dag = await started(scene, graph_of({"a": ""}))
    a = (await dag.claim())["a"]
    await scene.flush(step(a, undo="refund"), move(a, "queued", next_attempt=True, delay_ms=DAY))
    await scene.store.pause(dag.id)
    asked = await scene.store.cancel(dag.id)
    assert (asked.lane, asked.lanes) == (None, {lane("a")})
    assert (await dag.claim())["a"].undoing is True


async def test_the_children_of_a_step_that_undoes_what_it_did_are_cancelled(scene: Scene) -> None:
    dag = await started(scene, graph_of({"a": ""}))
    a = (await dag.claim())["a"]
    child = child_of(a)
    await scene.flush(joint(a, 0, starts=[child]), step(a, 1, undo="refund"))
    await scene.flush(waiting(a, None, waiting_for="child", awaits=1))
    await scene.store.cancel(dag.id)
    await scene.deliver()
    assert (await scene.info(child.id)).status == "cancelled"
