"""How a dag run is shown and found: as its steps stand."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest

from stepfast import Dag, Settings, Stepfast
from tests.engine.conftest import MakeApp
from tests.support.engine import PATIENCE, Gate


@pytest.fixture
def app(make_app: MakeApp) -> Stepfast:
    """Whoever waits gives its slot back at once."""
    return make_app(settings=Settings(inline_wait=0))


async def found(app: Stepfast, **filters: Any) -> list[tuple[str, str]]:
    """The ids of a list, and the statuses it has for them."""
    return [(info.id, info.status) for info in await app.runs(**filters)]


def with_gate(app: Stepfast, name: str = "order", timeout: timedelta | None = None) -> Dag:
    """A dag that waits for an answer after its first step."""
    dag = app.dag(name)
    dag.declare(lambda ctx: 1, name="reserve")
    dag.approval("ok", after=["reserve"], timeout=timeout)
    dag.declare(lambda ctx: 2, name="charge", after=["ok"])
    return dag


async def test_one_that_waits_for_an_answer_is_waiting(app: Stepfast) -> None:
    run = await app.start(with_gate(app, timeout=timedelta(hours=1)))
    assert (await run.status(), await found(app, status="running")) == ("running", [(run.id, "running")])
    await app.drain()
    info = await run.info()
    assert (info.status, info.waiting_for, info.reason) == ("waiting", "signal:ok", None)
    assert info.due_at is not None and info.due_at > info.read_at
    assert await found(app) == await found(app, status="waiting") == [(run.id, "waiting")]
    assert await found(app, status="running") == []
    await run.signal("ok", True)
    assert await run.status() == "running"
    await app.drain()
    assert (await run.result(timeout=PATIENCE))["charge"] == 2


async def test_one_of_whose_steps_another_is_at_work_is_running(app: Stepfast) -> None:
    gate, dag = Gate(), with_gate(app)

    @dag.step
    async def aside(ctx: Any) -> None:
        await gate.passing()

    run = await app.start(dag)
    async with app.worker():
        await gate.reached()
        assert await run.status() == "running"
        gate.open()


async def test_what_it_waits_for_is_what_comes_first(app: Stepfast) -> None:
    """An answer that may be given at any time stands behind a timer, on every database."""
    dag = with_gate(app)

    @dag.step(after=["reserve"])
    async def remind(ctx: Any) -> None:
        await ctx.sleep(3600)

    run = await app.start(dag)
    await app.drain()
    info = await run.info()
    assert (info.status, info.waiting_for) == ("waiting", "time")


async def test_one_that_was_started_with_a_delay_is_queued_until_it_begins(app: Stepfast) -> None:
    run = await app.start(with_gate(app), delay=3600)
    info = await run.info()
    assert (info.status, info.ready, info.waiting_for) == ("queued", False, None)
    assert info.due_at is not None and info.due_at > info.read_at
    assert (await found(app, status="queued"), await found(app, status="running")) == ([(run.id, "queued")], [])


@pytest.mark.parametrize("oldest_first", [False, True])
async def test_pages_hold_runs_of_all_kinds_in_their_order(app: Stepfast, oldest_first: bool) -> None:
    """Dag runs among others, in pages that are smaller than their number; those that are at work are passed over."""

    @app.workflow
    async def wait(ctx: Any) -> None:
        await ctx.wait_signal("go")

    waiting = []
    for number in range(4):
        waiting += [await app.start(wait, tags=["all"]), await app.start(with_gate(app, f"dag{number}"), tags=["all"])]
    await app.drain()
    await app.start("dag0")  # nobody has begun it
    wanted = [run.id for run in (waiting if oldest_first else reversed(waiting))]
    for tag in (None, "all"):
        ids: list[str] = []
        while page := await app.runs(
            status="waiting", limit=3, after=ids[-1] if ids else None, oldest_first=oldest_first, tag=tag
        ):
            ids += [info.id for info in page]
        assert ids == wanted
    assert await found(app, status="waiting", workflow="dag2") == [(waiting[5].id, "waiting")]
    assert await found(app, status="waiting", workflow="dag2", key="k") == []
    assert await found(app, status="waiting", older_than=3600) == []
    assert len(await found(app, status="waiting", since=3600)) == 8


async def test_pages_of_what_runs_pass_over_what_waits(app: Stepfast) -> None:
    dag = with_gate(app)
    first = await app.start(dag)
    for _ in range(5):
        await app.start(dag)
    await app.drain()
    last = await app.start(dag)
    await first.signal("ok", True)
    assert await found(app, status="running", limit=2) == [(last.id, "running"), (first.id, "running")]
