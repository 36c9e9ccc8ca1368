"""The log tells every wait, also one that failed, with the time it took: from when it first began until it was over,
however often the run gave its slot back in between."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest

from stepfast import (
    Activity,
    ChildFailed,
    Context,
    NonRetryableError,
    Run,
    SignalTimeout,
    Stepfast,
    StepInfo,
    WaitTimeout,
)
from stepfast.settings import Settings
from tests.engine.conftest import MakeApp
from tests.support.waiting import let_pass, rows_of

pytestmark = pytest.mark.enough_on("sqlite")

HOUR = 3600.0
RELEASES = Settings(inline_wait=0)
"""Every wait gives its slot back."""


def declare(app: Stepfast, opened: list[bool]) -> Any:
    """One workflow with a wait of every kind; which one is its input."""

    @app.task(max_attempts=1)
    async def child(fails: bool) -> str:
        if fails:
            raise NonRetryableError("no stock")
        return "shipped"

    async def is_open() -> bool:
        return bool(opened)

    @app.workflow(max_attempts=1)
    async def waiter(ctx: Context, kind: str) -> str:
        try:
            if kind == "sleep":
                await ctx.sleep(HOUR)
            elif kind == "sleep_until":
                await ctx.sleep_until(ctx.now() + timedelta(seconds=HOUR))
            elif kind == "signal":
                await ctx.wait_signal("paid", timeout=9 * HOUR)
            elif kind == "signal_any":
                await ctx.wait_signal("paid")
            elif kind == "race":
                await ctx.first(paid=ctx.wait_signal("paid"), late=ctx.sleep(9 * HOUR))
            elif kind == "result":
                await (await ctx.start(child, False, delay=HOUR)).result()
            elif kind == "signal_late":
                await ctx.wait_signal("paid", timeout=HOUR)
            elif kind == "child":
                await ctx.call(child, False, delay=HOUR)
            elif kind == "child_failed":
                await ctx.call(child, True, delay=HOUR)
            elif kind == "until":
                await ctx.wait_until(is_open, every=HOUR)
            elif kind == "until_late":
                await ctx.wait_until(is_open, every=HOUR, timeout=HOUR)
        except (SignalTimeout, ChildFailed, WaitTimeout) as error:
            return type(error).__name__
        return "done"

    return waiter


async def wait_an_hour(make_app: MakeApp, kind: str) -> tuple[Stepfast, Run[Any]]:
    """Start it, let it give its slot back, let an hour pass, and let another process bring it to its end."""
    opened: list[bool] = []
    app, other = make_app(settings=RELEASES), make_app(settings=RELEASES)
    run = await app.start(declare(app, opened), kind)
    declare(other, opened)
    await app.drain()
    assert await run.status() == "waiting"
    await let_pass(app, run, HOUR)
    for step in await run.steps():
        if step.child is not None:
            await let_pass(app, app.get(step.child), HOUR)
    if kind in ("signal", "signal_any", "race"):
        await run.signal("paid")
    if kind == "until":
        opened.append(True)
    again = other.get(run.id)
    await other.drain()
    return other, again


ENDS = {
    "sleep": "done",
    "sleep_until": "done",
    "signal": "done",
    "signal_any": "done",
    "result": "done",
    "signal_late": "SignalTimeout",
    "child": "done",
    "child_failed": "ChildFailed",
    "until": "done",
    "until_late": "WaitTimeout",
}


@pytest.mark.parametrize("kind", ENDS)
async def test_a_wait_is_told_with_its_whole_span(make_app: MakeApp, kind: str) -> None:
    app, run = await wait_an_hour(make_app, kind)
    assert await run.result(timeout=20) == ENDS[kind]
    step = (await run.steps())[-1]
    call = (await run.activity())[-1]
    how = "completed" if ENDS[kind] == "done" else "failed"
    assert (step.status, call.status, call.name) == (how, how, step.name)
    assert (call.error is None) == (how == "completed")
    assert spans(step, call) == pytest.approx([HOUR, HOUR], abs=15)
    assert abs(call.started_at - (step.started_at or call.started_at)) < timedelta(seconds=1)
    if kind != "result":
        await check_views(app, run, how)


async def test_a_race_and_all_that_ran_in_it_are_told_with_their_whole_span(make_app: MakeApp) -> None:
    _, run = await wait_an_hour(make_app, "race")
    assert await run.result(timeout=20) == "done"
    found = {step.kind: (step.status, step.lost_to) for step in await run.steps()}
    assert found == {"signal": ("completed", None), "sleep": ("cancelled", "paid"), "first": ("completed", None)}
    assert [call.duration.total_seconds() for call in await run.activity()] == pytest.approx([HOUR] * 3, abs=15)


def spans(step: StepInfo, call: Activity) -> list[float]:
    assert step.started_at is not None
    assert step.completed_at is not None
    return [(step.completed_at - step.started_at).total_seconds(), call.duration.total_seconds()]


async def check_views(app: Stepfast, run: Run[Any], how: str) -> None:
    """For people who read SQL it is the same."""
    async with rows_of(app) as rows:
        [(seconds, said)] = await rows.fetch("SELECT seconds, status FROM [activity_readable] WHERE run_id = ?", run.id)
        [(status,)] = await rows.fetch("SELECT status FROM [steps_readable] WHERE run_id = ?", run.id)
    assert (said, status) == (how, how)
    assert float(seconds) == pytest.approx(HOUR, abs=15)


async def test_what_is_open_has_no_end_yet(make_app: MakeApp) -> None:
    """Neither for Python nor for SQL, where an average over it would mislead."""
    app = make_app(settings=RELEASES)
    run = await app.start(declare(app, []), "sleep")
    await app.drain()
    [step] = await run.steps()
    assert (step.status, step.completed_at, await run.activity()) == ("waiting", None, [])
    async with rows_of(app) as rows:
        found = await rows.fetch("SELECT status, completed_at FROM [steps_readable] WHERE run_id = ?", run.id)
    assert [tuple(row) for row in found] == [("waiting", None)]


async def test_a_sleep_that_its_run_did_not_live_to_see_the_end_of_is_not_over(make_app: MakeApp) -> None:
    app = make_app(settings=RELEASES)
    run = await app.start(declare(app, []), "sleep")
    await app.drain()
    await run.cancel()
    async with rows_of(app) as rows:  # its time comes long after the run has ended
        await rows.fetch("UPDATE [steps] SET output = '{\"for\": 1000}' WHERE run_id = ?", run.id)
        await rows.fetch("UPDATE [runs] SET completed_at = completed_at - 3600000 WHERE id = ?", run.id)
    info, [step] = await run.info(), await run.steps()
    assert (step.status, step.completed_at, await run.activity()) == ("cancelled", info.completed_at, [])


async def test_a_failure_stays_in_the_log_when_the_wait_is_made_again(make_app: MakeApp) -> None:
    """The log is append-only: a retry forgets the record of the failure, not that it happened."""
    app = make_app()

    @app.workflow
    async def waiter(ctx: Context) -> str:
        return await ctx.wait_signal("paid", type=str, timeout=0.01)

    run = await app.start(waiter)
    await app.drain()
    assert await run.status() == "failed"
    await run.retry()
    await run.signal("paid", "cash")
    await app.drain()
    assert await run.result() == "cash"
    log = await run.activity()
    assert [(c.name, c.status, c.result) for c in log if c.position is not None] == [
        ("paid", "failed", None),
        ("paid", "completed", "cash"),
    ]
