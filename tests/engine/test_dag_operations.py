"""Operators and dag runs: retry in place, start again, pause and resume."""

from __future__ import annotations

from typing import Any

import pytest

from stepfast import Backoff, ConfigurationError, InvalidState, NonRetryableError, RunCancelled, Stepfast
from stepfast.engine.dag import Dag
from stepfast.model.records import Lane
from tests.engine.conftest import ON_BOTH, ON_SQLITE, RELEASED, MakeApp
from tests.store.scene import Scene, move
from tests.support.dags import (
    QUICK,
    Saga,
    build,
    ended,
    how,
    make_step_due,
    passing,
    returning,
    row_of,
    step_is,
    steps_of,
)
from tests.support.engine import PATIENCE, Calls, Gate, drained, failure, finished
from tests.support.waiting import rows_of
from tests.support.workflows import calling

pytestmark = ON_SQLITE


def chain(app: Stepfast, calls: Calls, *broken: str, **options: Any) -> Dag:
    """a → b → c, and aside; those that are broken fail the first time."""

    async def work(ctx: Any) -> str:
        if calls.hit(ctx.step_name) == 1 and ctx.step_name in broken:
            raise NonRetryableError("the first time")
        return f"{ctx.step_name}-{calls[ctx.step_name]}"

    return build(app, {"a": work, "aside": work, "b < a": work, "c < b aside": work}, **options)


# -- retry in place --------------------------------------------------------------------------------------------------


@ON_BOTH
async def test_a_failed_run_continues_with_the_step_that_failed(app: Stepfast, calls: Calls) -> None:
    run = await drained(app, chain(app, calls, "b"))
    assert (await run.status(), (await how(run))["c"]) == ("failed", "skipped")
    assert (await run.retry()).id == run.id
    assert await run.status() == "running"
    assert await finished(app, run) == {"a": "a-1", "aside": "aside-1", "b": "b-2", "c": "c-1"}
    assert calls == {"a": 1, "aside": 1, "b": 2, "c": 1}
    info = await run.info()
    assert (info.status, info.reason, info.error) == ("completed", None, None)


@ON_BOTH
async def test_workers_take_a_retried_run_by_themselves(app: Stepfast, calls: Calls) -> None:
    run = await app.start(chain(app, calls, "a", "aside"))
    async with app.worker():
        while await ended(run) == "failed":
            await run.retry()
    assert set(await run.result()) == {"a", "aside", "b", "c"}


async def test_a_retried_step_has_all_its_tries_and_keeps_its_records(app: Stepfast, calls: Calls) -> None:
    dag = app.dag("dag")

    @dag.step(retries=1, backoff=QUICK)
    async def fetch(ctx: Any) -> int:
        kept = await ctx.step("open", lambda: calls.hit("open"))
        if calls.hit("fetch") < 4:
            raise ValueError("not yet")
        return int(kept)

    run = await drained(app, dag)
    assert (await run.status(), calls["fetch"]) == ("failed", 2)
    await run.retry()
    assert await finished(app, run) == {"fetch": 1}
    assert calls == {"open": 1, "fetch": 4}


@ON_BOTH
async def test_a_failed_record_within_a_retried_step_is_made_again(app: Stepfast, calls: Calls) -> None:
    dag = app.dag("dag")

    def flaky() -> str:
        if calls.hit("inner") == 1:
            raise NonRetryableError("the first time")
        return "well"

    @dag.step(retries=0)
    async def work(ctx: Any) -> Any:
        await ctx.step("before", lambda: calls.hit("before"))
        return await ctx.step("inner", flaky)

    run = await drained(app, dag)
    await run.retry()
    assert await finished(app, run) == {"work": "well"}
    assert calls == {"before": 1, "inner": 2}


@ON_BOTH
async def test_a_cancelled_run_continues_where_it_was(app: Stepfast, calls: Calls) -> None:
    dag = chain(app, calls)
    dag.approval("ok", after=["c"])
    run = await drained(app, dag)
    await run.cancel()
    await app.drain()
    with pytest.raises(RunCancelled):
        await run.result()
    await run.retry()
    await app.drain()
    assert (await how(run))["ok"] == "waiting"
    await run.signal("ok", "yes")
    await app.drain()
    assert (await run.result())["ok"] == "yes"
    assert calls["c"] == 1


@RELEASED
@pytest.mark.parametrize("cause", ["refused", "too late"])
async def test_an_approval_that_failed_waits_again(app: Stepfast, cause: str) -> None:
    dag = app.dag("dag")
    dag.approval("ok", timeout=3600)
    run = await drained(app, dag)
    if cause == "refused":
        await run.signal("ok", False)
    else:
        await make_step_due(app, run, "ok")
    await app.drain()
    assert await run.status() == "failed"
    await run.retry()
    await app.drain()
    assert await how(run) == {"ok": "waiting"}
    await run.signal("ok", True)
    assert await finished(app, run) == {"ok": True}


async def test_only_failed_or_cancelled_runs_are_retried(app: Stepfast, calls: Calls) -> None:
    run = await app.start(chain(app, calls, "b"))
    with pytest.raises(InvalidState, match="is running; only failed or cancelled"):
        await run.retry()
    with pytest.raises(InvalidState, match="running"):
        await run.retry(from_start=True)
    await app.drain()
    await run.retry()
    with pytest.raises(InvalidState, match="is running"):
        await run.retry()
    await app.drain()
    with pytest.raises(InvalidState, match="is completed"):
        await run.retry()


async def test_a_run_of_which_a_step_undid_itself_is_not_retried(app: Stepfast, calls: Calls) -> None:
    async def work(ctx: Any) -> None:
        await ctx.options(compensate=lambda _: calls.hit("undo")).step("do", lambda: calls.hit("do"))
        raise NonRetryableError("no")

    run = await drained(app, build(app, {"work": work}))
    assert (await run.status(), calls) == ("failed", {"do": 1, "undo": 1})
    with pytest.raises(InvalidState, match=r"a step of run .* was undone .*from_start=True"):
        await run.retry()


async def test_a_retry_of_an_undone_run_is_refused(app: Stepfast, saga: Saga) -> None:
    run = await drained(app, saga.build(app, "a", "b! < a"))
    before = await how(run)
    with pytest.raises(InvalidState, match=r"was undone .* retry\(from_start=True\)"):
        await run.retry()
    await app.drain()
    assert await how(run) == before
    assert saga.log.count("b") == 1


@pytest.mark.parametrize("verb", ["retry", "cancel", "pause", "resume"])
async def test_a_request_to_a_step_is_refused_and_names_its_dag_run(app: Stepfast, calls: Calls, verb: str) -> None:
    run = await drained(app, chain(app, calls, "a"))
    step = app.get(await row_of(run, "a"))
    with pytest.raises(InvalidState, match=f"is a step of dag run {run.id}"):
        await getattr(step, verb)()
    with pytest.raises(InvalidState, match=f"is a step of dag run {run.id}"):
        await step.retry(from_start=True)


async def test_a_dag_run_that_failed_its_parent_is_retried_with_it(app: Stepfast, calls: Calls) -> None:
    dag = chain(app, calls, "b")
    parent = calling(app, lambda ctx: ctx.call(dag), name="parent", max_attempts=1)
    run = await drained(app, parent)
    assert await run.status() == "failed"
    await run.retry()
    await app.drain()
    assert (await run.result())["b"] == "b-2"
    assert calls["a"] == 1


async def test_a_retried_run_that_fails_later_is_undone_as_a_whole(app: Stepfast, saga: Saga, calls: Calls) -> None:
    async def work(ctx: Any) -> None:
        if calls.hit(ctx.step_name) == 1 and ctx.step_name != "second":
            raise NonRetryableError("the first time")

    dag = app.dag("dag")
    for name, after in (("first", []), ("second", ["first"]), ("last", ["second"])):
        dag.declare(work, name=name, after=after, compensate=saga.undo)
    run = await drained(app, dag)
    await run.retry()
    await app.drain()
    assert (await run.status(), saga.undone) == ("compensated", ["second", "first"])


@ON_BOTH
async def test_a_step_has_as_many_attempts_as_it_was_called(app: Stepfast, calls: Calls) -> None:
    """Also if its run was cancelled between two of them."""
    dag = app.dag("dag")

    @dag.step(retries=1, backoff=Backoff(base=3600))
    async def slow(ctx: Any) -> str:
        if calls.hit("slow") == 1:
            raise ValueError("once")
        return "done"

    run = await drained(app, dag)
    await run.cancel()
    await app.drain()
    assert ((await how(run))["slow"], (await steps_of(run))["slow"].attempts) == ("cancelled", 1)
    await run.retry()
    await app.drain()
    assert ((await how(run))["slow"], (await steps_of(run))["slow"].attempts) == ("completed", calls["slow"])


# -- retry from the start --------------------------------------------------------------------------------------------


@ON_BOTH
async def test_a_failed_run_is_started_again_with_the_same_input(app: Stepfast, saga: Saga, calls: Calls) -> None:
    dag = app.dag("dag", deadline=7200)
    dag.declare(lambda ctx: ctx.input, name="a", compensate=saga.undo)

    @dag.step(after=["a"])
    async def b(ctx: Any) -> str:
        if calls.hit("b") == 1:
            raise NonRetryableError("the first time")
        return "done"

    first = await drained(app, dag, {"order": 7}, tags=["vip"], priority=3)
    second = await first.retry(from_start=True)
    assert second.id != first.id
    assert await finished(app, second) == {"a": {"order": 7}, "b": "done"}
    assert await first.status() == "compensated"
    info = await second.info()
    assert (info.origin, info.tags, info.priority, info.input) == (first.id, ["vip"], 3, {"order": 7})


@ON_BOTH
async def test_a_cancelled_run_is_started_again(app: Stepfast, saga: Saga) -> None:
    run = await app.start(saga.build(app, "a"))
    await run.cancel()
    await app.drain()
    again = await run.retry(from_start=True)
    assert await finished(app, again) == {"a": "a-1"}


@ON_BOTH
async def test_a_run_that_is_started_again_keeps_the_graph_of_the_first(make_app: MakeApp, saga: Saga) -> None:
    old, new = make_app(), make_app()
    first = await drained(old, saga.build(old, "a", "b! < a"))
    saga.declare(new.dag("saga"), "a", "b", "c", compensate=None)
    again = await new.get(first.id).retry(from_start=True)
    await new.drain()
    assert set(await again.result()) == {"a", "b"}


# -- pause and resume ------------------------------------------------------------------------------------------------


async def test_a_paused_run_does_nothing_until_it_is_resumed(app: Stepfast, calls: Calls) -> None:
    run = await app.start(chain(app, calls))
    with pytest.raises(InvalidState, match="only a paused run can be resumed"):
        await run.resume()
    await run.pause()
    await app.drain()
    assert (await run.status(), calls) == ("paused", {})
    await run.pause()
    await run.resume()
    await app.drain()
    assert set(await run.result()) == {"a", "aside", "b", "c"}


@ON_BOTH
async def test_a_step_at_work_finishes_and_what_comes_after_it_is_held(app: Stepfast) -> None:
    gate = Gate()
    run = await app.start(build(app, {"a": passing(gate, "done"), "b < a": lambda ctx: ctx.outputs["a"]}))
    async with app.worker():
        await gate.reached()
        await run.pause()
        assert await run.status() == "paused"
        gate.open()
        await step_is(run, "a", "completed")
        assert await how(run) == {"a": "completed", "b": "paused"}
        await run.resume()
        assert await run.result(timeout=PATIENCE) == {"a": "done", "b": "done"}


async def test_a_step_with_steps_of_its_own_is_held_between_them(app: Stepfast, calls: Calls) -> None:
    gate = Gate()

    async def work(ctx: Any) -> int:
        async def first() -> None:
            calls.hit("first")
            await gate.passing()

        await ctx.step(first)
        return int(await ctx.step("second", lambda: calls.hit("second")))

    run = await app.start(build(app, {"work": work}))
    async with app.worker():
        await gate.reached()
        await run.pause()
        gate.open()
        await step_is(run, "work", "paused")
        assert calls == {"first": 1}
        await run.resume()
        assert await run.result(timeout=PATIENCE) == {"work": 1}
    assert calls == {"first": 1, "second": 1}


@RELEASED
async def test_a_pause_makes_a_sleep_neither_shorter_nor_longer(app: Stepfast, calls: Calls) -> None:
    async def nap(ctx: Any) -> int:
        await ctx.sleep(3600)
        return calls.hit("woken")

    run = await drained(app, build(app, {"nap": nap}))
    step = app.get(await row_of(run, "nap"))
    due = (await step.info()).due_at
    await run.pause()
    await app.drain()
    assert (await step.info()).status == "paused"
    await run.resume()
    await app.drain()
    info = await step.info()
    assert (info.status, info.waiting_for, info.due_at, calls) == ("waiting", "time", due, {})
    await make_step_due(app, run, "nap")
    assert await finished(app, run) == {"nap": 1}


async def test_an_answer_to_an_approval_of_a_paused_run_is_kept(app: Stepfast) -> None:
    dag = app.dag("dag")
    dag.approval("ok")
    run = await drained(app, dag)
    await run.pause()
    await run.signal("ok", "yes")
    await app.drain()
    assert (await run.status(), await how(run)) == ("paused", {"ok": "paused"})
    await run.resume()
    assert await finished(app, run) == {"ok": "yes"}


async def test_a_paused_run_can_be_cancelled_and_is_undone(app: Stepfast, saga: Saga) -> None:
    dag = saga.build(app, "a")
    dag.approval("ok", after=["a"])
    run = await drained(app, dag)
    await run.pause()
    await run.cancel()
    await app.drain()
    assert (await run.status(), saga.undone) == ("compensated", ["a"])


@ON_BOTH
async def test_a_deadline_ends_a_paused_run(app: Stepfast, calls: Calls) -> None:
    run = await app.start(chain(app, calls, deadline=3600))
    await run.pause()
    row = await (await app.store()).run(run.id)
    assert row is not None
    async with rows_of(app) as rows:
        for column in ("visible_at", "deadline_at"):
            await rows.set(run.id, column, row.now_ms - 60_000)
    await app.drain()
    assert ((await failure(run)).reason, calls) == ("deadline", {})


# -- odd ends --------------------------------------------------------------------------------------------------------


@ON_BOTH
async def test_a_cancelled_run_whose_finisher_stops_gracefully_ends_cancelled(app: Stepfast) -> None:
    dag = build(app, {"a": returning(1)})
    run = await app.start(dag)
    store = await app.store()
    async with rows_of(app) as rows:
        scene = Scene(store, rows)
        worker = await scene.add_worker()
        [step] = await store.claim(worker, 1, [(Lane("dag", "dag/a", 0), 0)], {"dag/a": dag.version}, 1)
        await store.give_back(worker, [(step.id, step.claim)])  # it has begun: a worker has to finish the run
        await run.cancel()
        [itself] = await store.claim(worker, 2, [(Lane("dag", "dag", 0), 0)], {"dag": dag.version}, 1)
        await scene.flush(move(itself, "queued", delay_ms=0), worker=worker)
        await store.unregister(worker)
    await app.drain()
    assert (await run.info()).status == "cancelled"
    with pytest.raises(RunCancelled):
        await run.result(timeout=PATIENCE)


@pytest.mark.parametrize("option", ["max_attempts", "timeout"])
async def test_options_without_effect_on_a_dag_are_refused_at_its_start(app: Stepfast, option: str) -> None:
    with pytest.raises(ConfigurationError, match=f"takes no {option}"):
        await app.start(build(app, {"a": returning(1)}), **{option: 5})  # type: ignore[call-overload]
