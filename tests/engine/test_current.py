"""``stepfast.current()``: the context of the code that executes; ``ctx.branches`` for tasks of other code."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

import stepfast
from stepfast import Branches, Context, DagContext, Stepfast, SyncContext, step
from stepfast.testing import crash_everywhere
from tests.engine.conftest import RELEASED
from tests.support.engine import Calls, Gate, drained, failure, make_due, outcome, replayed

pytestmark = pytest.mark.enough_on("sqlite")


def here() -> str:
    """Where the code that calls this stands."""
    context = stepfast.current()
    return "nowhere" if context is None else context.step_key.partition(":")[2]


# -- current ---------------------------------------------------------------------------------------------------------


def test_outside_of_a_run_there_is_no_context() -> None:
    assert stepfast.current() is None


async def test_it_is_the_context_of_the_branch_whose_code_calls_it(app: Stepfast) -> None:
    """In functions, tasks and threads of the workflow's code too."""

    async def branch(ctx: Context) -> list[str]:
        seen = [here()]
        context = stepfast.current()
        assert isinstance(context, Context)
        await context.step("in the branch", lambda: None)
        return [*seen, here()]

    async def in_task() -> str:
        return here()

    @app.workflow
    async def order(ctx: Context) -> list[Any]:
        context = stepfast.current()
        assert isinstance(context, Context)
        await context.step("first", lambda: None)
        seen = [here(), await asyncio.create_task(in_task()), await asyncio.to_thread(here)]
        return [seen, await ctx.branch(branch), await ctx.map(lambda ctx, item: in_task(), [1, 2]), here()]

    assert await outcome(app, order) == [["1", "1", "1"], ["1:0", "1:1"], ["2.0:0", "2.1:0"], "3"]


async def test_there_is_none_in_a_step_an_undo_and_a_task(app: Stepfast) -> None:
    seen: list[str] = []

    def undo(output: object) -> None:
        seen.append(f"undo {here()}")

    @step(compensate=undo)
    async def work() -> str:
        return f"{here()} {await asyncio.create_task(asyncio.to_thread(here))}"

    @app.task
    async def plain() -> str:
        return here()

    @app.workflow
    async def order(ctx: Context) -> None:
        seen.append(await ctx.step(work))
        seen.append(await ctx.step("in a thread", here))
        raise stepfast.NonRetryableError("enough")

    assert await outcome(app, plain) == "nowhere"
    await failure(await drained(app, order))
    assert set(seen) == {"nowhere nowhere", "nowhere", "undo nowhere"}


async def test_a_plain_workflow_and_the_step_of_a_dag_have_one_of_their_kind(app: Stepfast) -> None:
    @app.workflow
    def order(ctx: SyncContext) -> int:
        context = stepfast.current()
        assert isinstance(context, SyncContext)
        return context.step("five", lambda: 5)

    dag = app.dag("graph")

    @dag.step
    async def one(ctx: DagContext) -> str:
        context = stepfast.current()
        assert isinstance(context, DagContext)
        return str(await context.step("plain", lambda: context.step_name))

    @dag.step(after=["one"])
    def two(ctx: Any) -> str:
        context = stepfast.current()
        assert isinstance(context, stepfast.DagSyncContext)
        return str(context.outputs["one"])

    assert await outcome(app, order) == 5
    assert await outcome(app, dag, {}) == {"one": "one", "two": "one"}


async def test_it_is_there_when_the_run_is_replayed(app: Stepfast, calls: Calls) -> None:
    gate = Gate()

    async def helper(name: str) -> int:
        context = stepfast.current()
        assert isinstance(context, Context)
        return await context.step(name, lambda: calls.hit(name))

    @app.workflow
    async def order(ctx: Context) -> int:
        first = await helper("one")
        await ctx.step("gate", gate.passing)
        return first + await helper("two")

    assert await (await replayed(app, gate, order)).result() == 2
    assert calls == {"one": 1, "two": 1}


async def test_a_task_of_the_codes_own_is_told_to_take_a_branch(app: Stepfast) -> None:
    async def tool() -> None:
        context = stepfast.current()
        assert isinstance(context, Context)
        await context.step("tool", lambda: None)

    @app.workflow
    async def order(ctx: Context) -> None:
        await asyncio.create_task(tool())

    await failure(await drained(app, order), r"ctx\.branches\(\)")


# -- branches --------------------------------------------------------------------------------------------------------


class Framework:
    """Calls tools side by side, in tasks of its own that the engine knows nothing of, the last one first."""

    def __init__(self, calls: Calls) -> None:
        self.calls = calls

    async def tool(self, ctx: Context, call: str) -> str:
        """A tool of several steps."""
        found = await ctx.step(f"find {call}", lambda: f"{call}{self.calls.hit(f'find {call}')}")
        inner = stepfast.current()
        assert isinstance(inner, Context)
        await inner.sleep(60)
        return await inner.step("tell", lambda: f"<{found}>{self.calls.hit(f'tell {call}')}")

    async def run(self, place: Branches, asked: list[str]) -> list[str]:
        async def call(key: str) -> str:
            await asyncio.sleep(0)
            return await place.branch(key, self.tool, key)

        tasks = {key: asyncio.create_task(call(key)) for key in reversed(asked)}
        return [await tasks[key] for key in asked]


@RELEASED
async def test_branches_of_tasks_of_another_replay_by_their_keys(app: Stepfast, calls: Calls) -> None:
    """Whatever order they begin in; the run gives its slot back while all of them wait."""
    framework, orders = Framework(calls), [["a", "b", "call:1/x"], ["call:1/x", "b", "a"]]

    @app.workflow
    async def agent(ctx: Context) -> list[Any]:
        place = ctx.branches()
        asked = orders[0] if calls.hit("turn") == 1 else orders[1]
        found = sorted(await framework.run(place, asked))
        return [found, await ctx.step("after", lambda: "after")]

    run = await drained(app, agent)
    assert (await run.info()).waiting_for == "time"
    await make_due(app, run.id)
    await app.drain()
    assert await run.result() == [["<a1>1", "<b1>1", "<call:1/x1>1"], "after"]
    assert {name: count for name, count in calls.items() if name != "turn"} == {
        f"{what} {key}": 1 for what in ("find", "tell") for key in orders[0]
    }
    branches = {s.branch for s in await run.steps()}
    assert {"", "0.a", "0.b"} < branches
    assert len(branches) == 4


async def test_tools_in_parallel_come_to_the_same_after_a_crash_anywhere() -> None:
    app = Stepfast("sqlite://")
    framework = Framework(Calls())

    @app.workflow
    async def agent(ctx: Context) -> list[Any]:
        turns: list[Any] = []
        for turn in range(2):
            asked = await ctx.step("model", lambda turn: [f"t{turn}", "same"], turn)
            turns.append(await framework.run(ctx.branches(), asked))
        return turns

    framework.calls.hit = lambda name: 1  # type: ignore[method-assign]  # a step gives the same each time
    async with app:
        report = await crash_everywhere(app, agent)
    assert report.result == [["<t01>1", "<same1>1"], ["<t11>1", "<same1>1"]]
    assert report.records == 2 * (1 + 2 * 3)


async def test_the_same_key_again_begins_another_branch(app: Stepfast) -> None:
    async def tool(ctx: Context, n: int) -> int:
        return await ctx.step("tool", lambda: n)

    @app.workflow
    async def agent(ctx: Context) -> list[int]:
        place = ctx.branches()
        return [await place.branch("k", tool, 1), await place.branch("k", tool, 2)]

    run = await drained(app, agent)
    assert await run.result() == [1, 2]
    assert [s.branch for s in await run.steps()] == ["0.k", "0.k~2"]


async def test_a_branch_that_fails_is_done_again_by_a_retry_and_no_other(app: Stepfast, calls: Calls) -> None:
    async def tool(ctx: Context, name: str) -> int:
        number = calls.hit(name)
        if name == "bad" and number == 1:
            await ctx.step("fails", lambda: 1 / 0)
        return await ctx.step("works", lambda: calls.hit(f"{name} works"))

    @app.workflow(max_attempts=1)
    async def agent(ctx: Context) -> list[int]:
        place = ctx.branches()
        good = asyncio.create_task(place.branch("good", tool, "good"))
        bad = asyncio.create_task(place.branch("bad", tool, "bad"))
        await asyncio.wait([good, bad])
        return [good.result(), bad.result()]

    run = await drained(app, agent)
    await failure(run, "division")
    await run.retry()
    await app.drain()
    assert await run.result() == [1, 1]
    assert calls["good works"] == 1


@pytest.mark.parametrize("key", ["", None, 5])
async def test_a_key_must_be_a_text(app: Stepfast, key: Any) -> None:
    async def tool(ctx: Context) -> None: ...

    @app.workflow
    async def agent(ctx: Context) -> None:
        await ctx.branches().branch(key, tool)

    await failure(await drained(app, agent), "the key of a branch must be a text")


async def test_a_place_belongs_to_its_workflow_and_is_not_used_in_a_step(app: Stepfast) -> None:
    async def tool(ctx: Context) -> None: ...

    @app.workflow
    async def agent(ctx: Context) -> None:
        place = ctx.branches()

        async def inside() -> None:
            await place.branch("k", tool)

        await ctx.step(inside)

    await failure(await drained(app, agent), "called Branches.branch from inside")


async def test_a_place_where_a_step_is_recorded_is_a_divergence(app: Stepfast, calls: Calls) -> None:
    gate = Gate()

    @app.workflow
    async def agent(ctx: Context) -> None:
        if calls.hit("turn") == 1:
            await ctx.step("one", lambda: None)
        else:
            ctx.branches()
        await ctx.step("gate", gate.passing)

    await failure(await replayed(app, gate, agent), "recorded as step 'one'.* now calls branch 'branches'")
