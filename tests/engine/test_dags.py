"""Dag runs: order and parallel steps, workers with other code, starts, how a run is shown, dags as children."""

from __future__ import annotations

import asyncio
import sqlite3
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import timedelta
from typing import Any

import pytest

from stepfast import AttemptTimeout, ChildFailed, Context, Dag, RunCancelled, RunNotFound, Settings, Stepfast
from stepfast.run import Run
from stepfast.runtime import Connected
from tests.engine.conftest import ON_BOTH, ON_SQLITE, RELEASED, WAITS, MakeApp
from tests.store.scene import Rows
from tests.support.dags import (
    Saga,
    build,
    how,
    make_step_due,
    passing,
    returning,
    row_of,
    step_is,
    steps_of,
)
from tests.support.databases import in_transaction
from tests.support.engine import (
    PATIENCE,
    Calls,
    Gate,
    ThreadGate,
    bystander,
    drained,
    eventually,
    finished,
    outcome,
    stopped_at_once,
    worked,
)
from tests.support.waiting import rows_of
from tests.support.workflows import calling, listener

pytestmark = ON_SQLITE


# -- order and parallel steps --------------------------------------------------------------------------------------


async def test_steps_run_in_the_order_of_their_edges_whatever_the_order_of_declaration(app: Stepfast) -> None:
    log: list[str] = []

    def add(ctx: Any) -> None:
        log.append(ctx.step_name)

    await outcome(app, build(app, {"third < second": add, "first": add, "second < first": add}))
    assert log == ["first", "second", "third"]


async def test_the_result_maps_each_step_to_its_output(app: Stepfast) -> None:
    dag = app.dag("dag")

    @dag.step
    async def one(ctx: Any) -> int:
        return 1

    @dag.step(after=[one], name="two as one")
    async def two(ctx: Any) -> list[int]:
        return [2]

    assert await outcome(app, dag) == {"one": 1, "two as one": [2]}


@ON_BOTH
@pytest.mark.parametrize("kind", ["roots", "leaves in threads"])
async def test_steps_run_in_parallel(app: Stepfast, kind: str) -> None:
    """Neither could reach its gate if it waited for the other."""
    gates: list[Any] = [Gate(), Gate()] if kind == "roots" else [ThreadGate(), ThreadGate()]
    dag = build(app, {"root": returning(0)})
    for number, gate in enumerate(gates):
        after = [] if kind == "roots" else ["root"]
        dag.declare(lambda ctx, *, gate=gate: gate.passing(), name=f"step {number}", after=after)
    run = await app.start(dag)
    async with app.worker():
        for gate in gates:
            await gate.reached()
        for gate in gates:
            gate.open()
        await run.result()


async def test_a_join_waits_for_the_slowest(app: Stepfast, calls: Calls) -> None:
    gate = Gate()
    join = {"join < quick slow": lambda ctx: calls.hit("join")}
    run = await app.start(build(app, {"quick": returning(0), "slow": passing(gate), **join}))
    async with app.worker():
        await gate.reached()
        await step_is(run, "quick", "completed")
        assert ((await how(run))["join"], calls) == ("waiting", {})
        gate.open()
        await run.result()
    assert calls == {"join": 1}


@ON_BOTH
async def test_two_workers_share_the_steps(make_app: MakeApp) -> None:
    """With one slot each, only two workers can execute two steps at once."""
    gates, apps = [Gate(), Gate()], [make_app(), make_app()]
    for app in apps:
        build(app, {"s0": passing(gates[0]), "s1": passing(gates[1]), "end < s0 s1": returning("end")}, "shared")
    run = await apps[0].start("shared")
    async with apps[0].worker(concurrency=1), apps[1].worker(concurrency=1):
        for gate in gates:
            await gate.reached()
        assert len({(await apps[0].get(await row_of(run, f"s{n}")).info()).worker for n in (0, 1)}) == 2
        for gate in gates:
            gate.open()
        assert (await run.result())["end"] == "end"


@ON_BOTH
async def test_a_wide_graph_executes_every_step_once(app: Stepfast, calls: Calls) -> None:
    def work(ctx: Any) -> int:
        calls.hit(ctx.step_name)
        return int(ctx.step_name[1:])

    steps = [f"n{n}" for n in range(120)]
    dag = build(app, {"root": returning(0), **{f"{step} < root": work for step in steps}})
    dag.declare(lambda ctx: sum(ctx.outputs[step] for step in steps), name="sum", after=steps)
    assert (await outcome(app, dag))["sum"] == sum(range(120))
    assert set(calls.values()) == {1} and len(calls) == 120


async def test_a_long_chain_comes_to_its_end(app: Stepfast) -> None:
    def one_more(ctx: Any) -> int:
        return int(ctx.outputs[f"s{int(ctx.step_name[1:]) - 1}"] + 1)

    dag = build(app, {"s0": returning(0), **{f"s{n} < s{n - 1}": one_more for n in range(1, 60)}})
    assert (await outcome(app, dag))["s59"] == 59


@ON_BOTH
async def test_a_step_that_times_out_before_it_begins_does_not_stop_its_siblings(app: Stepfast) -> None:
    """They read the outputs before them by one query."""
    gate = Gate()
    dag = app.dag("dag")
    dag.declare(returning(1), name="hasty", timeout=0.1, retries=0, catch={AttemptTimeout: "late"})
    dag.declare(returning(2), name="patient", retries=0)
    dag.declare(returning(3), name="late")
    run = await app.start(dag)
    store = await app.store()
    real = store.dag_outputs

    async def slow(wanted: Any) -> Any:
        await gate.passing()
        return await real(wanted)

    store.dag_outputs = slow  # type: ignore[method-assign]
    async with app.worker():
        await gate.reached()
        await asyncio.sleep(0.3)  # the time that the first of them has
        gate.open()
        assert await run.result() == {"patient": 2, "late": 3}


# -- code that changes, and workers without it ----------------------------------------------------------------------


@ON_BOTH
async def test_a_worker_that_lacks_a_step_leaves_it_to_others(make_app: MakeApp) -> None:
    whole, part = make_app(), make_app()
    run = await whole.start(build(whole, {"common": returning(1), "special < common": returning(2)}))
    build(part, {"common": returning(1)})
    await part.drain()
    assert await how(run) == {"common": "completed", "special": "waiting"}
    assert await run.status() == "running"
    assert await finished(whole, run) == {"common": 1, "special": 2}


@ON_BOTH
async def test_a_run_keeps_its_graph_when_the_code_changes(make_app: MakeApp) -> None:
    """Old and new runs side by side, with workers of both versions."""
    old, new = make_app(), make_app()
    gate = Gate()
    before = build(old, {"a": passing(gate), "b < a": returning("old")})
    after = build(new, {"a": returning(1), "c < a": returning("new"), "d < c": returning("end")})
    first = await old.start(before)
    async with stopped_at_once(old):
        await gate.reached()
    second = await new.start(after)
    gate.open()
    async with old.worker(), new.worker():
        assert set(await first.result()) == {"a", "b"}
        assert (await second.result()).items() >= {"c": "new", "d": "end"}.items()
    assert await how(first) == dict.fromkeys("ab", "completed")
    assert await how(second) == dict.fromkeys("acd", "completed")


async def in_order(run: Run[Any], first: str, second: str) -> bool:
    """Whether a step ended before another."""
    times = {name: info.completed_at for name, info in (await steps_of(run)).items()}
    one, other = times[first], times[second]
    assert one is not None and other is not None
    return one < other


async def test_an_edge_that_is_new_in_the_code_does_not_bind_an_old_run(make_app: MakeApp) -> None:
    """The handlers are those of the code, the edges those of the start."""
    old, new = make_app(), make_app()
    log: list[str] = []

    def add(ctx: Any) -> None:
        log.append(ctx.step_name)

    run = await old.start(build(old, {"x": returning(0), "y < x": returning(0)}))
    await drained(new, build(new, {"x < y": add, "y": add}))
    assert await how(run) == {"x": "completed", "y": "completed"}
    assert sorted(log) == ["x", "x", "y", "y"]
    assert await in_order(run, "x", "y")


async def test_a_dag_can_be_started_by_name_without_its_code(make_app: MakeApp) -> None:
    there, here = make_app(), make_app()
    build(there, {"one": lambda ctx: ctx.input + 1, "two < one": lambda ctx: ctx.outputs["one"] + 1})
    await there.drain()  # stores the definition
    run = await here.start("dag", 1)
    assert await how(run) == {"one": "waiting", "two": "waiting"}
    assert await finished(there, run) == {"one": 2, "two": 3}


def two_steps(app: Stepfast) -> Dag:
    return build(app, {"a": returning(1), "b < a": returning(2)})


OFTEN = Settings(sweep_interval=0.05, poll_interval=0.05, concurrency=1)


@asynccontextmanager
async def graphless(make_app: MakeApp) -> AsyncIterator[tuple[Stepfast, Run[Any], Rows]]:
    """A run of a graph that is not stored, and an application with another graph of the same name and one slot."""
    first, other = make_app(), make_app(settings=OFTEN)
    two_steps(first)
    build(other, {"a": returning(1), "b": returning(2)})
    run = await first.start("dag")
    async with rows_of(first) as rows:
        await rows.fetch("DELETE FROM [definitions]")
        yield other, run, rows


async def waits_for_graph(rows: Rows) -> bool:
    found = await rows.fetch("SELECT worker FROM [runs] WHERE dag_step = 'a' AND waiting_for = 'graph'")
    return found == [(None,)]


@ON_BOTH
async def test_a_run_whose_graph_is_not_stored_waits_for_it_without_a_slot(make_app: MakeApp) -> None:
    """A worker with other code must not guess."""
    async with graphless(make_app) as (other, run, rows):
        free = bystander(other)
        async with other.worker():
            await eventually(lambda: waits_for_graph(rows))
            await free()
            again = make_app()
            await again.start(two_steps(again))
            assert await run.result(timeout=PATIENCE) == {"a": 1, "b": 2}


async def test_a_run_whose_graph_is_not_stored_can_be_cancelled(make_app: MakeApp) -> None:
    async with graphless(make_app) as (other, run, rows), other.worker():
        await eventually(lambda: waits_for_graph(rows))
        await run.cancel()
        with pytest.raises(RunCancelled):
            await run.result(timeout=PATIENCE)
    assert await run.status() == "cancelled"


@asynccontextmanager
async def transaction(app: Stepfast) -> AsyncIterator[Any]:
    """A transaction of the caller's own."""
    if app.url.kind == "sqlite":
        database = sqlite3.connect(app.url.path or "")
        try:
            with database:
                yield database
        finally:
            database.close()
        return
    async with in_transaction(app.url.text) as connection:
        yield connection


async def never_stores(*_: Any) -> None:
    """Stand for a process that ends before it has stored the definitions."""


@ON_BOTH
async def test_a_start_within_a_transaction_stores_its_graph_with_it(make_app: MakeApp, monkeypatch: Any) -> None:
    """The process may end before it has stored the definition; a worker with other code uses the run's own graph."""
    first, other = make_app(), make_app(settings=OFTEN)
    dag = two_steps(first)
    build(other, {"a < b": returning(1), "b": returning(2)})
    await first.migrate()
    monkeypatch.setattr(Connected, "store_definitions", never_stores)
    async with transaction(first) as connection:
        run = await first.start(dag, connection=connection)
    assert await worked(other, run) == {"a": 1, "b": 2}
    assert await in_order(run, "a", "b")
    assert await run.values() == {}


# -- starting -------------------------------------------------------------------------------------------------------


async def test_a_start_makes_a_row_for_the_run_and_each_step(app: Stepfast) -> None:
    dag = two_steps(app)
    run = await app.start(dag, {"x": 1})
    info = await run.info()
    assert (info.workflow, info.status, info.input, info.version) == ("dag", "running", {"x": 1}, dag.graph.version)
    assert await how(run) == {"a": "waiting", "b": "waiting"}
    assert (await steps_of(run))["b"].detail == "steps"
    assert [found.id for found in await app.runs()] == [run.id]
    with pytest.raises(RunNotFound):
        await app.get(run.id[:-4] + "0000").steps()


@ON_BOTH
async def test_a_second_start_with_the_key_gives_the_first_run(app: Stepfast, calls: Calls) -> None:
    dag = build(app, {"a": lambda ctx: calls.hit(str(ctx.input))})
    first = await app.start(dag, 0, key="k")
    second = await drained(app, dag, 0, key="k")
    assert (first.id, await second.result(), calls) == (second.id, {"a": 1}, {"0": 1})
    runs = await app.start_many(dag, [1, 2, 3], keys=["x", "x", "y"])
    await app.drain()
    assert runs[0].id == runs[1].id != runs[2].id
    assert calls == {"0": 1, "1": 1, "3": 1}


@ON_BOTH
async def test_many_starts_in_one_call(app: Stepfast) -> None:
    dag = build(app, {"a": lambda ctx: ctx.input, "b < a": lambda ctx: ctx.outputs["a"] * 2})
    runs = await app.start_many(dag, range(25))
    await app.drain()
    assert [await run.result() for run in runs] == [{"a": n, "b": 2 * n} for n in range(25)]


async def test_a_delayed_start_delays_the_first_steps(app: Stepfast) -> None:
    run = await drained(app, build(app, {"a": returning(1)}), delay=3600)
    assert await how(run) == {"a": "waiting"}
    await make_step_due(app, run, "a")
    assert await finished(app, run) == {"a": 1}


@ON_BOTH
async def test_the_queue_of_a_start_is_that_of_its_steps(app: Stepfast) -> None:
    dag = build(app, {"a": returning(1), "b < a": returning(1)}, queue="usual")
    run, other = await app.start(dag), await app.start(dag, queue="special")
    await app.drain(queues=["special"])
    assert (await run.status(), await other.status()) == ("running", "completed")
    await app.drain(queues=["usual"])
    assert await run.status() == "completed"


@ON_BOTH
async def test_a_start_joins_the_transaction_of_its_caller(app: Stepfast) -> None:
    """The run with all its steps, or nothing."""
    dag = two_steps(app)
    await app.start(dag)  # makes the tables
    async with transaction(app) as connection:
        run = await app.start(dag, connection=connection)
    with pytest.raises(ZeroDivisionError):
        async with transaction(app) as connection:
            lost = await app.start(dag, connection=connection)
            raise ZeroDivisionError
    assert await finished(app, run) == {"a": 1, "b": 2}
    with pytest.raises(RunNotFound):
        await lost.steps()


# -- how a run is shown and found ------------------------------------------------------------------------------------


async def found(app: Stepfast, **filters: Any) -> list[tuple[str, str]]:
    """The ids of a list, and the statuses it has for them."""
    return [(info.id, info.status) for info in await app.runs(**filters)]


def with_gate(app: Stepfast, name: str = "order", timeout: timedelta | None = None) -> Dag:
    """A dag that waits for an answer after its first step."""
    dag = build(app, {"reserve": returning(1)}, name)
    dag.approval("ok", after=["reserve"], timeout=timeout)
    dag.declare(returning(2), name="charge", after=["ok"])
    return dag


@ON_BOTH
@RELEASED
async def test_a_run_that_waits_for_an_answer_is_waiting(app: Stepfast) -> None:
    run = await app.start(with_gate(app, timeout=timedelta(hours=1)))
    assert (await run.status(), await found(app, status="running")) == ("running", [(run.id, "running")])
    await app.drain()
    info = await run.info()
    assert (info.status, info.waiting_for, info.reason) == ("waiting", "signal:ok", None)
    assert info.due_at is not None and info.due_at > info.read_at
    assert await found(app) == await found(app, status="waiting") == [(run.id, "waiting")]
    assert await found(app, status="running") == []
    await run.signal("ok", True)
    assert await run.status() == "running"
    await app.drain()
    assert (await run.result(timeout=PATIENCE))["charge"] == 2


@ON_BOTH
@RELEASED
async def test_a_run_with_a_step_at_work_is_running(app: Stepfast) -> None:
    gate, dag = Gate(), with_gate(app)
    dag.declare(passing(gate), name="aside")
    run = await app.start(dag)
    async with app.worker():
        await gate.reached()
        assert await run.status() == "running"
        gate.open()


@ON_BOTH
@RELEASED
async def test_a_run_waits_for_what_comes_first(app: Stepfast) -> None:
    """A timer goes before a signal that may come at any time."""
    dag = with_gate(app)

    @dag.step(after=["reserve"])
    async def remind(ctx: Any) -> None:
        await ctx.sleep(3600)

    info = await (await drained(app, dag)).info()
    assert (info.status, info.waiting_for) == ("waiting", "time")


@ON_BOTH
@RELEASED
async def test_a_run_that_was_started_with_a_delay_is_queued_until_it_begins(app: Stepfast) -> None:
    """And the steps that wait for no others are put off."""
    run = await drained(app, with_gate(app), delay=3600)
    info = await run.info()
    assert (info.status, info.ready, info.waiting_for) == ("queued", False, None)
    assert info.due_at is not None and info.due_at > info.read_at
    assert (await found(app, status="queued"), await found(app, status="running")) == ([(run.id, "queued")], [])
    steps = await steps_of(run)
    assert {name: (step.status, step.detail) for name, step in steps.items()} == {
        "reserve": ("waiting", None), "ok": ("waiting", "steps"), "charge": ("waiting", "steps")
    }  # fmt: skip
    info = await app.get(str(steps["reserve"].child)).info()
    assert (info.status, info.ready, info.due_at is not None and info.due_at > info.read_at) == ("queued", False, True)


@ON_BOTH
@RELEASED
@pytest.mark.parametrize("oldest_first", [False, True])
async def test_pages_hold_runs_of_all_kinds_in_their_order(app: Stepfast, oldest_first: bool) -> None:
    """Dag runs among others, in pages that are smaller than their number; running ones are passed over."""
    wait = listener(app, name="wait")
    waiting = []
    for number in range(4):
        waiting += [await app.start(wait, tags=["all"]), await app.start(with_gate(app, f"dag{number}"), tags=["all"])]
    await app.drain()
    await app.start("dag0")
    wanted = [run.id for run in (waiting if oldest_first else reversed(waiting))]
    for tag in (None, "all"):
        ids: list[str] = []
        while page := await app.runs(
            status="waiting", limit=3, after=ids[-1] if ids else None, oldest_first=oldest_first, tag=tag
        ):
            ids += [info.id for info in page]
        assert ids == wanted
    assert await found(app, status="waiting", workflow="dag2") == [(waiting[5].id, "waiting")]
    assert await found(app, status="waiting", workflow="dag2", key="k") == []
    assert await found(app, status="waiting", older_than=3600) == []
    assert len(await found(app, status="waiting", since=3600)) == 8


@ON_BOTH
@RELEASED
async def test_pages_of_running_runs_pass_over_those_that_wait(app: Stepfast) -> None:
    dag = with_gate(app)
    first = await app.start(dag)
    for _ in range(5):
        await app.start(dag)
    await app.drain()
    last = await app.start(dag)
    await first.signal("ok", True)
    assert await found(app, status="running", limit=2) == [(last.id, "running"), (first.id, "running")]


# -- a dag as a child --------------------------------------------------------------------------------------------------


@WAITS
async def test_a_workflow_calls_a_dag(app: Stepfast) -> None:
    dag = build(app, {"a": lambda ctx: ctx.input + 1, "b < a": lambda ctx: ctx.outputs["a"] + 1})
    parent = calling(app, lambda ctx: ctx.call(dag, 1), name="parent")
    assert await outcome(app, parent) == {"a": 2, "b": 3}


async def test_a_workflow_starts_a_dag_by_name_and_awaits_it_later(app: Stepfast) -> None:
    build(app, {"a": lambda ctx: ctx.input})

    @app.workflow
    async def parent(ctx: Context) -> Any:
        children = [await ctx.start("dag", number) for number in range(3)]
        return [await child.result() for child in children]

    assert await outcome(app, parent) == [{"a": 0}, {"a": 1}, {"a": 2}]


async def test_a_dag_that_fails_as_a_child_is_undone_and_fails_for_its_parent(app: Stepfast, saga: Saga) -> None:
    dag = saga.build(app, "a", "b! < a")

    @app.workflow
    async def parent(ctx: Context) -> str:
        with pytest.raises(ChildFailed) as error:
            await ctx.call(dag)
        return str(error.value)

    assert "NonRetryableError: b broke" in await outcome(app, parent)
    assert saga.undone == ["a"]


@ON_BOTH
async def test_a_dag_started_with_a_key_inside_a_step_is_one_run(app: Stepfast, calls: Calls) -> None:
    dag = build(app, {"a": lambda ctx: calls.hit("a")})

    async def start() -> str:
        return (await app.start(dag, key="from both")).id

    @app.workflow
    async def parent(ctx: Context) -> list[str]:
        return [await ctx.step("one", start), await ctx.step("two", start)]

    first, second = await outcome(app, parent)
    assert first == second
    assert await app.get(first).result() == {"a": 1}


async def test_a_step_calls_another_dag(app: Stepfast) -> None:
    inner = build(app, {"double": lambda ctx: ctx.input * 2}, "inner")
    outer = build(app, {"work": lambda ctx: ctx.call(inner, 4)}, "outer")
    assert await outcome(app, outer) == {"work": {"double": 8}}
