"""Default time limits; and what has been executing for a long time is named."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from stepfast import Context, Settings, Stepfast, StepTimeout, step
from stepfast.cli.top import Watch, screen
from stepfast.monitoring.doctor import examine
from stepfast.store.answers import LONG_AT_WORK
from tests.engine.conftest import ON_BOTH, ON_SQLITE, MakeApp
from tests.store.scene import Rows
from tests.support.engine import Gate, drained, eventually, failure

pytestmark = ON_SQLITE


async def hang() -> None:
    await asyncio.Event().wait()


def hanging_task(app: Stepfast) -> Any:
    return app.task(hang)


def hanging_step(app: Stepfast) -> Any:
    @app.workflow
    async def order(ctx: Context) -> None:
        await ctx.step(hang)

    return order


def hanging_undo(app: Stepfast) -> Any:
    async def undo(output: Any) -> None:
        await hang()

    @app.workflow
    async def order(ctx: Context) -> None:
        await ctx.options(compensate=undo).step("done", lambda: 1)
        raise ValueError("no")

    return order


def hanging_dag_step(app: Stepfast) -> Any:
    async def stuck(ctx: Any) -> None:
        await hang()

    dag = app.dag("graph")
    dag.declare(stuck, name="stuck", retries=0)
    return dag


@pytest.mark.parametrize(
    ("make", "setting", "reason"),
    [
        (hanging_task, "timeout", "timeout"),
        (hanging_step, "timeout", "timeout"),
        (hanging_step, "step_timeout", "code"),
        (hanging_undo, "step_timeout", "undo_failed"),
        (hanging_dag_step, "step_timeout", "timeout"),
    ],
)
async def test_the_settings_bound_what_says_nothing_itself(
    make_app: MakeApp, make: Any, setting: str, reason: str
) -> None:
    limits: dict[str, Any] = {setting: 0.05}
    app = make_app(settings=Settings(max_attempts=1, undo_retries=0, **limits))
    failed = await failure(await drained(app, make(app)))
    assert failed.reason == reason


async def test_what_says_something_itself_has_that(make_app: MakeApp) -> None:
    app = make_app(settings=Settings(timeout=0.01, step_timeout=0.01))

    @step(timeout=20)
    async def slow() -> str:
        await asyncio.sleep(0.05)
        return "done"

    @app.workflow(timeout=20)
    async def order(ctx: Context) -> str:
        return await ctx.step(slow)

    run = await drained(app, order)
    assert await run.result() == "done"
    assert StepTimeout.__name__ not in str(await run.activity())


@ON_BOTH
async def test_what_has_been_executing_for_long_is_named(make_app: MakeApp) -> None:
    app, gates = make_app(settings=Settings(running_after=0, heartbeat=0.05)), [Gate(), Gate(), Gate()]

    @app.task
    async def quick() -> None:
        await gates[0].passing()

    @app.task
    async def export() -> None:
        await gates[1].passing()

    @app.workflow
    async def order(ctx: Context) -> None:
        await ctx.step("charge", gates[2].passing)

    runs = [await app.start(each) for each in (quick, export, order)]
    store = await app.store()
    rows = Rows(store, app.namespace, app.url.text)
    async with app.worker():
        for gate in gates:
            await gate.reached()
        await eventually(lambda: store.progress(runs[2].id))
        assert await store.long_at_work(LONG_AT_WORK, 100) == []
        await rows.shift(runs[1].id, "started_at", -7_200_000)
        await rows.fetch("UPDATE [progress] SET started_at = started_at - 10800000 WHERE run_id = ?", runs[2].id)
        [charge, whole] = await store.long_at_work(LONG_AT_WORK, 100)
        [check] = [check for check in await examine(app, store) if check.name == "long_running"]
        shown = str(await Watch(app).look()) + str(await screen(Watch(app)))
        for gate in gates:
            gate.open()
        await runs[2].result(timeout=20)
    await rows.close()
    assert (charge.run_id, charge.step, whole.run_id, whole.step) == (runs[2].id, "charge", runs[1].id, None)
    assert 10_800 <= charge.seconds < 10_900 and 7200 <= whole.seconds < 7300
    assert check.ok
    assert f"run {runs[2].id} (order, step 'charge') for 3 h" in check.found
    assert f"run {runs[1].id} (export) for 2 h" in check.found
    assert runs[2].id in shown and runs[0].id not in shown
