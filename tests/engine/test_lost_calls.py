"""A worker died while a step was under way: that its function may have been called more often is told."""

from __future__ import annotations

from typing import Any

import pytest

from stepfast import Context, Stepfast
from stepfast.settings import Settings
from tests.support.crashing import crash_at, outcome_of
from tests.support.engine import PATIENCE, Calls, Gate, eventually, stopped_at_once
from tests.worker.tables import Tables

SETTINGS = Settings(poll_interval=0.05, running_after=0.01)


@pytest.fixture
async def tables(url: str) -> Any:
    tables = Tables(url)
    yield tables
    await tables.close()


async def lose(app: Stepfast, tables: Tables, name: str) -> None:
    """A worker dies when the step has acted and before it is recorded."""
    await crash_at(app, outcome_of(name), written=False)
    await tables.fetch(
        "UPDATE [runs] SET losses = losses + 1, unrecorded_losses = unrecorded_losses + 1 WHERE status = 'queued'"
    )


async def test_a_call_that_was_lost_leaves_a_trace(url: str, tables: Tables, calls: Calls) -> None:
    """At every call that was under way, in what is read of steps and of calls; none at those before and after."""
    app = Stepfast(url, settings=SETTINGS)

    @app.workflow
    async def order(ctx: Context) -> None:
        await ctx.step("reserve", lambda: calls.hit("reserve"))
        await ctx.gather(ctx.step("charge", lambda: calls.hit("charge")), ctx.step("pack", lambda: calls.hit("pack")))
        await ctx.step("send", lambda: calls.hit("send"))

    async with app:
        run = await app.start(order)
        await lose(app, tables, "charge")
        await lose(app, tables, "charge")
        async with app.worker():
            await run.result(timeout=PATIENCE)
        told = {step.name: (step.attempts, step.losses) for step in await run.steps()}
        assert told == {"reserve": (1, 0), "charge": (1, 2), "pack": (1, 2), "send": (1, 0)}
        assert {call.name: call.losses for call in await run.activity()} == {
            "reserve": 0, "charge": 2, "pack": 2, "send": 0,
        }  # fmt: skip
    assert (calls["reserve"], calls["charge"], calls["send"]) == (1, 3, 1)
    assert 1 <= calls["pack"] <= 3, "how far it was when its workers died is not known"


async def test_so_does_a_call_that_is_under_way_again(url: str, tables: Tables, calls: Calls) -> None:
    app = Stepfast(url, settings=SETTINGS)
    gate = Gate()

    @app.workflow
    async def order(ctx: Context) -> None:
        async def charge() -> None:
            if calls.hit("charge") > 1:
                await gate.passing()

        await ctx.step(charge)

    async with app:
        run = await app.start(order)
        await lose(app, tables, "charge")
        async with stopped_at_once(app):
            await gate.reached()
            [step] = await eventually(run.steps)
            assert (step.name, step.status, step.losses) == ("charge", "running", 1)


async def test_so_does_a_transaction(url: str, tables: Tables, calls: Calls) -> None:
    """Its rows are written once; its function was called as often."""
    app = Stepfast(url, settings=SETTINGS)

    def book(connection: Any) -> int:
        return calls.hit("book")

    async def book_async(connection: Any) -> int:
        return calls.hit("book")

    @app.workflow
    async def order(ctx: Context) -> None:
        await ctx.transaction("book", book if url.startswith("sqlite") else book_async)

    async with app:
        run = await app.start(order)
        await tables.fetch("UPDATE [runs] SET losses = 1, unrecorded_losses = 1")
        async with app.worker():
            await run.result(timeout=PATIENCE)
        [step] = await run.steps()
        assert (step.attempts, step.losses) == (1, 1)


async def test_so_does_a_step_of_a_dag(url: str, tables: Tables, calls: Calls) -> None:
    app = Stepfast(url, settings=SETTINGS)
    dag = app.dag("order")

    @dag.step
    async def charge(ctx: Any) -> int:
        return calls.hit("charge")

    async with app:
        run = await app.start(dag)
        await crash_at(app, lambda batch: any(move.settled for move in batch.transitions), written=False)
        await tables.fetch("UPDATE [runs] SET losses = 1, unrecorded_losses = 1 WHERE dag_id IS NOT NULL")
        async with app.worker():
            await run.result(timeout=PATIENCE)
        [step] = await run.steps()
        assert (step.name, step.attempts, step.losses) == ("charge", 1, 1)
    assert calls == {"charge": 2}
