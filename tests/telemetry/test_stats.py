"""`app.stats`: what has happened lately."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest

from stepfast import Backoff, ConfigurationError, Context, Settings, Stepfast
from tests.telemetry.conftest import MakeApp

AT_ONCE = Backoff(base=0, jitter=False)


@pytest.fixture
def app(make_app: MakeApp) -> Stepfast:
    return make_app(settings=Settings(inline_wait=0))


async def fail() -> None:
    raise ValueError("secret")


async def test_what_has_happened(app: Stepfast) -> None:
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
    await app.start(graph)
    await app.drain()
    stats = await app.stats(since=timedelta(hours=2))
    assert [(row.workflow, row.queue, row.status, row.count) for row in stats.runs] == [
        ("fulfil", "fulfil", "completed", 1), ("order", "order", "failed", 3), ("wait", "slow", "waiting", 1),
    ]  # fmt: skip
    assert [row.oldest is None for row in stats.runs] == [True, True, False]
    [failure] = stats.failures
    assert (failure.workflow, failure.step, failure.reason, failure.error_type) == (
        "order",
        "charge",
        "code",
        "ValueError",
    )
    assert (failure.count, failure.per_hour) == (3, 1.5)
    assert {(row.workflow, row.step, row.count) for row in stats.steps} == {("order", "look", 3), ("fulfil", "pick", 1)}
    assert all(0 <= row.p50 <= row.p95 <= row.longest for row in stats.steps)
    assert stats.complete and stats.looked_at == 6
    assert "secret" not in repr(stats)


async def test_an_empty_database(app: Stepfast) -> None:
    stats = await app.stats()
    assert (stats.runs, stats.failures, stats.steps, stats.complete) == ([], [], [], True)


@pytest.mark.parametrize("since", [0, -1, timedelta(0)])
async def test_a_span_has_to_be_one(app: Stepfast, since: Any) -> None:
    with pytest.raises(ConfigurationError, match="since"):
        await app.stats(since)


def test_the_same_without_an_event_loop(tmp_path: Any) -> None:
    app = Stepfast(f"sqlite:///{tmp_path}/x.db")
    try:
        assert app.sync.stats(60).since == 60
    finally:
        app.sync.close()
