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
    RetryLater,
    RunCancelled,
    RunFailed,
    RunNotFound,
    Settings,
    Stepfast,
)
from stepfast.connected import Connected
from stepfast.engine.dag import Dag
from stepfast.run import Run
from tests.engine.conftest import MakeApp
from tests.store.scene import Rows
from tests.support.crashing import crash_at, end_of, outcome_of
from tests.support.dags import how, make_step_due, row_of, steps_of
from tests.support.engine import PATIENCE, Calls, Gate, ThreadGate, bystander, eventually, interrupt, stopped_at_once
from tests.worker.spying import HeldReply

QUICK = Backoff(base=0.001, jitter=False)


def doing(function: Callable[..., Any], *args: Any) -> Callable[[Any], Any]:
    """A plain step that calls this."""
    return lambda ctx: function(*args)


def returning(value: Any) -> Callable[[Any], Any]:
    """A step that returns this."""

    async def give(ctx: Any) -> Any:
        return value

    return give


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


# -- what a step sees ----------------------------------------------------------------------------------------------


async def test_a_step_sees_the_input_and_the_outputs_of_all_steps_before_it(app: Stepfast) -> None:
    """Not only of those it names itself."""
    dag = app.dag("dag")
    seen: dict[str, Any] = {}

    @dag.step
    async def first(ctx: Any) -> dict[str, int]:
        return {"n": ctx.input["n"] + 1}

    @dag.step(after=[first])
    async def second(ctx: Any) -> int:
        return int(ctx.outputs["first"]["n"] + 1)

    @dag.step(after=["second"])
    async def third(ctx: Any) -> None:
        seen.update(ctx.outputs)

    await app.start(dag, {"n": 1})
    await app.drain()
    assert seen == {"first": {"n": 2}, "second": 3}


async def test_a_step_knows_its_name_its_run_and_its_attempt(app: Stepfast) -> None:
    dag = app.dag("dag")
    seen: list[Any] = []

    @dag.step(retries=1, backoff=QUICK)
    async def work(ctx: Any) -> None:
        seen.append((ctx.step_name, ctx.run_id, ctx.attempt))
        if ctx.attempt == 1:
            raise ValueError("once")

    run = await app.start(dag)
    await app.drain()
    assert seen == [("work", run.id, 1), ("work", run.id, 2)]


@pytest.mark.parametrize("value", [None, False, 0, "", [], {}])
@pytest.mark.enough_on("sqlite")
async def test_an_empty_output_arrives_as_itself(app: Stepfast, value: Any) -> None:
    dag = app.dag("dag")
    seen: list[Any] = []
    dag.declare(returning(value), name="give")

    @dag.step(after=["give"])
    async def take(ctx: Any) -> bool:
        seen.append(ctx.outputs["give"])
        return "give" in ctx.outputs

    run = await app.start(dag, value)
    await app.drain()
    assert seen == [value] and type(seen[0]) is type(value)
    assert await run.result() == {"give": value, "take": True}


@pytest.mark.parametrize("value", [None, False, 0, ""])
@pytest.mark.enough_on("sqlite")
async def test_an_empty_input_arrives_as_itself(app: Stepfast, value: Any) -> None:
    dag = app.dag("dag")
    seen: list[Any] = []
    dag.declare(lambda ctx: seen.append(ctx.input), name="look")
    await app.start(dag, value)
    await app.drain()
    assert seen == [value] and type(seen[0]) is type(value)


async def test_the_output_of_a_step_that_does_not_come_before_is_refused_by_name(app: Stepfast) -> None:
    """Also if it happens to be done already; else the order of two workers would decide."""
    dag = app.dag("dag")
    said: list[str] = []
    dag.declare(returning(1), name="elsewhere")

    @dag.step
    async def first(ctx: Any) -> None: ...

    @dag.step(after=[first])
    async def look(ctx: Any) -> None:
        assert list(ctx.outputs) == ["first"]
        for name in ("elsewhere", "nowhere", "look"):
            try:
                ctx.outputs[name]
            except KeyError as error:
                said.append(str(error.args[0]))

    run = await app.start(dag)
    await app.drain()
    assert await run.status() == "completed"
    assert said == [
        "step 'elsewhere' does not come before 'look'; name it in after=",
        "there is no step 'nowhere' in this dag",
        "step 'look' does not come before 'look'; name it in after=",
    ]


async def test_a_missing_output_can_have_a_default(app: Stepfast) -> None:
    dag = app.dag("dag")
    dag.declare(returning(1), name="maybe", when=lambda ctx: False)
    dag.declare(returning(2), name="sure")

    @dag.step(after=["maybe", "sure"])
    async def join(ctx: Any) -> Any:
        return [ctx.outputs.get("maybe", "no"), ctx.outputs.get("sure", "no")]

    run = await app.start(dag)
    await app.drain()
    assert (await run.result())["join"] == ["no", 2]


async def test_plain_functions_are_steps_too(app: Stepfast) -> None:
    dag = app.dag("dag")

    @dag.step
    def double(ctx: Any) -> int:
        return int(ctx.input * 2)

    @dag.step(after=[double])
    def add(ctx: Any) -> int:
        return int(ctx.step("one", lambda: 1) + ctx.outputs["double"])

    run = await app.start(dag, 20)
    await app.drain()
    assert await run.result() == {"double": 40, "add": 41}


async def test_a_typed_output_is_stored_as_json(app: Stepfast) -> None:
    dag = app.dag("dag")

    @dag.step
    async def give(ctx: Any) -> tuple[int, ...]:
        return (1, 2)

    @dag.step(after=[give])
    async def take(ctx: Any) -> Any:
        return ctx.outputs["give"]

    run = await app.start(dag)
    await app.drain()
    assert await run.result() == {"give": [1, 2], "take": [1, 2]}


async def test_an_output_that_is_no_json_fails_the_step_by_name(app: Stepfast) -> None:
    dag = app.dag("dag")
    dag.declare(lambda ctx: object(), name="odd", retries=0)
    run = await app.start(dag)
    await app.drain()
    with pytest.raises(RunFailed, match="odd"):
        await run.result()


# -- retries, timeouts, backoff --------------------------------------------------------------------------------------


async def test_a_step_that_fails_twice_is_retried_alone(app: Stepfast, calls: Calls) -> None:
    """The others are not done again."""
    dag = app.dag("dag")
    dag.declare(lambda ctx: calls.hit("before"), name="before")

    @dag.step(after=["before"], retries=2, backoff=QUICK)
    async def shaky(ctx: Any) -> str:
        if calls.hit("shaky") < 3:
            raise ValueError("not yet")
        return "at last"

    dag.declare(lambda ctx: calls.hit("after"), name="after", after=["shaky"])
    run = await app.start(dag)
    await app.drain()
    assert (await run.result())["shaky"] == "at last"
    assert calls == {"before": 1, "shaky": 3, "after": 1}
    assert {name: info.attempts for name, info in (await steps_of(run)).items()} == {
        "before": 1,
        "shaky": 3,
        "after": 1,
    }


async def test_a_step_without_retries_is_called_once(app: Stepfast, calls: Calls) -> None:
    dag = app.dag("dag")

    @dag.step(retries=0)
    async def once(ctx: Any) -> None:
        calls.hit("once")
        raise ValueError("no")

    run = await app.start(dag)
    await app.drain()
    assert calls == {"once": 1}
    assert await run.status() == "failed"


async def test_a_step_that_says_nothing_is_retried_as_the_settings_say(make_app: MakeApp, calls: Calls) -> None:
    app = make_app(settings=Settings(retries=1, backoff_base=0.001))
    dag = app.dag("dag")

    @dag.step
    async def broken(ctx: Any) -> None:
        calls.hit("broken")
        raise ValueError("no")

    await app.start(dag)
    await app.drain()
    assert calls == {"broken": 2}


async def test_an_error_that_is_not_to_be_retried_ends_the_step_at_once(app: Stepfast, calls: Calls) -> None:
    dag = app.dag("dag")

    @dag.step(retries=5)
    async def broken(ctx: Any) -> None:
        calls.hit("broken")
        raise NonRetryableError("never")

    run = await app.start(dag)
    await app.drain()
    assert calls == {"broken": 1}
    with pytest.raises(RunFailed, match="step 'broken' failed: NonRetryableError: never"):
        await run.result()


async def test_a_backoff_is_waited_for_without_a_slot(app: Stepfast, calls: Calls) -> None:
    """Computed, not honoured. The next attempt is not before its time."""
    dag = app.dag("dag")

    @dag.step(retries=1, backoff=Backoff(base=3600, max=7200, jitter=False))
    async def shaky(ctx: Any) -> int:
        if calls.hit("shaky") == 1:
            raise ValueError("not yet")
        return 2

    run = await app.start(dag)
    await app.drain()
    info = await app.get(await row_of(run, "shaky")).info()
    assert (info.status, info.worker, info.ready) == ("queued", None, False)
    assert info.due_at is not None and 3590 < (info.due_at - info.read_at).total_seconds() <= 3600
    assert (await steps_of(run))["shaky"].status == "waiting"
    await app.drain()
    assert calls == {"shaky": 1}
    await make_step_due(app, run, "shaky")
    await app.drain()
    assert await run.result() == {"shaky": 2}


async def test_a_step_can_say_when_it_is_to_be_tried_again(app: Stepfast, calls: Calls) -> None:
    dag = app.dag("dag")

    @dag.step(retries=1)
    async def shaky(ctx: Any) -> int:
        if calls.hit("shaky") == 1:
            raise RetryLater(3600)
        return 2

    run = await app.start(dag)
    await app.drain()
    assert await run.status() == "running"
    await make_step_due(app, run, "shaky")
    await app.drain()
    assert await run.result() == {"shaky": 2}


async def test_a_step_that_takes_too_long_is_stopped_and_tried_again(app: Stepfast, calls: Calls) -> None:
    dag = app.dag("dag")

    @dag.step(timeout=1, retries=1, backoff=QUICK)
    async def slow(ctx: Any) -> str:
        if calls.hit("slow") == 1:
            await asyncio.Event().wait()
        return "quick now"

    run = await app.start(dag)
    await app.drain()
    assert await run.result() == {"slow": "quick now"}
    assert calls == {"slow": 2}


async def test_a_step_that_always_takes_too_long_fails_the_run(app: Stepfast) -> None:
    dag = app.dag("dag")

    @dag.step(timeout=0.05, retries=0)
    async def slow(ctx: Any) -> None:
        await asyncio.Event().wait()

    run = await app.start(dag)
    await app.drain()
    with pytest.raises(RunFailed, match="slow"):
        await run.result()
    assert (await steps_of(run))["slow"].detail == "timeout"


async def test_a_step_whose_time_is_up_before_it_knows_its_graph_is_ended_all_the_same(
    app: Stepfast, caplog: pytest.LogCaptureFixture
) -> None:
    """The worker does not leave before the end is in the journal."""
    dag = app.dag("dag")

    @dag.step(timeout=0.05, retries=0)
    async def slow(ctx: Any) -> None:
        await asyncio.Event().wait()

    held = HeldReply(await app.store(), "dag_outputs")
    run = await app.start(dag)
    drained = asyncio.create_task(app.drain())
    await held.done()
    await eventually(lambda: "failed for good" in caplog.text)
    await asyncio.wait((drained,), timeout=0.5)
    assert not drained.done()
    held.release()
    await drained
    with pytest.raises(RunFailed, match="slow"):
        await run.result(timeout=20)


async def test_the_failed_tries_of_a_step_are_in_its_log(app: Stepfast, calls: Calls) -> None:
    dag = app.dag("dag")

    @dag.step(retries=1, backoff=QUICK)
    async def shaky(ctx: Any) -> None:
        if calls.hit("shaky") == 1:
            raise ValueError("once")

    run = await app.start(dag)
    await app.drain()
    log = await app.get(await row_of(run, "shaky")).activity()
    assert [(entry.status, entry.error and entry.error.message) for entry in log] == [("failed", "once")]


# -- checkpoints, sleeps and children inside a step --------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["async", "plain"])
async def test_what_a_step_records_is_not_done_again_after_a_crash(app: Stepfast, calls: Calls, kind: str) -> None:
    """Count the calls."""
    dag = app.dag("dag")

    async def pay(ctx: Any) -> int:
        calls.hit("pay")
        await ctx.step("first", lambda: calls.hit("first"))
        await ctx.step("second", lambda: calls.hit("second"))
        return 7

    def pay_plainly(ctx: Any) -> int:
        calls.hit("pay")
        ctx.step("first", lambda: calls.hit("first"))
        ctx.step("second", lambda: calls.hit("second"))
        return 7

    dag.declare(pay if kind == "async" else pay_plainly, name="pay")
    run = await app.start(dag)
    await crash_at(app, outcome_of("second"), written=False)
    await app.drain()
    assert await run.result() == {"pay": 7}
    assert calls == {"pay": 2, "first": 1, "second": 2}


async def test_what_a_step_recorded_is_kept_for_its_next_attempt(app: Stepfast, calls: Calls) -> None:
    dag = app.dag("dag")

    @dag.step(retries=1, backoff=QUICK)
    async def work(ctx: Any) -> None:
        await ctx.step("once", lambda: calls.hit("once"))
        if calls.hit("work") == 1:
            raise ValueError("after the checkpoint")

    run = await app.start(dag)
    await app.drain()
    assert await run.status() == "completed"
    assert calls == {"once": 1, "work": 2}


@pytest.mark.parametrize("written", [False, True], ids=["before the commit", "after the commit"])
async def test_a_crash_when_a_step_ends_repeats_at_most_that_step(app: Stepfast, calls: Calls, written: bool) -> None:
    """Rule 41: its dependents are released once."""
    dag = app.dag("dag")
    dag.declare(lambda ctx: calls.hit("root"), name="root")
    dag.declare(lambda ctx: calls.hit("left"), name="left", after=["root"])
    dag.declare(lambda ctx: calls.hit("right"), name="right", after=["root"])
    dag.declare(lambda ctx: calls.hit("join"), name="join", after=["left", "right"])
    run = await app.start(dag)
    await crash_at(app, end_of("completed"), written=written)
    await app.drain()
    assert await run.status() == "completed"
    assert calls == {"root": 1 if written else 2, "left": 1, "right": 1, "join": 1}


async def test_a_crash_when_the_run_ends_repeats_no_step(app: Stepfast, calls: Calls) -> None:
    dag = app.dag("dag")
    dag.declare(lambda ctx: calls.hit("only"), name="only")
    run = await app.start(dag)
    await crash_at(
        app, lambda batch: any(m.run_id == run.id and m.status == "completed" for m in batch.transitions), written=False
    )
    await app.drain()
    assert await run.result() == {"only": 1}
    assert calls == {"only": 1}


async def test_a_worker_that_stops_gives_its_step_back(app: Stepfast, calls: Calls) -> None:
    """No attempt used."""
    gate = Gate()
    dag = app.dag("dag")

    @dag.step(retries=0)
    async def work(ctx: Any) -> int:
        calls.hit("work")
        await gate.passing()
        return int(ctx.attempt)

    run = await app.start(dag)
    await interrupt(app, gate)
    assert (await how(run))["work"] == "waiting"
    gate.open()
    await app.drain()
    assert await run.result() == {"work": 1}
    assert calls == {"work": 2}


@pytest.mark.parametrize("moment", [2.0, 0.0])
async def test_a_step_sleeps_without_a_slot_and_goes_on(make_app: MakeApp, calls: Calls, moment: float) -> None:
    app = make_app(settings=Settings(moment=moment))
    dag = app.dag("dag")

    @dag.step
    async def nap(ctx: Any) -> str:
        await ctx.step("before", lambda: calls.hit("before"))
        await ctx.sleep(7200)
        return str(ctx.outputs.get("nothing", "rested"))

    @dag.step(after=[nap])
    async def after(ctx: Any) -> str:
        return str(ctx.outputs["nap"])

    run = await app.start(dag)
    await app.drain()
    info = (await steps_of(run))["nap"]
    assert (info.status, info.detail) == ("waiting", "time")
    await make_step_due(app, run, "nap")
    await app.drain()
    assert await run.result() == {"nap": "rested", "after": "rested"}
    assert calls == {"before": 1}


@pytest.mark.parametrize("moment", [2.0, 0.0])
async def test_a_step_can_call_a_child(make_app: MakeApp, moment: float) -> None:
    app = make_app(settings=Settings(moment=moment))

    @app.task
    async def double(number: int) -> int:
        return 2 * number

    dag = app.dag("dag")

    @dag.step
    async def work(ctx: Any) -> int:
        return int(await ctx.call(double, ctx.input))

    run = await app.start(dag, 21)
    await app.drain()
    assert await run.result() == {"work": 42}


async def test_a_step_cannot_go_on_as_another_run(app: Stepfast) -> None:
    dag = app.dag("dag")

    @dag.step(retries=0)
    async def work(ctx: Any) -> None:
        ctx.continue_as(1)

    run = await app.start(dag)
    await app.drain()
    with pytest.raises(RunFailed, match="continue_as"):
        await run.result()


# -- code that changes, and workers without it ----------------------------------------------------------------------


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
    first, other = make_app(), make_app(settings=Settings(sweep=0.05, poll=0.05, concurrency=1))
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


async def test_a_start_within_a_transaction_brings_its_graph_along(make_app: MakeApp, monkeypatch: Any) -> None:
    """The process may end before it has stored the definition; a worker with other code goes by the run's own graph."""
    first, other = make_app(), make_app(settings=Settings(sweep=0.05, poll=0.05))
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


async def test_a_second_start_with_the_key_gives_the_first_run(app: Stepfast, calls: Calls) -> None:
    dag = app.dag("dag")
    dag.declare(lambda ctx: calls.hit("a"), name="a")
    first = await app.start(dag, key="k")
    second = await app.start(dag, key="k")
    await app.drain()
    assert first.id == second.id
    assert await second.result() == {"a": 1}
    assert calls == {"a": 1}


async def test_many_starts_in_one_call(app: Stepfast) -> None:
    dag = app.dag("dag")
    dag.declare(lambda ctx: ctx.input, name="a")
    dag.declare(lambda ctx: ctx.outputs["a"] * 2, name="b", after=["a"])
    runs = await app.start_many(dag, range(25))
    await app.drain()
    assert [await run.result() for run in runs] == [{"a": n, "b": 2 * n} for n in range(25)]


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
    app = make_app(settings=Settings(moment=moment))
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
