"""Sagas: what a failed or cancelled dag run did is undone, in reverse, also by others (rule 42)."""

from __future__ import annotations

import asyncio
from contextlib import AsyncExitStack
from typing import Any

import pytest

from stepfast import Backoff, NonRetryableError, RetryLater, RunFailed, Settings, Stepfast, step
from tests.engine.conftest import ON_BOTH, ON_SQLITE, MakeApp
from tests.store.scene import Rows
from tests.support.crashing import crash_at, end_of, outcome_of
from tests.support.dags import how, row_of, steps_of, undos_of
from tests.support.engine import Calls, Gate, eventually, interrupt, make_due
from tests.support.sagas import Saga

pytestmark = ON_SQLITE

QUICK = Backoff(base=0.001, jitter=False)


@pytest.fixture
def saga() -> Saga:
    return Saga()


async def has_status(run: Any, *statuses: str) -> bool:
    return await run.status() in statuses


async def ended(run: Any) -> bool:
    return await has_status(run, "completed", "failed", "cancelled", "compensated")


# -- undoing in reverse --------------------------------------------------------------------------------------------


@ON_BOTH
async def test_completed_steps_are_undone_in_reverse(app: Stepfast, saga: Saga) -> None:
    run = await app.start(saga.build(app, "a", "b < a", "c < b", "d! < c"))
    await app.drain()
    assert saga.log == ["a", "b", "c", "d", "undo c", "undo b", "undo a"]
    assert await run.status() == "compensated"
    assert await undos_of(run) == [("undo", "compensated")] * 3


async def test_the_result_of_an_undone_run_is_the_error_of_its_step(app: Stepfast, saga: Saga) -> None:
    run = await app.start(saga.build(app, "a", "b! < a"))
    await app.drain()
    with pytest.raises(RunFailed, match="step 'b' failed: NonRetryableError: b broke") as failed:
        await run.result()
    assert failed.value.reason == "code"
    info = await run.info()
    assert (info.status, info.reason, info.worker, info.waiting_for) == ("compensated", "code", None, None)
    assert info.completed_at is not None
    assert (await steps_of(run))["b"].error is not None


async def test_an_undo_is_given_what_its_step_returned_and_saw(app: Stepfast) -> None:
    seen: list[Any] = []
    dag = app.dag("dag")

    def undo(ctx: Any) -> None:
        seen.append((ctx.step_name, ctx.output, ctx.input, dict(ctx.outputs), ctx.run_id))

    @dag.step(compensate=undo)
    async def a(ctx: Any) -> dict[str, str]:
        return {"id": "r-1"}

    @dag.step(after=[a])
    async def b(ctx: Any) -> None:
        raise NonRetryableError("no")

    run = await app.start(dag, {"order": 7})
    await app.drain()
    assert seen == [("a", {"id": "r-1"}, {"order": 7}, {"a": {"id": "r-1"}}, run.id)]


@pytest.mark.parametrize("value", [None, False, 0, ""])
@pytest.mark.enough_on("sqlite")
async def test_an_empty_output_is_undone_as_itself(app: Stepfast, value: Any) -> None:
    seen: list[Any] = []
    dag = app.dag("dag")
    dag.declare(lambda ctx: value, name="a", compensate=lambda ctx: seen.append(ctx.output))
    dag.declare(fails, name="b", after=["a"])
    await app.start(dag)
    await app.drain()
    assert seen == [value] and type(seen[0]) is type(value)


async def fails(ctx: Any) -> None:
    raise NonRetryableError("no")


async def test_steps_without_an_undo_are_passed_over(app: Stepfast, saga: Saga) -> None:
    dag = app.dag("dag")
    dag.declare(saga.do, name="a", compensate=saga.undo)
    dag.declare(saga.do, name="b", after=["a"])
    dag.declare(saga.do, name="c", after=["b"], compensate=saga.undo)
    dag.declare(saga.fail, name="d", after=["c"])
    run = await app.start(dag)
    await app.drain()
    assert saga.undone == ["c", "a"]
    assert await run.status() == "compensated"


async def test_the_failed_step_is_not_undone(app: Stepfast, saga: Saga) -> None:
    """Its own compensation ran too."""
    run = await app.start(saga.build(app, "a!"))
    await app.drain()
    assert saga.log == ["a"]
    assert await run.status() == "failed"


async def test_skipped_steps_are_not_undone(app: Stepfast, saga: Saga) -> None:
    dag = app.dag("dag")
    dag.declare(saga.do, name="a", compensate=saga.undo, when=lambda ctx: False)
    dag.declare(saga.do, name="b", compensate=saga.undo)
    dag.declare(saga.fail, name="c", after=["a", "b"])
    await app.start(dag)
    await app.drain()
    assert saga.undone == ["b"]


async def test_a_run_with_nothing_to_undo_ends_failed(app: Stepfast, saga: Saga) -> None:
    dag = app.dag("dag")
    dag.declare(saga.do, name="a")
    dag.declare(saga.fail, name="b", after=["a"], compensate=saga.undo)
    run = await app.start(dag)
    await app.drain()
    assert await run.status() == "failed"
    assert saga.undone == []


@ON_BOTH
async def test_undos_run_in_parallel_where_the_graph_allows(app: Stepfast, saga: Saga) -> None:
    """Both sides of a diamond are at their gates at once; the root waits for both."""
    left, right = saga.gate("undo left"), saga.gate("undo right")
    run = await app.start(saga.build(app, "root", "left < root", "right < root", "end! < left right"))
    async with app.worker():
        await left.reached()
        await right.reached()
        right.open()
        await eventually(lambda: undone(run, 1))
        assert "root" not in saga.undone
        left.open()
        await eventually(lambda: has_status(run, "compensated"))
    assert saga.undone[-1] == "root" and len(saga.undone) == 3


async def undone(run: Any, count: int) -> bool:
    return len(await undos_of(run)) >= count


async def test_a_step_is_undone_after_what_came_after_it_by_way_of_a_skipped_one(app: Stepfast, saga: Saga) -> None:
    """Reverse topological order, also where the step between was not done."""
    dag = app.dag("dag")
    dag.declare(saga.do, name="a", compensate=saga.undo)
    dag.declare(saga.do, name="b", compensate=saga.undo)
    dag.declare(saga.do, name="between", after=["a"], when=lambda ctx: False)
    dag.declare(saga.do, name="c", after=["between", "b"], compensate=saga.undo)
    dag.declare(saga.fail, name="d", after=["c"])
    gate = saga.gate("undo c")
    run = await app.start(dag)
    async with app.worker():
        await gate.reached()
        await asyncio.sleep(0)
        assert saga.undone == ["c"]
        gate.open()
        await eventually(lambda: has_status(run, "compensated"))
    assert saga.undone[0] == "c" and sorted(saga.undone) == ["a", "b", "c"]


async def test_a_step_is_undone_after_what_a_caught_error_led_to(app: Stepfast, saga: Saga) -> None:
    dag = app.dag("dag")
    dag.declare(saga.do, name="a", compensate=saga.undo)
    dag.declare(saga.fail, name="b", after=["a"], catch={NonRetryableError: "c"})
    dag.declare(saga.do, name="c", compensate=saga.undo)
    dag.declare(saga.fail, name="d", after=["c"])
    await app.start(dag)
    await app.drain()
    assert saga.log == ["a", "b", "c", "d", "undo c", "undo a"]


async def test_a_run_with_a_caught_error_that_ends_well_is_not_undone(app: Stepfast, saga: Saga) -> None:
    dag = app.dag("dag")
    dag.declare(saga.do, name="a", compensate=saga.undo)
    dag.declare(saga.fail, name="b", after=["a"], catch={NonRetryableError: "c"})
    dag.declare(saga.do, name="c")
    run = await app.start(dag)
    await app.drain()
    assert (await run.status(), saga.undone) == ("completed", [])


# -- the others, when a step is exhausted --------------------------------------------------------------------------


async def test_a_sibling_at_work_is_settled_before_anything_is_undone(app: Stepfast, saga: Saga) -> None:
    """And being completed, it is undone too."""
    sibling, broken = saga.gate("sibling"), saga.gate("broken")
    run = await app.start(saga.build(app, "root", "sibling < root", "broken! < root"))
    async with app.worker():
        await sibling.reached()
        await broken.reached()
        broken.open()
        await eventually(lambda: is_step(run, "broken", "failed"))
        assert (await run.status(), saga.undone) == ("running", [])
        sibling.open()
        await eventually(lambda: has_status(run, "compensated"))
    assert (await how(run))["sibling"] == "completed"
    assert saga.undone == ["sibling", "root"]


async def is_step(run: Any, name: str, status: str) -> bool:
    return (await how(run))[name] == status


async def test_a_sibling_is_cancelled_between_two_of_its_checkpoints(app: Stepfast, saga: Saga, calls: Calls) -> None:
    """At a step boundary. What it recorded itself is undone by itself."""
    gate, broken = Gate(), saga.gate("broken")
    dag = app.dag("dag")

    @dag.step(compensate=saga.undo)
    async def sibling(ctx: Any) -> None:
        undo = ctx.options(compensate=lambda output: saga.log.append("undo inner"))
        await undo.step("inner", gate.passing)
        await ctx.step("next", lambda: calls.hit("next"))

    dag.declare(saga.fail, name="broken")
    run = await app.start(dag)
    async with app.worker():
        await gate.reached()
        await broken.reached()
        broken.open()
        await eventually(lambda: is_step(run, "broken", "failed"))
        await eventually(lambda: asked(app, run, "sibling"))
        gate.open()
        await eventually(lambda: ended(run))
    assert calls == {}
    assert (await how(run))["sibling"] == "compensated"
    assert saga.log == ["broken", "undo inner"]


async def asked(app: Stepfast, run: Any, name: str) -> bool:
    return (await app.get(await row_of(run, name)).info()).asked == "cancel"


async def test_a_sibling_that_fails_meanwhile_is_not_tried_again(app: Stepfast, saga: Saga, calls: Calls) -> None:
    gate, broken = Gate(), saga.gate("broken")
    dag = app.dag("dag")

    @dag.step(retries=5)
    async def sibling(ctx: Any) -> None:
        calls.hit("sibling")
        await gate.passing()
        raise ValueError("too")

    dag.declare(saga.fail, name="broken")
    run = await app.start(dag)
    async with app.worker():
        await gate.reached()
        await broken.reached()
        broken.open()
        await eventually(lambda: asked(app, run, "sibling"))
        gate.open()
        await eventually(lambda: ended(run))
    assert calls == {"sibling": 1}
    assert await run.status() == "failed"
    with pytest.raises(RunFailed, match="broken broke"):
        await run.result()


async def test_a_sibling_that_is_stuck_is_given_up_at_its_timeout(app: Stepfast, saga: Saga) -> None:
    dag = app.dag("dag")
    dag.declare(saga.do, name="root", compensate=saga.undo)
    stuck = Gate()

    @dag.step(after=["root"], timeout=0.5, retries=5, compensate=saga.undo)
    async def sibling(ctx: Any) -> None:
        await stuck.passing()

    dag.declare(saga.fail, name="broken", after=["root"])
    run = await app.start(dag)
    async with app.worker():
        await eventually(lambda: ended(run))
    assert await run.status() == "compensated"
    assert saga.undone == ["root"]
    assert (await how(run))["sibling"] in ("cancelled", "failed")


async def test_a_sibling_that_waits_for_its_next_try_ends(app: Stepfast, saga: Saga) -> None:
    dag = app.dag("dag")

    @dag.step(retries=1)
    async def later(ctx: Any) -> None:
        raise RetryLater(3600)

    dag.declare(saga.fail, name="broken")
    gate = saga.gate("broken")
    run = await app.start(dag)
    async with app.worker():
        await gate.reached()
        await eventually(lambda: has_tried(app, run, "later"))
        gate.open()
        await eventually(lambda: ended(run))
    assert await how(run) == {"later": "cancelled", "broken": "failed"}


async def has_tried(app: Stepfast, run: Any, name: str) -> bool:
    info = await app.get(await row_of(run, name)).info()
    return info.attempt == 2 and info.worker is None


async def test_steps_that_have_not_begun_never_do(make_app: MakeApp, saga: Saga) -> None:
    """Not those that are blocked, nor those that are ready, for a worker that comes later."""
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
    dag = app.dag("dag")
    dag.declare(saga.do, name="quick", compensate=saga.undo)
    dag.declare(saga.do, name="slow", compensate=saga.undo)
    dag.declare(saga.do, name="race", after=["quick", "slow"], join="any", compensate=saga.undo)
    dag.declare(saga.fail, name="end", after=["race", "slow"])
    run = await app.start(dag)
    async with app.worker():
        await slow.reached()
        await eventually(lambda: is_step(run, "race", "completed"))
        slow.open()
        await eventually(lambda: has_status(run, "compensated"))
    assert saga.undone[0] == "race" and sorted(saga.undone) == ["quick", "race", "slow"]


async def test_of_two_steps_that_fail_the_first_is_named(app: Stepfast, saga: Saga) -> None:
    first, second = saga.gate("first"), saga.gate("second")
    run = await app.start(saga.build(app, "second!", "first!"))
    async with app.worker():
        await first.reached()
        await second.reached()
        first.open()
        await eventually(lambda: is_step(run, "first", "failed"))
        second.open()
        with pytest.raises(RunFailed, match="first broke"):
            await run.result()


async def test_what_a_failed_step_recorded_is_undone_by_itself_and_first(app: Stepfast, saga: Saga) -> None:
    dag = app.dag("dag")
    dag.declare(saga.do, name="a", compensate=saga.undo)

    @dag.step(after=["a"])
    async def b(ctx: Any) -> None:
        await ctx.options(compensate=lambda output: saga.log.append("undo inner")).step("inner", lambda: None)
        raise NonRetryableError("no")

    run = await app.start(dag)
    await app.drain()
    assert saga.log == ["a", "undo inner", "undo a"]
    assert (await how(run))["b"] == "compensated"
    with pytest.raises(RunFailed, match="step 'b' failed: NonRetryableError: no"):
        await run.result()


# -- undos that fail -----------------------------------------------------------------------------------------------


async def test_a_failing_undo_is_recorded_and_the_chain_goes_on(app: Stepfast, saga: Saga) -> None:
    """The end tells it from a clean undo, and lists what failed."""
    saga.broken = {"b", "a"}
    run = await app.start(saga.build(app, "zero", "a < zero", "b < a", "c < b", "d! < c"))
    await app.drain()
    assert saga.undone == ["c", "b", "a", "zero"]
    assert await run.status() == "failed"
    assert [status for _, status in await undos_of(run)] == [
        "compensated",
        "compensation_failed",
        "compensation_failed",
        "compensated",
    ]
    with pytest.raises(RunFailed, match="b cannot be undone") as failed:
        await run.result()
    assert (failed.value.reason, failed.value.error_type) == ("undo_failed", "CompensationFailed")
    assert "'a'" in failed.value.message and "a cannot be undone" in failed.value.message


async def test_an_undo_is_retried_by_its_own_policy(app: Stepfast, saga: Saga, calls: Calls) -> None:

    @step(retries=4, backoff=QUICK)
    def undo(ctx: Any) -> None:
        if calls.hit("undo") < 5:
            raise ValueError("not yet")

    dag = app.dag("dag")
    dag.declare(saga.do, name="a", compensate=undo, retries=0)
    dag.declare(saga.fail, name="b", after=["a"])
    run = await app.start(dag)
    await app.drain()
    assert calls == {"undo": 5}
    assert await run.status() == "compensated"


async def test_an_undo_that_says_nothing_is_tried_a_few_times(make_app: MakeApp, saga: Saga, calls: Calls) -> None:
    app = make_app(settings=Settings(undo_retries=2, backoff_base=0.001))

    def undo(ctx: Any) -> None:
        calls.hit("undo")
        raise ValueError("no")

    dag = app.dag("dag")
    dag.declare(saga.do, name="a", compensate=undo)
    dag.declare(saga.fail, name="b", after=["a"])
    run = await app.start(dag)
    await app.drain()
    assert (calls, await run.status()) == ({"undo": 3}, "failed")


@pytest.mark.parametrize("moment", [2.0, 0.0])
@ON_BOTH
async def test_an_undo_that_must_wait_frees_the_slot(
    make_app: MakeApp, saga: Saga, calls: Calls, moment: float
) -> None:
    """The others that wait for it do not hold it; those beside it are done meanwhile."""
    app = make_app(settings=Settings(inline_wait=moment))

    def undo(ctx: Any) -> None:
        if calls.hit("undo") == 1:
            raise RetryLater(3600)

    dag = app.dag("dag")
    dag.declare(saga.do, name="root", compensate=saga.undo)
    dag.declare(saga.do, name="a", after=["root"], compensate=undo)
    dag.declare(saga.do, name="b", after=["root"], compensate=saga.undo)
    dag.declare(saga.fail, name="end", after=["a", "b"])
    run = await app.start(dag)
    await app.drain()
    info = await run.info()
    assert (info.status, info.worker, info.waiting_for) == ("compensating", None, "retry")
    assert saga.undone == ["b"]
    await make_due(app, run.id)
    await app.drain()
    assert saga.undone == ["b", "root"]
    assert (await run.status(), calls) == ("compensated", {"undo": 2})


@ON_BOTH
async def test_an_undo_that_is_gone_from_the_code_is_in_the_list(make_app: MakeApp, saga: Saga) -> None:
    """The code was changed in between; nobody has the old one any more."""
    old, new = make_app(), make_app()
    gate = saga.gate("b")
    run = await old.start(saga.build(old, "a", "b! < a", "zero"))
    await interrupt(old, gate)
    dag = new.dag("saga")
    dag.declare(saga.do, name="a")
    dag.declare(saga.fail, name="b", after=["a"])
    dag.declare(saga.do, name="zero", compensate=saga.undo)
    gate.open()
    await new.drain()
    assert saga.undone == ["zero"]
    with pytest.raises(RunFailed, match="the undo of step 'a' is not in the code any more"):
        await run.result()


@ON_BOTH
async def test_an_undo_that_only_another_worker_has_is_left_to_it(make_app: MakeApp, saga: Saga) -> None:
    """During a deploy the new code must not give up what the old one could still undo."""
    old, new = make_app(), make_app()
    saga.build(old, "a", "b! < a")
    dag = new.dag("saga")
    dag.declare(saga.do, name="c")
    gate = saga.gate("undo a")
    run = await old.start("saga")
    await interrupt(old, gate)
    gate.open()
    saga.log.clear()
    async with AsyncExitStack() as elsewhere:
        await elsewhere.enter_async_context(old.worker(queues=["elsewhere"]))  # it lives, but does not take the run
        async with new.worker():
            await eventually(lambda: given_back(new, run.id))
            assert await run.status() == "compensating"
            async with old.worker():  # before the other one ends: somebody must have the undo all the time
                await elsewhere.aclose()
                await eventually(lambda: ended(run))
    assert saga.undone == ["a"]
    assert await run.status() == "compensated"


async def given_back(app: Stepfast, run_id: str) -> bool:
    """The first claim was that of the finish, the second that of the undoing; a third was in vain."""
    rows = Rows(await app.store(), app.namespace, app.url.text)
    try:
        return bool(await rows.get(run_id, "claim") >= 3 and await rows.get(run_id, "worker") is None)
    finally:
        await rows.close()


# -- crashes -------------------------------------------------------------------------------------------------------


@ON_BOTH
async def test_an_interrupted_undoing_goes_on_where_it_was(app: Stepfast, saga: Saga) -> None:
    """What was undone is not undone again."""
    gate = saga.gate("undo b")
    run = await app.start(saga.build(app, "a", "b < a", "c < b", "d! < c"))
    await interrupt(app, gate)
    assert await run.status() == "compensating"
    assert saga.undone == ["c", "b"]
    gate.open()
    await app.drain()
    assert saga.undone == ["c", "b", "b", "a"]
    assert await run.status() == "compensated"


@pytest.mark.parametrize("written", [False, True], ids=["before the commit", "after the commit"])
@ON_BOTH
async def test_a_crash_in_the_middle_repeats_at_most_the_undo_in_flight(
    app: Stepfast, saga: Saga, written: bool
) -> None:
    run = await app.start(saga.build(app, "a", "b < a", "c < b", "d! < c"))
    await crash_at(app, outcome_of("undo", "undo"), written=written)
    await app.drain()
    assert saga.undone == ["c", *([] if written else ["c"]), "b", "a"]
    assert await run.status() == "compensated"


@pytest.mark.parametrize("written", [False, True], ids=["before the commit", "after the commit"])
@pytest.mark.parametrize("end", ["failed", "compensating", "compensated"])
@ON_BOTH
async def test_a_crash_at_any_turn_of_a_failure_undoes_everything_once(
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
        await eventually(lambda: undone(run, 1))
    gate.open()
    await app.drain()
    assert saga.undone.count("right") == 1
    assert saga.undone[-1] == "root" and saga.undone.count("root") == 1
    assert await run.status() == "compensated"
