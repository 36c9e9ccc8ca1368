"""Dag runs with many hands at once on Postgres: row locks, two workers, lost replies, failure against completion."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import asyncpg
import pytest

from stepfast.model.graph import DagStep, Graph
from stepfast.model.records import Claimed, Entry, FlushAnswer
from stepfast.store import Store
from tests.store.conftest import Stores
from tests.store.graph_scene import CHAIN, DIAMOND, ITSELF, Dag, graph_of, lane, rows_of
from tests.store.scene import MINUTE, Scene, signal, step, waiting


@pytest.fixture(params=["postgres", "postgres12"])
def store_url(request: pytest.FixtureRequest) -> str:
    """Only here: elsewhere one writes at a time."""
    return str(request.getfixturevalue(f"{request.param}_url"))


@pytest.fixture
async def other(scene: Scene, twin: Store, stores: Stores) -> Scene:
    """A second worker in a process of its own."""
    return await stores.scene(twin)


@asynccontextmanager
async def somebody(stores: Stores) -> AsyncIterator[Any]:
    connection = await asyncpg.connect(stores.url.text)
    try:
        yield connection
    finally:
        await connection.close()


@asynccontextmanager
async def locked(stores: Stores, *ids: str) -> AsyncIterator[Any]:
    async with somebody(stores) as connection, connection.transaction():
        await connection.execute("SELECT 1 FROM stepfast.runs WHERE id = ANY($1::uuid[]) FOR NO KEY UPDATE", list(ids))
        yield connection


async def blocked_by(stores: Stores, holder: Any) -> None:
    """Until somebody waits for a lock that this connection holds."""
    pid = holder.get_server_pid()
    async with somebody(stores) as connection, asyncio.timeout(30):
        query = "SELECT 1 FROM pg_stat_activity WHERE $1 = ANY(pg_blocking_pids(pid))"
        while not await connection.fetch(query, pid):
            await asyncio.sleep(0.005)


def fan(width: int) -> Graph:
    """One step, then many, then one."""
    middle = [f"m{n}" for n in range(width)]
    return graph_of({"a": "", **dict.fromkeys(middle, "a"), "z": " ".join(middle)})


async def through(scene: Scene, *entries: Entry) -> list[FlushAnswer]:
    """As the journal does it: what was busy rides in the next flush."""
    answers: list[FlushAnswer] = []
    async with asyncio.timeout(60):
        while entries:
            answer = await scene.flush(*entries)
            answers.append(answer)
            entries = tuple(entry for entry in entries if entry.run_id in answer.busy)
            if answer.busy:
                await asyncio.sleep(0.001)
    return answers


async def work(scene: Scene, graph: Graph, ids: list[str], done: Counter[str], ready: asyncio.Event) -> None:
    """A worker that completes what it finds until every dag run was ready."""
    dag = Dag(scene, graph)
    while not ready.is_set():
        held = await dag.claim_all(limit=7)
        done.update(f"{run.dag_id or run.id}/{run.dag_step or ITSELF}" for run in held)
        await through(scene, *(dag.end(run) for run in held if run.dag_step is not None))
        if sum(done[f"{dag_id}/{ITSELF}"] for dag_id in ids) == len(ids):
            ready.set()
        await asyncio.sleep(0)


# -- two workers --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("count", "graph"), [(1, fan(60)), (12, graph_of(DIAMOND)), (3, fan(12))])
async def test_two_workers_settle_every_step_once(scene: Scene, other: Scene, count: int, graph: Graph) -> None:
    """Nothing is released twice and nothing is lost; the join, and the run itself, are ready once."""
    dag = Dag(scene, graph)
    for _ in range(count):
        await dag.start()
    done: Counter[str] = Counter()
    ready = asyncio.Event()
    async with asyncio.timeout(120):
        await asyncio.gather(*(work(each, graph, dag.ids, done, ready) for each in (scene, other)))
    assert done == Counter(f"{dag_id}/{name}" for dag_id in dag.ids for name in (*graph.dag_steps, ITSELF))
    for dag_id in dag.ids:
        assert set((await dag.states(dag_id)).values()) == {"completed"}
        assert await scene.rows.get(dag_id, "pending") == 0


async def test_the_last_two_dependencies_of_a_join_end_at_once(scene: Scene, other: Scene) -> None:
    """In two processes: one of them releases the join, whoever is second."""
    dag = Dag(scene, graph_of(DIAMOND))
    for _ in range(20):
        dag.ids.clear()
        await dag.start()
        await dag.finish("a")
        mine = await dag.claim(limit=1)
        theirs = await Dag(other, dag.graph).claim(worker=other.worker)
        answers = await asyncio.gather(
            *(through(scene, dag.end(run)) for run in mine.values()),
            *(through(other, dag.end(run)) for run in theirs.values()),
        )
        assert sum(lane("d") in answer.lanes for some in answers for answer in some) == 1
        await dag.finish("d")
        assert await dag.get("pending") == 0
        assert list(await dag.claim()) == [ITSELF]


async def test_what_completes_after_a_release_has_a_later_time(scene: Scene, other: Scene) -> None:
    """However quick: the released step sees what was there when it was released, at every attempt."""
    dag = await Dag(scene, graph_of({"a": "", "b": "", "c": "a", "d": "b"})).start()
    held = await dag.claim()
    await scene.flush(dag.end(held["a"]))
    await other.flush(dag.end(held["b"]), worker=scene.worker)
    dag_steps = await dag.dag_steps()
    released, completed = dag_steps["c"].ready_at, dag_steps["b"].completed_at
    assert released is not None and completed is not None and released < completed
    assert dag_steps["a"].completed_at == released


async def test_a_clock_that_goes_back_does_not_mix_up_what_completed_when(scene: Scene, dag: Dag) -> None:
    await dag.finish("a")
    await scene.rows.shift(dag.id, "ready_at", MINUTE)
    last = await dag.get("ready_at")
    await dag.finish("b")
    dag_steps = await dag.dag_steps()
    assert dag_steps["b"].completed_at == dag_steps["c"].ready_at == last + 1


# -- locks --------------------------------------------------------------------------------------------------------


async def test_a_locked_dag_run_makes_the_flush_busy_and_not_stuck(scene: Scene, stores: Stores) -> None:
    """Nothing of the step is written; what belongs to others is."""
    graph = graph_of(DIAMOND)
    dag, free = await Dag(scene, graph).start(), await Dag(scene, graph).start()
    held = {run.dag_id: run for run in await dag.claim_all()}
    record = step(held[dag.id], 0)
    async with asyncio.timeout(20), locked(stores, dag.id):
        answer = await scene.flush(record, dag.end(held[dag.id]), free.end(held[free.id]))
        assert (answer.busy, answer.lost) == ({held[dag.id].id}, set())
        assert await scene.store.steps(held[dag.id].id) == []
        assert (await dag.states())["a"] == "running"
        assert (await free.states())["b"] == "queued"
    answer = await scene.flush(record, dag.end(held[dag.id]))
    assert answer.busy == set() and answer.lanes == {lane("b"), lane("c")}


async def test_a_locked_dag_run_does_not_hide_that_a_step_was_lost(scene: Scene, dag: Dag, stores: Stores) -> None:
    run = (await dag.claim())["a"]
    await scene.store.give_back(scene.worker, [(run.id, run.claim)])
    async with locked(stores, dag.id):
        answer = await scene.flush(dag.end(run))
    assert (answer.busy, answer.lost) == (set(), {run.id})


async def test_records_of_a_step_need_no_lock_of_its_dag_run(scene: Scene, dag: Dag, stores: Stores) -> None:
    """Only ends meet there: a checkpoint, or going to sleep, does not."""
    run = (await dag.claim())["a"]
    async with locked(stores, dag.id):
        answer = await scene.flush(step(run, 0), waiting(run))
    assert (answer.busy, answer.lost) == (set(), set())
    assert (await dag.dag_step("a")).status == "waiting"


async def test_a_blocked_step_that_is_locked_for_a_moment_is_waited_for(scene: Scene, dag: Dag, stores: Stores) -> None:
    """By a sender, who holds it without its dag run and waits for nothing."""
    held = await dag.claim()
    async with locked(stores, (await dag.dag_step("b")).id) as holder:
        flush = asyncio.create_task(scene.flush(dag.end(held["a"])))
        await blocked_by(stores, holder)
    assert (await flush).lanes == {lane("b")}


# -- repetition ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("outcome", ["completed", "failed", "skipped", "caught:z"])
async def test_a_flush_repeated_after_a_lost_reply_subtracts_once(scene: Scene, other: Scene, outcome: str) -> None:
    """By another connection, as after a broken one."""
    graph = graph_of({"a": "", "b": "a", "c": "b"}, z=DagStep("z", ("b",)))
    if outcome == "caught:z":
        graph = Graph(
            [DagStep("a", catch={"ValueError": "z"}), DagStep("b", ("a",)), DagStep("z"), DagStep("c", ("b",))]
        )
    dag = await Dag(scene, graph).start()
    held = await dag.claim()
    end = dag.end(held["a"], outcome)
    assert (await scene.flush(end)).lost == set()
    before = await scene.rows.dump()
    answer = await other.flush(end, worker=scene.worker)
    assert (answer.lost, answer.lanes) == ({held["a"].id}, set())
    assert await scene.rows.dump() == before


async def test_a_flush_repeated_while_the_first_is_under_way_subtracts_once(scene: Scene, other: Scene) -> None:
    """The connection was lost, the first transaction still commits."""
    graph = fan(20)
    dag = await Dag(scene, graph).start()
    await dag.finish("a")
    held = await dag.claim()
    ends = [dag.end(run) for run in held.values()]

    async def again(each: Scene) -> list[FlushAnswer]:
        entries, answers = list(ends), list[FlushAnswer]()
        while entries:
            answer = await each.flush(*entries, worker=scene.worker)
            answers.append(answer)
            entries = [entry for entry in entries if entry.run_id in answer.busy]
        return answers

    async with asyncio.timeout(60):
        answers = [answer for some in await asyncio.gather(again(scene), again(other)) for answer in some]
    assert sum(lane("z") in answer.lanes for answer in answers) == 1
    assert (await dag.get("pending"), (await dag.states())["z"]) == (1, "queued")


# -- failure against completion -----------------------------------------------------------------------------------


async def test_no_step_is_released_after_its_run_began_to_fail(scene: Scene, other: Scene) -> None:
    """Rule 42: a completion and a failure in two transactions. Whoever is second knows of the first: what the
    completion has released is ended by the failure, and after the failure nothing is released."""
    graph = graph_of({"a": "", "b": "", "c": "a", "d": "c"})
    for _ in range(25):
        dag = await Dag(scene, graph).start()
        held = await dag.claim()
        await asyncio.gather(
            through(scene, dag.end(held["a"])),
            _through_as(other, scene.worker, dag.end(held["b"], "failed")),
        )
        assert await dag.states() == {"a": "completed", "b": "failed", "c": "skipped", "d": "skipped"}
        [run] = (await dag.claim()).values()
        assert (run.id, run.failing, await dag.get("pending")) == (dag.id, True, 0)


async def _through_as(scene: Scene, worker: str, *entries: Entry) -> None:
    async with asyncio.timeout(60):
        while entries:
            answer = await scene.flush(*entries, worker=worker)
            entries = tuple(entry for entry in entries if entry.run_id in answer.busy)


async def test_a_claim_and_a_failure_leave_no_step_behind(scene: Scene, other: Scene) -> None:
    """A step is either claimed, and asked to end, or never starts."""
    graph = graph_of({"x": "", **{f"r{n}": "" for n in range(6)}})
    for _ in range(15):
        dag = await Dag(scene, graph).start()
        [(_, failing)] = (await dag.claim(limit=1)).items()
        _, claimed = await asyncio.gather(
            through(scene, dag.end(failing, "failed")), Dag(other, graph).claim_all(worker=other.worker, limit=3)
        )
        mine = [run for run in claimed if run.dag_step is not None]
        for run in mine:
            assert (await scene.info(run.id)).asked == "cancel"
        states = Counter((await dag.states()).values())
        assert states == Counter(failed=1, running=len(mine), skipped=6 - len(mine)) - Counter()
        await through(other, *(dag.end(run, "cancelled") for run in mine))
        assert await dag.get("pending") == 0
        rest = [run for run in claimed if run.dag_step is None] or await dag.claim_all()
        assert [run.id for run in rest] == [dag.id]


async def test_a_step_that_goes_to_sleep_while_its_run_fails_is_ended(scene: Scene, other: Scene) -> None:
    """Whichever is first: it is cancelled in its sleep, or is ready again to be ended."""
    graph = graph_of({"a": "", "b": "", "c": "a b"})
    for _ in range(25):
        dag = await Dag(scene, graph).start()
        held = await dag.claim()
        await asyncio.gather(
            through(scene, dag.end(held["a"], "failed")),
            _through_as(other, scene.worker, waiting(held["b"], None, waiting_for="signal")),
        )
        for run in (await dag.claim()).values():
            if run.dag_step is not None:
                assert (run.dag_step, run.asked) == ("b", "cancel")
                await scene.flush(dag.end(run, "cancelled"))
        assert await dag.states() == {"a": "failed", "b": "cancelled", "c": "skipped"}
        assert await dag.get("pending") == 0
        assert not [run for run in await dag.claim_all() if run.dag_step is not None]


async def test_a_completion_that_comes_while_its_run_fails_is_busy_until_then(
    scene: Scene, other: Scene, stores: Stores
) -> None:
    """Rule 42, step by step: the failure has the row of the run, and is not through yet."""
    dag = await Dag(scene, graph_of({"a": "", "b": "", "c": "", "d": "c"})).start()
    held = await dag.claim()
    async with locked(stores, held["b"].id) as holder:
        flush = asyncio.create_task(scene.flush(dag.end(held["a"], "failed")))
        await blocked_by(stores, holder)
        answer = await other.flush(dag.end(held["c"]), worker=scene.worker)
        assert (answer.busy, answer.lanes) == ({held["c"].id}, set())
    await flush
    answer = await other.flush(dag.end(held["c"]), worker=scene.worker)
    assert (answer.busy, answer.lost, answer.lanes) == (set(), set(), set())
    assert await dag.states() == {"a": "failed", "b": "running", "c": "completed", "d": "skipped"}
    assert await dag.get("pending") == 1


async def test_a_failure_waits_for_a_step_that_somebody_holds_for_a_moment(scene: Scene, stores: Stores) -> None:
    dag = await Dag(scene, graph_of({"a": "", "b": ""})).start()
    held = await dag.claim()
    async with locked(stores, held["b"].id) as holder:
        flush = asyncio.create_task(scene.flush(dag.end(held["a"], "failed")))
        await blocked_by(stores, holder)
    answer = await flush
    assert (answer.busy, answer.asked) == (set(), {held["b"].id: "cancel"})


async def test_what_goes_along_with_a_failure_is_not_kept_waiting_by_its_steps(scene: Scene, stores: Stores) -> None:
    """Other entries of the flush are committed before anything is waited for."""
    dag = await Dag(scene, graph_of({"a": "", "b": ""})).start()
    held = await dag.claim()
    run = await scene.running()
    async with locked(stores, held["b"].id) as holder:
        flush = asyncio.create_task(scene.flush(dag.end(held["a"], "failed"), step(run, 0)))
        await blocked_by(stores, holder)
        assert len(await scene.store.steps(run.id)) == 1
    answer = await flush
    assert (answer.busy, answer.lost) == (set(), set())


async def test_what_goes_along_with_a_failure_is_told_the_time_of_its_own_record(scene: Scene, stores: Stores) -> None:
    """A workflow asks for the time of its newest record: it must be told the same when it is replayed."""
    dag = await Dag(scene, graph_of({"a": "", "b": ""})).start()
    held = await dag.claim()
    run = await scene.running()
    async with locked(stores, held["b"].id) as holder:
        flush = asyncio.create_task(scene.flush(dag.end(held["a"], "failed"), step(run, 0)))
        await blocked_by(stores, holder)
        await asyncio.sleep(0.005)  # so that the failure has another time, whenever the clock ticks
    answer = await flush
    [record] = await scene.store.steps(run.id)
    assert record.completed_at == answer.now_ms


async def test_runs_that_fail_through_each_other_s_workers_do_not_wait_in_a_circle(scene: Scene, other: Scene) -> None:
    """Each worker records steps of the run that the other's flush makes fail, in the flush that makes its own fail."""
    graph = graph_of({"a": "", "b": "", "c": ""})
    async with asyncio.timeout(90):
        for _ in range(15):
            one, two = await Dag(scene, graph).start(), await Dag(scene, graph).start()
            held = {(run.dag_id, run.dag_step): run for run in await one.claim_all()}

            def entries(fails: Dag, sleeps: Dag, held: dict[Any, Claimed] = held) -> list[Entry]:
                records = [step(held[sleeps.id, name], 0) for name in ("b", "c")]
                return [*records, fails.end(held[fails.id, "a"], "failed")]

            await asyncio.gather(
                _through_as(scene, scene.worker, *entries(one, two)),
                _through_as(other, scene.worker, *entries(two, one)),
                scene.store.give_back(scene.worker, [(held[d.id, "c"].id, held[d.id, "c"].claim) for d in (one, two)]),
            )
            for dag in (one, two):
                assert (await dag.states())["a"] == "failed"
                assert (await dag.dag_step("b")).status == "running"
                assert await dag.get("failing")
            await _end_all(scene, one, two, held=[held[d.id, "b"] for d in (one, two)])


async def _end_all(scene: Scene, *dags: Dag, held: list[Claimed]) -> None:
    """Everything still open is cancelled by its owner, and the runs are in line."""
    await through(scene, *(dags[0].end(run, "cancelled") for run in held))
    again = [run for run in await dags[0].claim_all() if run.dag_step is not None]
    assert all(run.asked == "cancel" for run in again)
    await through(scene, *(dags[0].end(run, "cancelled") for run in again))
    assert [await dag.get("pending") for dag in dags] == [0] * len(dags)
    await dags[0].claim_all()


async def test_everybody_at_once_leaves_no_run_hanging(scene: Scene, other: Scene) -> None:
    """Completions, failures, cancellations, signals, claims and sweeps over runs with the same steps."""
    graph = fan(10)
    async with asyncio.timeout(120):
        for _ in range(3):
            dag = Dag(scene, graph)
            for _ in range(4):
                await dag.start()
            await through(scene, *(dag.end(run) for run in await dag.claim_all() if run.dag_step is not None))
            held = [run for run in await dag.claim_all(limit=30) if run.dag_step is not None]
            by_dag = {dag_id: [run for run in held if run.dag_id == dag_id] for dag_id in dag.ids}
            done, failed, cancelled, mixed = dag.ids
            await asyncio.gather(
                through(scene, *(dag.end(run) for run in by_dag[done])),
                _through_as(other, scene.worker, *(dag.end(run, "failed") for run in by_dag[failed][:2])),
                other.store.cancel(cancelled),
                *(_through_as(other, scene.worker, dag.end(run)) for run in by_dag[mixed][:3]),
                *(_through_as(scene, scene.worker, dag.end(run, "failed")) for run in by_dag[mixed][3:5]),
                *(other.store.send(signal(dag_id, "z")) for dag_id in dag.ids),
                *(each.store.promote(10) for each in (scene, other)),
                *(each.store.deliver(10) for each in (scene, other)),
            )
            await _drain(scene, dag)
            for dag_id in dag.ids:
                assert await scene.rows.get(dag_id, "pending") == 0
            assert set((await dag.states(done)).values()) == {"completed"}
            assert (await dag.states(failed))["z"] == (await dag.states(cancelled))["z"] == "skipped"


async def _drain(scene: Scene, dag: Dag) -> None:
    """Whatever is ready or still held comes to its end."""
    for _ in range(20):
        ids = [dag_id for dag_id in dag.ids if await scene.rows.get(dag_id, "pending")]
        if not ids:
            return
        await dag.claim_all()
        rows = await scene.rows.fetch(
            "SELECT id, claim, dag_id, dag_step, asked FROM [runs] WHERE worker IS NOT NULL AND dag_id IS NOT NULL"
        )
        ends = [
            dag.end(_as_claimed(row), "cancelled" if row[4] else "completed") for row in rows if str(row[2]) in dag.ids
        ]
        await through(scene, *ends)
    raise AssertionError("some steps never end")


def _as_claimed(row: tuple[Any, ...]) -> Claimed:
    run_id, claim, dag_id, dag_step, _ = row
    return Claimed(
        str(run_id), "dag", "graphs", 0, claim, 1, 1, 0, 0, 1, "null", None, None, None, 0, 0, None,
        dag_id=str(dag_id), dag_step=dag_step,
    )  # fmt: skip


# -- what sweepers end --------------------------------------------------------------------------------------------


async def test_a_dead_letter_waits_for_its_dag_run_and_is_not_lost(scene: Scene, stores: Stores) -> None:
    """While somebody holds the row of the run nothing happens; a later sweep finds it again."""
    dag = await Dag(scene, graph_of({"a": "", "b": "", "c": "a"})).start()
    victim = await scene.add_worker()
    held = await dag.claim(worker=victim, limit=1)
    [name] = held
    await scene.rows.silence(victim)
    async with asyncio.timeout(20), locked(stores, dag.id):
        reaped = await scene.store.reap(scene.worker, 100, 1)
        assert (reaped.dead_letters, reaped.moved) == ([], 0)
        assert (await dag.states())[name] == "running"
    reaped = await scene.store.reap(scene.worker, 100, 1)
    assert (reaped.dead_letters, reaped.moved) == ([held[name].id], 1)
    assert lane() in reaped.lanes
    assert (await dag.dag_step(name)).reason == "workers_lost"
    assert (await dag.get("pending"), await dag.get("failing")) == (0, True)


async def test_two_sweepers_find_the_same_dead_letters(scene: Scene, other: Scene) -> None:
    """Each is counted once."""
    graph = graph_of({f"r{n}": "" for n in range(8)})
    dags = [await Dag(scene, graph).start() for _ in range(3)]
    victim = await scene.add_worker()
    held = await dags[0].claim_all(worker=victim)
    assert len(held) == 24
    await scene.rows.silence(victim)
    dead: list[str] = []
    async with asyncio.timeout(60):
        while len(dead) < 24:
            found = await asyncio.gather(*(each.store.reap(each.worker, 5, 1) for each in (scene, other)))
            dead += [letter for reaped in found for letter in reaped.dead_letters]
    assert Counter(dead) == Counter(run.id for run in held)
    assert [await dag.get("pending") for dag in dags] == [0] * 3


async def test_a_dead_letter_s_siblings_on_the_dead_worker_are_settled_too(scene: Scene) -> None:
    """Those with losses to spare go back in line, to be ended by the next owner, who finds out first what they did."""
    dag = await Dag(scene, graph_of({"a": "", "b": ""})).start()
    victim = await scene.add_worker()
    held = await dag.claim(worker=victim)
    await scene.rows.set(held["a"].id, "losses", 1)
    await scene.rows.silence(victim)
    reaped = await scene.store.reap(scene.worker, 100, 2)
    assert reaped.dead_letters == [held["a"].id]
    assert await dag.states() == {"a": "failed", "b": "queued"}
    assert await dag.get("pending") == 1
    [again] = (await dag.claim()).values()
    assert (again.id, again.asked) == (held["b"].id, "cancel")


async def test_an_expired_step_of_a_locked_dag_run_is_found_again(scene: Scene, stores: Stores) -> None:
    dag = await Dag(scene, graph_of(CHAIN)).start(expires_ms=MINUTE)
    first = (await dag.dag_step("a")).id
    await scene.rows.shift(first, "visible_at", -2 * MINUTE)
    await scene.rows.shift(first, "expires_at", -2 * MINUTE)
    async with asyncio.timeout(20), locked(stores, dag.id):
        assert (await scene.store.promote(100)).moved == 0
    promoted = await scene.store.promote(100)
    assert (promoted.ended, promoted.moved) == ([first], 1)
    assert await dag.states() == {"a": "failed", "b": "skipped", "c": "skipped"}


async def test_a_step_that_is_being_picked_up_when_another_expires_counts(scene: Scene, stores: Stores) -> None:
    """Who takes it holds its row, and not that of the dag run: it is waited for."""
    dag = await Dag(scene, graph_of({"a": "", "b": ""})).start(expires_ms=MINUTE)
    taken, late = (await dag.dag_step("a")).id, (await dag.dag_step("b")).id
    await scene.rows.shift(late, "visible_at", -2 * MINUTE)
    await scene.rows.shift(late, "expires_at", -2 * MINUTE)
    async with asyncio.timeout(20):
        async with locked(stores, taken) as claimer:
            sweep = asyncio.create_task(scene.store.promote(100))
            await blocked_by(stores, claimer)
            await claimer.execute("UPDATE stepfast.runs SET started_at = 1, place = NULL WHERE id = $1", taken)
        assert (await sweep).lanes == {lane("b")}
    assert (await dag.states())["b"] == "queued"


async def test_a_late_run_that_is_locked_is_found_again(scene: Scene, stores: Stores) -> None:
    dag = await Dag(scene, graph_of(CHAIN)).start(deadline_ms=MINUTE)
    await scene.rows.make_due(dag.id)
    async with asyncio.timeout(20), locked(stores, dag.id):
        assert (await scene.store.promote(100)).moved == 0
    assert (await scene.store.promote(100)).moved == 1
    assert (await dag.run()).reason == "deadline"
    assert list(await dag.claim()) == [ITSELF]


async def test_a_run_that_is_ready_when_its_deadline_passes_is_finished_as_failed(scene: Scene) -> None:
    """Its steps may have to be undone, which only its finisher knows: it stays in line."""
    dag = await Dag(scene, graph_of({"a": ""})).start(deadline_ms=MINUTE)
    await dag.finish("a")
    await scene.rows.make_due(dag.id)
    assert (await dag.claim()) == {}
    promoted = await scene.store.promote(100)
    assert (promoted.lanes, promoted.ended) == ({lane()}, [])
    run = (await dag.claim())[ITSELF]
    assert (run.failing, run.reason) == (True, "deadline")


# -- operators ----------------------------------------------------------------------------------------------------


async def test_a_cancellation_by_mail_waits_for_a_locked_dag_run(scene: Scene, dag: Dag, stores: Stores) -> None:
    """And keeps other mail waiting for nothing. Of this one nothing has begun, so that it is over at once."""
    run = await scene.running()
    await scene.flush(waiting(run, None, waiting_for="signal"))
    await scene.post(signal(dag.id, kind="cancel", name=""))
    await scene.post(signal(run.id))
    async with asyncio.timeout(20), locked(stores, dag.id):
        assert (await scene.store.deliver(10)).moved == 1
        assert (await scene.info(run.id)).ready
    delivered = await scene.store.deliver(10)
    assert (delivered.moved, delivered.lanes) == (1, set())
    assert set((await dag.states()).values()) == {"skipped"}
    assert (await scene.info(dag.id)).status == "cancelled"


async def test_many_cancellations_and_the_ends_of_all_steps_come_out_even(scene: Scene, other: Scene) -> None:
    graph = fan(8)
    async with asyncio.timeout(60):
        for _ in range(6):
            dag = await Dag(scene, graph).start()
            await dag.finish("a")
            held = list((await dag.claim(limit=5)).values())
            await asyncio.gather(
                *(each.store.cancel(dag.id) for each in (scene, other)),
                *(through(scene, dag.end(run)) for run in held[:2]),
                *(_through_as(other, scene.worker, dag.end(run)) for run in held[2:]),
            )
            assert await dag.get("pending") == 0
            assert Counter((await dag.states()).values()) == Counter(completed=6, skipped=4)
            [run] = (await dag.claim()).values()
            assert (run.id, run.failing, run.reason) == (dag.id, True, "cancelled")


async def test_a_signal_and_a_release_meet_at_a_step(scene: Scene, other: Scene) -> None:
    """Neither undoes the other: it is ready, and has the signal."""
    for _ in range(20):
        dag = await Dag(scene, graph_of({"a": "", "b": "a"})).start()
        held = await dag.claim()
        await asyncio.gather(through(scene, dag.end(held["a"])), other.store.send(signal(dag.id, "b")))
        run = (await dag.claim())["b"]
        assert run.wakes == 1
        assert len((await scene.mailbox(run.id)).mail) == 1
        await scene.flush(dag.end(run))
        await dag.claim()


# -- starts -------------------------------------------------------------------------------------------------------


async def test_two_starts_with_one_key_have_one_set_of_steps(scene: Scene, other: Scene) -> None:
    graph = graph_of(DIAMOND)
    for n in range(10):
        starts = [rows_of(graph, key=f"k{n}") for _ in range(2)]
        found = await asyncio.gather(scene.store.start(starts[0]), other.store.start(starts[1]))
        [run_id] = {ids[0] for ids in found}
        [(count,)] = await scene.rows.fetch(
            "SELECT count(*) FROM [runs] WHERE dag_id = ? OR dag_id = ?", starts[0][0].id, starts[1][0].id
        )
        assert count == 4
        assert len(await scene.store.dag_steps(run_id)) == 4
