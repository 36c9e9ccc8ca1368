"""What a process has done, counted."""

from __future__ import annotations

import asyncio
import threading
import time
from typing import Any

import pytest

from stepfast import Backoff, Context, Settings, Stepfast
from stepfast.errors import DatabaseUnavailable
from stepfast.model.rows import Definition
from stepfast.telemetry import Metrics, RunEnded, StepEnded, metrics_text
from tests.store.scene import Rows
from tests.telemetry.conftest import MakeApp
from tests.telemetry.scraping import Samples, parsed, total, value

AT_ONCE = Backoff(base=0, jitter=False)


@pytest.fixture
def app(make_app: MakeApp) -> Stepfast:
    return make_app(observers=[Metrics()], settings=Settings(inline_wait=0))


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
        await ctx.wait_signal("go")  # a short sleep may be over before the run has left its worker
        return await ctx.step("second", one)

    runs = await app.start_many(order, [None] * 3)
    await app.drain()
    for run in runs:
        await run.signal("go")
    await app.drain()
    samples = await scrape(app)
    assert value(samples, "stepfast_runs_started_total", workflow="order") == 3
    assert value(samples, "stepfast_runs_ended_total", workflow="order", status="completed", reason="") == 3
    assert value(samples, "stepfast_run_seconds_count", workflow="order") == 3
    assert value(samples, "stepfast_run_busy_seconds_count", workflow="order") == 6  # a claim before and after the wait
    assert value(samples, "stepfast_run_ready_seconds_count", queue="fast") == 6
    for step in ("first", "second"):
        labels = {"workflow": "order", "step": step, "outcome": "completed"}
        assert value(samples, "stepfast_step_seconds_count", **labels) == 3
    assert value(samples, "stepfast_replayed_steps_total", workflow="order") == 6  # the step and the wait
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


async def test_what_waits_to_be_counted_is_bounded_and_a_class_of_your_own_is_told_all_the_same(
    make_app: MakeApp,
) -> None:
    class Mine(Metrics):
        def __init__(self) -> None:
            super().__init__()
            self.heard = 0

        def ended(self, event: RunEnded) -> None:
            self.heard += 1
            super().ended(event)

    plain, mine = Metrics(), Mine()
    app = make_app(observers=[plain, mine])

    @app.task
    async def echo(number: int) -> int:
        return number

    await app.start_many(echo, range(500))
    await app.drain()
    assert mine.heard == 500
    for metrics in (plain, mine):
        assert len(metrics._ends) < 300 and len(metrics._claims) < 300
        [ended] = [family for family in metrics.families() if family.name == "stepfast_runs_ended_total"]
        assert [numbers for _, numbers in ended.series] == [[500]]


async def test_without_metrics_among_the_observers_nothing_is_counted(make_app: MakeApp) -> None:
    app = make_app()
    assert "stepfast_runs_started_total" not in await metrics_text(app)


# -- what stands in the database ---------------------------------------------------------------------------------------


async def test_how_things_stand_in_the_database(app: Stepfast) -> None:
    @app.task(queue="mail")
    async def send() -> None: ...

    @app.workflow(queue="orders")
    async def order(ctx: Context) -> None:
        await ctx.wait_signal("approved")

    await app.start_many(send, [None] * 3)
    await app.start(order)
    await app.pause_queue("mail")
    await app.drain()
    samples = await scrape(app)
    assert next(iter(samples))[0] == "stepfast_queue_oldest_ready_seconds"  # it is the first to look at
    assert value(samples, "stepfast_database_up") == 1
    assert value(samples, "stepfast_queue_ready", queue="mail") == 3
    assert value(samples, "stepfast_queue_oldest_ready_seconds", queue="mail") >= 0
    assert value(samples, "stepfast_queue_ready", queue="orders") == 0
    assert value(samples, "stepfast_queue_workers", queue="mail") == 0
    assert value(samples, "stepfast_queue_paused", queue="mail") == 1
    assert value(samples, "stepfast_queue_paused", queue="orders") == 0
    assert value(samples, "stepfast_runs", status="waiting") == 1
    assert value(samples, "stepfast_timer_lag_seconds") == 0
    assert value(samples, "stepfast_workers", state="live") == 0
    [labels] = [dict(labels) for name, labels in samples if name == "stepfast_info"]
    assert labels["engine"] == "sqlite" and int(labels["schema"]) > 0


async def test_workers_and_their_slots(app: Stepfast) -> None:
    @app.task(queue="mail")
    async def send() -> None: ...

    await (await app.store()).put_definitions([Definition("elsewhere", "1", "task", "far", "{}", None)])
    async with app.worker(concurrency=7), app.worker(queues=["other"], concurrency=5):
        samples = await scrape(app)
    assert value(samples, "stepfast_workers", state="live") == 2
    assert value(samples, "stepfast_worker_slots", state="live") == 12
    assert value(samples, "stepfast_queue_workers", queue="mail") == 1
    assert value(samples, "stepfast_queue_workers", queue="other") == 2
    assert value(samples, "stepfast_queue_workers", queue="far") == 0, "one looks at it, and has not the code"


async def test_the_oldest_comes_first(app: Stepfast) -> None:
    await app.migrate()
    names = [
        line.split()[2] for line in (await metrics_text(app)).splitlines() if line.startswith("# TYPE stepfast_queue")
    ]
    assert names[0] == "stepfast_queue_oldest_ready_seconds"


async def test_the_database_is_asked_once_however_many_ask(app: Stepfast, monkeypatch: pytest.MonkeyPatch) -> None:
    """Rule 58: within the seconds that an answer is kept."""
    store, asked = await app.store(), 0
    census = store.census

    async def counting(most: int) -> Any:
        nonlocal asked
        asked += 1
        return await census(most)

    monkeypatch.setattr(store, "census", counting)
    texts = await asyncio.gather(*(metrics_text(app) for _ in range(10)))
    assert asked == 1 and len(set(texts)) == 1
    with monkeypatch.context() as later:  # the event loop goes by the same clock, and has nothing to wait for meanwhile
        later.setattr(time, "monotonic", lambda: time.perf_counter() + 1e9)
        await metrics_text(app)
    assert asked == 2


async def test_a_database_that_is_away_is_told_and_is_no_error(app: Stepfast, monkeypatch: pytest.MonkeyPatch) -> None:
    store = await app.store()

    async def away(most: int) -> Any:
        raise DatabaseUnavailable("away")

    monkeypatch.setattr(store, "census", away)
    samples = await scrape(app)
    assert value(samples, "stepfast_database_up") == 0
    assert not [name for name, _ in samples if name.startswith("stepfast_queue")]


async def test_queues_beyond_the_bound_are_told_as_one(make_app: MakeApp) -> None:
    app = make_app(settings=Settings(metrics_values=3))

    @app.task
    async def send() -> None: ...

    for number in range(5):
        await app.start(send, queue=f'hostile "\n{number}')
    samples = await scrape(app)
    assert len([labels for name, labels in samples if name == "stepfast_queue_ready"]) == 4
    assert total(samples, "stepfast_queue_ready") == 5


async def test_a_schedule_that_nobody_comes_to_is_late_if_somebody_should(app: Stepfast) -> None:
    @app.task
    async def send() -> None: ...

    await app.put_schedule("customer", send, every=3600)
    app.schedule("declared", send, every=3600)
    async with app.worker():
        pass  # stores what the code declares
    rows = Rows(await app.store())
    await rows.fetch("UPDATE [schedules] SET due_at = due_at - 7200000")
    samples = await scrape(app)
    assert 0 < value(samples, "stepfast_schedule_late_seconds", schedule="customer") < 7200
    assert len([name for name, _ in samples if name == "stepfast_schedule_late_seconds"]) == 1  # the other one sleeps
