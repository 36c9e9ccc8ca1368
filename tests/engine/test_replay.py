"""Replay: a worker goes away in the middle, the next one goes on from the last record."""

from __future__ import annotations

import asyncio

import pytest

from stepfast import Backoff, Context, Settings, Stepfast, SyncContext
from tests.engine.conftest import MakeApp
from tests.support.engine import (
    Calls,
    Gate,
    ThreadGate,
    drained,
    eventually,
    failure,
    finished,
    interrupt,
    outcome,
    replayed,
    stopped_at_once,
)

pytestmark = pytest.mark.enough_on("sqlite")


@pytest.mark.parametrize("done", range(4))
async def test_a_crash_after_step_k_never_runs_the_first_k_again(app: Stepfast, calls: Calls, done: int) -> None:
    gate = Gate()

    async def work(number: int) -> int:
        calls.hit(f"step {number}")
        if number == done:
            await gate.passing()
        return number * 10

    @app.workflow
    async def order(ctx: Context) -> list[int]:
        return [await ctx.step(work, n) for n in range(4)]

    run = await app.start(order)
    await interrupt(app, gate)
    assert await run.status() == "queued"
    assert len(await run.steps()) == done
    assert await finished(app, run, gate) == [0, 10, 20, 30]
    # the step that was under way runs again, the others do not.
    assert calls == {f"step {n}": 2 if n == done else 1 for n in range(4)}


async def test_a_finished_run_is_not_executed_again(app: Stepfast, calls: Calls) -> None:

    @app.workflow
    async def order(ctx: Context) -> int:
        return calls.hit("order")

    run = await drained(app, order)
    assert await finished(app, run) == 1
    assert calls["order"] == 1


async def test_going_on_on_another_worker_uses_no_attempt_and_no_loss(app: Stepfast) -> None:
    gate = Gate()
    attempts: list[int] = []

    @app.workflow(max_attempts=1)
    async def order(ctx: Context) -> str:
        attempts.append(ctx.attempt)
        await ctx.step("gate", gate.passing)
        return "done"

    run = await app.start(order)
    for _ in range(3):
        await interrupt(app, gate)
    assert await finished(app, run, gate) == "done"
    info = await run.info()
    assert (info.attempt, info.losses, attempts) == (1, 0, [1, 1, 1, 1])


async def test_another_process_goes_on_with_the_records(make_app: MakeApp, calls: Calls) -> None:
    gate = Gate()

    def declare(app: Stepfast) -> None:
        @app.workflow
        async def order(ctx: Context) -> list[str]:
            first = await ctx.step("first", lambda: f"by call {calls.hit('first')}")
            await ctx.step("gate", gate.passing)
            return [first, await ctx.step("last", lambda: "end")]

    one, other = make_app(), make_app()
    declare(one)
    declare(other)
    run = await one.start("order")
    await interrupt(one, gate)
    assert await finished(other, run, gate) == ["by call 1", "end"]
    assert calls["first"] == 1


async def test_a_plain_def_workflow_replays_too(app: Stepfast, calls: Calls) -> None:
    """Rule 30."""
    gate = Gate()

    @app.workflow
    def order(ctx: SyncContext) -> list[int]:
        first = ctx.step("first", lambda: calls.hit("first"))
        ctx.step(gate.passing)
        return [first, ctx.step("last", lambda: calls.hit("last"))]

    assert await (await replayed(app, gate, order)).result() == [1, 1]
    assert calls == {"first": 1, "last": 1}


async def test_a_long_history_is_replayed_whole(make_app: MakeApp, calls: Calls) -> None:
    """Rule 33: a claim brings only the first records along; the rest is fetched."""
    app = make_app(settings=Settings(history_records=5))
    gate = Gate()

    @app.workflow
    async def order(ctx: Context) -> int:
        total = 0
        for number in range(30):
            total += await ctx.step("add", lambda n: calls.hit("add") and n, number)
        await ctx.step(gate.passing)
        return total

    assert await (await replayed(app, gate, order)).result() == sum(range(30))
    assert calls["add"] == 30


async def test_a_history_of_large_records_is_replayed_whole(make_app: MakeApp, calls: Calls) -> None:
    """Rule 33: the same, bounded by bytes."""
    app = make_app(settings=Settings(history_bytes=2000))
    gate = Gate()

    @app.workflow
    async def order(ctx: Context) -> int:
        parts = [await ctx.step("page", lambda n: str(n % 10) * (calls.hit("page") and 900), n) for n in range(12)]
        await ctx.step(gate.passing)
        return len("".join(parts))

    assert await (await replayed(app, gate, order)).result() == 12 * 900
    assert calls["page"] == 12


async def test_parallel_steps_that_were_recorded_are_kept(app: Stepfast, calls: Calls) -> None:
    gate = Gate()

    async def work(name: str) -> str:
        calls.hit(name)
        if name == "slow":
            await gate.passing()
        return name

    @app.workflow
    async def order(ctx: Context) -> list[str]:
        return list(await asyncio.gather(ctx.step(work, "slow"), ctx.step(work, "quick")))

    run = await app.start(order)

    async def one_recorded() -> bool:
        return [s.output for s in await run.steps() if s.status == "completed"] == ["quick"]

    async with stopped_at_once(app):
        await gate.reached()
        await eventually(one_recorded)
    assert await finished(app, run, gate) == ["slow", "quick"]
    assert calls == {"slow": 2, "quick": 1}


async def test_positions_are_taken_when_called_not_when_awaited(app: Stepfast, calls: Calls) -> None:
    """Rule 18: so the order of awaiting is free, also on replay."""
    gate = Gate()

    @app.workflow
    async def order(ctx: Context) -> list[str]:
        one = ctx.step("one", lambda: f"one {calls.hit('one')}")
        two = ctx.step("two", lambda: f"two {calls.hit('two')}")
        results = [await two, await one]
        await ctx.step(gate.passing)
        return results

    run = await replayed(app, gate, order)
    assert await run.result() == ["two 1", "one 1"]
    assert [(s.position, s.name) for s in await run.steps()] == [(1, "two"), (0, "one"), (2, "passing")]


async def test_recorded_steps_are_kept_by_a_new_attempt(app: Stepfast, calls: Calls) -> None:
    @app.workflow(max_attempts=3, backoff=Backoff(base=0, jitter=False))
    async def order(ctx: Context) -> int:
        value = await ctx.step("once", lambda: calls.hit("once"))
        if ctx.attempt < 3:
            raise ValueError("not yet")
        return value * 100 + ctx.attempt

    assert await outcome(app, order) == 103
    assert calls["once"] == 1


async def test_a_workers_stop_is_no_error_that_code_could_swallow(app: Stepfast, calls: Calls) -> None:
    """Rule 20: what a handler returns or raises after its run was given back is discarded."""
    gate = Gate()

    @app.workflow
    async def order(ctx: Context) -> str:
        try:
            await ctx.step(gate.passing)
        except BaseException:
            calls.hit("swallowed")
            return "wrong"
        return "right"

    run = await app.start(order)
    await interrupt(app, gate)
    assert calls["swallowed"] == 1
    assert await run.status() == "queued"
    assert await finished(app, run, gate) == "right"


async def test_after_the_run_is_given_back_every_call_is_refused(app: Stepfast, calls: Calls) -> None:
    """Rule 20: gather(return_exceptions=True) swallows what a BaseException alone would have told."""
    gate = Gate()
    refusals: list[str] = []

    @app.workflow
    async def order(ctx: Context) -> str:
        try:
            await asyncio.gather(ctx.step("gate", gate.passing), return_exceptions=True)
        except asyncio.CancelledError:
            pass
        try:
            await ctx.step("after", lambda: calls.hit("after"))
        except BaseException as error:
            refusals.append(type(error).__name__)
        return "done"

    run = await app.start(order)
    await interrupt(app, gate)
    assert refusals == ["AttemptEnded"]
    assert calls["after"] == 0
    assert await finished(app, run, gate) == "done"
    assert calls["after"] == 1


async def test_a_blocking_step_left_behind_records_nothing(app: Stepfast, calls: Calls) -> None:
    """Rule 1: its thread cannot be stopped, but what it returns later is refused."""
    gate = ThreadGate()

    def work() -> str:
        number = calls.hit("work")
        if number == 1:
            gate.passing()
        calls.hit("finished")
        return f"call {number}"

    @app.workflow
    async def order(ctx: Context) -> str:
        return await ctx.step(work)

    run = await app.start(order)
    async with stopped_at_once(app):
        await gate.reached()
    assert await finished(app, run) == "call 2"
    gate.open()
    await eventually(lambda: calls["finished"] == 2)
    await app.drain()
    assert [s.output for s in await run.steps()] == ["call 2"]


async def test_an_error_ends_the_same_way_on_every_database(app: Stepfast) -> None:
    @app.workflow(max_attempts=1)
    async def order(ctx: Context) -> None:
        raise LookupError("no such customer")

    run = await drained(app, order)
    caught = await failure(run)
    error = caught
    assert (error.error_type, error.message, error.reason) == ("LookupError", "no such customer", "code")
    assert error.run_id == run.id
    assert error.traceback is not None and "raise LookupError" in error.traceback
