"""What a process has done, counted; what there is in the database; and `app.stats`."""

from __future__ import annotations

import asyncio
import math
import threading
import time
from datetime import timedelta
from typing import Any

import pytest

from stepfast import Backoff, ConfigurationError, Context, Settings, Stepfast
from stepfast.engine.observers import Series
from stepfast.errors import DatabaseUnavailable
from stepfast.model.rows import Definition
from stepfast.telemetry import JournalFlushed, Metrics, RunEnded, StepEnded, metrics_text
from stepfast.telemetry.metrics import (
    COUNTER,
    GAUGE,
    OTHER,
    Caps,
    Counter,
    Family,
    Histogram,
    merged,
    number,
    render,
)
from tests.store.scene import Rows
from tests.telemetry.conftest import MakeApp, drained
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
    raise ValueError("secret")


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
    await drained(app, odd)
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

    await drained(app, graph)
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

    await drained(app, order)
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
            self.heard = self.most = 0

        def ended(self, event: RunEnded) -> None:
            self.heard += 1
            super().ended(event)

        def flushed(self, event: JournalFlushed) -> None:
            gathered = [values for g in plain._gathered for each in (g.claims, g.ends) for values in each.values()]
            self.most = max(self.most, sum(map(len, gathered)))

    plain, mine = Metrics(), Mine()
    app = make_app(observers=[plain, mine])

    @app.task
    async def echo(number: int) -> int:
        return number

    await app.start_many(echo, range(500))
    await app.drain()
    assert mine.heard == 500 and 0 < mine.most < 600
    assert not plain._gathered  # of a worker that has ended
    for metrics in (plain, mine):
        [ended] = [family for family in metrics.families() if family.name == "stepfast_runs_ended_total"]
        assert [numbers for _, numbers in ended.series] == [[500]]


def test_values_of_many_keys_are_taken_by_one_thread_while_another_puts_them_in() -> None:
    series: Series[str] = Series()

    def put() -> None:
        for each in range(50_000):
            series[f"step {each % 3000}"].append(1)

    writer, taken, most = threading.Thread(target=put), 0, 0
    writer.start()
    at_work = True
    while at_work:
        at_work = writer.is_alive()  # before the last look
        taken += sum(len(values) for _, values in series.take())
        most = max(most, len(series))
    assert taken == 50_000 and most <= 1000


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

    for position in range(5):
        await app.start(send, queue=f'hostile "\n{position}')
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


# -- the text that Prometheus reads; exact, whatever names there are, and bounded


HOSTILE = [
    'quote"', "back\\slash", "line\nbreak", 'all "of\\ them\n', "carriage\rreturn", "tab\t", "nul\0", "\x1b[31mred",
    "{}", 'a",b="c', "} 1\nevil_total 5", "# HELP x", "日本語", "🙂", "\u2028", "\u2029", "\x85", "\ud800", "", " ",
    "le", "\\n", "x" * 5000,
]  # fmt: skip

CAPS = Caps(200, 500)


@pytest.mark.parametrize("text", HOSTILE, ids=ascii)
def test_no_value_of_a_label_is_anything_but_text(text: str) -> None:
    counter = Counter(CAPS, "things_total", "Things.", "name", "other")
    counter.add((text, "plain"), 3)
    histogram = Histogram(CAPS, "sizes", "Sizes.", "name", buckets=(1.0, 2.0))
    histogram.observe(1.5, (text,))
    samples = parsed(render([counter.family(), histogram.family()]))
    assert len(samples) == 1 + 5
    assert total(samples, "things_total") == 3
    [name] = {dict(labels)["name"] for (sample, labels) in samples if sample == "things_total"}
    assert len(name) <= 200
    assert not [char for char in name if ord(char) < 32 and char != "\n"]
    if text.isprintable() and len(text) <= 200 and "\ud800" not in text:
        assert name == text


def test_names_that_differ_in_hostile_characters_only_are_added_up_and_not_told_twice() -> None:
    counter = Counter(CAPS, "things_total", "Things.", "name")
    counter.add(("a\0",))
    counter.add(("a\1",))
    assert total(parsed(render([counter.family()])), "things_total") == 2


def test_a_histogram_is_cumulative_and_closed() -> None:
    histogram = Histogram(CAPS, "took_seconds", "How long.", buckets=(0.1, 1, 10))
    for amount in (0.05, 0.1, 0.5, 100, 3):
        histogram.observe(amount)
    samples = parsed(render([histogram.family()]))
    assert [value(samples, "took_seconds_bucket", le=le) for le in ("0.1", "1", "10", "+Inf")] == [2, 3, 4, 5]
    assert value(samples, "took_seconds_count") == 5
    assert value(samples, "took_seconds_sum") == pytest.approx(103.65)


def test_labels_admit_so_many_values_and_the_sums_stay_right() -> None:
    counter = Counter(Caps(values=3, series=100), "things_total", "Things.", "workflow", "step")
    for n in range(10):
        counter.add(("w", f"step {n}"))
        counter.add(("w", f"step {n}"))
    samples = parsed(render([counter.family()]))
    assert total(samples, "things_total") == 20
    assert {dict(labels)["step"] for _, labels in samples} == {"step 0", "step 1", "step 2", OTHER}
    assert value(samples, "things_total", workflow="w", step=OTHER) == 14


def test_a_metric_has_so_many_series_and_the_rest_is_one() -> None:
    counter = Counter(Caps(values=100, series=5), "things_total", "Things.", "workflow", "step")
    for n in range(50):
        counter.add((f"w{n % 7}", f"s{n % 5}"))
    samples = parsed(render([counter.family()]))
    assert len(samples) == 6  # five, and the one of all others
    assert total(samples, "things_total") == 50
    assert value(samples, "things_total", workflow=OTHER, step=OTHER) > 0


def test_memory_is_bounded_however_many_names_come() -> None:
    """Rule 58: and the sums stay right."""
    counter = Counter(Caps(values=10, series=10), "things_total", "Things.", "step")
    for n in range(5000):
        counter.add((f"step {n}",))
    assert len(counter.of) <= 20 and len(counter._series) <= 11
    assert total(parsed(render([counter.family()])), "things_total") == 5000


def test_processes_are_added_up_and_of_gauges_the_largest_counts() -> None:
    def of_process(n: int) -> list[Family]:
        counter = Counter(CAPS, "things_total", "Things.", "name")
        counter.add(("both",), n)
        counter.add((f"only {n}",))
        histogram = Histogram(CAPS, "took", "How long.", buckets=(1.0,))
        histogram.observe(n / 10)
        return [counter.family(), histogram.family(), Family("lag", GAUGE, "Lag.", series=[((), [float(n)])])]

    samples = parsed(render(merged([*of_process(1), *of_process(20)])))
    assert value(samples, "things_total", name="both") == 21
    assert value(samples, "things_total", name="only 1") == 1
    assert (value(samples, "took_count"), value(samples, "took_bucket", le="1")) == (2, 1)
    assert value(samples, "lag") == 20


def test_merging_within_a_bound_keeps_the_first_and_the_sum() -> None:
    family = Family("things_total", COUNTER, "Things.", ("name",), [((f"n{n}",), [1.0]) for n in range(10)])
    [small] = merged([family], 4)
    assert [labels for labels, _ in small.series] == [("n0",), ("n1",), ("n2",), ("n3",), (OTHER,)]
    assert sum(numbers[0] for _, numbers in small.series) == 10
    [again] = merged([small, Family("things_total", COUNTER, "Things.", ("name",), [(("new",), [1.0])])], 5)
    assert sum(numbers[0] for _, numbers in again.series) == 11
    assert len(again.series) == 5


@pytest.mark.parametrize(
    ("given", "spelled"),
    [(0, "0"), (3.0, "3"), (0.25, "0.25"), (1e300, "1e+300"), (math.inf, "+Inf"), (-math.inf, "-Inf"), (2**60, "1.15")],
)
def test_numbers_as_the_format_spells_them(given: float, spelled: str) -> None:
    assert number(given).startswith(spelled)
    assert float(number(given)) == given


# -- what has happened lately


async def test_stats_tell_what_has_happened(app: Stepfast) -> None:
    @app.workflow(max_attempts=1)
    async def order(ctx: Context) -> None:
        await ctx.step("look", lambda: 1)
        await ctx.options(retries=1, backoff=AT_ONCE).step("charge", fail)

    @app.workflow(queue="slow")
    async def wait(ctx: Context) -> None:
        await ctx.wait_signal("go")

    graph = app.dag("fulfil")

    @graph.step
    async def pick(ctx: Any) -> int:
        return 1

    await app.start_many(order, [None] * 3)
    await app.start(wait)
    await drained(app, graph)
    stats = await app.stats(since=timedelta(hours=2))
    assert [(row.workflow, row.queue, row.status, row.count) for row in stats.runs] == [
        ("fulfil", "fulfil", "completed", 1), ("order", "order", "failed", 3), ("wait", "slow", "waiting", 1),
    ]  # fmt: skip
    assert [row.oldest is None for row in stats.runs] == [True, True, False]
    [failure] = stats.failures
    assert (failure.workflow, failure.step, failure.reason, failure.error_type) == (
        "order", "charge", "code", "ValueError",
    )  # fmt: skip
    assert (failure.count, failure.per_hour) == (3, 1.5)
    assert {(row.workflow, row.step, row.count) for row in stats.steps} == {("order", "look", 3), ("fulfil", "pick", 1)}
    assert all(0 <= row.p50 <= row.p95 <= row.longest for row in stats.steps)
    assert stats.complete and stats.looked_at == 6
    assert "secret" not in repr(stats)


async def test_stats_of_an_empty_database(app: Stepfast) -> None:
    stats = await app.stats()
    assert (stats.runs, stats.failures, stats.steps, stats.complete) == ([], [], [], True)


@pytest.mark.parametrize("since", [0, -1, timedelta(0)])
async def test_stats_take_a_span_of_more_than_nothing(app: Stepfast, since: Any) -> None:
    with pytest.raises(ConfigurationError, match="since"):
        await app.stats(since)


def test_stats_without_an_event_loop(tmp_path: Any) -> None:
    app = Stepfast(f"sqlite:///{tmp_path}/x.db")
    try:
        assert app.sync.stats(60).since == 60
    finally:
        app.sync.close()
