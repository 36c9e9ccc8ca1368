"""Whoever may connect may send a notification: none of them stops a worker, and a storm of them costs little."""

from __future__ import annotations

import asyncio
import json
import time
from typing import Any

import asyncpg
import pytest

from stepfast import Stepfast
from stepfast.model.records import Lane
from stepfast.settings import Settings
from stepfast.store.answers import Wakeups
from stepfast.store.postgres.notifications import Doorbell
from tests.support.engine import PATIENCE, eventually
from tests.support.workflows import task
from tests.worker.conftest import MakeApp
from tests.worker.spying import Counted, only_postgres

HARDLY_EVER = Settings(poll_interval=60, sweep_interval=60)


def forged(*lanes: Any) -> str:
    return json.dumps({"from": "x", "lanes": list(lanes), "ended": False})


FORGERIES = [
    forged([5, "echo", 0]),
    forged(["echo", "echo", 99999999999]),
    forged(["echo", "echo", 1e300]),
    forged(["echo", "echo", "high"]),
    forged(["\0", "echo", 0]),
    forged(["\ud800", "echo", 0]),
    forged(["", "echo", 0]),
    forged(["q" * 5000, "echo", 0]),
    forged(["echo", "echo"]),
    forged(*(["echo", "echo", number] for number in range(300))),
    forged(["nobody's", "nobody's", 0]),
    '{"from": 1, "lanes": {}, "ended": "yes"}',
    '{"probe": []}',
    '{"from": "x", "lanes": [], "ended": false, "look": true, "deep": ' + "[" * 7000,
    "[" * 7900,
    "null",
    "",
    "look",
]


def echo_on(app: Stepfast) -> Any:
    return task(app, "echo")


@only_postgres
async def test_no_notification_stops_a_worker(url: str, make_app: MakeApp, caplog: pytest.LogCaptureFixture) -> None:
    app, trigger = make_app(HARDLY_EVER), make_app(HARDLY_EVER)
    echo_on(app)
    echo = echo_on(trigger)
    stranger = await asyncpg.connect(url)
    try:
        store = await app.store()
        async with app.worker() as worker:
            await eventually(lambda: store.can_wake)
            for number, text in enumerate(FORGERIES):
                await stranger.execute("SELECT pg_notify('stepfast_stepfast', $1)", text)
                run = await trigger.start(echo, number)
                assert await run.result(timeout=PATIENCE) == number
            assert not worker.broken.is_set()
    finally:
        await stranger.close()
    assert [record.getMessage() for record in caplog.records if record.levelname in ("ERROR", "CRITICAL")] == []


@only_postgres
async def test_a_storm_of_looks_makes_few_ticks(url: str, make_app: MakeApp) -> None:
    """A hundred at once, then some fifty a second, whatever comes; and the last one is not forgotten."""
    app = make_app(HARDLY_EVER)
    echo_on(app)
    store = await app.store()
    stranger = await asyncpg.connect(url)
    try:
        async with app.worker():
            await eventually(lambda: store.can_wake)
            ticks, loop = Counted(store, "tick"), asyncio.get_running_loop()
            began = loop.time()
            await stranger.execute("SELECT pg_notify('stepfast_stepfast', n::text) FROM generate_series(1, 5000) n")
            await eventually(lambda: len(ticks) > 0)
            before = len(ticks)
            await stranger.execute("NOTIFY stepfast_stepfast, 'the last'")
            await eventually(lambda: len(ticks) > before)
            assert len(ticks) <= 101 + 50 * (loop.time() - began)
    finally:
        await stranger.close()


async def test_the_doorbell_delays_nobody_until_it_is_stormed() -> None:
    heard: list[Wakeups] = []
    doorbell = Doorbell(heard.append)
    lane, began = Lane("a", "b", 0), time.monotonic()
    for _ in range(100):
        doorbell.ring(Wakeups(frozenset(), False, True))
        doorbell.ring(Wakeups(frozenset({lane}), False))
    assert len(heard) == 200
    for number in range(1000):
        doorbell.ring(Wakeups(frozenset(), number == 500, True))
        doorbell.ring(Wakeups(frozenset({Lane("a", "b", number)}), False))
    assert len(heard) <= 210 + 2 * 50 * (time.monotonic() - began)
    await eventually(lambda: any(news.ended for news in heard))
    doorbell.close()
    rest: frozenset[Lane] = frozenset().union(*(news.lanes for news in heard))
    assert len(rest) <= 501
    assert any(news.anything for news in heard[200:])
