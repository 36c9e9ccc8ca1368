"""Calls that the code itself gave up, by a timeout of its own or a group of tasks: what becomes of them in the next
attempt, and in a replay that is held up (rule 50)."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

import pytest

from stepfast import Backoff, Context, StepFailed, Stepfast
from tests.support.engine import Calls, Gate, drained, eventually, finished, outcome, replayed
from tests.support.workflows import calling

pytestmark = pytest.mark.enough_on("sqlite")

SOON = Backoff(base=0.01, factor=1, max=0.01, jitter=False)


@pytest.fixture
async def memory() -> AsyncIterator[Stepfast]:
    """What is decided in the engine alone is tried in memory."""
    async with Stepfast("sqlite://") as app:
        yield app


async def never() -> None:
    await asyncio.Event().wait()


async def test_the_sibling_of_a_failed_step_in_a_task_group_is_called_again_by_the_next_attempt(
    app: Stepfast, calls: Calls
) -> None:
    async def fails_once() -> str:
        if calls.hit("fails once") == 1:
            raise ValueError("once")
        return "well"

    async def waits_once() -> str:
        if calls.hit("waits once") == 1:
            await never()
        return "done"

    @app.workflow(backoff=SOON)
    async def order(ctx: Context) -> list[str]:
        async with asyncio.TaskGroup() as group:
            tasks = [group.create_task(ctx.step(waits_once)), group.create_task(ctx.step(fails_once))]
        return [task.result() for task in tasks]

    run = await drained(app, order)
    assert await run.result(timeout=20) == ["done", "well"]
    assert calls == {"waits once": 2, "fails once": 2}
    assert {step.status for step in await run.steps()} == {"completed"}


Bound = Callable[[Awaitable[object]], Awaitable[object]]


async def by_timeout(call: Awaitable[object]) -> object:
    async with asyncio.timeout(0.02):
        return await call


async def by_wait_for(call: Awaitable[object]) -> object:
    return await asyncio.wait_for(call, 0.02)


async def by_translation(call: Awaitable[object]) -> object:
    try:
        return await by_timeout(call)
    except TimeoutError:
        raise ValueError("too slow") from None


@pytest.mark.parametrize("bound", [by_timeout, by_wait_for, by_translation])
async def test_an_own_timeout_that_nobody_lives_with_is_tried_again(app: Stepfast, calls: Calls, bound: Bound) -> None:
    async def slow_at_first() -> str:
        if calls.hit("slow") < 3:
            await never()
        return "in time"

    @app.workflow(max_attempts=2, backoff=SOON)
    async def order(ctx: Context) -> Any:
        await ctx.step("before", lambda: calls.hit("before"))
        return await bound(ctx.step(slow_at_first))

    run = await drained(app, order)
    assert await run.status() == "failed"
    await run.retry()
    assert await finished(app, run) == "in time"
    assert calls == {"before": 1, "slow": 3}


async def test_an_own_timeout_in_a_branch_is_tried_again_with_the_branch(memory: Stepfast, calls: Calls) -> None:
    async def slow_at_first() -> str:
        if calls.hit("slow") == 1:
            await never()
        return "in time"

    async def bounded(ctx: Context) -> object:
        return await by_timeout(ctx.step(slow_at_first))

    order = calling(
        memory,
        lambda ctx: ctx.gather(ctx.branch(bounded), ctx.step("beside", lambda: calls.hit("beside"))),
        backoff=SOON,
    )
    assert await outcome(memory, order) == ["in time", 1]
    assert calls == {"slow": 2, "beside": 1}


@pytest.mark.parametrize("where", ["main line", "branch that goes on", "branch that returns"])
async def test_a_timeout_that_the_code_lives_with_is_not_tried_again(
    memory: Stepfast, calls: Calls, where: str
) -> None:
    """What came after it was done because of it."""

    async def slow() -> None:
        calls.hit("slow")
        await never()

    async def given_up(ctx: Context) -> str:
        try:
            await by_timeout(ctx.step(slow))
        except TimeoutError:
            if where == "branch that goes on":
                await ctx.step("within", lambda: calls.hit("within"))
        return "given up"

    def fails_once() -> str:
        if calls.hit("fails once") == 1:
            raise ValueError("once")
        return "well"

    @memory.workflow(backoff=SOON)
    async def order(ctx: Context) -> list[str]:
        first = await given_up(ctx) if where == "main line" else await ctx.branch(given_up)
        await ctx.step("after", lambda: calls.hit("after"))
        return [first, await ctx.step(fails_once)]

    assert await outcome(memory, order) == ["given up", "well"]
    assert (calls["slow"], calls["after"], calls["fails once"]) == (1, 1, 2)


@pytest.mark.parametrize("how", ["first", "gather", "alone"])
async def test_a_branch_cancelled_by_a_library_fails_the_attempt_and_not_more(
    memory: Stepfast, calls: Calls, how: str
) -> None:
    async def library() -> str:
        if calls.hit("library") == 1:
            raise asyncio.CancelledError("of its own")
        return "well"

    async def asking(ctx: Context) -> str:
        await ctx.step("before", lambda: calls.hit("before"))
        return await library()

    @memory.workflow(backoff=SOON)
    async def order(ctx: Context) -> str:
        if how == "first":
            return str((await ctx.first(it=ctx.branch(asking), late=ctx.sleep(3600)))[1])
        if how == "gather":
            return (await ctx.gather(ctx.branch(asking)))[0]
        return await ctx.branch(asking)

    assert await outcome(memory, order) == "well"
    assert calls == {"library": 2, "before": 1}


@pytest.mark.parametrize("how", ["gather", "map", "branch", "steps in branches"])
async def test_a_timeout_that_did_not_fire_does_not_fire_in_a_replay_that_is_held_up(
    memory: Stepfast, calls: Calls, how: str
) -> None:
    gate = Gate()

    async def item(ctx: Context, number: int) -> int:
        await ctx.step("a", lambda: calls.hit("a"))
        return await ctx.step("b", lambda: number)

    @memory.workflow
    async def order(ctx: Context) -> Any:
        async with asyncio.timeout(1):
            if how == "gather":
                call: Awaitable[object] = ctx.gather(ctx.step("b", lambda: 1), ctx.step("b", lambda: 2))
            elif how == "map":
                call = ctx.map(item, [1, 2], limit=1)
            elif how == "branch":
                call = ctx.branch(item, 1)
            else:
                call = ctx.gather(ctx.branch(item, 1), ctx.branch(item, 2))
            if calls.hit("replays") > 1:
                time.sleep(1.05)
            result = await call
        await ctx.step(gate.passing)
        return result

    assert await (await replayed(memory, gate, order)).result() == (1 if how == "branch" else [1, 2])
    assert calls["replays"] == 2


async def test_code_that_does_not_give_up_again_is_not_waited_for_for_ever(
    memory: Stepfast, calls: Calls, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("stepfast.engine.call._PATIENCE", 0.05)
    gate, begun = Gate(), asyncio.Event()

    async def slow() -> None:
        begun.set()
        await never()

    @memory.workflow
    async def order(ctx: Context) -> None:
        task = asyncio.ensure_future(ctx.step("slow", slow))
        if calls.hit("executed") == 1:  # not on replay
            await begun.wait()
            task.cancel()
        await asyncio.wait([task])
        assert task.cancelled() or task.exception()
        await ctx.step(gate.passing)

    run = await replayed(memory, gate, order)
    info = await run.info()
    assert (info.status, info.reason) == ("failed", "non_determinism")
    assert info.error is not None and "ctx.first" in info.error.message


@pytest.mark.parametrize("winner", ["branch", "step"])
async def test_what_lost_a_race_stays_lost_when_the_error_of_the_winner_ends_the_attempt(
    memory: Stepfast, calls: Calls, winner: str
) -> None:
    """The race ended it, not the attempt: its record is kept as long as the verdict, whoever works on the run."""

    def fails_once() -> str:
        if calls.hit("fails once") == 1:
            raise ValueError("once")
        return "well"

    async def line(ctx: Context) -> str:
        return await ctx.step(fails_once)

    @memory.workflow(backoff=SOON)
    async def order(ctx: Context) -> str:
        runner = ctx.branch(line) if winner == "branch" else ctx.step(fails_once)
        _, outcome = await ctx.first(runner=runner, never=ctx.wait_signal("never"))
        return str(outcome)

    run = await drained(memory, order)
    assert await run.result(timeout=20) == "well"
    steps = {step.name: step.status for step in await run.steps()}
    assert steps == {"fails_once": "completed", "never": "cancelled", "first": "completed"}


async def test_what_lost_a_race_runs_again_in_an_attempt_that_has_to_run_the_race_again(
    memory: Stepfast, calls: Calls
) -> None:
    """The verdict came of an error that the code had caught and raised later, so it is forgotten; and what lost is
    forgotten with it, though it was called before."""

    def fails_once() -> None:
        if calls.hit("fails once") == 1:
            raise ValueError("once")

    async def quick_once() -> None:
        if calls.hit("quick once") > 1:
            await never()

    @memory.workflow(backoff=SOON)
    async def order(ctx: Context) -> str:
        word, caught = ctx.wait_signal("word"), None
        try:
            await ctx.step(fails_once)
        except StepFailed as error:
            caught = error
        winner, _ = await ctx.first(word=word, quick=ctx.step(quick_once))
        if caught is not None:
            raise caught
        return winner

    run = await memory.start(order)
    async with memory.worker():
        await eventually(lambda: calls["quick once"] == 2)
        await run.signal("word")
        assert await run.result(timeout=5) == "word"
