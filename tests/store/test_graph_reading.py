"""Dag runs as they are asked, signalled and read; and any graph in any order."""

from __future__ import annotations

import random

import pytest

from stepfast.model.graph import DagStep, Graph
from stepfast.model.ids import new_id
from stepfast.model.records import Claimed
from stepfast.model.rows import Definition
from stepfast.store import Store
from tests.store.graph_scene import CHAIN, DIAMOND, ITSELF, Dag, graph_of, lane, rows_of
from tests.store.scene import MINUTE, Scene, completed, joint, signal, waiting
from tests.store.test_within import EACH_CALLER, Caller, caller

__all__ = ["caller"]  # a fixture


async def started(scene: Scene, steps: dict[str, str], **options: object) -> Dag:
    return await Dag(scene, graph_of(steps)).start(**options)


# -- other wishes -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("wish", ["cancel", "pause", "resume"])
@pytest.mark.parametrize("name", ["a", "b"])
async def test_a_step_by_itself_is_not_for_operators(scene: Scene, wish: str, name: str) -> None:
    dag = await started(scene, CHAIN)
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
