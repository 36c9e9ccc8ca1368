"""How dag runs end otherwise: cancelled, too late, as dead letters; and how they are tried again."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from stepfast import (
    ChildFailed,
    ConfigurationError,
    Context,
    InvalidState,
    NonRetryableError,
    RunCancelled,
    RunFailed,
    Settings,
    Stepfast,
    cancelled,
)
from stepfast.engine.dag import Dag
from tests.engine.conftest import ON_BOTH, ON_SQLITE, MakeApp
from tests.store.scene import Rows
from tests.support.dags import how, row_of
from tests.support.engine import PATIENCE, Calls, Gate, eventually, interrupt
from tests.support.sagas import Saga
from tests.support.waiting import deafen

pytestmark = ON_SQLITE


@pytest.fixture
def saga() -> Saga:
    return Saga()


async def has_status(run: Any, *statuses: str) -> bool:
    return await run.status() in statuses


async def ended(run: Any) -> bool:
    return await has_status(run, "completed", "failed", "cancelled", "compensated")


async def is_step(run: Any, name: str, status: str) -> bool:
    return (await how(run))[name] == status


async def asked(app: Stepfast, run: Any, name: str) -> bool:
    return (await app.get(await row_of(run, name)).info()).asked == "cancel"


# -- cancel, deadline, dead letters ----------------------------------------------------------------------------------


async def test_a_run_that_is_cancelled_before_it_begins_does_nothing(app: Stepfast, saga: Saga) -> None:
    run = await app.start(saga.build(app, "a", "b < a"))
    await run.cancel()
    await app.drain()
    assert saga.log == []
    assert await run.status() == "cancelled"
    with pytest.raises(RunCancelled):
        await run.result()
    assert set((await how(run)).values()) == {"skipped"}


@ON_BOTH
async def test_a_run_that_is_cancelled_in_a_paused_queue_is_over_at_once(app: Stepfast) -> None:
    """No worker is needed: nothing has begun that could be undone. Its parent hears of it, and it can be retried."""
    graph = app.dag("held", queue="held")

    @graph.step()
    async def first(ctx: Any) -> int:
        return 1

    @graph.step(after=["first"])
    async def second(ctx: Any) -> int:
        return 2

    @app.workflow
    async def parent(ctx: Context) -> str:
        try:
            await ctx.call(graph, {})
        except ChildFailed:
            return "told"
        return "not told"

    await app.pause_queue("held")
    above, alone = await app.start(parent), await app.start(graph, {})
    await app.drain()
    [child] = [info.id for info in await app.runs(workflow="held") if info.parent is not None]
    for run in (app.get(child), alone):
        await run.cancel()
        assert await run.status() == "cancelled"
        assert {step.status for step in await run.steps()} == {"skipped"}
    await app.drain()
    assert await above.result(timeout=PATIENCE) == "told"
    await app.resume_queue("held")
    await alone.retry()
    await app.drain()
    assert await alone.result(timeout=PATIENCE) == {"first": 1, "second": 2}


async def test_a_cancelled_run_finishes_its_step_and_undoes_it(app: Stepfast, saga: Saga) -> None:
    gate = saga.gate("b")
    run = await app.start(saga.build(app, "a", "b < a", "c < b"))
    async with app.worker():
        await gate.reached()
        await run.cancel()
        gate.open()
        await eventually(lambda: ended(run))
    assert saga.log == ["a", "b", "undo b", "undo a"]
    assert await run.status() == "compensated"
    with pytest.raises(RunCancelled):
        await run.result()
    await run.cancel()  # once more changes nothing


async def test_a_run_that_has_ended_cannot_be_cancelled(app: Stepfast, saga: Saga) -> None:
    run = await app.start(saga.build(app, "a"))
    await app.drain()
    with pytest.raises(InvalidState, match="completed"):
        await run.cancel()


async def test_a_run_that_is_being_undone_cannot_be_cancelled(app: Stepfast, saga: Saga) -> None:
    gate = saga.gate("undo a")
    run = await app.start(saga.build(app, "a", "b! < a"))
    async with app.worker():
        await gate.reached()
        with pytest.raises(InvalidState, match="compensating"):
            await run.cancel()
        gate.open()
        with pytest.raises(RunFailed, match="b broke"):
            await run.result()


async def test_a_dag_is_cancelled_with_its_parent_and_undone(app: Stepfast, saga: Saga) -> None:
    dag = saga.build(app, "a", "b < a")
    gate = saga.gate("b")

    @app.workflow
    async def parent(ctx: Context) -> None:
        await ctx.call(dag)

    run = await app.start(parent)
    async with app.worker():
        await gate.reached()
        [call] = await run.steps()
        assert call.child is not None
        child = app.get(call.child)
        await run.cancel()
        await eventually(lambda: asked(app, child, "b"))
        gate.open()
        await eventually(lambda: ended(child))
    assert saga.undone == ["b", "a"]
    assert (await run.status(), await child.status()) == ("cancelled", "compensated")


async def test_a_late_run_is_ended_and_undone(app: Stepfast, saga: Saga) -> None:
    dag = saga.build(app, "a", "b < a", deadline=3600)
    dag.approval("ok", after=["b"])
    run = await app.start(dag)
    async with app.worker():
        await eventually(lambda: is_step(run, "b", "completed"))
        await pass_deadline(app, run.id)
        await eventually(lambda: ended(run))
    assert saga.undone == ["b", "a"]
    assert await run.status() == "compensated"
    with pytest.raises(RunFailed, match="deadline") as failed:
        await run.result()
    assert failed.value.reason == "deadline"


async def pass_deadline(app: Stepfast, run_id: str) -> None:
    rows = Rows(await app.store(), app.namespace, app.url.text)
    try:
        await rows.make_due(run_id)
    finally:
        await rows.close()


async def test_a_late_run_waits_for_the_step_at_work_and_undoes_it_too(app: Stepfast, saga: Saga) -> None:
    """Rule 42: else what it did would never be undone."""
    gate = saga.gate("b")
    run = await app.start(saga.build(app, "a", "b < a", "c < b"), deadline=3600)
    async with app.worker():
        await gate.reached()
        await pass_deadline(app, run.id)
        await eventually(lambda: asked(app, run, "b"))
        gate.open()
        await eventually(lambda: ended(run))
    assert saga.log == ["a", "b", "undo b", "undo a"]
    assert (await run.info()).reason == "deadline"


async def test_a_run_whose_first_step_nobody_picked_up_in_time_fails(app: Stepfast, saga: Saga) -> None:
    run = await app.start(saga.build(app, "a", "b < a"), expires_in=0.01)
    await asyncio.sleep(0.05)
    await app.drain()
    assert saga.log == []
    with pytest.raises(RunFailed, match="expire"):
        await run.result()


@ON_BOTH
async def test_a_run_that_was_picked_up_in_time_does_not_expire_with_a_step_that_waits_for_a_slot(
    app: Stepfast, saga: Saga
) -> None:
    """The expiry is that of the run."""
    gate = saga.gate("a")
    run = await app.start(saga.build(app, "a", "b", "c < a b"), expires_in=60)
    async with app.worker(concurrency=1):
        await gate.reached()
        await pass_expiry(app, await row_of(run, "b"))
        gate.open()
        assert set(await run.result(timeout=PATIENCE)) == {"a", "b", "c"}


async def pass_expiry(app: Stepfast, run_id: str) -> None:
    """Let the time pass in which a run is to be picked up."""
    rows = Rows(await app.store(), app.namespace, app.url.text)
    try:
        await rows.fetch("UPDATE [runs] SET expires_at = 1, visible_at = 1 WHERE id = ?", run_id)
    finally:
        await rows.close()


@pytest.mark.parametrize("cause", ["failure", "deadline"])
@ON_BOTH
async def test_steps_on_other_workers_hear_at_once_that_their_run_fails(make_app: MakeApp, cause: str) -> None:
    """Long before the next heartbeat."""
    app = make_app(settings=Settings(lease=3000, heartbeat=1000))
    gates, told, dag = {"a": Gate(), "b": Gate()}, list[str](), app.dag("dag", deadline=3600)

    async def held(ctx: Any) -> None:
        await gates[ctx.step_name].passing()
        if ctx.step_name == "a" and cause == "failure":
            raise NonRetryableError("a broke")
        await eventually(cancelled)
        told.append(ctx.step_name)

    for name in gates:
        dag.declare(held, name=name)
    run = await app.start(dag)
    async with app.worker(concurrency=1), app.worker(concurrency=1):
        for gate in gates.values():
            await gate.reached()
        await (await app.start(dag, delay=3600)).cancel()  # every worker looks
        await eventually(lambda: all_have_looked(app))
        for gate in gates.values():
            gate.open()
        if cause == "deadline":
            await pass_deadline(app, run.id)
        await eventually(lambda: ended(run))
    assert sorted(told) == (["b"] if cause == "failure" else ["a", "b"])


async def all_have_looked(app: Stepfast) -> bool:
    """Whether every worker has had a heartbeat since it began."""
    return all(worker.beat_at > worker.started_at for worker in await (await app.store()).workers())


@ON_BOTH
async def test_a_step_that_workers_die_with_fails_its_run(make_app: MakeApp, saga: Saga) -> None:
    """Rule 28: a dead letter. Nothing is undone by itself: an operator may retry it."""
    app = make_app(settings=Settings(max_losses=0))
    await deafen(app)  # a beat that somebody hurries would bring the worker back to life
    gate = saga.gate("b")
    run = await app.start(saga.build(app, "a", "b < a", "c < b"))
    store = await app.store()
    rows = Rows(store, app.namespace, app.url.text)
    async with app.worker(shutdown_grace=0) as worker:
        await gate.reached()
        await rows.silence(worker.id)
        await store.reap("00000000-0000-7000-8000-000000000000", 10, 0)
        await eventually(lambda: ended(run))
    await rows.close()
    assert saga.undone == []
    info = await run.info()
    assert (info.status, info.reason) == ("failed", "workers_lost")
    with pytest.raises(RunFailed, match="workers"):
        await run.result()
    assert await how(run) == {"a": "completed", "b": "failed", "c": "skipped"}
    gate.open()
    await run.retry()
    await app.drain()
    assert saga.log.count("a") == 1
    assert list(await run.result(timeout=20)) == ["a", "b", "c"]


@ON_BOTH
async def test_a_step_whose_code_was_changed_undoes_nothing_and_can_be_retried(make_app: MakeApp, saga: Saga) -> None:
    """Rule 28; an error of the deployment is not caught either."""
    gate = Gate()

    def build(app: Stepfast, label: str) -> Dag:
        dag = app.dag("dag")
        dag.declare(saga.do, name="a", compensate=saga.undo)

        @dag.step(after=["a"], catch={Exception: "rescue"})
        async def b(ctx: Any) -> str:
            await ctx.step(label, lambda: None)
            await ctx.step(gate.passing)
            return "done"

        dag.declare(saga.do, name="rescue")
        return dag

    old, new = make_app(), make_app()
    run = await old.start(build(old, "one"))
    await interrupt(old, gate)
    build(new, "two")
    gate.open()
    await new.drain()
    info = await run.info()
    assert (info.status, info.reason, saga.log) == ("failed", "non_determinism", ["a"])
    await run.retry()
    await old.drain()
    assert await run.result(timeout=20) == {"a": "a-1", "b": "done"}


async def test_the_reason_of_a_run_is_that_of_its_step(app: Stepfast, saga: Saga) -> None:
    dag = app.dag("dag")
    dag.declare(saga.do, name="a", compensate=saga.undo)

    @dag.step(after=["a"], timeout=0.05, retries=0)
    async def b(ctx: Any) -> None:
        await asyncio.Event().wait()

    run = await app.start(dag)
    await app.drain()
    info = await run.info()
    assert (info.status, info.reason, saga.undone) == ("compensated", "timeout", ["a"])


@ON_BOTH
async def test_outputs_that_are_large_together_are_no_reason_to_undo_them(make_app: MakeApp, saga: Saga) -> None:
    app = make_app(settings=Settings(max_payload=1000))
    dag = app.dag("dag")
    for name in ("a", "b", "c"):
        dag.declare(lambda ctx: "x" * 500, name=name, compensate=saga.undo)
    run = await app.start(dag)
    await app.drain()
    assert await run.result(timeout=20) == dict.fromkeys(("a", "b", "c"), "x" * 500)
    assert saga.undone == []


@pytest.mark.parametrize("cancelled", [False, True], ids=["failed", "cancelled"])
@ON_BOTH
async def test_an_undo_that_fails_within_a_step_is_in_the_list_of_its_run(
    app: Stepfast, saga: Saga, cancelled: bool
) -> None:
    """The end tells whether all was undone."""
    dag, gate = app.dag("dag"), Gate()
    dag.declare(saga.do, name="a", compensate=saga.undo)

    def cannot(output: Any) -> None:
        raise NonRetryableError("stuck")

    @dag.step(after=["a"])
    async def b(ctx: Any) -> None:
        await ctx.options(compensate=cannot).step("inner", lambda: None)
        await ctx.step(gate.passing)
        raise NonRetryableError("no")

    run = await app.start(dag)
    async with app.worker():
        await gate.reached()
        if cancelled:
            await run.cancel()
        gate.open()
        await eventually(lambda: ended(run))
    info = await run.info()
    assert (info.status, info.reason, saga.undone) == ("failed", "undo_failed", ["a"])
    assert info.error is not None and "in step 'b'" in info.error.message and "stuck" in info.error.message


async def test_an_undo_may_have_another_name_when_it_is_gone_on_with(make_app: MakeApp, saga: Saga) -> None:
    """A crash between two undos, and a deployment that renames both."""

    async def renamed(ctx: Any) -> None:
        await saga.undo(ctx)

    old, new = make_app(), make_app()
    gate = saga.gate("undo a")
    run = await old.start(saga.build(old, "a", "b < a", "c! < b"))
    await interrupt(old, gate)
    dag = new.dag("saga")
    for name, after in (("a", []), ("b", ["a"]), ("c", ["b"])):
        dag.declare(saga.fail if name == "c" else saga.do, name=name, after=after, compensate=renamed)
    gate.open()
    await new.drain()
    assert await run.status() == "compensated"
    assert saga.undone == ["b", "a", "a"]


async def test_where_an_error_leads_is_said_by_the_graph_that_the_run_was_started_with(
    make_app: MakeApp, saga: Saga
) -> None:
    gate = Gate()

    def build(app: Stepfast, **catch: str) -> Dag:
        dag = app.dag("dag")

        @dag.step(retries=0, catch={{"value": ValueError}[kind]: target for kind, target in catch.items()})
        async def a(ctx: Any) -> None:
            await ctx.step(gate.passing)
            raise ValueError("caught")

        dag.declare(saga.do, name="old")
        dag.declare(saga.do, name="new", after=["old"])
        return dag

    old, new = make_app(settings=Settings(max_attempts=1)), make_app(settings=Settings(max_attempts=1))
    run = await old.start(build(old, value="old"))
    await interrupt(old, gate)
    build(new)
    gate.open()
    await new.drain()
    assert await run.result(timeout=20) == {"old": "old-1", "new": "new-1"}


async def test_an_internal_error_ends_the_run_and_says_so(app: Stepfast, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nobody waits for ever."""

    def broken(*_: Any) -> None:
        raise TypeError("a bug")

    @app.task
    async def task() -> None:
        raise ValueError("x")

    monkeypatch.setattr("stepfast.engine.outcomes.retry_delay", broken)
    run = await app.start(task)
    await app.drain()
    with pytest.raises(RunFailed, match=r"internal error of Stepfast ended the run .*: TypeError: a bug$"):
        await run.result(timeout=20)


# -- trying again ----------------------------------------------------------------------------------------------------


async def test_a_retry_of_an_undone_run_is_refused_with_a_word_on_what_to_do(app: Stepfast, saga: Saga) -> None:
    run = await app.start(saga.build(app, "a", "b! < a"))
    await app.drain()
    before = await how(run)
    with pytest.raises(InvalidState, match=r"was undone .* retry\(from_start=True\)"):
        await run.retry()
    await app.drain()
    assert await how(run) == before
    assert saga.log.count("b") == 1


@ON_BOTH
async def test_a_failed_run_is_started_anew_with_the_same_input(app: Stepfast, saga: Saga, calls: Calls) -> None:
    dag = app.dag("dag", deadline=7200)

    @dag.step(compensate=saga.undo)
    async def a(ctx: Any) -> Any:
        if calls.hit("a") == 1:
            return None
        return ctx.input

    @dag.step(after=[a])
    async def b(ctx: Any) -> str:
        if calls.hit("b") == 1:
            raise NonRetryableError("the first time")
        return "done"

    first = await app.start(dag, {"order": 7}, tags=["vip"], priority=3)
    await app.drain()
    second = await first.retry(from_start=True)
    assert second.id != first.id
    await app.drain()
    assert await second.result() == {"a": {"order": 7}, "b": "done"}
    assert await first.status() == "compensated"
    info = await second.info()
    assert (info.origin, info.tags, info.priority, info.input) == (first.id, ["vip"], 3, {"order": 7})


@ON_BOTH
async def test_a_cancelled_run_is_started_anew(app: Stepfast, saga: Saga) -> None:
    run = await app.start(saga.build(app, "a"))
    await run.cancel()
    await app.drain()
    again = await run.retry(from_start=True)
    await app.drain()
    assert await again.result() == {"a": "a-1"}


@ON_BOTH
async def test_a_run_that_goes_on_is_not_started_anew(app: Stepfast, saga: Saga) -> None:
    run = await app.start(saga.build(app, "a"))
    with pytest.raises(InvalidState, match="running"):
        await run.retry(from_start=True)


@ON_BOTH
async def test_a_run_started_anew_keeps_the_graph_of_the_first(make_app: MakeApp, saga: Saga) -> None:
    old, new = make_app(), make_app()
    first = await old.start(saga.build(old, "a", "b! < a"))
    await old.drain()
    dag = new.dag("saga")
    for name in ("a", "b", "c"):
        dag.declare(saga.do, name=name)
    again = await new.get(first.id).retry(from_start=True)
    await new.drain()
    assert set(await again.result()) == {"a", "b"}


# -- several workers -------------------------------------------------------------------------------------------------


@ON_BOTH
async def test_one_worker_undoes_what_several_did(make_app: MakeApp, saga: Saga) -> None:
    """One owner."""
    apps = [make_app(), make_app()]
    graph = ["root", *(f"s{n} < root" for n in range(6)), "end! < " + " ".join(f"s{n}" for n in range(6))]
    for app in apps:
        saga.build(app, *graph)
    runs = [await apps[0].start("saga") for _ in range(4)]
    async with apps[0].worker(concurrency=3), apps[1].worker(concurrency=3):
        for run in runs:
            await eventually(lambda run=run: has_status(run, "compensated"))  # type: ignore[misc]
    assert sorted(saga.undone) == sorted(4 * ["root", *(f"s{n}" for n in range(6))])


@ON_BOTH
async def test_many_runs_fail_and_succeed_side_by_side(app: Stepfast, saga: Saga) -> None:
    dag = app.dag("dag")
    dag.declare(saga.do, name="a", compensate=saga.undo)

    @dag.step(after=["a"])
    async def b(ctx: Any) -> int:
        if ctx.input % 2:
            raise NonRetryableError("odd")
        return int(ctx.input)

    runs = await app.start_many(dag, range(20))
    await app.drain()
    statuses = [await run.status() for run in runs]
    assert statuses == ["completed", "compensated"] * 10
    assert saga.undone == ["a"] * 10


class Declined(ValueError):
    """A kind of its own."""


async def test_an_error_of_a_subclass_that_comes_through_a_step_is_caught(app: Stepfast) -> None:
    """As one that the handler raises itself; by then only the names of its classes are left."""
    dag = app.dag("dag")

    def decline() -> None:
        raise Declined("no")

    async def pay(ctx: Any) -> None:
        await ctx.step("card", decline)

    dag.declare(pay, name="pay", retries=0, catch={ValueError: "ask"})
    dag.declare(lambda ctx: "asked", name="ask")
    run = await app.start(dag)
    await app.drain()
    assert await run.result() == {"ask": "asked"}


@pytest.mark.parametrize("option", ["max_attempts", "timeout"])
async def test_what_has_no_effect_on_a_dag_is_refused_at_its_start(app: Stepfast, option: str) -> None:
    dag = app.dag("dag")
    dag.declare(lambda ctx: 1, name="a")
    with pytest.raises(ConfigurationError, match=f"takes no {option}"):
        await app.start(dag, **{option: 5})  # type: ignore[call-overload]
