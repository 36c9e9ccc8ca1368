"""How queues stand, and how they stood; how often tabs look again."""

from __future__ import annotations

from typing import Any

import pytest

from stepfast.monitoring import queue_stats
from stepfast.monitoring.changes import TabPace, onlooker, seen_anew
from stepfast.monitoring.queue_stats import Hour, depths_of
from tests.engine.conftest import MakeApp

pytestmark = pytest.mark.enough_on("sqlite")


async def test_queues_stand_as_the_application_tells_it(make_app: MakeApp, monkeypatch: pytest.MonkeyPatch) -> None:
    app = make_app()

    @app.task()
    async def order(input: int) -> None: ...

    @app.task()
    async def mail(input: int) -> None: ...

    for n in range(3):
        await app.start(order, n)
    await app.start(order, 3, delay=3600)
    await app.start(mail, 1)
    await app.drain(queues=["mail"])
    await app.pause_queue("order")
    found, told = await depths_of(onlooker(app)), await app.queues()
    assert [(q.name, q.ready, q.delayed, q.paused) for q in found.queues] == [
        (q.name, q.ready, q.delayed, q.paused) for q in told
    ] == [("mail", 0, 0, False), ("order", 3, 1, True)]  # fmt: skip
    assert (found.queues[0].oldest, found.queues[1].oldest is not None) == (None, True)
    assert (found.ended, found.full) == ({"mail": 1}, False)
    monkeypatch.setattr(queue_stats, "MOST", 1)
    await seen_anew(app)
    found = await depths_of(onlooker(app))
    assert (found.queues[1].ready, found.full) == (1, True)


def test_an_hour_is_kept_and_looked_at_no_more_often_than_needed(monkeypatch: pytest.MonkeyPatch) -> None:
    now = 0.0
    monkeypatch.setattr("stepfast.monitoring.queue_stats.time.monotonic", lambda: now)
    kept = Hour()

    def standing(ready: int) -> Any:
        class Info:
            name, running = "order", 2

        info: Any = Info()
        info.ready = ready
        return queue_stats.Depths([info], [], {"order": 5}, False)

    for second in range(4000):
        now = float(second)
        kept.add(standing(second))
    points = kept.of("order")
    assert 355 <= len(points) <= 361
    assert points[0].ago <= 3600 and points[-1] == (9.0, 3990, 2, 5)
    assert {point.ready for point in kept.of("unknown")} == {0}


def test_the_more_tabs_there_are_the_less_often_each_looks_again(monkeypatch: pytest.MonkeyPatch) -> None:
    now = 0.0
    monkeypatch.setattr("stepfast.monitoring.changes.time.monotonic", lambda: now)
    turns = TabPace(4.0)
    assert turns.again(2.0, 4) == 2.0  # one tab is as quick as its page wants
    due = [(2.0, n) for n in range(10)]
    asked = 0
    while due[0][0] < 120:  # ten tabs, five questions each
        now, tab = due.pop(0)
        asked += 5
        due.append((now + turns.again(2.0, 5), tab))
        due.sort()
    assert asked / 120 <= 4.5
    assert turns.again(2.0, 10_000) == 60.0
