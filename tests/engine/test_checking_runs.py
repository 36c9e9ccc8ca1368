"""``app.check``: which unfinished runs today's code would not fit. (What it says of workflows: test_deploys.)"""

from __future__ import annotations

from typing import Any

import pytest

from stepfast import Context, DagContext, RetryLater, Stepfast
from tests.engine.conftest import MakeApp
from tests.support.engine import drained


def declare(app: Stepfast, *steps: str, undo: bool = True, gate: str = "ok") -> Stepfast:
    """A dag whose first step has an undo; then a gate, then the others in a row."""
    dag = app.dag("order")

    async def function(ctx: DagContext) -> None: ...

    async def later(ctx: DagContext) -> None:
        raise RetryLater(600)

    first, *others = steps
    dag.step(name=first, compensate=later if undo else None)(function)
    dag.approval(gate, after=[first])
    before = gate
    for name in others:
        dag.step(name=name, after=[before])(function)
        before = name
    return app


async def test_a_dag_run_whose_open_step_was_renamed_would_not_go_on(make_app: MakeApp) -> None:
    run = await declare(make_app(), "reserve", "charge").start("order")
    [found] = await declare(make_app(), "reserve", "pay").check()
    assert (found.id, found.verdict) == (run.id, "diverges")
    assert "'charge'" in found.detail and "'reserve'" not in found.detail


async def test_a_dag_run_whose_settled_step_was_renamed_goes_on(make_app: MakeApp) -> None:
    before = declare(make_app(), "reserve", "charge")
    await before.start("order")
    await before.drain()  # up to the gate
    [found] = await declare(make_app(), "hold", "charge").check()
    assert found.verdict == "fits"
    [found] = await declare(make_app(), "hold", "charge", gate="approved").check()
    assert found.verdict == "diverges" and "'ok'" in found.detail


async def test_a_dag_run_that_is_undone_needs_the_undos(make_app: MakeApp) -> None:
    before = declare(make_app(), "reserve", "charge")
    run = await before.start("order")
    await before.drain()  # up to the gate
    await run.cancel()
    await before.drain()  # the undo wants to be called later
    assert await run.status() == "compensating"
    assert [found.verdict for found in await before.check()] == ["fits"]
    [found] = await declare(make_app(), "reserve", "charge", undo=False).check()
    assert found.verdict == "diverges" and "'reserve'" in found.detail


async def test_a_check_of_few_runs_does_not_ask_for_each_that_never_began(
    app: Stepfast, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A long queue lies before the run that has begun."""

    @app.workflow
    async def wait(ctx: Context, _: None) -> None:
        await ctx.wait_signal("go")

    run = await drained(app, wait)
    await run.pause()
    await run.resume()
    await run.signal("go")
    await app.start_many(wait, [None] * 200)
    store, asked = await app.store(), list[Any]()
    runs = store.runs

    async def counted(**filters: Any) -> Any:
        asked.append(filters)
        return await runs(**filters)

    monkeypatch.setattr(store, "runs", counted)
    assert [found.id for found in await app.check(limit=1)] == [run.id]
    assert len(asked) < 20
