"""``info.paused_at``: since when a run is paused, and nothing once it is not, however it came in or out."""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import Any

import pytest

from stepfast import Context, NonRetryableError, Run, Settings, Stepfast
from tests.engine.conftest import ON_BOTH, ON_SQLITE, MakeApp
from tests.support.engine import PATIENCE, Gate, drained, eventually
from tests.support.waiting import let_pass, reached, rows_of
from tests.support.workflows import listener

pytestmark = ON_SQLITE


@pytest.fixture
def app(make_app: MakeApp) -> Stepfast:
    """Whoever waits gives its slot back at once."""
    return make_app(settings=Settings(inline_wait=0))


async def paused_since(app: Stepfast, run: Run[Any]) -> datetime | None:
    """Since when it is paused. All rows are looked at on the way: those that are paused have a time, no others do."""
    async with rows_of(app) as rows:
        wrong = "SELECT dag_step, status, paused_at FROM [runs] WHERE (status = 'paused') <> (paused_at IS NOT NULL)"
        assert await rows.fetch(wrong) == []
    info = await run.info()
    if info.paused_at is not None:
        assert info.created_at <= info.paused_at <= info.read_at
    return info.paused_at


def waiting(app: Stepfast) -> Any:
    """A workflow that waits for a signal."""
    return listener(app)


@ON_BOTH
async def test_a_queued_run(app: Stepfast) -> None:
    run = await app.start(waiting(app))
    assert await paused_since(app, run) is None
    await run.pause()
    since = await paused_since(app, run)
    assert since is not None
    await run.pause()
    assert await paused_since(app, run) == since
    [listed] = await app.runs(status="paused")
    assert listed.paused_at == since
    await run.resume()
    assert await paused_since(app, run) is None
    await run.pause()
    again = await paused_since(app, run)
    assert again is not None and again >= since


async def test_lists_by_tag_and_workflow_tell_it_too(app: Stepfast) -> None:
    run = await app.start(waiting(app), tags=["x"])
    await run.pause()
    since = await paused_since(app, run)
    for listed in (*await app.runs(), *await app.runs(tag="x"), *await app.runs(workflow="order")):
        assert (listed.paused_at, listed.left_out) == (since, ())


async def test_a_waiting_run(app: Stepfast) -> None:
    run = await drained(app, waiting(app))
    await run.pause()
    since = await paused_since(app, run)
    assert since is not None
    await run.resume()
    assert (await run.status(), await paused_since(app, run)) == ("waiting", None)
    await run.pause()
    since = await paused_since(app, run)
    await run.signal("go", 1)
    await app.drain()
    assert await paused_since(app, run) == since
    await run.resume()
    await app.drain()
    assert (await run.result(timeout=PATIENCE), await paused_since(app, run)) == (1, None)


async def test_a_cancelled_run_and_its_retry(app: Stepfast) -> None:
    run = await app.start(waiting(app))
    await run.pause()
    await run.cancel()
    assert (await run.status(), await paused_since(app, run)) == ("cancelled", None)
    await run.retry()
    assert (await run.status(), await paused_since(app, run)) == ("queued", None)
    await run.pause()
    assert await paused_since(app, run) is not None


async def test_a_cancelled_run_that_is_undone(app: Stepfast) -> None:
    @app.workflow
    async def order(ctx: Context) -> None:
        await ctx.options(compensate=lambda _: None).step("charge", lambda: 1)
        await ctx.wait_signal("go")

    run = await drained(app, order)
    await run.pause()
    await run.cancel()
    assert (await run.status(), await paused_since(app, run)) == ("compensating", None)
    await app.drain()
    assert (await run.status(), await paused_since(app, run)) == ("compensated", None)


@ON_BOTH
async def test_a_dag_with_its_steps(app: Stepfast) -> None:
    gate, dag = Gate(), app.dag("dag")

    @dag.step
    async def a(ctx: Any) -> None:
        await gate.passing()

    dag.declare(lambda ctx: 1, name="b", after=["a"])
    dag.approval("ok")
    run = await app.start(dag)
    async with app.worker():
        await gate.reached()
        await run.pause()
        since = await paused_since(app, run)
        assert since is not None
        gate.open()

        async def held() -> bool:
            return {step.name: step.status for step in await run.steps()}["b"] == "paused"

        await eventually(held)
        assert await paused_since(app, run) == since
        await run.resume()
        assert await paused_since(app, run) is None
        await run.signal("ok", 2)
        assert (await run.result(timeout=PATIENCE))["ok"] == 2
    assert await paused_since(app, run) is None


async def test_a_paused_dag_that_is_cancelled_or_late_and_its_retry(app: Stepfast) -> None:
    dag = app.dag("dag", deadline=timedelta(hours=1))
    dag.approval("ok")
    dag.declare(lambda ctx: 1, name="b", after=["ok"])
    cancelled, late = await app.start(dag), await app.start(dag)
    await app.drain()
    for run in (cancelled, late):
        await run.pause()
        assert await paused_since(app, run) is not None
    await cancelled.cancel()
    assert await paused_since(app, cancelled) is None
    await let_pass(app, late, 7200)
    await app.drain()
    assert [await run.status() for run in (cancelled, late)] == ["cancelled", "failed"]
    for run in (cancelled, late):
        assert await paused_since(app, run) is None
        await run.retry()
        await run.pause()
        assert await paused_since(app, run) is not None


async def test_a_paused_dag_whose_step_under_way_fails(app: Stepfast) -> None:
    gate, dag = Gate(), app.dag("dag")

    @dag.step
    async def a(ctx: Any) -> None:
        await gate.passing()
        raise NonRetryableError("no")

    dag.approval("ok")
    run = await app.start(dag)
    async with app.worker():
        await gate.reached()
        await run.pause()
        assert await paused_since(app, run) is not None
        gate.open()
        await reached(run, "failed")
    assert await paused_since(app, run) is None


@ON_BOTH
async def test_the_view_for_people(app: Stepfast) -> None:
    run = await app.start(waiting(app))
    await run.pause()
    async with rows_of(app) as rows:
        [(at,)] = await rows.fetch("SELECT paused_at FROM [runs_readable]")
        assert at is not None
        await run.resume()
        assert await rows.fetch("SELECT paused_at FROM [runs_readable]") == [(None,)]


@ON_BOTH
@pytest.mark.parametrize("kind", ["workflow", "dag"])
async def test_one_that_lost_a_worker_and_goes_on_to_be_cancelled(app: Stepfast, kind: str) -> None:
    waiting(app)
    dag = app.dag("dag")
    dag.declare(lambda ctx: 1, name="a")
    run = await app.start("order" if kind == "workflow" else dag)
    await run.pause()
    async with rows_of(app) as rows:
        await rows.fetch("UPDATE [runs] SET losses = 1, unrecorded_losses = 1")
        await run.cancel()
        assert await paused_since(app, run) is None
        last = "dag_step = 'a'" if kind == "dag" else "dag_step IS NULL"
        assert await rows.fetch(f"SELECT status, asked FROM [runs] WHERE {last}") == [("queued", "cancel")]


async def test_a_dag_whose_last_step_was_settled_before_it_was_paused(app: Stepfast) -> None:
    dag = app.dag("dag")
    dag.approval("ok", on_timeout="approve", timeout=3600)
    run = await drained(app, dag)
    await run.pause()
    assert await paused_since(app, run) is not None
    await run.signal("ok", True)
    await run.resume()
    assert await paused_since(app, run) is None
    await app.drain()
    assert (await run.status(), await paused_since(app, run)) == ("completed", None)


async def test_a_paused_dag_that_fails_while_another_step_is_under_way(app: Stepfast) -> None:
    gates, dag = {"a": Gate(), "c": Gate()}, app.dag("dag")

    @dag.step
    async def a(ctx: Any) -> None:
        await gates["a"].passing()
        raise NonRetryableError("no")

    @dag.step
    async def c(ctx: Any) -> None:
        await gates["c"].passing()

    run = await app.start(dag)
    async with app.worker():
        for gate in gates.values():
            await gate.reached()
        await run.pause()
        assert await paused_since(app, run) is not None
        gates["a"].open()
        await reached(run, "running")
        assert await paused_since(app, run) is None
        gates["c"].open()
        await reached(run, "failed")
