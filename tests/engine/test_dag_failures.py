"""Sagas: what a failed or cancelled dag run did is undone, in reverse, also by others (rule 42)."""

from __future__ import annotations

import asyncio
from contextlib import AsyncExitStack
from typing import Any

import pytest

from stepfast import (
    Backoff,
    ConfigurationError,
    Context,
    InvalidState,
    NonRetryableError,
    RetryLater,
    RunCancelled,
    RunFailed,
    Settings,
    Stepfast,
    cancelled,
    step,
)
from stepfast.engine.dag import Dag
from tests.engine.conftest import MakeApp
from tests.store.scene import Rows
from tests.support.crashing import crash_at, end_of, outcome_of
from tests.support.dags import how, row_of, steps_of, undos_of
from tests.support.engine import PATIENCE, Calls, Gate, eventually, interrupt, make_due

QUICK = Backoff(base=0.001, jitter=False)


class Saga:
    """Steps that can be undone, and what happened, in order."""

    def __init__(self) -> None:
        self.log: list[str] = []
        self.gates: dict[str, Gate] = {}
        """Steps and undos ("undo a") that stop until they are let through."""
        self.broken: set[str] = set()
        """Undos that fail."""

    def gate(self, name: str) -> Gate:
        return self.gates.setdefault(name, Gate())

    async def do(self, ctx: Any) -> str:
        self.log.append(ctx.step_name)
        if ctx.step_name in self.gates:
            await self.gates[ctx.step_name].passing()
        return f"{ctx.step_name}-1"

    async def undo(self, ctx: Any) -> None:
        self.log.append(f"undo {ctx.step_name}")
        if f"undo {ctx.step_name}" in self.gates:
            await self.gates[f"undo {ctx.step_name}"].passing()
        if ctx.step_name in self.broken:
            raise NonRetryableError(f"{ctx.step_name} cannot be undone")

    async def fail(self, ctx: Any) -> None:
        self.log.append(ctx.step_name)
        if ctx.step_name in self.gates:
            await self.gates[ctx.step_name].passing()
        raise NonRetryableError(f"{ctx.step_name} broke")

    def build(self, app: Stepfast, *edges: str, name: str = "saga", **options: Any) -> Dag:
        """``"c < a b"``: c after a and b; a step with "!" fails. All can be undone."""
        dag = app.dag(name, **options)
        for edge in edges:
            what, _, before = edge.partition("<")
            dag.declare(
                self.fail if "!" in what else self.do,
                name=what.strip(" !"),
                after=before.split(),
                compensate=self.undo,
            )
        return dag

    @property
    def undone(self) -> list[str]:
        return [line.removeprefix("undo ") for line in self.log if line.startswith("undo ")]


@pytest.fixture
def saga() -> Saga:
    return Saga()


async def has_status(run: Any, *statuses: str) -> bool:
    return await run.status() in statuses


async def ended(run: Any) -> bool:
    return await has_status(run, "completed", "failed", "cancelled", "compensated")


# -- undoing in reverse --------------------------------------------------------------------------------------------


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
    """Not those that are blocked, nor those that stand in line, for a worker that comes later."""
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
async def test_an_undo_that_must_wait_frees_the_slot(
    make_app: MakeApp, saga: Saga, calls: Calls, moment: float
) -> None:
    """The others that wait for it do not hold it; those beside it are done meanwhile."""
    app = make_app(settings=Settings(moment=moment))

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
            await elsewhere.aclose()
            async with old.worker():
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
async def test_a_crash_at_any_turn_of_a_failure_undoes_everything_once(
    app: Stepfast, saga: Saga, end: str, written: bool
) -> None:
    run = await app.start(saga.build(app, "a", "b < a", "c! < b"))
    await crash_at(app, end_of(end), written=written)
    await app.drain()
    assert saga.undone == ["b", "a"]
    assert await run.status() == "compensated"


async def test_no_undo_is_called_twice_when_others_beside_it_are_interrupted(app: Stepfast, saga: Saga) -> None:
    """Parallel undos have records of their own, whatever their order was."""
    gate = saga.gate("undo left")
    run = await app.start(saga.build(app, "root", "left < root", "right < root", "end! < left right"))
    async with app.worker(grace=0):
        await gate.reached()
        await eventually(lambda: undone(run, 1))
    gate.open()
    await app.drain()
    assert saga.undone.count("right") == 1
    assert saga.undone[-1] == "root" and saga.undone.count("root") == 1
    assert await run.status() == "compensated"


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


async def test_a_step_that_workers_die_with_fails_its_run(make_app: MakeApp, saga: Saga) -> None:
    """Rule 28: a dead letter. Nothing is undone by itself: an operator may retry it."""
    app = make_app(settings=Settings(max_losses=0))
    gate = saga.gate("b")
    run = await app.start(saga.build(app, "a", "b < a", "c < b"))
    store = await app.store()
    rows = Rows(store, app.namespace, app.url.text)
    async with app.worker(grace=0) as worker:
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

    @dag.step(after=["a"], timeout=0.05)
    async def b(ctx: Any) -> None:
        await asyncio.Event().wait()

    run = await app.start(dag)
    await app.drain()
    info = await run.info()
    assert (info.status, info.reason, saga.undone) == ("compensated", "timeout", ["a"])


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

        @dag.step(catch={{"value": ValueError}[kind]: target for kind, target in catch.items()})
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


async def test_an_error_of_the_engine_s_own_ends_the_run_and_says_so(
    app: Stepfast, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nobody waits for ever."""

    def broken(*_: Any) -> None:
        raise TypeError("a bug")

    @app.task
    async def task() -> None:
        raise ValueError("x")

    monkeypatch.setattr("stepfast.engine.endings.retry_delay", broken)
    run = await app.start(task)
    await app.drain()
    with pytest.raises(RunFailed, match=r"engine.s own ended the run: TypeError: a bug$"):
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


async def test_a_cancelled_run_is_started_anew(app: Stepfast, saga: Saga) -> None:
    run = await app.start(saga.build(app, "a"))
    await run.cancel()
    await app.drain()
    again = await run.retry(from_start=True)
    await app.drain()
    assert await again.result() == {"a": "a-1"}


async def test_a_run_that_goes_on_is_not_started_anew(app: Stepfast, saga: Saga) -> None:
    run = await app.start(saga.build(app, "a"))
    with pytest.raises(InvalidState, match="running"):
        await run.retry(from_start=True)


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
