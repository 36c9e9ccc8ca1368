"""Charged, the worker died before the record, and then a cancel: what acted is recorded first, and undone (rule 53)."""

from __future__ import annotations

from typing import Any

import pytest

from stepfast import Backoff, Context, RetryLater, RunCancelled, Stepfast, step
from stepfast.settings import Settings
from tests.support.crashing import crash_at, outcome_of
from tests.support.engine import PATIENCE, Calls, cancelled
from tests.worker.tables import Tables

SETTINGS = Settings(poll_interval=0.05, inline_wait=0.05, drain=0.05)


@pytest.fixture
async def tables(url: str) -> Any:
    tables = Tables(url)
    yield tables
    await tables.close()


async def lose(app: Stepfast, tables: Tables, name: str, losses: int) -> None:
    """A worker dies when the step has acted and before it is recorded."""
    await crash_at(app, outcome_of(name), written=False)
    await tables.fetch("UPDATE [runs] SET losses = ?, unrecorded_losses = ? WHERE status = 'queued'", losses, losses)


def order_of(app: Stepfast, calls: Calls) -> Any:
    async def refund(receipt: str) -> None:
        calls.hit(f"refund {receipt}")

    @step(compensate=refund)
    async def charge() -> str:
        return f"receipt {calls.hit('charge')}"

    @app.workflow
    async def order(ctx: Context) -> None:
        await ctx.step(charge)
        await ctx.step("send", lambda: calls.hit("send"))

    return order


async def test_what_may_have_acted_is_recorded_first_and_then_undone(url: str, tables: Tables, calls: Calls) -> None:
    app = Stepfast(url, settings=SETTINGS)
    order = order_of(app, calls)
    async with app:
        run = await app.start(order)
        await lose(app, tables, "charge", 1)
        await run.cancel()
        await cancelled(app, run)
        assert (await run.info()).status == "compensated"
    assert calls == {"charge": 2, "refund receipt 2": 1}


def stubborn_order_of(app: Stepfast, calls: Calls) -> Any:
    """Its charge fails when it is called for the second time, and is tried again later than in a moment."""

    async def refund(receipt: str) -> None:
        calls.hit(f"refund {receipt}")

    @step(retries=3, compensate=refund)
    async def charge() -> str:
        if calls.hit("charge") == 2:
            raise RetryLater(1.5)
        return f"receipt {calls['charge']}"

    @app.workflow
    async def order(ctx: Context) -> None:
        await ctx.step(charge)
        await ctx.step("send", lambda: calls.hit("send"))

    return order


@pytest.mark.parametrize("waits", [False, True])
async def test_a_step_that_has_to_be_tried_again_is_waited_for(
    url: str, tables: Tables, calls: Calls, waits: bool
) -> None:
    """Also if the run waits for that try already when it is cancelled."""
    app = Stepfast(url, settings=SETTINGS)
    order = stubborn_order_of(app, calls)
    async with app:
        run = await app.start(order)
        await lose(app, tables, "charge", 1)
        if waits:
            await app.drain()
            assert (await run.info()).waiting_for == "retry"
        await run.cancel()
        async with app.worker():
            with pytest.raises(RunCancelled):
                await run.result(timeout=PATIENCE)
        assert (await run.info()).status == "compensated"
    assert calls == {"charge": 3, "refund receipt 3": 1}


async def test_also_if_it_was_cancelled_before_its_worker_died(url: str, tables: Tables, calls: Calls) -> None:
    app = Stepfast(url, settings=SETTINGS)
    order = order_of(app, calls)
    async with app:
        run = await app.start(order)
        await lose(app, tables, "charge", 1)
        await tables.fetch("UPDATE [runs] SET asked = 'cancel'")
        await cancelled(app, run)
    assert calls == {"charge": 2, "refund receipt 2": 1}


async def test_an_attempt_that_fails_before_it_hears_of_the_cancel_is_not_mixed_up_with_the_one_that_has_to_know(
    url: str, tables: Tables, calls: Calls
) -> None:
    """Both failed, and both are on record."""
    app = Stepfast(url, settings=SETTINGS)

    @app.workflow(max_attempts=9, backoff=Backoff(base=0.01))
    async def order(ctx: Context) -> None:
        if calls.hit(f"attempt {ctx.attempt}") == 2:
            await tables.fetch("UPDATE [runs] SET asked = 'cancel'")
        if calls["lost"]:
            raise ValueError("before the step")
        await ctx.step("charge", lambda: None)

    async with app:
        run = await app.start(order)
        await lose(app, tables, "charge", 1)
        calls.hit("lost")
        await cancelled(app, run)
        assert (await run.info()).attempt == 2
    assert calls == {"attempt 1": 2, "attempt 2": 1, "lost": 1}
    tries = await tables.fetch("SELECT attempt, claim FROM [tries] WHERE position = -1 ORDER BY claim")
    assert [tuple(row) for row in tries] == [(1, 2), (2, 3)]


async def test_a_suspect_with_the_mark_does_nothing_more(url: str, tables: Tables, calls: Calls) -> None:
    app = Stepfast(url, settings=SETTINGS)
    order = order_of(app, calls)
    async with app:
        run = await app.start(order)
        await lose(app, tables, "charge", 2)
        await tables.fetch("UPDATE [runs] SET asked = 'cancel'")
        await cancelled(app, run)
        info = await run.info()
        assert info.status == "cancelled" and info.error is not None
        assert "its first step may have acted" in info.error.message
    assert calls == {"charge": 1}


async def test_a_run_that_has_nothing_to_record_but_waits_ends(url: str, tables: Tables, calls: Calls) -> None:
    app = Stepfast(url, settings=SETTINGS)

    @app.workflow
    async def order(ctx: Context) -> None:
        calls.hit("begun")
        await ctx.wait_signal("never")

    async with app:
        run = await app.start(order)
        await tables.fetch("UPDATE [runs] SET losses = 1, unrecorded_losses = 1")
        await run.cancel()
        await cancelled(app, run)
    assert calls == {"begun": 1}


async def test_a_step_of_a_dag_is_finished_and_undone(url: str, tables: Tables, calls: Calls) -> None:
    app = Stepfast(url, settings=SETTINGS)
    dag = app.dag("order")

    async def refund(ctx: Any) -> None:
        calls.hit(f"refund {ctx.output}")

    @dag.step(compensate=refund)
    async def charge(ctx: Any) -> str:
        return f"receipt {calls.hit('charge')}"

    @dag.step(after=["charge"])
    async def send(ctx: Any) -> None:
        calls.hit("send")

    async with app:
        run = await app.start(dag)
        await crash_at(app, lambda batch: any(move.settled for move in batch.transitions), written=False)
        await tables.fetch(
            "UPDATE [runs] SET losses = 1, unrecorded_losses = 1 WHERE status = 'queued' AND dag_id IS NOT NULL"
        )
        await run.cancel()
        await cancelled(app, run)
        assert (await run.info()).status == "compensated"
    assert calls == {"charge": 2, "refund receipt 2": 1}


@pytest.mark.parametrize("losses", [0, 1])
async def test_a_task_that_fails_while_it_is_cancelled_has_no_attempt_more(
    url: str, tables: Tables, calls: Calls, losses: int
) -> None:
    """It has no record to come to first, so its next owner ends it; also if a worker died with it."""
    app = Stepfast(url, settings=SETTINGS)

    @app.task
    async def ship() -> None:
        calls.hit("ship")
        await tables.fetch("UPDATE [runs] SET asked = 'cancel'")  # its worker has not heard of it
        raise ValueError("no")

    async with app:
        run = await app.start(ship)
        await tables.fetch("UPDATE [runs] SET losses = ?, unrecorded_losses = ?", losses, losses)
        await cancelled(app, run)
    assert await tables.run(run.id, "status, attempt") == ("cancelled", 1)
    assert calls == {"ship": 1}
