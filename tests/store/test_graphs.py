"""Dag runs: starts, releases, joins, skips, caught errors; signals to steps, and what is read of them."""

from __future__ import annotations

import random

import pytest

from stepfast.model.graph import DagStep, Graph
from stepfast.model.ids import new_id
from stepfast.model.records import Claimed, Parent
from stepfast.model.rows import Definition
from stepfast.store import Store
from tests.store.graph_scene import CHAIN, DIAMOND, ITSELF, Dag, graph_of, lane, rows_of
from tests.store.scene import DAY, MINUTE, Scene, completed, joint, move, new_run, signal, waiting
from tests.store.test_within import EACH_CALLER, Caller, caller

__all__ = ["caller"]  # a fixture


async def started(scene: Scene, steps: dict[str, str], **options: object) -> Dag:
    return await Dag(scene, graph_of(steps)).start(**options)


async def with_nodes(scene: Scene, *dag_steps: DagStep) -> Dag:
    return await Dag(scene, Graph(dag_steps)).start()


# -- starting -----------------------------------------------------------------------------------------------


async def test_a_dag_run_is_running_and_stands_in_no_line(scene: Scene) -> None:
    """It looks at its deadline."""
    dag = await started(scene, DIAMOND, deadline_ms=DAY)
    row = await dag.run()
    assert (row.status, row.worker, row.ready, row.visible_at) == ("running", None, False, row.deadline_at)
    assert row.deadline_at is not None
    assert await dag.get("pending") == 4
    assert lane() not in await scene.lanes(dag.workflows)


async def test_steps_that_wait_for_nothing_are_ready_and_the_others_blocked(scene: Scene) -> None:
    dag = await started(scene, DIAMOND | {"aside": ""})
    assert await dag.states() == {"a": "queued", "b": "blocked", "c": "blocked", "d": "blocked", "aside": "queued"}
    dag_steps = await dag.dag_steps()
    assert dag_steps["a"].ready_at is not None
    assert dag_steps["d"].ready_at is None
    assert dag_steps["d"].visible_at is None
    assert set(await dag.claim()) == {"a", "aside"}


async def test_steps_are_listed_in_the_order_they_were_started_in(scene: Scene) -> None:
    names = [str(n) for n in range(200)]
    random.Random(7).shuffle(names)
    dag = await started(scene, dict.fromkeys(names, ""))
    await dag.claim(limit=50)
    assert list(await dag.dag_steps()) == names


async def test_a_claim_says_which_step_it_brings(dag: Dag, run: Claimed) -> None:
    step = (await dag.claim())["a"]
    assert (step.workflow, step.dag_id, step.dag_step, step.graph) == ("dag/a", dag.id, "a", dag.graph.version)
    assert step.ready_at == (await dag.dag_step("a")).ready_at
    assert (step.failing, step.reason) == (False, None)
    assert (run.dag_id, run.dag_step, run.graph, run.ready_at, run.failing) == (None, None, None, None, False)


async def test_lists_show_the_dag_run_and_leave_its_steps_out(scene: Scene) -> None:
    """A step can be read by its id; no sweep releases one that is blocked."""
    dag = await started(scene, CHAIN, tags=("red",))
    assert (await scene.store.promote(100)).moved == 0
    assert [run.id for run in await scene.store.runs()] == [dag.id]
    assert [run.id for run in await scene.store.runs(tag="red")] == [dag.id]
    assert await scene.store.runs(status="waiting") == []
    row = await scene.info((await dag.dag_step("b")).id)
    assert (row.workflow, row.status, row.waiting_for) == ("dag/b", "waiting", "steps")


async def test_a_repeated_start_changes_nothing(scene: Scene) -> None:
    rows = rows_of(graph_of(DIAMOND))
    ids = await scene.store.start(rows)
    before = await scene.rows.dump()
    assert await scene.store.start(rows) == ids
    assert await scene.rows.dump() == before


async def test_a_start_whose_key_is_taken_has_no_steps(scene: Scene) -> None:
    first = await started(scene, CHAIN, key="order-1")
    before = await scene.rows.dump()
    second = await started(scene, DIAMOND, key="order-1")
    assert second.id == first.id
    assert await scene.rows.dump() == before


async def test_of_two_starts_with_one_key_in_one_call_one_happens(scene: Scene) -> None:
    rows = [rows_of(graph_of(CHAIN), key="order-1") for _ in range(2)]
    ids = await scene.store.start([*rows[0], *rows[1]])
    assert ids[0] == ids[4]
    counts = await scene.rows.fetch("SELECT count(*), count(DISTINCT dag_id) FROM [runs]")
    assert counts == [(4, 1)]


async def test_a_start_that_is_delayed_delays_the_first_steps(scene: Scene) -> None:
    dag = await started(scene, CHAIN, delay_ms=DAY)
    assert await dag.claim() == {}
    assert await dag.states() == {"a": "queued", "b": "blocked", "c": "blocked"}
    await scene.rows.make_due((await dag.dag_step("a")).id)
    assert (await scene.store.promote(100)).lanes == {lane("a")}
    assert set(await dag.claim()) == {"a"}


async def test_many_dag_runs_start_in_one_call(scene: Scene) -> None:
    graph = graph_of(DIAMOND)
    starts = [rows_of(graph) for _ in range(500)]
    ids = await scene.store.start([row for start in starts for row in start])
    assert ids == [row.id for start in starts for row in start]
    assert await scene.rows.fetch("SELECT status, count(*) FROM [runs] GROUP BY status ORDER BY status") == [
        ("queued", 500),
        ("running", 500),
        ("waiting", 1500),
    ]
    assert [dag_step.name for dag_step in await scene.store.dag_steps(starts[250][0].id)] == ["a", "b", "c", "d"]


async def test_a_dag_run_and_ordinary_runs_start_in_one_call(scene: Scene) -> None:
    one, dag, other = new_run(key="one"), rows_of(graph_of(CHAIN)), new_run("mail")
    ids = await scene.store.start([one, *dag, other])
    assert ids == [one.id, *(row.id for row in dag), other.id]
    assert {run.id for run in await scene.claim()} == {one.id, other.id}


async def test_a_dag_run_can_be_started_as_a_child(scene: Scene) -> None:
    parent = await scene.running()
    rows = rows_of(graph_of({"a": ""}), parent=Parent(parent.id, "", 0, new_id()))
    await scene.flush(joint(parent, 0, starts=rows))
    dag = Dag(scene, graph_of({"a": ""}))
    dag.ids = [rows[0].id]
    await dag.finish("a")
    itself = (await dag.claim())[ITSELF]
    assert itself.parent_id == parent.id
    await scene.flush(move(itself, "completed", output='{"a":1}', child=True))
    assert (await scene.deliver()).moved == 1
    assert [mail.value for mail in (await scene.mailbox(parent.id)).mail] == ['{"a":1}']


@EACH_CALLER
async def test_a_dag_run_starts_with_the_caller_s_commit(scene: Scene, caller: Caller) -> None:
    dag = Dag(scene, graph_of(CHAIN))
    rows = rows_of(dag.graph)
    dag.ids = (await scene.store.start_within(caller.connection, rows))[:1]
    assert await scene.store.run(dag.id) is None
    await caller.commit()
    assert await dag.states() == {"a": "queued", "b": "blocked", "c": "blocked"}


# -- releasing ----------------------------------------------------------------------------------------------


async def test_a_chain_is_released_link_by_link(scene: Scene, dag: Dag) -> None:
    for name, rest in (("a", ["b"]), ("b", ["c"]), ("c", [])):
        held = await dag.claim()
        assert set(held) == {name}
        answer = await scene.flush(dag.end(held[name]))
        assert answer.lanes == {lane(after) for after in rest} or not rest
    assert set(await dag.states()) == {"a", "b", "c"}
    assert set((await dag.states()).values()) == {"completed"}


async def test_a_released_step_is_like_any_queued_run(scene: Scene, dag: Dag) -> None:
    await dag.finish("a")
    dag_step, row = await dag.dag_step("b"), await scene.info((await dag.dag_step("b")).id)
    assert (row.status, row.waiting_for, row.ready, row.visible_at) == ("queued", None, True, None)
    done_at = (await dag.dag_step("a")).completed_at
    assert dag_step.ready_at is not None and done_at is not None
    assert dag_step.ready_at >= done_at


async def test_what_completes_after_a_step_was_released_is_seen_to_be_later(scene: Scene) -> None:
    dag = await with_nodes(scene, DagStep("a"), DagStep("b"), DagStep("join", ("a", "b"), 1))
    held = await dag.claim()
    await scene.flush(dag.end(held["a"]))
    await scene.flush(dag.end(held["b"]))
    dag_steps = await dag.dag_steps()
    a, b, released = dag_steps["a"].completed_at, dag_steps["b"].completed_at, dag_steps["join"].ready_at
    assert a is not None and b is not None and released is not None
    assert a <= released < b


async def test_ends_count_in_their_order_though_the_clock_goes_back(scene: Scene) -> None:
    dag = await started(scene, {"a": "", "b": "", "join": "a b"})
    held = await dag.claim()
    await scene.flush(dag.end(held["a"]))
    await scene.rows.shift(dag.id, "ready_at", DAY)
    await scene.rows.shift(held["a"].id, "completed_at", DAY)
    await scene.flush(dag.end(held["b"]))
    dag_steps = await dag.dag_steps()
    a, b, released = dag_steps["a"].completed_at, dag_steps["b"].completed_at, dag_steps["join"].ready_at
    assert a is not None and b is not None and released is not None
    assert a < b <= released


@pytest.mark.parametrize("together", [True, False])
async def test_a_diamond_joins_when_both_sides_are_done(scene: Scene, together: bool) -> None:
    """In one flush, too, two ends count twice."""
    dag = await started(scene, DIAMOND)
    await dag.finish("a")
    held = await dag.claim()
    assert set(held) == {"b", "c"}
    ends = [dag.end(held["c"]), dag.end(held["b"])]
    if not together:
        assert (await scene.flush(ends.pop(0))).lanes == set()
        assert (await dag.states())["d"] == "blocked"
    assert (await scene.flush(*ends)).lanes == {lane("d")}
    assert (await dag.states())["d"] == "queued"
    assert await dag.get("pending") == 1


@pytest.mark.parametrize("together", [1, 7, 500])
async def test_a_wide_join_is_released_by_the_last_of_its_dependencies(scene: Scene, together: int) -> None:
    wide = [f"w{n}" for n in range(50 if together == 1 else 500)]
    dag = await started(scene, {"first": "", **dict.fromkeys(wide, "first"), "join": " ".join(wide)})
    await dag.finish("first")
    steps = list((await dag.claim()).values())
    assert len(steps) == len(wide)
    random.Random(together).shuffle(steps)
    for begin in range(0, len(steps), together):
        assert (await dag.states())["join"] == "blocked"
        await scene.flush(*(dag.end(step) for step in steps[begin : begin + together]))
    assert set(await dag.claim()) == {"join"}
    assert await dag.get("pending") == 1


async def test_one_flush_settles_steps_of_many_runs(scene: Scene) -> None:
    dag = Dag(scene, graph_of(DIAMOND))
    starts = [rows_of(dag.graph) for _ in range(100)]
    dag.ids = [start[0].id for start in starts]
    await scene.store.start([row for start in starts for row in start])
    for count in (100, 200, 100):
        steps = await dag.claim_all()
        assert len(steps) == count
        await scene.flush(*(dag.end(step) for step in steps))
    assert {run.id for run in await dag.claim_all()} == set(dag.ids)


async def test_steps_of_other_runs_are_left_alone(scene: Scene) -> None:
    dag = await (await started(scene, CHAIN)).start()
    mine = next(run for run in await dag.claim_all() if run.dag_id == dag.ids[0])
    await scene.flush(dag.end(mine))
    assert (await dag.states(dag.ids[0]))["b"] == "queued"
    assert (await dag.states(dag.ids[1]))["b"] == "blocked"


async def test_steps_are_released_in_the_order_of_their_declaration(scene: Scene) -> None:
    names = [f"s{n}" for n in range(20)]
    dag_steps = [DagStep("first"), *(DagStep(name, ("first",)) for name in names)]
    dag = await with_nodes(scene, *dag_steps)
    await dag.finish("first")
    places = [await scene.rows.get((await dag.dag_step(name)).id, "place") for name in names]
    assert places == sorted(places)


# -- joins of a few -----------------------------------------------------------------------------------------


def a_few(at_least: int) -> list[DagStep]:
    return [DagStep("a"), DagStep("b"), DagStep("c"), DagStep("join", ("a", "b", "c"), at_least)]


async def test_a_join_of_any_begins_with_the_first_and_only_once(scene: Scene) -> None:
    dag = await with_nodes(scene, *a_few(1))
    held = await dag.claim()
    assert (await scene.flush(dag.end(held["b"]))).lanes == {lane("join")}
    join = (await dag.claim())["join"]
    await scene.flush(dag.end(held["a"]))
    assert (await dag.dag_step("join")).status == "running"
    await scene.flush(dag.end(join))
    assert (await scene.flush(dag.end(held["c"]))).lanes == {lane()}
    assert (await dag.dag_step("join")).status == "completed"


async def test_a_join_of_two_begins_with_the_second(scene: Scene) -> None:
    dag = await with_nodes(scene, *a_few(2))
    held = await dag.claim()
    await scene.flush(dag.end(held["a"]))
    assert (await dag.states())["join"] == "blocked"
    await scene.flush(dag.end(held["b"], "skipped"))
    assert (await dag.states())["join"] == "blocked"
    await scene.flush(dag.end(held["c"]))
    assert (await dag.states())["join"] == "queued"


async def test_a_join_that_cannot_have_enough_is_skipped_at_once(scene: Scene) -> None:
    dag = await with_nodes(scene, *a_few(2), DagStep("after", ("join",)))
    held = await dag.claim()
    await scene.flush(dag.end(held["a"], "skipped"), dag.end(held["b"], "skipped"))
    assert (await dag.states())["join"] == "skipped"
    assert (await dag.states())["after"] == "skipped"
    await scene.flush(dag.end(held["c"]))
    assert set(await dag.claim()) == {ITSELF}


# -- skipping -----------------------------------------------------------------------------------------------


async def test_what_hangs_on_a_skipped_step_alone_is_skipped_too(scene: Scene) -> None:
    names = [f"s{n}" for n in range(60)]
    chain = {name: before for before, name in zip(["first", *names], names, strict=False)}
    dag = await started(scene, {"first": "", **chain})
    step = (await dag.claim())["first"]
    assert (await scene.flush(dag.end(step, "skipped"))).lanes == {lane()}
    assert set((await dag.states()).values()) == {"skipped"}
    assert all(dag_step.completed_at is not None for dag_step in (await dag.dag_steps()).values())


@pytest.mark.parametrize("together", [True, False])
async def test_a_skip_and_an_end_meet_in_the_join(scene: Scene, together: bool) -> None:
    """One completed dependency is enough."""
    dag = await started(scene, {"a": "", "b": "", "c": "b", "d": "c", "join": "a d"})
    held = await dag.claim()
    ends = [dag.end(held["b"], "skipped"), dag.end(held["a"])]
    if not together:
        await scene.flush(ends.pop(0))
        assert (await dag.states())["join"] == "blocked"
    assert (await scene.flush(*ends)).lanes == {lane("join")}
    assert await dag.states() == {"a": "completed", "b": "skipped", "c": "skipped", "d": "skipped", "join": "queued"}
    assert await dag.get("pending") == 1


async def test_a_skipped_step_cannot_be_claimed_or_woken(scene: Scene) -> None:
    dag = await started(scene, CHAIN | {"other": ""})
    held = await dag.claim()
    await scene.flush(dag.end(held["a"], "skipped"))
    assert (await scene.store.send(signal(dag.id, "b"))).done is False
    assert await dag.claim() == {}
    assert [outcome.status for outcome in await scene.store.outcomes([(await dag.dag_step("b")).id])] == ["skipped"]


# -- caught errors ------------------------------------------------------------------------------------------


CATCHING = (
    DagStep("pay", catch={"Declined": "tell"}),
    DagStep("tell"),
    DagStep("ship", ("pay",)),
    DagStep("end", ("tell", "ship")),
)


async def test_a_caught_error_leads_to_its_step_and_fails_nothing(scene: Scene) -> None:
    dag = await with_nodes(scene, *CATCHING)
    held = await dag.claim()
    assert set(held) == {"pay"}
    assert (await scene.flush(dag.end(held["pay"], "caught:tell"))).lanes == {lane("tell")}
    assert await dag.states() == {"pay": "failed", "tell": "queued", "ship": "skipped", "end": "blocked"}
    await dag.finish("tell")
    await dag.finish("end")
    itself = (await dag.claim())[ITSELF]
    assert itself.failing is False


async def test_without_the_error_its_step_is_skipped(scene: Scene) -> None:
    dag = await with_nodes(scene, *CATCHING)
    await dag.finish("pay")
    assert await dag.states() == {"pay": "completed", "tell": "skipped", "ship": "queued", "end": "blocked"}
    await dag.finish("ship")
    assert (await dag.states())["end"] == "queued"


# -- the end ------------------------------------------------------------------------------------------------


async def test_the_last_settled_step_puts_the_dag_run_in_line(scene: Scene) -> None:
    dag = await started(scene, {"a": "", "b": ""}, deadline_ms=DAY)
    held = await dag.claim()
    assert (await scene.flush(dag.end(held["a"]))).lanes == set()
    assert (await scene.flush(dag.end(held["b"]))).lanes == {lane()}
    row = await dag.run()
    assert (row.status, row.ready, row.worker) == ("running", True, None)
    assert row.visible_at == row.deadline_at
    assert await dag.get("pending") == 0


@pytest.mark.parametrize("dies", [False, True])
async def test_a_dag_run_is_claimed_and_finished_like_any_run(scene: Scene, dies: bool) -> None:
    """If its finisher dies, by another."""
    dag = await started(scene, {"a": ""})
    await dag.finish("a")
    if dies:
        victim = await scene.add_worker()
        assert set(await dag.claim(worker=victim)) == {ITSELF}
        await scene.bury(victim)
    itself = (await dag.claim())[ITSELF]
    assert (itself.id, itself.dag_id, itself.dag_step, itself.graph) == (dag.id, None, None, dag.graph.version)
    assert itself.input == '{"order":1}'
    await scene.flush(completed(itself, '{"a":1}'))
    assert [(o.status, o.output) for o in await scene.store.outcomes([dag.id])] == [("completed", '{"a":1}')]
    assert await dag.claim() == {}


async def test_a_step_that_waits_or_is_tried_again_settles_nothing(scene: Scene, dag: Dag) -> None:
    step = (await dag.claim())["a"]
    await scene.flush(waiting(step, 0))
    await scene.store.promote(100)
    step = (await dag.claim())["a"]
    await scene.flush(move(step, "queued", next_attempt=True, delay_ms=0))
    assert await dag.states() == {"a": "queued", "b": "blocked", "c": "blocked"}
    assert await dag.get("pending") == 3


# -- repetition ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("outcome", ["completed", "skipped", "failed"])
async def test_a_flush_repeated_after_a_lost_reply_counts_nothing_twice(scene: Scene, outcome: str) -> None:
    dag = await started(scene, {"a": "", "b": "", "join": "a b", "after": "join"})
    held = await dag.claim()
    await scene.flush(dag.end(held["a"], outcome))
    before = await scene.rows.dump()
    answer = await scene.flush(dag.end(held["a"], outcome))
    assert answer.lost == {held["a"].id}
    assert answer.lanes == set()
    assert await scene.rows.dump() == before


async def test_a_repeated_end_beside_a_new_one_counts_once(scene: Scene) -> None:
    dag = await started(scene, {"a": "", "b": "", "c": "", "join": "a b c"})
    held = await dag.claim()
    await scene.flush(dag.end(held["a"]))
    await scene.flush(dag.end(held["a"]), dag.end(held["b"]))
    assert (await dag.states())["join"] == "blocked"
    assert await dag.get("pending") == 2
    await scene.flush(dag.end(held["c"]))
    assert (await dag.states())["join"] == "queued"


async def test_an_end_under_an_old_claim_releases_nothing(scene: Scene, dag: Dag) -> None:
    old = (await dag.claim())["a"]
    await scene.store.give_back(scene.worker, [(old.id, old.claim)])
    new = (await dag.claim())["a"]
    assert (await scene.flush(dag.end(old))).lost == {old.id}
    assert (await dag.states())["b"] == "blocked"
    await scene.flush(dag.end(new))
    assert (await dag.states())["b"] == "queued"


async def test_the_dag_run_is_put_in_line_once(scene: Scene) -> None:
    dag = await started(scene, {"a": ""})
    step = (await dag.claim())["a"]
    await scene.flush(dag.end(step))
    itself = (await dag.claim())[ITSELF]
    assert (await scene.flush(dag.end(step))).lanes == set()
    row = await dag.run()
    assert (row.status, row.claim, row.ready) == ("running", itself.claim, False)


# -- other wishes -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("wish", ["cancel", "pause", "resume"])
@pytest.mark.parametrize("name", ["a", "b"])
async def test_a_step_by_itself_is_not_for_operators(scene: Scene, dag: Dag, wish: str, name: str) -> None:
    before = await scene.rows.dump()
    asked = await getattr(scene.store, wish)((await dag.dag_step(name)).id)
    assert (asked.done, asked.lane) == (False, None)
    assert await scene.rows.dump() == before


# -- signals ------------------------------------------------------------------------------------------------


GATE = {"a": "", "gate": "a"}


async def at_the_gate(scene: Scene) -> tuple[Dag, Claimed]:
    """A run whose step ``gate`` waits for a signal."""
    dag = await started(scene, GATE)
    await dag.finish("a")
    step = (await dag.claim())["gate"]
    await scene.flush(waiting(step, None, waiting_for="signal"))
    return dag, step


async def test_a_signal_wakes_the_step_of_its_name(scene: Scene) -> None:
    dag, step = await at_the_gate(scene)
    asked = await scene.store.send(signal(dag.id, "gate"))
    assert (asked.done, asked.lane) == (True, lane("gate"))
    assert [mail.name for mail in (await scene.mailbox(step.id)).mail] == ["gate"]
    again = (await dag.claim())["gate"]
    assert again.wakes == step.wakes + 1


async def test_a_signal_reaches_a_step_that_is_held(scene: Scene) -> None:
    dag = await started(scene, GATE)
    await dag.finish("a")
    step = (await dag.claim())["gate"]
    asked = await scene.store.send(signal(dag.id, "gate"))
    assert (asked.done, asked.lane, asked.running) == (True, None, True)
    await scene.flush(waiting(step, None, waiting_for="signal"))
    assert set(await dag.claim()) == {"gate"}


async def test_a_signal_waits_for_a_step_that_is_blocked(scene: Scene) -> None:
    dag = await started(scene, GATE)
    asked = await scene.store.send(signal(dag.id, "gate"))
    assert (asked.done, asked.lane) == (True, None)
    assert (await dag.states())["gate"] == "blocked"
    await dag.finish("a")
    step = (await dag.claim())["gate"]
    assert step.wakes == 1
    assert len((await scene.mailbox(step.id)).mail) == 1


@pytest.mark.parametrize("name", ["a", "nobody"])
async def test_a_signal_to_no_step_or_to_one_that_ended_is_refused(scene: Scene, name: str) -> None:
    dag, _ = await at_the_gate(scene)
    before = await scene.rows.dump()
    asked = await scene.store.send(signal(dag.id, name))
    assert (asked.status, asked.reason, asked.done) == ("running", "no_such_step", False)
    assert await scene.rows.dump() == before


async def test_a_signal_sent_twice_wakes_once(scene: Scene) -> None:
    dag, step = await at_the_gate(scene)
    mail = signal(dag.id, "gate")
    await scene.store.send(mail)
    assert (await scene.store.send(mail, again=True)).done is True
    assert len((await scene.mailbox(step.id)).mail) == 1
    assert await scene.rows.get(step.id, "wakes") == step.wakes + 1


async def test_a_signal_that_was_taken_is_not_sent_again(scene: Scene) -> None:
    dag, step = await at_the_gate(scene)
    mail = signal(dag.id, "gate")
    await scene.store.send(mail)
    step = (await dag.claim())["gate"]
    await scene.flush(joint(step, 0, kind="signal", takes=[mail.id]))
    assert (await scene.store.send(mail, again=True)).done is True
    assert (await scene.mailbox(step.id)).mail == []


async def test_a_signal_to_a_dag_run_that_ended_is_refused(scene: Scene) -> None:
    dag = await started(scene, {"a": ""})
    await dag.finish("a")
    await scene.flush(completed((await dag.claim())[ITSELF]))
    asked = await scene.store.send(signal(dag.id, "a"))
    assert (asked.status, asked.done) == ("completed", False)


@EACH_CALLER
async def test_a_signal_reaches_its_step_after_the_caller_s_commit(scene: Scene, caller: Caller) -> None:
    dag, step = await at_the_gate(scene)
    assert (await scene.store.send_within(caller.connection, signal(dag.id, "gate"))).done is True
    await caller.commit()
    assert (await scene.deliver()).lanes == {lane("gate")}
    assert (await dag.claim())["gate"].wakes == step.wakes + 1


@EACH_CALLER
async def test_a_signal_in_the_caller_s_transaction_waits_for_a_blocked_step(scene: Scene, caller: Caller) -> None:
    dag = await started(scene, GATE)
    await scene.store.send_within(caller.connection, signal(dag.id, "gate"))
    await caller.commit()
    assert (await scene.deliver()).lanes == set()
    assert (await dag.states())["gate"] == "blocked"
    await dag.finish("a")
    assert (await dag.claim())["gate"].wakes == 1


@EACH_CALLER
async def test_a_signal_to_no_step_is_refused_in_the_caller_s_transaction_too(scene: Scene, caller: Caller) -> None:
    dag = await started(scene, GATE)
    asked = await scene.store.send_within(caller.connection, signal(dag.id, "nobody"))
    assert (asked.status, asked.reason, asked.done) == ("running", "no_such_step", False)
    await caller.commit()
    assert await scene.rows.fetch("SELECT count(*) FROM [mailbox]") == [(0,)]


# -- reading ------------------------------------------------------------------------------------------------


async def test_nodes_tell_how_the_steps_ended(scene: Scene) -> None:
    dag = await started(scene, {"good": "", "bad": ""})
    held = await dag.claim()
    await scene.flush(dag.end(held["good"], output="[1]"), dag.end(held["bad"], "failed", error='{"type":"Broken"}'))
    dag_steps = await dag.dag_steps()
    good, bad = dag_steps["good"], dag_steps["bad"]
    assert (good.status, good.output, good.error, good.attempt, good.worker) == ("completed", "[1]", None, 1, None)
    assert (bad.status, bad.reason, bad.error) == ("failed", "code", '{"type":"Broken"}')
    assert good.started_at is not None and good.completed_at is not None and good.completed_at >= good.started_at


async def test_a_run_that_does_not_exist_has_no_steps(scene: Scene) -> None:
    assert await scene.store.dag_steps(new_id()) == []


async def test_outputs_are_those_of_completed_steps(scene: Scene) -> None:
    dag = await started(scene, {"a": "", "b": "", "c": "", "d": "a"})
    held = await dag.claim()
    await scene.flush(dag.end(held["a"], output="0"), dag.end(held["b"], "skipped"))
    found = (await scene.store.dag_outputs([(dag.id, 0)]))[dag.id]
    assert (found.input, found.format) == ('{"order":1}', 1)
    assert [(name, output, format_) for name, output, format_, _ in found.outputs] == [("a", "0", 1)]
    assert found.outputs[0][3] == (await dag.dag_step("a")).completed_at


async def test_outputs_can_be_read_from_a_time_on(scene: Scene) -> None:
    dag = await started(scene, {"old": "", "new": ""})
    await dag.finish("old", "new")
    await scene.rows.shift((await dag.dag_step("old")).id, "completed_at", -MINUTE)
    since = (await dag.dag_step("new")).completed_at
    assert since is not None
    found = (await scene.store.dag_outputs([(dag.id, since)]))[dag.id]
    assert [name for name, *_ in found.outputs] == ["new"]


async def test_outputs_of_many_runs_come_in_one_answer(scene: Scene) -> None:
    dag = await (await started(scene, {"a": ""})).start()
    for run in await dag.claim_all():
        await scene.flush(dag.end(run, output=f'"{run.dag_id}"'))
    found = await scene.store.dag_outputs([(dag_id, 0) for dag_id in dag.ids] + [(new_id(), 0)])
    assert {dag_id: [output for _, output, *_ in outputs.outputs] for dag_id, outputs in found.items()} == {
        dag_id: [f'"{dag_id}"'] for dag_id in dag.ids
    }


async def test_an_output_keeps_its_format(scene: Scene) -> None:
    dag = await started(scene, {"a": ""})
    await scene.flush(dag.end((await dag.claim())["a"], output="secret", format=2))
    assert (await dag.dag_step("a")).format == 2
    [(name, output, format_, _)] = (await scene.store.dag_outputs([(dag.id, 0)]))[dag.id].outputs
    assert (name, output, format_) == ("a", "secret", 2)


async def test_the_graph_of_each_version_is_kept(store: Store) -> None:
    old, new = graph_of(CHAIN), graph_of(DIAMOND)
    for graph in (old, new):
        await store.put_definitions([Definition("dag", graph.version, "dag", "graphs", "{}", None, graph.text)])
    assert await store.graph("dag", old.version, new_id()) == old.text
    assert await store.graph("dag", new.version, new_id()) == new.text
    assert await store.graph("dag", "other", new_id()) is None
    assert await store.graph("other", old.version, new_id()) is None


# -- anything goes ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("seed", range(4))
async def test_runs_of_random_graphs_settled_in_random_order_come_to_their_end(scene: Scene, seed: int) -> None:
    chance = random.Random(seed)
    dag = Dag(scene, random_graph(chance))
    starts = [rows_of(dag.graph) for _ in range(5)]
    dag.ids = [start[0].id for start in starts]
    await scene.store.start([row for start in starts for row in start])
    released: list[tuple[str | None, str]] = []
    held: list[Claimed] = []
    finished: set[str] = set()
    while len(finished) < len(dag.ids):
        for run in await dag.claim_all(limit=chance.randint(1, 10)):
            if run.dag_step is None:
                finished.add(run.id)
                await scene.flush(completed(run))
            else:
                released.append((run.dag_id, run.dag_step))
                held.append(run)
        chance.shuffle(held)
        ending = [held.pop() for _ in range(chance.randint(0, len(held)))]
        await scene.flush(*(dag.end(run, any_outcome(chance, dag.graph, run.dag_step or "")) for run in ending))
    assert len(released) == len(set(released))
    assert held == []
    for dag_id in dag.ids:
        states = await dag.states(dag_id)
        begun = {name for owner, name in released if owner == dag_id}
        assert all(states[name] == "skipped" for name in states if name not in begun)
        assert set(states.values()) <= {"completed", "skipped", "failed"}


def random_graph(chance: random.Random) -> Graph:
    dag_steps = []
    for n in range(12):
        after = tuple(str(before) for before in chance.sample(range(n), min(n, chance.randint(0, 3))))
        catch = {"Declined": str(chance.randint(n + 1, 12))} if chance.random() < 0.3 else {}
        few = chance.randint(1, len(after)) if after and chance.random() < 0.4 else None
        dag_steps.append(DagStep(str(n), after, few, catch=catch))
    return Graph([*dag_steps, DagStep("12", ("0",))]).check("random")


def any_outcome(chance: random.Random, graph: Graph, name: str) -> str:
    caught = [f"caught:{target}" for target in graph.dag_steps[name].catch.values()]
    return chance.choice(["completed", "completed", "skipped", *caught])
