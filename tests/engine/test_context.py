"""What a context tells of its run, and that it says the same on every replay."""

from __future__ import annotations

import asyncio
import uuid
from datetime import UTC, datetime
from typing import Any

import pytest

from stepfast import Backoff, Context, Stepfast, SyncContext
from tests.support.engine import Calls, Gate, drained, eventually, interrupt

pytestmark = pytest.mark.enough_on("sqlite")

AT_ONCE = Backoff(base=0, jitter=False)


async def nothing() -> None: ...


async def test_a_context_knows_its_run(app: Stepfast) -> None:
    """The handler gets its input; run_id, attempt and workflow are told."""

    @app.workflow(name="the order")
    async def order(ctx: Context, input: str) -> list[Any]:
        return [ctx.run_id, ctx.attempt, ctx.workflow, input]

    run = await drained(app, order, "in")
    assert await run.result() == [run.id, 1, "the order", "in"]


async def test_step_keys_are_distinct_and_the_same_on_every_try(app: Stepfast, calls: Calls) -> None:
    """An idempotency key for effects outside."""
    keys: dict[str, set[str]] = {"first": set(), "second": set()}

    @app.workflow(max_attempts=2, backoff=AT_ONCE)
    async def order(ctx: Context) -> None:
        async def work(name: str) -> None:
            keys[name].add(ctx.step_key)
            if name == "second" and calls.hit(name) < 4:
                raise ValueError("again")

        announced = ctx.step_key
        await ctx.step(work, "first")
        assert keys["first"] == {announced}
        await ctx.options(retries=1, backoff=AT_ONCE).step(work, "second")

    run = await drained(app, order)
    assert await run.status() == "completed"
    assert calls["second"] == 4
    assert [len(found) for found in keys.values()] == [1, 1]
    assert keys["first"] != keys["second"]
    assert all(run.id in key for found in keys.values() for key in found)


async def test_random_and_uuid_are_the_same_on_every_replay(app: Stepfast) -> None:
    """Rule 17: and differ from draw to draw, and from run to run."""
    gate = Gate()
    seen: dict[str, list[list[Any]]] = {}

    @app.workflow
    async def order(ctx: Context) -> None:
        drawn = [ctx.uuid(), ctx.random(), ctx.uuid(), ctx.random()]
        await ctx.step(nothing)
        drawn += [ctx.uuid(), ctx.random()]
        seen.setdefault(ctx.run_id, []).append(drawn)
        await ctx.step(gate.passing)

    first, second = await app.start(order), await app.start(order)
    async with app.worker(shutdown_grace=0):
        await eventually(lambda: gate.arrivals == 2)
    gate.open()
    await app.drain()
    for run in (first, second):
        assert await run.status() == "completed"
        live, replayed = seen[run.id]
        assert live == replayed
    [one, other] = [seen[run.id][0] for run in (first, second)]
    assert len({*one, *other}) == 12
    assert all(isinstance(value, uuid.UUID) and value.version == 4 for value in one[::2])
    assert all(0 <= value < 1 for value in one[1::2])


async def test_drawing_inside_a_step_changes_nothing_outside(app: Stepfast) -> None:
    """Rule 17: on replay the step is not called, so its draws must not count."""
    gate = Gate()
    seen: list[uuid.UUID] = []

    @app.workflow
    async def order(ctx: Context) -> None:
        async def draw() -> str:
            return str(ctx.uuid())

        await ctx.step(draw)
        seen.append(ctx.uuid())
        await ctx.step(gate.passing)

    run = await app.start(order)
    await interrupt(app, gate)
    gate.open()
    await app.drain()
    assert await run.status() == "completed"
    live, replayed = seen
    assert live == replayed
    assert (await run.steps())[0].output != str(live)


async def test_draws_inside_a_step_are_the_same_on_every_try(app: Stepfast) -> None:
    seen: list[list[uuid.UUID]] = []

    @app.workflow(max_attempts=1)
    async def order(ctx: Context) -> None:
        async def draw() -> None:
            seen.append([ctx.uuid(), ctx.uuid()])
            if len(seen) < 2:
                raise ValueError("again")

        await ctx.options(retries=1, backoff=AT_ONCE).step(draw)

    run = await drained(app, order)
    assert await run.status() == "completed"
    assert seen[0] == seen[1]
    assert seen[0][0] != seen[0][1]


async def test_now_is_the_database_time_of_the_newest_record(app: Stepfast) -> None:
    """Rule 17: before the first record the time the run began; the same on every replay."""
    gate = Gate()
    seen: list[list[datetime]] = []

    @app.workflow
    async def order(ctx: Context) -> None:
        times = [ctx.now()]
        for _ in range(2):
            await ctx.step(nothing)
            times.append(ctx.now())
        seen.append(times)
        await ctx.step(gate.passing)

    run = await app.start(order)
    await interrupt(app, gate)
    gate.open()
    await app.drain()
    info, steps = await run.info(), await run.steps()
    live, replayed = seen
    assert live == replayed == [info.started_at, steps[0].completed_at, steps[1].completed_at]
    assert live[0].tzinfo is UTC


async def test_now_after_parallel_steps_is_that_of_the_last_to_end(app: Stepfast) -> None:
    """Rule 17: whatever the order in which a replay reads their records."""
    gate, hold = Gate(), asyncio.Event()
    seen: list[datetime] = []

    async def slow() -> None:
        await hold.wait()

    async def quick(run_id: str) -> None: ...

    async def release_when_recorded(run_id: str) -> None:
        await eventually(lambda: _recorded(app, run_id, "quick"))
        before = (await app.get(run_id).info()).read_at
        await eventually(lambda: _past(app, run_id, before))  # so that the two records differ in time
        hold.set()

    @app.workflow
    async def order(ctx: Context) -> None:
        await asyncio.gather(ctx.step(slow), ctx.step(quick, ctx.run_id))
        seen.append(ctx.now())
        await ctx.step(gate.passing)

    run = await app.start(order)
    async with app.worker(shutdown_grace=0):
        await release_when_recorded(run.id)
        await gate.reached()
    gate.open()
    await app.drain()
    assert await run.status() == "completed"
    live, replayed = seen
    assert live == replayed == max(s.completed_at for s in (await run.steps())[:2] if s.completed_at)


async def _past(app: Stepfast, run_id: str, moment: datetime) -> bool:
    return (await app.get(run_id).info()).read_at > moment


async def _recorded(app: Stepfast, run_id: str, name: str) -> bool:
    return name in [s.name for s in await app.get(run_id).steps()]


async def test_a_plain_def_workflow_is_told_the_same(app: Stepfast) -> None:
    @app.workflow
    def order(ctx: SyncContext) -> list[Any]:
        facts = [ctx.run_id, ctx.attempt, ctx.workflow, ctx.step_key.startswith(ctx.run_id)]
        return [*facts, ctx.uuid() != ctx.uuid(), 0 <= ctx.random() < 1, ctx.now().tzinfo is UTC]

    run = await drained(app, order)
    assert await run.result() == [run.id, 1, "order", True, True, True, True]
