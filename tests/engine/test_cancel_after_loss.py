"""Charged, the worker died before the record, and then a cancel: what acted is recorded first, and undone (rule 53)."""

from __future__ import annotations

from typing import Any

import pytest

from stepfast import Backoff, Context, RetryLater, Stepfast, step
from stepfast.settings import Settings
from tests.engine.conftest import MakeApp
from tests.support.crashing import crash_at, outcome_of
from tests.support.engine import Calls, cancelled
from tests.worker.tables import Tables

SETTINGS = Settings(poll_interval=0.05, inline_wait=0.05, drain=0.05)


@pytest.fixture
async def tables(url: str) -> Any:
    tables = Tables(url)
    yield tables
    await tables.close()


@pytest.fixture
def app(make_app: MakeApp) -> Stepfast:
    return make_app(settings=SETTINGS)


async def lose(app: Stepfast, tables: Tables, name: str, losses: int) -> None:
    """A worker dies when the step has acted and before it is recorded."""
    await crash_at(app, outcome_of(name), written=False)
    await tables.fetch("UPDATE [runs] SET losses = ?, unrecorded_losses = ? WHERE status = 'queued'", losses, losses)


def order_of(app: Stepfast, calls: Calls, *, again: bool = False) -> Any:
    """A charge that can be undone; it may fail when it is called again, and is then tried later than in a moment."""

    async def refund(receipt: str) -> None:
        calls.hit(f"refund {receipt}")

    @step(retries=3, compensate=refund)
    async def charge() -> str:
        if calls.hit("charge") == 2 and again:
            raise RetryLater(1.5)
        return f"receipt {calls['charge']}"

    @app.workflow
    async def order(ctx: Context) -> None:
        await ctx.step(charge)
        await ctx.step("send", lambda: calls.hit("send"))

    return order


@pytest.mark.parametrize("case", ["cancelled later", "cancelled before", "is tried again", "waits to be tried again"])
async def test_what_may_have_acted_is_recorded_first_and_then_undone(
    app: Stepfast, tables: Tables, calls: Calls, case: str
) -> None:
    """Also if it was cancelled before its worker died, and if the step has to be tried again, and the run waits for
    that when it is cancelled."""
    again = "again" in case
    run = await app.start(order_of(app, calls, again=again))
    await lose(app, tables, "charge", 1)
    if case.startswith("waits"):
        await app.drain()
        assert (await run.info()).waiting_for == "retry"
    if case == "cancelled before":
        await tables.fetch("UPDATE [runs] SET asked = 'cancel'")
    else:
        await run.cancel()
    await cancelled(app, run)
    assert await run.status() == "compensated"
    last = 3 if again else 2
    assert calls == {"charge": last, f"refund receipt {last}": 1}


async def test_an_attempt_that_fails_before_it_hears_of_the_cancel_is_not_mixed_up_with_the_one_that_has_to_know(
    app: Stepfast, tables: Tables, calls: Calls
) -> None:
    """Both failed, and both are on record."""

    @app.workflow(max_attempts=9, backoff=Backoff(base=0.01))
    async def order(ctx: Context) -> None:
        if calls.hit(f"attempt {ctx.attempt}") == 2:
            await tables.fetch("UPDATE [runs] SET asked = 'cancel'")
        if calls["lost"]:
            raise ValueError("before the step")
        await ctx.step("charge", lambda: None)

    run = await app.start(order)
    await lose(app, tables, "charge", 1)
    calls.hit("lost")
    await cancelled(app, run)
    assert (await run.info()).attempt == 2
    assert calls == {"attempt 1": 2, "attempt 2": 1, "lost": 1}
    tries = await tables.fetch("SELECT attempt, claim FROM [tries] WHERE position = -1 ORDER BY claim")
    assert [tuple(row) for row in tries] == [(1, 2), (2, 3)]


async def test_a_suspect_with_the_mark_does_nothing_more(app: Stepfast, tables: Tables, calls: Calls) -> None:
    order = order_of(app, calls)
    run = await app.start(order)
    await lose(app, tables, "charge", 2)
    await tables.fetch("UPDATE [runs] SET asked = 'cancel'")
    await cancelled(app, run)
    info = await run.info()
    assert info.status == "cancelled" and info.error is not None
    assert "its first step may have acted" in info.error.message
    assert calls == {"charge": 1}


async def test_a_run_that_has_nothing_to_record_but_waits_ends(app: Stepfast, tables: Tables, calls: Calls) -> None:

    @app.workflow
    async def order(ctx: Context) -> None:
        calls.hit("begun")
        await ctx.wait_signal("never")

    run = await app.start(order)
    await tables.fetch("UPDATE [runs] SET losses = 1, unrecorded_losses = 1")
    await run.cancel()
    await cancelled(app, run)
    assert calls == {"begun": 1}


async def test_a_step_of_a_dag_is_finished_and_undone(app: Stepfast, tables: Tables, calls: Calls) -> None:
    dag = app.dag("order")

    async def refund(ctx: Any) -> None:
        calls.hit(f"refund {ctx.output}")

    @dag.step(compensate=refund)
    async def charge(ctx: Any) -> str:
        return f"receipt {calls.hit('charge')}"

    @dag.step(after=["charge"])
    async def send(ctx: Any) -> None:
        calls.hit("send")

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
    app: Stepfast, tables: Tables, calls: Calls, losses: int
) -> None:
    """It has no record to come to first, so its next owner ends it; also if a worker died with it."""

    @app.task
    async def ship() -> None:
        calls.hit("ship")
        await tables.fetch("UPDATE [runs] SET asked = 'cancel'")  # its worker has not heard of it
        raise ValueError("no")

    run = await app.start(ship)
    await tables.fetch("UPDATE [runs] SET losses = ?, unrecorded_losses = ?", losses, losses)
    await cancelled(app, run)
    assert await tables.run(run.id, "status, attempt") == ("cancelled", 1)
    assert calls == {"ship": 1}
