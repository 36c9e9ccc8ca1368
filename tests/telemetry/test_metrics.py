"""What a process has done, counted."""

from __future__ import annotations

import threading
from typing import Any

import pytest

from stepfast import Backoff, Context, Settings, Stepfast
from stepfast.telemetry import Metrics, StepEnded, metrics_text
from tests.telemetry.conftest import MakeApp
from tests.telemetry.scraping import Samples, parsed, total, value

AT_ONCE = Backoff(base=0, jitter=False)


@pytest.fixture
def app(make_app: MakeApp) -> Stepfast:
    return make_app(observers=[Metrics()], settings=Settings(moment=0))


async def scrape(app: Stepfast) -> Samples:
    return parsed(await metrics_text(app))


async def one() -> int:
    return 1


async def fail() -> None:
    raise ValueError("always")


async def test_runs_and_steps_are_counted(app: Stepfast) -> None:
    @app.workflow(queue="fast")
    async def order(ctx: Context) -> int:
        await ctx.step("first", one)
        await ctx.sleep(0.02)
        return await ctx.step("second", one)

    await app.start_many(order, [None] * 3)
    await app.drain()
    samples = await scrape(app)
    assert value(samples, "stepfast_runs_started_total", workflow="order") == 3
    assert value(samples, "stepfast_runs_ended_total", workflow="order", status="completed", reason="") == 3
    assert value(samples, "stepfast_run_seconds_count", workflow="order") == 3
    assert (
        value(samples, "stepfast_run_busy_seconds_count", workflow="order") == 6
    )  # a claim before and after the sleep
    assert value(samples, "stepfast_run_ready_seconds_count", queue="fast") == 6
    for step in ("first", "second"):
        labels = {"workflow": "order", "step": step, "outcome": "completed"}
        assert value(samples, "stepfast_step_seconds_count", **labels) == 3
    assert value(samples, "stepfast_replayed_steps_total", workflow="order") == 6  # the step and the sleep
    assert value(samples, "stepfast_claims_total", result="runs") >= 2
    assert value(samples, "stepfast_flush_records_sum") >= 9
    assert value(samples, "stepfast_fenced_writes_total") == 0


async def test_failures_are_counted_by_their_class(app: Stepfast) -> None:
    @app.workflow(max_attempts=1)
    async def order(ctx: Context) -> None:
        await ctx.options(retries=2, backoff=AT_ONCE).step(fail)

    @app.workflow(max_attempts=1)
    async def odd(ctx: Context) -> None:
        await ctx.step("odd", lambda: object())

    await app.start(order)
    await app.start(odd)
    await app.drain()
    samples = await scrape(app)
    labels = {"workflow": "order", "step": "fail"}
    assert value(samples, "stepfast_step_tries_failed_total", **labels, error_type="ValueError") == 3
    assert value(samples, "stepfast_step_seconds_count", **labels, outcome="failed") == 3
    assert value(samples, "stepfast_runs_ended_total", workflow="order", status="failed", reason="code") == 1
    assert (
        value(samples, "stepfast_step_tries_failed_total", workflow="odd", step="odd", error_type="PayloadError") == 1
    )


async def test_steps_of_a_dag_are_steps_and_its_run_is_one_run(app: Stepfast) -> None:
    graph = app.dag("fulfil")

    @graph.step
    async def pick(ctx: Any) -> int:
        return 1

    @graph.step(after=["pick"], retries=1, backoff=AT_ONCE)
    async def pack(ctx: Any) -> int:
        if ctx.attempt == 1:
            raise ValueError("first")
        return 1

    await app.start(graph)
    await app.drain()
    samples = await scrape(app)
    assert total(samples, "stepfast_runs_ended_total") == 1
    labels = {"workflow": "fulfil", "step": "pack"}
    assert value(samples, "stepfast_step_seconds_count", workflow="fulfil", step="pick", outcome="completed") == 1
    assert value(samples, "stepfast_step_seconds_count", **labels, outcome="completed") == 1
    assert value(samples, "stepfast_step_seconds_count", **labels, outcome="failed") == 1
    assert value(samples, "stepfast_step_tries_failed_total", **labels, error_type="ValueError") == 1


async def test_names_made_at_run_time_are_bounded(make_app: MakeApp) -> None:
    app = make_app(observers=[Metrics(Settings(metrics_values=5))])

    @app.workflow
    async def order(ctx: Context) -> None:
        for n in range(20):
            await ctx.step(f"tool {n}", one)

    await app.start(order)
    await app.drain()
    samples = await scrape(app)
    labels = {"workflow": "order", "outcome": "completed"}
    assert value(samples, "stepfast_step_seconds_count", **labels, step="_other") == 15
    assert total(samples, "stepfast_step_seconds_count") == 20


def test_counting_from_several_threads_loses_nothing() -> None:
    metrics = Metrics(Settings())
    event = StepEnded("r", 1, "w", "s", "step", "", 0, 1, 1, 0.01, "completed")

    def work() -> None:
        for _ in range(2000):
            metrics.step_ended(event)

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
    [family] = [family for family in metrics.families() if family.name == "stepfast_step_seconds"]
    assert sum(family.series[0][1][:-1]) == 8000


async def test_without_metrics_among_the_observers_nothing_is_counted(make_app: MakeApp) -> None:
    app = make_app()
    assert "stepfast_runs_started_total" not in await metrics_text(app)
