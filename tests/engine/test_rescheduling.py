"""An operator makes a run due now, or at another time: one that waits for its start, its next attempt or a retry."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from stepfast import Backoff, ConfigurationError, Context, InvalidState, RunInfo, RunNotFound, Settings, Stepfast
from tests.engine.conftest import ON_BOTH, ON_SQLITE, MakeApp
from tests.support.engine import Calls, drained, finished
from tests.support.workflows import listener, sleeper, task

pytestmark = ON_SQLITE
LATER = Backoff(base=600, max=3600, jitter=False)


def in_seconds(info: RunInfo) -> float:
    """How long it still is until the run is due."""
    assert info.due_at is not None
    return (info.due_at - info.read_at).total_seconds()


class Troubled:
    """Workflows that fail once, each in another place."""

    def __init__(self, app: Stepfast, calls: Calls) -> None:
        self.calls = calls

        @app.task(backoff=LATER)
        async def attempt() -> int:
            return self.work()

        @app.workflow
        async def step(ctx: Context) -> int:
            return await ctx.options(retries=2, backoff=LATER).step("work", self.work)

        @app.workflow
        async def branches(ctx: Context) -> Any:
            retried = ctx.options(retries=2, backoff=LATER).step("work", self.work)
            return await ctx.gather(retried, ctx.wait_signal("go"), ctx.step("quick", lambda: 1))

        dag = app.dag("graph")
        dag.declare(lambda ctx: self.work(), name="work", backoff=LATER)
        self.workflows = {"attempt": attempt, "step": step, "branches": branches, "graph": dag}

    def work(self) -> int:
        if self.calls.hit("work") == 1:
            raise ConnectionError("once")
        return self.calls["work"]

    def undo(self, output: int) -> None:
        pass


WHERE = ("attempt", "step", "branches", "graph")


@ON_BOTH
@pytest.mark.parametrize("where", WHERE)
async def test_what_waits_to_be_tried_again_is_due_now(make_app: MakeApp, calls: Calls, where: str) -> None:
    app = make_app(settings=Settings(inline_wait=0))
    run = await drained(app, Troubled(app, calls).workflows[where])
    assert calls == {"work": 1}
    await run.reschedule(delay=0)
    await app.drain()
    assert calls == {"work": 2}
    if where == "branches":
        assert (await run.info()).waiting_for == "signal:go"
        await run.signal("go", "gone")
        await app.drain()
    assert await run.result(timeout=20) in (2, [2, "gone", 1], {"work": 2})


async def test_a_run_that_another_worker_takes_up_is_due_too(make_app: MakeApp, calls: Calls) -> None:
    old, new = make_app(settings=Settings(inline_wait=0)), make_app(settings=Settings(inline_wait=0))
    run = await drained(old, Troubled(old, calls).workflows["step"])
    Troubled(new, calls)
    await new.get(run.id).reschedule(delay=0)
    assert await finished(new, run) == 2


@ON_BOTH
async def test_a_delayed_start_is_due_now_or_later(app: Stepfast) -> None:
    work = task(app, "work", returns="done")
    run = await app.start(work, delay=3600, expires_in=60)
    await run.reschedule(delay=timedelta(hours=2))
    info = await run.info()
    assert (info.status, info.ready) == ("queued", False)
    assert 7190 < in_seconds(info) <= 7200
    assert info.expires_at is not None and info.due_at is not None
    assert info.expires_at - info.due_at == timedelta(seconds=60)
    await run.reschedule(at=datetime.now(UTC) - timedelta(days=1))
    assert (await run.info()).ready
    assert await finished(app, run) == "done"


async def test_a_ready_run_is_put_off_and_comes_back(app: Stepfast) -> None:
    work = task(app, "work", returns="done")
    run = await app.start(work)
    await run.reschedule(delay=3600)
    await app.drain()
    assert await run.status() == "queued"
    await asyncio.to_thread(app.sync.get(run.id).reschedule, delay=0)
    assert await finished(app, run) == "done"


async def test_a_deadline_stays_what_it_was(app: Stepfast) -> None:
    work = task(app, "work", returns=None, deadline=60)
    run = await app.start(work)
    await run.reschedule(delay=3600)
    info = await run.info()
    assert info.due_at == info.deadline


@ON_BOTH
async def test_another_priority(app: Stepfast) -> None:
    order: list[str] = []

    @app.task
    async def work(name: str) -> None:
        order.append(name)

    dag = app.dag("graph", queue="work")
    dag.declare(lambda ctx: order.append("first step"), name="a")
    dag.declare(lambda ctx: order.append("second step"), name="b", after=["a"])
    runs = [await app.start(work, name) for name in ("first", "second", "late")]
    graph = await app.start(dag)
    await runs[1].reschedule(priority=5)
    await runs[2].reschedule(delay=3600, priority=9)
    await graph.reschedule(priority=7)
    async with app.worker(concurrency=1):
        for run in (runs[0], graph):
            await run.result(timeout=20)
    assert (order[0], order[-1]) == ("first step", "first")
    assert [(await run.info()).priority for run in (*runs, graph)] == [0, 5, 9, 7]


@ON_BOTH
async def test_a_delayed_dag_run_is_due_now(app: Stepfast) -> None:
    dag = app.dag("graph")
    dag.declare(lambda ctx: 1, name="a")
    dag.declare(lambda ctx: 2, name="b", after=["a"])
    run = await drained(app, dag, delay=3600)
    await run.reschedule(delay=0)
    assert await finished(app, run) == {"a": 1, "b": 2}


Make = Callable[[Stepfast], Any]


def checking(app: Stepfast) -> Any:
    @app.workflow
    async def checking(ctx: Context) -> None:
        await ctx.wait_until("never", lambda: False, every=3600)

    return checking


def ended(app: Stepfast) -> Any:
    return task(app, "ended")


@pytest.mark.parametrize(
    ("make", "said"),
    [
        (sleeper, "is waiting; .* How long a sleep lasts is recorded"),
        (listener, "is waiting; only a run that is queued, or waits for the next try of a step, can be rescheduled$"),
        (checking, "is waiting; .*; resume makes its next check at once"),
        (ended, "is completed; only a run that is queued"),
    ],
)
async def test_other_runs_are_refused(make_app: MakeApp, make: Make, said: str) -> None:
    app = make_app(settings=Settings(inline_wait=0))
    run = await drained(app, make(app))
    before = await run.info()
    with pytest.raises(InvalidState, match=f"run {run.id} {said}"):
        await run.reschedule(delay=0)
    after = await run.info()
    assert (after.status, after.due_at) == (before.status, before.due_at)


async def test_what_is_paused_or_a_step_or_gone_is_refused(app: Stepfast) -> None:
    dag = app.dag("graph")
    dag.declare(lambda ctx: 1, name="a")
    run = await app.start(dag, delay=3600)
    [step] = await run.steps()
    assert step.child is not None
    with pytest.raises(InvalidState, match=f"is a step of dag run {run.id}; it can only be rescheduled with that run"):
        await app.get(step.child).reschedule(delay=0)
    single = await app.start(ended(app))
    await single.pause()
    with pytest.raises(InvalidState, match=r"is paused; .*; resume it first"):
        await single.reschedule(delay=0)
    with pytest.raises(RunNotFound):
        await app.get("0197a1b2-0000-7000-8000-000000000000").reschedule(delay=0)


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({}, "takes delay=, at= or priority=; delay=0 makes the run due now"),
        ({"delay": 1, "at": datetime.now(UTC)}, "takes delay or at, not both"),
        ({"delay": -1}, "delay must be zero or more seconds"),
        ({"at": datetime(2030, 1, 1)}, "at must be a datetime with a time zone"),
        ({"priority": "high"}, "priority must be a whole number"),
    ],
)
async def test_what_makes_no_sense_is_refused(app: Stepfast, given: dict[str, Any], said: str) -> None:
    with pytest.raises(ConfigurationError, match=said):
        await app.get("0197a1b2-0000-7000-8000-000000000000").reschedule(**given)


async def test_an_undo_that_waits_for_its_next_try_is_due_now(make_app: MakeApp, calls: Calls) -> None:
    app = make_app(settings=Settings(inline_wait=0, backoff_base=600, backoff_max=3600))

    def undo(output: int) -> None:
        if calls.hit("undo") == 1:
            raise ConnectionError("once")

    @app.workflow(max_attempts=1)
    async def order(ctx: Context) -> None:
        await ctx.options(compensate=undo).step("done", lambda: 1)
        raise ValueError("no")

    run = await drained(app, order)
    assert await run.status() == "compensating"
    await run.reschedule(delay=0)
    await app.drain()
    assert (await run.status(), calls["undo"]) == ("compensated", 2)
