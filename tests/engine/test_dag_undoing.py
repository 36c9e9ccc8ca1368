"""Dag runs that fail, are cancelled or miss their deadline: their steps are undone, in reverse (rule 42)."""

from __future__ import annotations

import asyncio
from contextlib import AsyncExitStack
from typing import Any

import pytest

from stepfast import (
    ChildFailed,
    Context,
    InvalidState,
    NonRetryableError,
    RetryLater,
    RunCancelled,
    Settings,
    Stepfast,
    cancelled,
    step,
)
from stepfast.engine.dag import Dag
from tests.engine.conftest import ON_BOTH, ON_SQLITE, WAITS, MakeApp, with_settings
from tests.support.crashing import crash_at, end_of, outcome_of
from tests.support.dags import (
    QUICK,
    Saga,
    asked_to_stop,
    build,
    ended,
    how,
    no,
    passing,
    returning,
    row_of,
    step_is,
    steps_of,
    undos_of,
)
from tests.support.engine import (
    PATIENCE,
    Calls,
    Gate,
    drained,
    eventually,
    failure,
    finished,
    interrupt,
    make_due,
    outcome,
)
from tests.support.waiting import deafen, rows_of
from tests.support.workflows import calling

pytestmark = ON_SQLITE

WRITTEN = pytest.mark.parametrize("written", [False, True], ids=["before the commit", "after the commit"])


# -- undoing in reverse --------------------------------------------------------------------------------------------


@ON_BOTH
async def test_completed_steps_are_undone_in_reverse(app: Stepfast, saga: Saga) -> None:
    run = await drained(app, saga.build(app, "a", "b < a", "c < b", "d! < c"))
    assert saga.log == ["a", "b", "c", "d", "undo c", "undo b", "undo a"]
    assert await run.status() == "compensated"
    assert await undos_of(run) == [("undo", "compensated")] * 3


async def test_the_result_of_an_undone_run_is_the_error_of_its_step(app: Stepfast, saga: Saga) -> None:
    run = await drained(app, saga.build(app, "a", "b! < a"))
    assert (await failure(run, "step 'b' failed: NonRetryableError: b broke")).reason == "code"
    info = await run.info()
    assert (info.status, info.reason, info.worker, info.waiting_for) == ("compensated", "code", None, None)
    assert info.completed_at is not None
    assert (await steps_of(run))["b"].error is not None


async def test_the_reason_of_a_run_is_that_of_its_step(app: Stepfast, saga: Saga) -> None:
    dag = saga.build(app, "a")
    dag.declare(passing(Gate()), name="b", after=["a"], timeout=0.05, retries=0)
    info = await (await drained(app, dag)).info()
    assert (info.status, info.reason, saga.undone) == ("compensated", "timeout", ["a"])


@pytest.mark.parametrize("value", [{"id": "r-1"}, None, False, 0, ""])
async def test_an_undo_has_the_context_and_the_output_of_its_step(app: Stepfast, value: Any) -> None:
    seen: list[Any] = []

    def undo(ctx: Any) -> None:
        seen.append((ctx.step_name, ctx.output, ctx.input, dict(ctx.outputs), ctx.run_id))

    dag = build(app, {"b < a": no})
    dag.declare(returning(value), name="a", compensate=undo)
    run = await drained(app, dag, {"order": 7})
    assert seen == [("a", value, {"order": 7}, {"a": value}, run.id)]
    assert type(seen[0][1]) is type(value)


async def test_only_completed_steps_with_an_undo_are_undone(app: Stepfast, saga: Saga) -> None:
    """Not the failed one, nor skipped ones."""
    dag = saga.build(app, "a", "c < b", "d! < c s")
    saga.declare(dag, "b < a", compensate=None)
    saga.declare(dag, "s", when=lambda ctx: False)
    run = await drained(app, dag)
    assert saga.undone == ["c", "a"]
    assert await run.status() == "compensated"


@pytest.mark.parametrize("edges", [["b!"], ["a", "b! < a"]])
async def test_a_run_with_nothing_to_undo_ends_failed(app: Stepfast, saga: Saga, edges: list[str]) -> None:
    dag = saga.build(app, edges.pop())
    for edge in edges:
        saga.declare(dag, edge, compensate=None)
    run = await drained(app, dag)
    assert (await run.status(), saga.undone) == ("failed", [])


@ON_BOTH
async def test_undos_run_in_parallel_where_the_graph_allows(app: Stepfast, saga: Saga) -> None:
    """Both sides of a diamond are at their gates at once; the root waits for both."""
    left, right = saga.gate("undo left"), saga.gate("undo right")
    run = await app.start(saga.build(app, "root", "left < root", "right < root", "end! < left right"))
    async with app.worker():
        await left.reached()
        await right.reached()
        right.open()
        await eventually(lambda: undos_of(run))
        assert "root" not in saga.undone
        left.open()
        assert await ended(run) == "compensated"
    assert saga.undone[-1] == "root" and len(saga.undone) == 3


async def test_a_step_is_undone_after_what_came_after_it_by_way_of_a_skipped_one(app: Stepfast, saga: Saga) -> None:
    dag = saga.build(app, "a", "b", "c < between b", "d! < c")
    saga.declare(dag, "between < a", when=lambda ctx: False)
    gate = saga.gate("undo c")
    run = await app.start(dag)
    async with app.worker():
        await gate.reached()
        await asyncio.sleep(0)
        assert saga.undone == ["c"]
        gate.open()
        assert await ended(run) == "compensated"
    assert saga.undone[0] == "c" and sorted(saga.undone) == ["a", "b", "c"]


@pytest.mark.parametrize("fails", [True, False])
async def test_a_step_is_undone_after_what_a_caught_error_led_to(app: Stepfast, saga: Saga, fails: bool) -> None:
    """And not at all if the run then completes."""
    dag = saga.build(app, "a", "c", "d! < c" if fails else "d < c")
    saga.declare(dag, "b! < a", catch={NonRetryableError: "c"})
    run = await drained(app, dag)
    assert saga.log == ["a", "b", "c", "d", *(["undo c", "undo a"] if fails else [])]
    assert await run.status() == ("compensated" if fails else "completed")


async def test_what_a_failed_step_recorded_is_undone_by_itself_and_first(app: Stepfast, saga: Saga) -> None:
    dag = saga.build(app, "a")

    @dag.step(after=["a"])
    async def b(ctx: Any) -> None:
        await ctx.options(compensate=lambda output: saga.log.append("undo inner")).step("inner", lambda: None)
        raise NonRetryableError("no")

    run = await drained(app, dag)
    assert saga.log == ["a", "undo inner", "undo a"]
    assert (await how(run))["b"] == "compensated"
    await failure(run, "step 'b' failed: NonRetryableError: no")


@with_settings(max_payload=1000)
@ON_BOTH
async def test_outputs_that_are_large_together_are_no_reason_to_undo_them(app: Stepfast, saga: Saga) -> None:
    dag = app.dag("dag")
    for name in "abc":
        dag.declare(returning("x" * 500), name=name, compensate=saga.undo)
    assert await outcome(app, dag) == dict.fromkeys("abc", "x" * 500)
    assert saga.undone == []


# -- the other steps, when one has failed --------------------------------------------------------------------------


async def test_a_sibling_at_work_ends_before_anything_is_undone(app: Stepfast, saga: Saga) -> None:
    """And being completed, it is undone too."""
    sibling, broken = saga.gate("sibling"), saga.gate("broken")
    run = await app.start(saga.build(app, "root", "sibling < root", "broken! < root"))
    async with app.worker():
        await sibling.reached()
        await broken.reached()
        broken.open()
        await step_is(run, "broken", "failed")
        assert (await run.status(), saga.undone) == ("running", [])
        sibling.open()
        assert await ended(run) == "compensated"
    assert (await how(run))["sibling"] == "completed"
    assert saga.undone == ["sibling", "root"]


async def test_a_sibling_is_cancelled_between_two_of_its_checkpoints(app: Stepfast, saga: Saga, calls: Calls) -> None:
    """What it recorded itself is undone by itself."""
    gate, broken = Gate(), saga.gate("broken")
    dag = saga.build(app, "broken!")

    @dag.step(compensate=saga.undo)
    async def sibling(ctx: Any) -> None:
        undo = ctx.options(compensate=lambda output: saga.log.append("undo inner"))
        await undo.step("inner", gate.passing)
        await ctx.step("next", lambda: calls.hit("next"))

    run = await app.start(dag)
    async with app.worker():
        await gate.reached()
        await broken.reached()
        broken.open()
        await asked_to_stop(app, run, "sibling")
        gate.open()
        await ended(run)
    assert calls == {}
    assert (await how(run))["sibling"] == "compensated"
    assert saga.log == ["broken", "undo inner"]


async def test_a_sibling_that_fails_too_is_not_tried_again(app: Stepfast, saga: Saga, calls: Calls) -> None:
    gate, broken = Gate(), saga.gate("broken")
    dag = saga.build(app, "broken!")

    @dag.step(retries=5)
    async def sibling(ctx: Any) -> None:
        calls.hit("sibling")
        await gate.passing()
        raise ValueError("too")

    run = await app.start(dag)
    async with app.worker():
        await gate.reached()
        await broken.reached()
        broken.open()
        await asked_to_stop(app, run, "sibling")
        gate.open()
        assert await ended(run) == "failed"
    assert calls == {"sibling": 1}
    await failure(run, "broken broke")


async def test_a_sibling_that_is_stuck_is_ended_at_its_timeout(app: Stepfast, saga: Saga) -> None:
    dag = saga.build(app, "root", "broken! < root")
    dag.declare(passing(Gate()), name="sibling", after=["root"], timeout=0.5, retries=5, compensate=saga.undo)
    run = await app.start(dag)
    async with app.worker():
        assert await ended(run) == "compensated"
    assert saga.undone == ["root"]
    assert (await how(run))["sibling"] in ("cancelled", "failed")


async def test_a_sibling_that_waits_for_its_next_try_ends(app: Stepfast, saga: Saga) -> None:
    dag, gate = saga.build(app, "broken!"), saga.gate("broken")

    @dag.step(retries=1)
    async def later(ctx: Any) -> None:
        raise RetryLater(3600)

    async def has_tried() -> bool:
        info = await app.get(await row_of(run, "later")).info()
        return info.attempt == 2 and info.worker is None

    run = await app.start(dag)
    async with app.worker():
        await gate.reached()
        await eventually(has_tried)
        gate.open()
        await ended(run)
    assert await how(run) == {"broken": "failed", "later": "cancelled"}


async def test_steps_that_have_not_begun_never_do(make_app: MakeApp, saga: Saga) -> None:
    """Neither those that wait for others, nor those that are ready for a worker that comes later."""
    whole, part = make_app(), make_app()
    run = await whole.start(saga.build(whole, "a!", "b", "after < b"))
    saga.build(part, "a!")
    await part.drain()
    await whole.drain()
    assert saga.log == ["a"]
    assert await how(run) == {"a": "failed", "b": "skipped", "after": "skipped"}
    assert await run.status() == "failed"


async def test_a_join_of_any_that_has_begun_is_undone_before_both_its_sides(app: Stepfast, saga: Saga) -> None:
    slow = saga.gate("slow")
    dag = saga.build(app, "quick", "slow", "end! < race slow")
    saga.declare(dag, "race < quick slow", join="any")
    run = await app.start(dag)
    async with app.worker():
        await slow.reached()
        await step_is(run, "race", "completed")
        slow.open()
        assert await ended(run) == "compensated"
    assert saga.undone[0] == "race" and sorted(saga.undone) == ["quick", "race", "slow"]


async def test_of_two_steps_that_fail_the_first_is_named(app: Stepfast, saga: Saga) -> None:
    first, second = saga.gate("first"), saga.gate("second")
    run = await app.start(saga.build(app, "second!", "first!"))
    async with app.worker():
        await first.reached()
        await second.reached()
        first.open()
        await step_is(run, "first", "failed")
        second.open()
        await failure(run, "first broke")


@WAITS
async def test_a_step_that_waits_undoes_what_it_did_before_its_run_is_undone(app: Stepfast, saga: Saga) -> None:
    dag = saga.build(app, "book")

    @dag.step(after=["book"])
    async def wait(ctx: Any) -> None:
        undo = ctx.options(compensate=lambda _: saga.log.append("undo hold"))
        await undo.step("hold", lambda: saga.log.append("hold"))
        await ctx.wait_signal("wait")

    @dag.step(after=["book"])
    async def bad(ctx: Any) -> None:
        await ctx.wait_signal("bad")
        raise NonRetryableError("no")

    run = await drained(app, dag)
    await run.signal("bad")
    await app.drain()
    assert saga.log == ["book", "hold", "undo hold", "undo book"]
    assert await how(run) == {"book": "completed", "wait": "compensated", "bad": "failed"}
    assert await run.status() == "compensated"
    assert await undos_of(run) == [("undo", "compensated")]
    error = (await steps_of(run))["bad"].error
    assert error is not None and error.message == "no"


async def test_a_step_that_waits_in_a_cancelled_run_undoes_what_it_did(app: Stepfast) -> None:
    log = list[str]()

    async def wait(ctx: Any) -> None:
        await ctx.options(compensate=lambda _: log.append("undo")).step("hold", lambda: log.append("hold"))
        await ctx.sleep(3600)

    run = await drained(app, build(app, {"wait": wait}))
    await run.cancel()
    await app.drain()
    assert (log, await how(run)) == (["hold", "undo"], {"wait": "compensated"})
    with pytest.raises(RunCancelled):
        await run.result()


# -- undos that fail -----------------------------------------------------------------------------------------------


async def test_a_failing_undo_is_recorded_and_the_others_are_done(app: Stepfast, saga: Saga) -> None:
    """The status is that of a failure, and the error lists what was not undone."""
    saga.broken = {"b", "a"}
    run = await drained(app, saga.build(app, "zero", "a < zero", "b < a", "c < b", "d! < c"))
    assert saga.undone == ["c", "b", "a", "zero"]
    assert await run.status() == "failed"
    failed, done = "compensation_failed", "compensated"
    assert [status for _, status in await undos_of(run)] == [done, failed, failed, done]
    error = await failure(run, "b cannot be undone")
    assert (error.reason, error.error_type) == ("undo_failed", "CompensationFailed")
    assert "'a'" in error.message and "a cannot be undone" in error.message


@pytest.mark.parametrize("cancelled", [False, True], ids=["failed", "cancelled"])
@ON_BOTH
async def test_an_undo_that_fails_within_a_step_is_listed_too(app: Stepfast, saga: Saga, cancelled: bool) -> None:
    dag, gate = saga.build(app, "a"), Gate()

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
        await ended(run)
    info = await run.info()
    assert (info.status, info.reason, saga.undone) == ("failed", "undo_failed", ["a"])
    assert info.error is not None and "in step 'b'" in info.error.message and "stuck" in info.error.message


@pytest.mark.parametrize(("own", "tries"), [(True, 5), (False, 3)], ids=["its own policy", "the settings"])
@with_settings(undo_retries=2, backoff_base=0.001)
async def test_a_failing_undo_is_retried(app: Stepfast, saga: Saga, calls: Calls, own: bool, tries: int) -> None:
    def undo(ctx: Any) -> None:
        if calls.hit("undo") < 5:
            raise ValueError("not yet")

    dag = saga.build(app, "b! < a")
    policy = step(retries=4, backoff=QUICK)(undo)
    dag.declare(saga.do, name="a", compensate=policy if own else undo, retries=0)
    run = await drained(app, dag)
    assert (calls, await run.status()) == ({"undo": tries}, "compensated" if own else "failed")


@WAITS
@ON_BOTH
async def test_an_undo_that_must_wait_frees_the_slot(app: Stepfast, saga: Saga, calls: Calls) -> None:
    """The undos before it wait for it without a slot; those beside it are done."""

    def undo(ctx: Any) -> None:
        if calls.hit("undo") == 1:
            raise RetryLater(3600)

    dag = saga.build(app, "root", "b < root", "end! < a b")
    dag.declare(saga.do, name="a", after=["root"], compensate=undo)
    run = await drained(app, dag)
    info = await run.info()
    assert (info.status, info.worker, info.waiting_for) == ("compensating", None, "retry")
    assert saga.undone == ["b"]
    await make_due(app, run.id)
    await app.drain()
    assert saga.undone == ["b", "root"]
    assert (await run.status(), calls) == ("compensated", {"undo": 2})


@ON_BOTH
async def test_an_undo_that_is_gone_from_the_code_is_listed(make_app: MakeApp, saga: Saga) -> None:
    old, new = make_app(), make_app()
    gate = saga.gate("b")
    run = await old.start(saga.build(old, "a", "b! < a", "zero"))
    await interrupt(old, gate)
    dag = saga.build(new, "zero")
    saga.declare(dag, "a", "b! < a", compensate=None)
    gate.open()
    await new.drain()
    assert saga.undone == ["zero"]
    await failure(run, "the undo of step 'a' is not in the code any more")


@ON_BOTH
async def test_an_undo_that_only_another_worker_has_is_left_to_it(make_app: MakeApp, saga: Saga) -> None:
    """During a deploy the new code must not give up what the old one could still undo."""
    old, new = make_app(), make_app()
    saga.build(old, "a", "b! < a")
    build(new, {"c": saga.do}, "saga")
    gate = saga.gate("undo a")
    run = await old.start("saga")
    await interrupt(old, gate)
    gate.open()
    saga.log.clear()

    async def given_back() -> bool:
        """The claims were those of the finish, of the undoing, and one in vain."""
        return bool(await rows.get(run.id, "claim") >= 3 and await rows.get(run.id, "worker") is None)

    async with AsyncExitStack() as elsewhere, rows_of(new) as rows:
        await elsewhere.enter_async_context(old.worker(queues=["elsewhere"]))  # alive, but it does not take the run
        async with new.worker():
            await eventually(given_back)
            assert await run.status() == "compensating"
            async with old.worker():  # before the other one ends: some worker must have the undo all the time
                await elsewhere.aclose()
                await ended(run)
    assert saga.undone == ["a"]
    assert await run.status() == "compensated"


async def test_an_undo_may_have_another_name_when_it_is_continued(make_app: MakeApp, saga: Saga) -> None:
    """A crash between two undos, and a deployment that renames both."""

    async def renamed(ctx: Any) -> None:
        await saga.undo(ctx)

    old, new = make_app(), make_app()
    gate = saga.gate("undo a")
    run = await old.start(saga.build(old, "a", "b < a", "c! < b"))
    await interrupt(old, gate)
    saga.declare(new.dag("saga"), "a", "b < a", "c! < b", compensate=renamed)
    gate.open()
    await new.drain()
    assert await run.status() == "compensated"
    assert saga.undone == ["b", "a", "a"]


# -- crashes and several workers -----------------------------------------------------------------------------------


@ON_BOTH
async def test_an_interrupted_undoing_repeats_only_the_undo_at_work(app: Stepfast, saga: Saga) -> None:
    gate = saga.gate("undo b")
    run = await app.start(saga.build(app, "a", "b < a", "c < b", "d! < c"))
    await interrupt(app, gate)
    assert await run.status() == "compensating"
    assert saga.undone == ["c", "b"]
    gate.open()
    await app.drain()
    assert saga.undone == ["c", "b", "b", "a"]
    assert await run.status() == "compensated"


@WRITTEN
@ON_BOTH
async def test_a_crash_after_an_undo_repeats_at_most_that_undo(app: Stepfast, saga: Saga, written: bool) -> None:
    run = await app.start(saga.build(app, "a", "b < a", "c < b", "d! < c"))
    await crash_at(app, outcome_of("undo", "undo"), written=written)
    await app.drain()
    assert saga.undone == ["c", *([] if written else ["c"]), "b", "a"]
    assert await run.status() == "compensated"


@WRITTEN
@pytest.mark.parametrize("end", ["failed", "compensating", "compensated"])
@ON_BOTH
async def test_a_crash_at_any_end_of_a_failing_run_undoes_everything_once(
    app: Stepfast, saga: Saga, end: str, written: bool
) -> None:
    run = await app.start(saga.build(app, "a", "b < a", "c! < b"))
    await crash_at(app, end_of(end), written=written)
    await app.drain()
    assert saga.undone == ["b", "a"]
    assert await run.status() == "compensated"


@ON_BOTH
async def test_no_undo_is_called_twice_when_others_beside_it_are_interrupted(app: Stepfast, saga: Saga) -> None:
    """Parallel undos have records of their own, whatever their order was."""
    gate = saga.gate("undo left")
    run = await app.start(saga.build(app, "root", "left < root", "right < root", "end! < left right"))
    async with app.worker(shutdown_grace=0):
        await gate.reached()
        await eventually(lambda: undos_of(run))
    gate.open()
    await app.drain()
    assert saga.undone.count("right") == 1
    assert saga.undone[-1] == "root" and saga.undone.count("root") == 1
    assert await run.status() == "compensated"


@ON_BOTH
async def test_one_worker_undoes_what_several_did(make_app: MakeApp, saga: Saga) -> None:
    apps, middle = [make_app(), make_app()], [f"s{n}" for n in range(6)]
    for app in apps:
        saga.build(app, "root", *(f"{name} < root" for name in middle), f"end! < {' '.join(middle)}")
    runs = [await apps[0].start("saga") for _ in range(4)]
    async with apps[0].worker(concurrency=3), apps[1].worker(concurrency=3):
        assert [await ended(run) for run in runs] == ["compensated"] * 4
    assert sorted(saga.undone) == sorted(4 * ["root", *middle])


@ON_BOTH
async def test_many_runs_fail_and_succeed_side_by_side(app: Stepfast, saga: Saga) -> None:
    dag = saga.build(app, "a")

    @dag.step(after=["a"])
    async def b(ctx: Any) -> int:
        if ctx.input % 2:
            raise NonRetryableError("odd")
        return int(ctx.input)

    runs = await app.start_many(dag, range(20))
    await app.drain()
    assert [await run.status() for run in runs] == ["completed", "compensated"] * 10
    assert saga.undone == ["a"] * 10


# -- cancel --------------------------------------------------------------------------------------------------------


async def test_a_run_that_is_cancelled_before_it_begins_does_nothing(app: Stepfast, saga: Saga) -> None:
    run = await app.start(saga.build(app, "a", "b < a"))
    await run.cancel()
    await app.drain()
    assert (saga.log, await run.status(), await how(run)) == ([], "cancelled", {"a": "skipped", "b": "skipped"})
    with pytest.raises(RunCancelled):
        await run.result()


@ON_BOTH
async def test_a_run_that_is_cancelled_in_a_paused_queue_ends_at_once(app: Stepfast) -> None:
    """No worker is needed, because nothing has begun. Its parent is woken, and it can be retried."""
    graph = build(app, {"first": returning(1), "second < first": returning(2)}, "held", queue="held")

    @app.workflow
    async def parent(ctx: Context) -> str:
        with pytest.raises(ChildFailed):
            await ctx.call(graph, {})
        return "failed"

    await app.pause_queue("held")
    above, alone = await app.start(parent), await app.start(graph, {})
    await app.drain()
    [child] = [info.id for info in await app.runs(workflow="held") if info.parent is not None]
    for run in (app.get(child), alone):
        await run.cancel()
        assert await run.status() == "cancelled"
        assert {step.status for step in await run.steps()} == {"skipped"}
    assert await finished(app, above) == "failed"
    await app.resume_queue("held")
    await alone.retry()
    assert await finished(app, alone) == {"first": 1, "second": 2}


async def test_a_cancelled_run_finishes_its_step_and_undoes_it(app: Stepfast, saga: Saga) -> None:
    gate = saga.gate("b")
    run = await app.start(saga.build(app, "a", "b < a", "c < b"))
    async with app.worker():
        await gate.reached()
        await run.cancel()
        gate.open()
        assert await ended(run) == "compensated"
    assert saga.log == ["a", "b", "undo b", "undo a"]
    with pytest.raises(RunCancelled):
        await run.result()
    await run.cancel()  # once more changes nothing


async def test_a_run_that_has_ended_or_is_being_undone_is_neither_cancelled_nor_paused(
    app: Stepfast, saga: Saga
) -> None:
    gate = saga.gate("undo a")
    run = await app.start(saga.build(app, "a", "b! < a"))
    async with app.worker():
        await gate.reached()
        with pytest.raises(InvalidState, match="compensating"):
            await run.cancel()
        said = "is compensating; only a run that has neither ended nor is being undone can be paused"
        with pytest.raises(InvalidState, match=said):
            await run.pause()
        gate.open()
        await failure(run, "b broke")
    done = await drained(app, saga.build(app, "a", name="done"))
    with pytest.raises(InvalidState, match="completed"):
        await done.cancel()


async def test_a_dag_is_cancelled_with_its_parent_and_undone(app: Stepfast, saga: Saga) -> None:
    dag, gate = saga.build(app, "a", "b < a"), saga.gate("b")
    parent = calling(app, lambda ctx: ctx.call(dag), name="parent")
    run = await app.start(parent)
    async with app.worker():
        await gate.reached()
        [call] = await run.steps()
        assert call.child is not None
        child = app.get(call.child)
        await run.cancel()
        await asked_to_stop(app, child, "b")
        gate.open()
        assert await ended(child) == "compensated"
    assert saga.undone == ["b", "a"]
    assert await run.status() == "cancelled"


# -- deadlines, expiry, dead letters, errors of the deployment -------------------------------------------------------


@pytest.mark.parametrize("at_work", [False, True], ids=["waits", "at work"])
async def test_a_late_run_is_ended_and_undone(app: Stepfast, saga: Saga, at_work: bool) -> None:
    """After the step at work, which is undone too."""
    dag = saga.build(app, "a", "b < a", "c < ok", deadline=3600)
    dag.approval("ok", after=["b"])
    gate = saga.gate("b")
    run = await app.start(dag)
    async with app.worker(), rows_of(app) as rows:
        await gate.reached()
        if not at_work:
            gate.open()
            await step_is(run, "b", "completed")
        await rows.make_due(run.id)
        if at_work:
            await asked_to_stop(app, run, "b")
            gate.open()
        assert await ended(run) == "compensated"
    assert saga.log == ["a", "b", "undo b", "undo a"]
    assert (await failure(run, "deadline")).reason == (await run.info()).reason == "deadline"


async def test_a_run_whose_first_step_was_not_begun_in_time_fails(app: Stepfast, saga: Saga) -> None:
    run = await app.start(saga.build(app, "a", "b < a"), expires_in=0.01)
    await asyncio.sleep(0.05)
    await app.drain()
    assert saga.log == []
    await failure(run, "expire")


@ON_BOTH
async def test_a_run_that_has_begun_does_not_expire_with_a_step_that_waits_for_a_slot(
    app: Stepfast, saga: Saga
) -> None:
    gate = saga.gate("a")
    run = await app.start(saga.build(app, "a", "b", "c < a b"), expires_in=60)
    async with app.worker(concurrency=1), rows_of(app) as rows:
        await gate.reached()
        await rows.fetch("UPDATE [runs] SET expires_at = 1, visible_at = 1 WHERE id = ?", await row_of(run, "b"))
        gate.open()
        assert set(await run.result(timeout=PATIENCE)) == {"a", "b", "c"}


@pytest.mark.parametrize("cause", ["failure", "deadline"])
@with_settings(lease=3000, heartbeat=1000)
@ON_BOTH
async def test_steps_on_other_workers_are_cancelled_at_once_when_their_run_fails(app: Stepfast, cause: str) -> None:
    """Long before the next heartbeat."""
    gates, stopped = {"a": Gate(), "b": Gate()}, list[str]()

    async def held(ctx: Any) -> None:
        await gates[ctx.step_name].passing()
        if ctx.step_name == "a" and cause == "failure":
            raise NonRetryableError("a broke")
        await eventually(cancelled)
        stopped.append(ctx.step_name)

    async def all_have_beaten() -> bool:
        return all(worker.beat_at > worker.started_at for worker in await (await app.store()).workers())

    dag = build(app, {"a": held, "b": held}, deadline=3600)
    run = await app.start(dag)
    async with app.worker(concurrency=1), app.worker(concurrency=1), rows_of(app) as rows:
        for gate in gates.values():
            await gate.reached()
        await (await app.start(dag, delay=3600)).cancel()  # makes every worker beat
        await eventually(all_have_beaten)
        for gate in gates.values():
            gate.open()
        if cause == "deadline":
            await rows.make_due(run.id)
        await ended(run)
    assert sorted(stopped) == (["b"] if cause == "failure" else ["a", "b"])


@with_settings(max_losses=0)
@ON_BOTH
async def test_a_step_that_workers_die_with_fails_its_run_and_undoes_nothing(app: Stepfast, saga: Saga) -> None:
    """Rule 28: a dead letter, which an operator may retry."""
    await deafen(app)  # an early heartbeat would bring the worker back to life
    gate = saga.gate("b")
    run = await app.start(saga.build(app, "a", "b < a", "c < b"))
    async with app.worker(shutdown_grace=0) as worker, rows_of(app) as rows:
        await gate.reached()
        await rows.silence(worker.id)
        await (await app.store()).reap("00000000-0000-7000-8000-000000000000", 10, 0)
        await ended(run)
    assert saga.undone == []
    info = await run.info()
    assert (info.status, info.reason) == ("failed", "workers_lost")
    await failure(run, "workers")
    assert await how(run) == {"a": "completed", "b": "failed", "c": "skipped"}
    gate.open()
    await run.retry()
    await app.drain()
    assert saga.log.count("a") == 1
    assert list(await run.result(timeout=PATIENCE)) == ["a", "b", "c"]


@ON_BOTH
async def test_a_step_whose_code_was_changed_undoes_nothing_and_can_be_retried(make_app: MakeApp, saga: Saga) -> None:
    """Rule 28; an error of the deployment is not caught either."""
    gate = Gate()

    def changing(app: Stepfast, label: str) -> Dag:
        dag = saga.build(app, "a", "rescue", name="dag")

        @dag.step(after=["a"], catch={Exception: "rescue"})
        async def b(ctx: Any) -> str:
            await ctx.step(label, lambda: None)
            await ctx.step(gate.passing)
            return "done"

        return dag

    old, new = make_app(), make_app()
    run = await old.start(changing(old, "one"))
    await interrupt(old, gate)
    changing(new, "two")
    gate.open()
    await new.drain()
    info = await run.info()
    assert (info.status, info.reason, saga.log) == ("failed", "non_determinism", ["a"])
    await run.retry()
    assert await finished(old, run) == {"a": "a-1", "b": "done"}


async def test_the_step_for_an_error_is_that_of_the_graph_of_the_run(make_app: MakeApp, saga: Saga) -> None:
    gate = Gate()

    def catching(app: Stepfast, catch: dict[Any, Any]) -> Dag:
        dag = saga.build(app, "old", "new < old", name="dag")

        @dag.step(retries=0, catch=catch)
        async def a(ctx: Any) -> None:
            await ctx.step(gate.passing)
            raise ValueError("caught")

        return dag

    old, new = make_app(settings=Settings(max_attempts=1)), make_app(settings=Settings(max_attempts=1))
    run = await old.start(catching(old, {ValueError: "old"}))
    await interrupt(old, gate)
    catching(new, {})
    assert await finished(new, run, gate) == {"old": "old-1", "new": "new-1"}


async def test_an_internal_error_ends_the_run_and_names_itself(app: Stepfast, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*_: Any) -> None:
        raise TypeError("a bug")

    @app.task
    async def task() -> None:
        raise ValueError("x")

    monkeypatch.setattr("stepfast.engine.outcomes.retry_delay", broken)
    await failure(await drained(app, task), r"internal error of Stepfast ended the run .*: TypeError: a bug$")
