"""Operators and dag runs: retry in place, pause and resume; and steps that wait when their run fails."""

from __future__ import annotations

from typing import Any

import pytest

from stepfast import Backoff, Context, InvalidState, NonRetryableError, RunCancelled, RunFailed, Settings, Stepfast
from stepfast.engine.dag import Dag
from stepfast.model.records import Lane
from stepfast.run import Run
from tests.engine.conftest import ON_BOTH, ON_SQLITE, MakeApp
from tests.store.scene import Rows, Scene, move
from tests.support.dags import how, make_step_due, row_of, steps_of, undos_of
from tests.support.engine import PATIENCE, Calls, Gate, eventually

pytestmark = ON_SQLITE

QUICK = Backoff(base=0.001, jitter=False)


def chain(app: Stepfast, calls: Calls, *broken: str, **options: Any) -> Dag:
    """a → b → c, and aside; those that are broken fail the first time."""
    dag = app.dag("dag", **options)

    async def work(ctx: Any) -> str:
        if calls.hit(ctx.step_name) == 1 and ctx.step_name in broken:
            raise NonRetryableError("the first time")
        return f"{ctx.step_name}-{calls[ctx.step_name]}"

    dag.declare(work, name="a")
    dag.declare(work, name="aside")
    dag.declare(work, name="b", after=["a"])
    dag.declare(work, name="c", after=["b", "aside"])
    return dag


async def is_step(run: Run[Any], name: str, *statuses: str) -> bool:
    return (await how(run))[name] in statuses


async def has_ended(run: Run[Any]) -> bool:
    return (await run.info()).completed_at is not None


# -- retry -----------------------------------------------------------------------------------------------------------


@ON_BOTH
async def test_a_failed_run_goes_on_with_the_step_that_failed(app: Stepfast, calls: Calls) -> None:
    run = await app.start(chain(app, calls, "b"))
    await app.drain()
    assert (await run.status(), (await how(run))["c"]) == ("failed", "skipped")
    assert (await run.retry()).id == run.id
    assert await run.status() == "running"
    await app.drain()
    assert await run.result() == {"a": "a-1", "aside": "aside-1", "b": "b-2", "c": "c-1"}
    assert calls == {"a": 1, "aside": 1, "b": 2, "c": 1}
    info = await run.info()
    assert (info.status, info.reason, info.error) == ("completed", None, None)


@ON_BOTH
async def test_workers_take_up_a_retried_run_by_themselves(app: Stepfast, calls: Calls) -> None:
    run = await app.start(chain(app, calls, "a", "aside"))
    async with app.worker():
        await eventually(lambda: has_ended(run))
        while await run.status() == "failed":
            await run.retry()
            await eventually(lambda: has_ended(run))
    assert set(await run.result()) == {"a", "aside", "b", "c"}


async def test_a_step_that_is_tried_again_has_all_its_tries_and_keeps_its_records(app: Stepfast, calls: Calls) -> None:
    dag = app.dag("dag")

    @dag.step(retries=1, backoff=QUICK)
    async def fetch(ctx: Any) -> int:
        kept = await ctx.step("open", lambda: calls.hit("open"))
        if calls.hit("fetch") < 4:
            raise ValueError("not yet")
        return int(kept)

    run = await app.start(dag)
    await app.drain()
    assert (await run.status(), calls["fetch"]) == ("failed", 2)
    await run.retry()
    await app.drain()
    assert await run.result() == {"fetch": 1}
    assert calls == {"open": 1, "fetch": 4}


@ON_BOTH
async def test_a_failed_record_of_the_step_itself_is_made_anew(app: Stepfast, calls: Calls) -> None:
    dag = app.dag("dag")

    def flaky() -> str:
        if calls.hit("inner") == 1:
            raise NonRetryableError("the first time")
        return "well"

    @dag.step(retries=0)
    async def work(ctx: Any) -> Any:
        await ctx.step("before", lambda: calls.hit("before"))
        return await ctx.step("inner", flaky)

    run = await app.start(dag)
    await app.drain()
    await run.retry()
    await app.drain()
    assert await run.result() == {"work": "well"}
    assert calls == {"before": 1, "inner": 2}


@ON_BOTH
async def test_a_cancelled_run_goes_on_where_it_was(app: Stepfast, calls: Calls) -> None:
    dag = chain(app, calls)
    dag.approval("ok", after=["c"])
    run = await app.start(dag)
    await app.drain()
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


async def test_an_approval_that_was_refused_is_asked_for_again(app: Stepfast, calls: Calls) -> None:
    dag = app.dag("dag")
    dag.approval("ok")
    run = await app.start(dag)
    await run.signal("ok", False)
    await app.drain()
    assert await run.status() == "failed"
    await run.retry()
    await app.drain()
    assert await how(run) == {"ok": "waiting"}
    await run.signal("ok", True)
    await app.drain()
    assert await run.result() == {"ok": True}


async def test_an_approval_that_came_too_late_has_its_time_again(make_app: MakeApp) -> None:
    app = make_app(settings=Settings(inline_wait=0))
    dag = app.dag("dag")
    dag.approval("ok", timeout=3600)
    run = await app.start(dag)
    await app.drain()
    await make_step_due(app, run, "ok")
    await app.drain()
    assert await run.status() == "failed"
    await run.retry()
    await app.drain()
    assert await how(run) == {"ok": "waiting"}
    await run.signal("ok", True)
    await app.drain()
    assert await run.result() == {"ok": True}


async def test_a_run_that_goes_on_is_not_retried(app: Stepfast, calls: Calls) -> None:
    run = await app.start(chain(app, calls, "b"))
    with pytest.raises(InvalidState, match="is running; only failed or cancelled"):
        await run.retry()
    await app.drain()
    await run.retry()
    with pytest.raises(InvalidState, match="is running"):
        await run.retry()
    await app.drain()
    with pytest.raises(InvalidState, match="is completed"):
        await run.retry()


async def test_a_run_of_which_a_step_undid_what_it_had_done_is_not_retried(app: Stepfast, calls: Calls) -> None:
    dag = app.dag("dag")

    @dag.step(retries=0)
    async def work(ctx: Any) -> None:
        await ctx.options(compensate=lambda _: calls.hit("undo")).step("do", lambda: calls.hit("do"))
        raise NonRetryableError("no")

    run = await app.start(dag)
    await app.drain()
    assert (await run.status(), calls) == ("failed", {"do": 1, "undo": 1})
    with pytest.raises(InvalidState, match=r"a step of run .* was undone .*from_start=True"):
        await run.retry()


@pytest.mark.parametrize("verb", ["retry", "cancel", "pause", "resume"])
async def test_what_is_asked_of_a_step_names_its_dag_run(app: Stepfast, calls: Calls, verb: str) -> None:
    run = await app.start(chain(app, calls, "a"))
    await app.drain()
    step = app.get(await row_of(run, "a"))
    with pytest.raises(InvalidState, match=f"is a step of dag run {run.id}"):
        await getattr(step, verb)()
    with pytest.raises(InvalidState, match=f"is a step of dag run {run.id}"):
        await step.retry(from_start=True)


async def test_a_dag_run_that_failed_its_parent_is_retried_with_it(app: Stepfast, calls: Calls) -> None:
    dag = chain(app, calls, "b")

    @app.workflow(max_attempts=1)
    async def parent(ctx: Context) -> Any:
        return await ctx.call(dag)

    run = await app.start(parent)
    await app.drain()
    assert await run.status() == "failed"
    await run.retry()
    await app.drain()
    assert (await run.result())["b"] == "b-2"
    assert calls["a"] == 1


async def test_a_run_that_was_retried_and_fails_later_is_undone(app: Stepfast, calls: Calls) -> None:
    """What was done before the retry, and after it."""
    undone: list[str] = []
    dag = app.dag("dag")

    def undo(ctx: Any) -> None:
        undone.append(ctx.step_name)

    async def work(ctx: Any) -> None:
        if calls.hit(ctx.step_name) == 1 and ctx.step_name in ("first", "last"):
            raise NonRetryableError("the first time")

    dag.declare(work, name="first", compensate=undo)
    dag.declare(work, name="second", after=["first"], compensate=undo)
    dag.declare(work, name="last", after=["second"], compensate=undo)
    run = await app.start(dag)
    await app.drain()
    await run.retry()
    await app.drain()
    assert (await run.status(), undone) == ("compensated", ["second", "first"])


# -- pause and resume ------------------------------------------------------------------------------------------------


async def test_a_paused_run_does_nothing_until_it_is_resumed(app: Stepfast, calls: Calls) -> None:
    run = await app.start(chain(app, calls))
    await run.pause()
    await app.drain()
    assert (await run.status(), calls) == ("paused", {})
    await run.pause()
    await run.resume()
    await app.drain()
    assert set(await run.result()) == {"a", "aside", "b", "c"}


@ON_BOTH
async def test_a_step_under_way_finishes_and_what_comes_after_it_is_held(app: Stepfast) -> None:
    gate, dag = Gate(), app.dag("dag")

    @dag.step
    async def a(ctx: Any) -> str:
        await gate.passing()
        return "done"

    @dag.step(after=[a])
    async def b(ctx: Any) -> str:
        return str(ctx.outputs["a"])

    run = await app.start(dag)
    async with app.worker():
        await gate.reached()
        await run.pause()
        assert await run.status() == "paused"
        gate.open()
        await eventually(lambda: is_step(run, "a", "completed"))
        assert await how(run) == {"a": "completed", "b": "paused"}
        await run.resume()
        assert await run.result(timeout=PATIENCE) == {"a": "done", "b": "done"}


async def test_a_step_with_steps_of_its_own_is_held_between_them(app: Stepfast, calls: Calls) -> None:
    gate, dag = Gate(), app.dag("dag")

    @dag.step
    async def work(ctx: Any) -> int:
        async def first() -> None:
            calls.hit("first")
            await gate.passing()

        await ctx.step(first)
        return int(await ctx.step("second", lambda: calls.hit("second")))

    run = await app.start(dag)
    async with app.worker():
        await gate.reached()
        await run.pause()
        gate.open()
        await eventually(lambda: is_step(run, "work", "paused"))
        assert calls == {"first": 1}
        await run.resume()
        assert await run.result(timeout=PATIENCE) == {"work": 1}
    assert calls == {"first": 1, "second": 1}


async def test_a_sleep_in_a_step_is_made_neither_shorter_nor_longer(make_app: MakeApp, calls: Calls) -> None:
    app = make_app(settings=Settings(inline_wait=0))
    dag = app.dag("dag")

    @dag.step
    async def nap(ctx: Any) -> int:
        await ctx.sleep(3600)
        return calls.hit("woken")

    run = await app.start(dag)
    await app.drain()
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
    await app.drain()
    assert await run.result() == {"nap": 1}


async def test_an_answer_to_an_approval_of_a_paused_run_is_kept(app: Stepfast) -> None:
    dag = app.dag("dag")
    dag.approval("ok")
    run = await app.start(dag)
    await app.drain()
    await run.pause()
    await run.signal("ok", "yes")
    await app.drain()
    assert (await run.status(), await how(run)) == ("paused", {"ok": "paused"})
    await run.resume()
    await app.drain()
    assert await run.result() == {"ok": "yes"}


async def test_a_paused_run_can_be_cancelled_and_is_undone(app: Stepfast) -> None:
    undone: list[str] = []
    dag = app.dag("dag")
    dag.declare(lambda ctx: 1, name="a", compensate=lambda ctx: undone.append("a"))
    dag.approval("ok", after=["a"])
    run = await app.start(dag)
    await app.drain()
    await run.pause()
    await run.cancel()
    await app.drain()
    assert (await run.status(), undone) == ("compensated", ["a"])


@ON_BOTH
async def test_a_deadline_ends_a_paused_run(app: Stepfast, calls: Calls) -> None:
    run = await app.start(chain(app, calls, deadline=3600))
    await run.pause()
    row = await (await app.store()).run(run.id)
    assert row is not None
    rows = Rows(await app.store(), url=app.url.text)
    try:
        for column in ("visible_at", "deadline_at"):
            await rows.set(run.id, column, row.now_ms - 60_000)
    finally:
        await rows.close()
    await app.drain()
    with pytest.raises(RunFailed) as failed:
        await run.result()
    assert (failed.value.reason, calls) == ("deadline", {})


async def test_a_run_that_is_undone_is_not_paused(app: Stepfast) -> None:
    gate, dag = Gate(), app.dag("dag")

    async def undo(ctx: Any) -> None:
        await gate.passing()

    @dag.step(compensate=undo)
    async def a(ctx: Any) -> None: ...

    @dag.step(after=[a])
    async def b(ctx: Any) -> None:
        raise NonRetryableError("no")

    run = await app.start(dag)
    async with app.worker():
        await gate.reached()
        with pytest.raises(
            InvalidState, match="is compensating; only a run that has neither ended nor is being undone can be paused"
        ):
            await run.pause()
        gate.open()
        await eventually(lambda: has_ended(run))


async def test_only_a_paused_run_is_resumed(app: Stepfast, calls: Calls) -> None:
    run = await app.start(chain(app, calls))
    with pytest.raises(InvalidState, match="only a paused run can be resumed"):
        await run.resume()


@ON_BOTH
async def test_a_step_has_had_as_many_attempts_as_it_was_called(app: Stepfast, calls: Calls) -> None:
    """Also if its run was cancelled between two of them."""
    dag = app.dag("dag")

    @dag.step(retries=1, backoff=Backoff(base=3600))
    async def slow(ctx: Any) -> str:
        if calls.hit("slow") == 1:
            raise ValueError("once")
        return "done"

    run = await app.start(dag)
    await app.drain()
    await run.cancel()
    await app.drain()
    assert ((await how(run))["slow"], (await steps_of(run))["slow"].attempts) == ("cancelled", 1)
    await run.retry()
    await app.drain()
    assert ((await how(run))["slow"], (await steps_of(run))["slow"].attempts) == ("completed", calls["slow"])


# -- steps that wait when their run fails ----------------------------------------------------------------------------


async def test_a_step_that_waits_undoes_what_it_did_before_its_run_is_undone(make_app: MakeApp) -> None:
    app, log = make_app(settings=Settings(inline_wait=0)), list[str]()
    dag = app.dag("dag")

    @dag.step(compensate=lambda ctx: log.append("undo book"))
    async def book(ctx: Any) -> None: ...

    @dag.step(after=[book])
    async def wait(ctx: Any) -> None:
        await ctx.options(compensate=lambda _: log.append("undo hold")).step("hold", lambda: log.append("hold"))
        await ctx.wait_signal("wait")

    @dag.step(after=[book])
    async def bad(ctx: Any) -> None:
        await ctx.wait_signal("bad")
        raise NonRetryableError("no")

    run = await app.start(dag)
    await app.drain()
    await run.signal("bad")
    await app.drain()
    assert log == ["hold", "undo hold", "undo book"]
    assert await how(run) == {"book": "completed", "wait": "compensated", "bad": "failed"}
    assert await run.status() == "compensated"
    assert await undos_of(run) == [("<lambda>", "compensated")]
    error = (await steps_of(run))["bad"].error
    assert error is not None and error.message == "no"


async def test_a_step_that_waits_in_a_cancelled_run_undoes_what_it_did(app: Stepfast) -> None:
    log = list[str]()
    dag = app.dag("dag")

    @dag.step
    async def wait(ctx: Any) -> None:
        await ctx.options(compensate=lambda _: log.append("undo")).step("hold", lambda: log.append("hold"))
        await ctx.sleep(3600)

    run = await app.start(dag)
    await app.drain()
    await run.cancel()
    await app.drain()
    assert (log, await how(run)) == (["hold", "undo"], {"wait": "compensated"})
    with pytest.raises(RunCancelled):
        await run.result()


# -- a finisher that stops -------------------------------------------------------------------------------------------


@ON_BOTH
async def test_a_cancelled_run_whose_finisher_stops_gracefully_ends_cancelled(app: Stepfast, calls: Calls) -> None:
    dag = chain(app, calls)
    run = await app.start(dag)
    store = await app.store()
    rows = Rows(store, app.namespace, app.url.text)
    try:
        scene = Scene(store, rows)
        worker = await scene.add_worker()
        [step] = await store.claim(worker, 1, [(Lane("dag", "dag/a", 0), 0)], {"dag/a": dag.version}, 1)
        await store.give_back(worker, [(step.id, step.claim)])  # it has begun: somebody has to finish the run
        await run.cancel()
        [itself] = await store.claim(worker, 2, [(Lane("dag", "dag", 0), 0)], {"dag": dag.version}, 1)
        await scene.flush(move(itself, "queued", delay_ms=0), worker=worker)
        await store.unregister(worker)
    finally:
        await rows.close()
    await app.drain()
    assert (await run.info()).status == "cancelled"
    with pytest.raises(RunCancelled):
        await run.result(timeout=PATIENCE)


async def test_a_delayed_dag_run_is_queued_and_its_steps_are_put_off(app: Stepfast, calls: Calls) -> None:
    """The run itself is in nobody's hands; what is put off are the steps that wait for no others."""
    run = await app.start(chain(app, calls), delay=3600)
    await app.drain()
    assert (await run.status(), [listed.id for listed in await app.runs(status="queued")]) == ("queued", [run.id])
    assert await app.runs(status="running") == []
    steps = {step.name: step for step in await run.steps()}
    assert {name: (step.status, step.detail) for name, step in steps.items()} == {
        "a": ("waiting", None), "aside": ("waiting", None), "b": ("waiting", "steps"), "c": ("waiting", "steps")
    }  # fmt: skip
    info = await app.get(str(steps["a"].child)).info()
    assert (info.status, info.ready, info.due_at is not None and info.due_at > info.read_at) == ("queued", False, True)
    assert calls == {}
