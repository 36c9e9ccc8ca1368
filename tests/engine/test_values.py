"""``ctx.set`` and ``run.get``: values that others read while the run goes on; ``ctx.progress``: how far it is."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import Any

import pytest

from stepfast import (
    ConfigurationError,
    Context,
    NonRetryableError,
    PayloadError,
    RunNotFound,
    Settings,
    Stepfast,
    SyncContext,
)
from stepfast.model.ids import new_id
from stepfast.model.records import Look
from tests.engine.conftest import MakeApp
from tests.support.engine import PATIENCE, Gate, drained, failure, finished, interrupt, outcome
from tests.support.waiting import count, doomed, reached

pytestmark = pytest.mark.enough_on("sqlite")


@dataclass
class Stage:
    name: str
    share: float


@pytest.mark.parametrize("kind", ["async", "def"])
async def test_a_value_is_readable_while_the_run_goes_on(app: Stepfast, kind: str) -> None:
    gate = Gate()

    if kind == "async":

        @app.workflow(name="order")
        async def order(ctx: Context) -> None:
            await ctx.set("progress", 0.8)
            await ctx.set("stage", Stage("packing", 0.8))
            await ctx.step(gate.passing)
            await ctx.set("progress", 1)
    else:

        @app.workflow(name="order")
        def order_in_a_thread(ctx: SyncContext) -> None:
            ctx.set("progress", 0.8)
            ctx.set("stage", Stage("packing", 0.8))
            ctx.step(gate.passing)
            ctx.set("progress", 1)

    async with app.worker():
        run = await app.start("order")
        await gate.reached()
        assert await run.get("progress") == 0.8
        assert await run.get("stage") == {"name": "packing", "share": 0.8}
        gate.open()
        await run.result(timeout=PATIENCE)
    assert await run.get("progress") == 1
    assert await asyncio.to_thread(app.sync.get(run.id).get, "progress") == 1


async def test_what_was_never_set_is_the_default(app: Stepfast) -> None:
    @app.workflow
    async def order(ctx: Context) -> None: ...

    run = await app.start(order)
    assert await run.get("it") is None
    assert await run.get("it", 7) == 7
    with pytest.raises(RunNotFound):
        await app.get(new_id()).get("it")


async def test_the_latest_value_wins_and_there_is_one_row(app: Stepfast) -> None:

    @app.workflow
    async def order(ctx: Context) -> None:
        for number in range(50):
            await ctx.set("number", number)

    run = await drained(app, order)
    assert await run.get("number") == 49
    assert await count(app, "run_values", run) == 1
    assert await count(app, "steps", run) == 0


async def test_values_of_runs_and_keys_do_not_meet(app: Stepfast) -> None:
    @app.workflow
    async def order(ctx: Context, number: int) -> None:
        await ctx.set("a", number)
        await ctx.set("b", -number)

    runs = await app.start_many(order, [1, 2, 3])
    await app.drain()
    assert [(await run.get("a"), await run.get("b")) for run in runs] == [(1, -1), (2, -2), (3, -3)]


async def test_a_replay_does_not_bring_old_values_back(make_app: MakeApp) -> None:
    app = make_app(settings=Settings(inline_wait=0))
    seen: list[Any] = []
    gate = Gate()

    @app.workflow
    async def order(ctx: Context) -> None:
        await ctx.set("stage", 1)
        await ctx.step("work", lambda: None)
        await ctx.set("stage", 2)
        await ctx.wait_signal("go")
        await ctx.set("stage", 3)
        await ctx.step(gate.passing)

    run = await app.start(order)
    async with app.worker():
        await reached(run, "waiting")
        seen.append(await run.get("stage"))
        await run.signal("go")
        while not gate.arrivals:
            seen.append(await run.get("stage"))
            await asyncio.sleep(0)
        seen.append(await run.get("stage"))
        gate.open()
        await run.result(timeout=PATIENCE)
    assert seen == sorted(seen) and seen[0] == 2 and seen[-1] == 3


async def test_a_value_set_before_a_crash_is_there_and_set_anew_after_it(app: Stepfast, make_app: MakeApp) -> None:
    victim = make_app()
    gate = Gate()
    attempt = {"number": 0}
    for each in (app, victim):

        @each.workflow(name="order")
        async def order(ctx: Context) -> None:
            attempt["number"] += 1
            await ctx.set("try", attempt["number"])
            await ctx.step(gate.passing)

    run = await app.start("order")
    async with doomed(victim):
        await gate.reached()
    assert await run.get("try") == 1
    await finished(app, run, gate)
    assert await run.get("try") == 2


async def test_a_worker_that_lost_the_run_sets_nothing(app: Stepfast, make_app: MakeApp) -> None:
    gate = Gate()
    other = make_app()
    refused: list[str] = []

    @app.workflow(name="order")
    async def order(ctx: Context) -> str:
        await ctx.set("by", "first")
        try:
            await ctx.step(gate.passing)
        finally:
            try:
                await ctx.set("by", "the dead")
            except BaseException as error:
                refused.append(type(error).__name__)
        return "first"

    @other.workflow(name="order")
    async def same(ctx: Context) -> str:
        await ctx.set("by", "first")
        await ctx.step("passing", lambda: None)
        return "second"

    run = await app.start("order")
    async with doomed(app):
        await gate.reached()
    assert await finished(other, run) == "second"
    assert refused == ["LeaseLost"]
    assert await run.get("by") == "first"


async def test_setting_a_value_takes_no_position(app: Stepfast, make_app: MakeApp) -> None:
    gate = Gate()
    newer = make_app()

    @app.workflow(name="order")
    async def order(ctx: Context) -> None:
        await ctx.step("first", lambda: None)
        await ctx.step(gate.passing)

    run = await app.start("order")
    await interrupt(app, gate)
    gate.open()

    @newer.workflow(name="order")
    async def changed(ctx: Context) -> None:
        await ctx.set("stage", "begun")
        await ctx.step("first", lambda: None)
        await ctx.set("stage", "first done")
        await ctx.step(gate.passing)
        await ctx.set("stage", "done")

    await finished(newer, run)
    assert await run.get("stage") == "done"


async def test_what_cannot_be_kept_is_refused_by_its_key(app: Stepfast) -> None:
    @app.workflow
    async def order(ctx: Context) -> None:
        with pytest.raises(PayloadError, match="'it'"):
            await ctx.set("it", object())
        with pytest.raises(ConfigurationError, match="key of a value"):
            await ctx.set("", 1)
        with pytest.raises(ConfigurationError, match="key of a value"):
            await ctx.set("x" * 1000, 1)

    await outcome(app, order)


async def test_values_pass_through_the_codec(make_app: MakeApp) -> None:
    app = make_app(codec=Backwards())

    @app.workflow
    async def order(ctx: Context) -> Any:
        await ctx.set("secret", "plain text")
        return await ctx.wait_signal("go")

    run = await app.start(order)
    await run.signal("go", "plain word")
    store = await app.store()
    [mail] = (await store.mail([Look(run.id)]))[run.id].mail
    assert "plain" not in (mail.value or "")
    assert await finished(app, run) == "plain word"
    assert await run.get("secret") == "plain text"
    found = await store.value(run.id, "secret")
    assert found is not None and "plain" not in found[0]


class Backwards:
    """A codec that turns every payload around."""

    def encode(self, data: bytes) -> bytes:
        return data[::-1]

    def decode(self, data: bytes) -> bytes:
        return data[::-1]


async def test_values_do_not_hold_a_run_in_memory(make_app: MakeApp) -> None:
    """Rule 24: a branch that has just set something waits like any other."""
    app = make_app(settings=Settings(inline_wait=0))

    async def branch(ctx: Context, number: int) -> None:
        await ctx.set("last", number)
        await ctx.sleep(3600)

    @app.workflow
    async def order(ctx: Context) -> None:
        await ctx.gather(ctx.branch(branch, 1), ctx.branch(branch, 2))

    run = await drained(app, order)
    assert await run.status() == "waiting"


# -- progress -----------------------------------------------------------------------------------------------------


async def test_the_keys_of_checks_are_not_for_others(app: Stepfast) -> None:
    @app.workflow
    async def order(ctx: Context) -> None:
        await ctx.set("~until/:0", 1)

    await failure(await drained(app, order), "must not begin with '~until/'")


async def test_the_undo_of_a_dag_step_can_say_so_and_other_values_stay(app: Stepfast) -> None:
    graph = app.dag("order")

    async def refund(ctx: Any) -> None:
        await ctx.set("state", "refunded")

    @graph.step(compensate=refund)
    async def charge(ctx: Any) -> None:
        await ctx.set("state", "charged")

    @graph.step(after=[charge], retries=0)
    async def ship(ctx: Any) -> None:
        raise NonRetryableError("sold out")

    run = await drained(app, graph, None)
    assert await run.status() == "compensated"
    [charged] = [info.child for info in await run.steps() if info.name == "charge" and info.child is not None]
    assert (await run.get("state"), await app.get(charged).get("state")) == ("refunded", "charged")
