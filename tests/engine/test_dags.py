"""Dags: declared steps, executed in parallel by all workers, one by one retried."""

from __future__ import annotations

import asyncio
import sqlite3
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import asyncpg
import pytest

from stepfast import (
    AttemptTimeout,
    Backoff,
    ChildFailed,
    Context,
    NonRetryableError,
    RunCancelled,
    RunNotFound,
    Settings,
    Stepfast,
)
from stepfast.engine.dag import Dag
from stepfast.run import Run
from stepfast.runtime import Connected
from tests.engine.conftest import ON_BOTH, ON_SQLITE, MakeApp
from tests.store.scene import Rows
from tests.support.dags import how, make_step_due, returning, row_of, steps_of
from tests.support.engine import PATIENCE, Calls, Gate, ThreadGate, bystander, eventually, stopped_at_once

pytestmark = ON_SQLITE

QUICK = Backoff(base=0.001, jitter=False)


def doing(function: Callable[..., Any], *args: Any) -> Callable[[Any], Any]:
    """A plain step that calls this."""
    return lambda ctx: function(*args)


# -- order and parallel steps --------------------------------------------------------------------------------------


async def test_steps_run_in_the_order_of_their_edges_whatever_the_order_of_declaration(app: Stepfast) -> None:
    log: list[str] = []
    line = app.dag("line")
    for name, after in (("third", ["second"]), ("first", []), ("second", ["first"])):
        line.declare(doing(log.append, name), name=name, after=after)
    run = await app.start(line)
    await app.drain()
    assert log == ["first", "second", "third"]
    assert await run.status() == "completed"


async def test_the_result_maps_each_step_to_its_output(app: Stepfast) -> None:
    dag = app.dag("dag")

    @dag.step
    async def one(ctx: Any) -> int:
        return 1

    @dag.step(after=[one], name="two as one")
    async def two(ctx: Any) -> list[int]:
        return [2]

    run = await app.start(dag)
    await app.drain()
    assert await run.result() == {"one": 1, "two as one": [2]}


@ON_BOTH
async def test_roots_run_in_parallel(app: Stepfast) -> None:
    """Neither could reach its gate if it waited for the other."""
    gates = {"left": Gate(), "right": Gate()}
    dag = app.dag("dag")

    @dag.step
    async def left(ctx: Any) -> None:
        await gates["left"].passing()

    @dag.step
    async def right(ctx: Any) -> None:
        await gates["right"].passing()

    run = await app.start(dag)
    async with app.worker():
        await gates["left"].reached()
        await gates["right"].reached()
        for gate in gates.values():
            gate.open()
        await run.result()


@ON_BOTH
async def test_leaves_run_in_parallel_in_threads_too(app: Stepfast) -> None:
    gates = [ThreadGate(), ThreadGate()]
    dag = app.dag("dag")
    dag.declare(returning(0), name="root")
    for number, gate in enumerate(gates):
        dag.declare(doing(gate.passing), name=f"leaf {number}", after=["root"])
    run = await app.start(dag)
    async with app.worker():
        for gate in gates:
            await gate.reached()
        for gate in gates:
            gate.open()
        await run.result()


async def test_a_join_waits_for_the_slowest(app: Stepfast, calls: Calls) -> None:
    gate = Gate()
    dag = app.dag("dag")

    @dag.step
    async def quick(ctx: Any) -> None: ...

    @dag.step
    async def slow(ctx: Any) -> None:
        await gate.passing()

    @dag.step(after=[quick, slow])
    async def join(ctx: Any) -> None:
        calls.hit("join")

    run = await app.start(dag)
    async with app.worker():
        await gate.reached()
        await eventually(lambda: has(run, "quick", "completed"))
        assert (await how(run))["join"] == "waiting"
        assert calls["join"] == 0
        gate.open()
        await run.result()
    assert calls == {"join": 1}


async def has(run: Any, step: str, status: str) -> bool:
    return (await how(run))[step] == status


@ON_BOTH
async def test_two_workers_share_the_steps(make_app: MakeApp) -> None:
    """With one slot each, only two workers can have two steps in hand at once."""
    gates = [Gate(), Gate()]
    apps = [make_app(), make_app()]
    for app in apps:
        dag = app.dag("shared")
        for number, gate in enumerate(gates):
            dag.declare(pass_through(gate), name=f"step {number}")
        dag.declare(returning("end"), name="end", after=["step 0", "step 1"])
    run = await apps[0].start("shared")
    async with apps[0].worker(concurrency=1), apps[1].worker(concurrency=1):
        for gate in gates:
            await gate.reached()
        workers = {(await apps[0].get(await row_of(run, f"step {n}")).info()).worker for n in (0, 1)}
        assert len(workers) == 2
        for gate in gates:
            gate.open()
        assert (await run.result())["end"] == "end"


def pass_through(gate: Gate) -> Callable[[Any], Any]:
    async def passing(ctx: Any) -> None:
        await gate.passing()

    return passing


@ON_BOTH
async def test_a_wide_graph_executes_every_step_once(app: Stepfast, calls: Calls) -> None:

    def work(number: int) -> int:
        calls.hit(str(number))
        return number

    dag = app.dag("wide")
    dag.declare(returning(0), name="root")
    for number in range(120):
        dag.declare(doing(work, number), name=f"n{number}", after=["root"])
    dag.declare(lambda ctx: sum(ctx.outputs[f"n{n}"] for n in range(120)), name="sum",
                after=[f"n{n}" for n in range(120)])  # fmt: skip
    run = await app.start(dag)
    await app.drain()
    assert (await run.result())["sum"] == sum(range(120))
    assert set(calls.values()) == {1} and len(calls) == 120


async def test_a_long_chain_comes_to_its_end(app: Stepfast) -> None:
    def one_more_than(before: str) -> Callable[[Any], Any]:
        return lambda ctx: ctx.outputs[before] + 1

    dag = app.dag("chain")
    dag.declare(returning(0), name="s0")
    for number in range(1, 60):
        dag.declare(one_more_than(f"s{number - 1}"), name=f"s{number}", after=[f"s{number - 1}"])
    run = await app.start(dag)
    await app.drain()
    assert (await run.result())["s59"] == 59


# -- code that changes, and workers without it ----------------------------------------------------------------------


@ON_BOTH
async def test_a_worker_that_lacks_a_step_leaves_it_to_others(make_app: MakeApp) -> None:
    whole, part = make_app(), make_app()
    dag = whole.dag("dag")
    dag.declare(returning(1), name="common")
    dag.declare(returning(2), name="special", after=["common"])
    part.dag("dag").declare(returning(1), name="common")
    run = await whole.start(dag)
    await part.drain()
    assert await how(run) == {"common": "completed", "special": "waiting"}
    assert await run.status() == "running"
    await whole.drain()
    assert await run.result() == {"common": 1, "special": 2}


@ON_BOTH
async def test_a_run_keeps_its_graph_when_the_code_changes(make_app: MakeApp) -> None:
    """Old and new runs side by side, with both versions at work."""
    old, new = make_app(), make_app()
    gate = Gate()
    before = old.dag("dag")
    before.declare(pass_through(gate), name="a")
    before.declare(returning("old"), name="b", after=["a"])
    after = new.dag("dag")
    after.declare(returning(1), name="a")
    after.declare(returning("new"), name="c", after=["a"])
    after.declare(returning("end"), name="d", after=["c"])

    first = await old.start(before)
    async with stopped_at_once(old):
        await gate.reached()
    second = await new.start(after)
    gate.open()
    async with old.worker(), new.worker():
        assert set(await first.result()) == {"a", "b"}
        assert await second.result() == {**await second.result(), "c": "new", "d": "end"}
        assert set(await second.result()) == {"a", "c", "d"}
    assert await how(first) == {"a": "completed", "b": "completed"}
    assert await how(second) == {"a": "completed", "c": "completed", "d": "completed"}


async def test_an_edge_that_is_new_in_the_code_does_not_bind_an_old_run(make_app: MakeApp) -> None:
    """The handlers are today's, the edges those of the start."""
    old, new = make_app(), make_app()
    log: list[str] = []
    before = old.dag("dag")
    before.declare(returning(0), name="x")
    before.declare(returning(0), name="y", after=["x"])
    run = await old.start(before)
    after = new.dag("dag")
    after.declare(lambda ctx: log.append("x"), name="x", after=["y"])
    after.declare(lambda ctx: log.append("y"), name="y")
    await new.start(after)
    await new.drain()
    assert await run.status() == "completed"
    assert [(await steps_of(run))[name].status for name in "xy"] == ["completed", "completed"]
    assert sorted(log) == ["x", "x", "y", "y"]
    times = {name: info.completed_at for name, info in (await steps_of(run)).items()}
    assert times["x"] is not None and times["y"] is not None and times["x"] < times["y"]


async def test_a_dag_can_be_started_by_name_without_its_code(make_app: MakeApp) -> None:
    there, here = make_app(), make_app()
    dag = there.dag("dag")
    dag.declare(lambda ctx: ctx.input + 1, name="one")
    dag.declare(lambda ctx: ctx.outputs["one"] + 1, name="two", after=["one"])
    await there.drain()  # which tells the database of it
    run = await here.start("dag", 1)
    assert await how(run) == {"one": "waiting", "two": "waiting"}
    await there.drain()
    assert await run.result() == {"one": 2, "two": 3}


async def test_a_dag_that_nobody_knows_cannot_be_started_by_name(app: Stepfast) -> None:
    with pytest.raises(Exception, match="nowhere"):
        await app.start("nowhere")


async def graphless(make_app: MakeApp) -> tuple[Stepfast, Run[Any], Rows]:
    """A run of a graph that is not stored, and an application with another graph of the same name and one slot."""
    first, other = make_app(), make_app(settings=Settings(sweep_interval=0.05, poll_interval=0.05, concurrency=1))
    two_steps(first)
    dag = other.dag("dag")
    dag.declare(returning(1), name="a")
    dag.declare(returning(2), name="b")
    run = await first.start("dag")
    rows = Rows(await first.store(), first.namespace, first.url.text)
    await rows.fetch("DELETE FROM [definitions]")
    return other, run, rows


def two_steps(app: Stepfast) -> Dag:
    dag = app.dag("dag")
    dag.declare(returning(1), name="a")
    dag.declare(returning(2), name="b", after=["a"])
    return dag


async def waits_for_graph(rows: Rows) -> bool:
    found = await rows.fetch("SELECT worker FROM [runs] WHERE dag_step = 'a' AND waiting_for = 'graph'")
    return found == [(None,)]


@ON_BOTH
async def test_a_run_whose_graph_is_not_stored_waits_for_it_without_a_slot(make_app: MakeApp) -> None:
    """A worker with other code must not guess."""
    other, run, rows = await graphless(make_app)
    free = bystander(other)
    async with other.worker():
        await eventually(lambda: waits_for_graph(rows))
        await free()
        again = make_app()
        two_steps(again)
        await again.start("dag")
        assert await run.result(timeout=PATIENCE) == {"a": 1, "b": 2}
    await rows.close()


async def test_a_run_whose_graph_is_not_stored_can_be_cancelled(make_app: MakeApp) -> None:
    other, run, rows = await graphless(make_app)
    async with other.worker():
        await eventually(lambda: waits_for_graph(rows))
        await run.cancel()
        with pytest.raises(RunCancelled):
            await run.result(timeout=PATIENCE)
    assert await run.status() == "cancelled"
    await rows.close()


@ON_BOTH
async def test_a_start_within_a_transaction_brings_its_graph_along(make_app: MakeApp, monkeypatch: Any) -> None:
    """The process may end before it has stored the definition; a worker with other code goes by the run's own graph."""
    first, other = make_app(), make_app(settings=Settings(sweep_interval=0.05, poll_interval=0.05))
    dag = two_steps(first)
    changed = other.dag("dag")
    changed.declare(returning(1), name="a", after=["b"])
    changed.declare(returning(2), name="b")
    await first.migrate()
    monkeypatch.setattr(Connected, "store_definitions_soon", lambda *_: None)
    if first.url.kind == "sqlite":
        connection: Any = sqlite3.connect(first.url.path or "")
        run = await first.start(dag, connection=connection)
        connection.commit()
        connection.close()
    else:
        connection = await asyncpg.connect(first.url.text)
        async with connection.transaction():
            run = await first.start(dag, connection=connection)
        await connection.close()
    async with other.worker():
        assert await run.result(timeout=PATIENCE) == {"a": 1, "b": 2}
    times = {name: info.completed_at for name, info in (await steps_of(run)).items()}
    assert times["a"] is not None and times["b"] is not None and times["a"] < times["b"]
    assert await run.values() == {}


@ON_BOTH
async def test_a_step_that_is_given_up_before_it_began_does_not_stop_its_siblings(app: Stepfast) -> None:
    """They ask together for what they are to see."""
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


# -- starting -------------------------------------------------------------------------------------------------------


async def test_a_start_gives_an_id_and_a_row_for_each_step(app: Stepfast) -> None:
    dag = app.dag("dag")
    dag.declare(returning(1), name="a")
    dag.declare(returning(1), name="b", after=["a"])
    run = await app.start(dag, {"x": 1})
    info = await run.info()
    assert (info.workflow, info.status, info.input, info.version) == ("dag", "running", {"x": 1}, dag.graph.version)
    assert await how(run) == {"a": "waiting", "b": "waiting"}
    assert (await steps_of(run))["b"].detail == "steps"
    assert [found.id for found in await app.runs()] == [run.id]


async def test_an_unknown_run_is_an_error(app: Stepfast) -> None:
    dag = app.dag("dag")
    dag.declare(returning(1), name="a")
    run = await app.start(dag)
    with pytest.raises(RunNotFound):
        await app.get(run.id[:-4] + "0000").steps()


@ON_BOTH
async def test_a_second_start_with_the_key_gives_the_first_run(app: Stepfast, calls: Calls) -> None:
    dag = app.dag("dag")
    dag.declare(lambda ctx: calls.hit("a"), name="a")
    first = await app.start(dag, key="k")
    second = await app.start(dag, key="k")
    await app.drain()
    assert first.id == second.id
    assert await second.result() == {"a": 1}
    assert calls == {"a": 1}


@ON_BOTH
async def test_many_starts_in_one_call(app: Stepfast) -> None:
    dag = app.dag("dag")
    dag.declare(lambda ctx: ctx.input, name="a")
    dag.declare(lambda ctx: ctx.outputs["a"] * 2, name="b", after=["a"])
    runs = await app.start_many(dag, range(25))
    await app.drain()
    assert [await run.result() for run in runs] == [{"a": n, "b": 2 * n} for n in range(25)]


@ON_BOTH
async def test_many_starts_with_a_key_twice_start_one(app: Stepfast, calls: Calls) -> None:
    dag = app.dag("dag")
    dag.declare(lambda ctx: calls.hit(str(ctx.input)), name="a")
    runs = await app.start_many(dag, [1, 2, 3], keys=["x", "x", "y"])
    await app.drain()
    assert runs[0].id == runs[1].id != runs[2].id
    assert calls == {"1": 1, "3": 1}


async def test_a_delayed_start_delays_the_first_steps(app: Stepfast) -> None:
    dag = app.dag("dag")
    dag.declare(returning(1), name="a")
    run = await app.start(dag, delay=3600)
    await app.drain()
    assert await how(run) == {"a": "waiting"}
    await make_step_due(app, run, "a")
    await app.drain()
    assert await run.result() == {"a": 1}


@ON_BOTH
async def test_a_start_in_a_queue_of_its_own_takes_its_steps_along(app: Stepfast) -> None:
    dag = app.dag("dag", queue="usual")
    dag.declare(returning(1), name="a")
    dag.declare(returning(1), name="b", after=["a"])
    run, other = await app.start(dag), await app.start(dag, queue="special")
    await app.drain(queues=["special"])
    assert (await run.status(), await other.status()) == ("running", "completed")
    await app.drain(queues=["usual"])
    assert await run.status() == "completed"


async def test_the_setting_that_speaks_of_attempts_does_not_touch_the_steps(make_app: MakeApp, calls: Calls) -> None:
    """Retries are each step's own."""
    app = make_app(settings=Settings(max_attempts=1))
    dag = app.dag("dag")

    @dag.step(retries=1, backoff=QUICK)
    async def shaky(ctx: Any) -> int:
        if calls.hit("shaky") == 1:
            raise ValueError("once")
        return 1

    run = await app.start(dag)
    await app.drain()
    assert await run.result() == {"shaky": 1}
    assert calls["shaky"] == 2


async def test_several_runs_of_one_dag_do_not_meet(app: Stepfast) -> None:
    dag = app.dag("dag")

    @dag.step
    async def mine(ctx: Any) -> Any:
        return ctx.input

    @dag.step(after=[mine])
    async def same(ctx: Any) -> bool:
        return bool(ctx.outputs["mine"] == ctx.input)

    runs = [await app.start(dag, {"n": n}) for n in range(10)]
    await app.drain()
    assert [(await run.result())["same"] for run in runs] == [True] * 10


@ON_BOTH
async def test_a_start_joins_the_transaction_of_its_caller(app: Stepfast) -> None:
    """The run with all its steps, or nothing."""
    dag = app.dag("dag")
    dag.declare(returning(1), name="a")
    dag.declare(returning(2), name="b", after=["a"])
    await app.start(dag)  # which makes the tables
    async with transaction(app) as connection:
        run = await app.start(dag, connection=connection)
    with pytest.raises(ZeroDivisionError):
        async with transaction(app) as connection:
            lost = await app.start(dag, connection=connection)
            raise ZeroDivisionError
    await app.drain()
    assert await run.result() == {"a": 1, "b": 2}
    with pytest.raises(RunNotFound):
        await lost.steps()


@asynccontextmanager
async def transaction(app: Stepfast) -> AsyncIterator[Any]:
    """A transaction of the application's own."""
    if app.url.kind == "sqlite":
        database = sqlite3.connect(app.url.text.removeprefix("sqlite:///"))
        try:
            with database:
                yield database
        finally:
            database.close()
        return
    connection = await asyncpg.connect(app.url.text)
    try:
        async with connection.transaction():
            yield connection
    finally:
        await connection.close()


async def test_code_without_an_event_loop_starts_dags_too(app: Stepfast) -> None:
    dag = app.dag("dag")
    dag.declare(lambda ctx: ctx.input + 1, name="a")

    def start() -> str:
        return app.sync.start(dag, 1).id

    run = app.get(await asyncio.to_thread(start))
    await app.drain()
    assert await run.result() == {"a": 2}


# -- a dag as a child --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("moment", [2.0, 0.0])
async def test_a_workflow_calls_a_dag(make_app: MakeApp, moment: float) -> None:
    app = make_app(settings=Settings(inline_wait=moment))
    dag = app.dag("dag")
    dag.declare(lambda ctx: ctx.input + 1, name="a")
    dag.declare(lambda ctx: ctx.outputs["a"] + 1, name="b", after=["a"])

    @app.workflow
    async def parent(ctx: Context) -> Any:
        return await ctx.call(dag, 1)

    run = await app.start(parent)
    await app.drain()
    assert await run.result() == {"a": 2, "b": 3}


async def test_a_workflow_starts_a_dag_by_name_and_asks_later(app: Stepfast) -> None:
    dag = app.dag("dag")
    dag.declare(lambda ctx: ctx.input, name="a")

    @app.workflow
    async def parent(ctx: Context) -> Any:
        children = [await ctx.start("dag", number) for number in range(3)]
        return [await child.result() for child in children]

    run = await app.start(parent)
    await app.drain()
    assert await run.result() == [{"a": 0}, {"a": 1}, {"a": 2}]


async def test_a_dag_that_fails_as_a_child_is_told_to_its_parent(app: Stepfast) -> None:
    dag = app.dag("dag")
    undone: list[str] = []

    @dag.step(compensate=lambda ctx: undone.append(ctx.step_name))
    async def a(ctx: Any) -> None: ...

    @dag.step(after=[a])
    async def b(ctx: Any) -> None:
        raise NonRetryableError("no")

    @app.workflow
    async def parent(ctx: Context) -> str:
        try:
            await ctx.call(dag)
        except ChildFailed as error:
            return str(error)
        return "?"

    run = await app.start(parent)
    await app.drain()
    assert "NonRetryableError: no" in await run.result()
    assert undone == ["a"]


@ON_BOTH
async def test_a_dag_started_with_a_key_inside_a_step_is_one_run(app: Stepfast, calls: Calls) -> None:
    dag = app.dag("dag")
    dag.declare(lambda ctx: calls.hit("a"), name="a")

    async def start() -> str:
        return (await app.start(dag, key="from both")).id

    @app.workflow
    async def parent(ctx: Context) -> list[str]:
        return [await ctx.step("one", start), await ctx.step("two", start)]

    run = await app.start(parent)
    await app.drain()
    first, second = await run.result()
    assert first == second
    assert await app.get(first).result() == {"a": 1}


async def test_a_step_calls_another_dag(app: Stepfast) -> None:
    inner, outer = app.dag("inner"), app.dag("outer")
    inner.declare(lambda ctx: ctx.input * 2, name="double")

    @outer.step
    async def work(ctx: Any) -> Any:
        return await ctx.call(inner, 4)

    run = await app.start(outer)
    await app.drain()
    assert await run.result() == {"work": {"double": 8}}
