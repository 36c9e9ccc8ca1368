"""Wake-ups: nobody waits for a poll where they work, and nothing is lost where they do not."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Callable
from typing import Any

import pytest

from stepfast import Context, Stepfast
from stepfast.model.records import Lane
from stepfast.settings import Settings
from stepfast.store.answers import Wakeups
from stepfast.store.postgres.notifications import Doorbell
from tests.support.databases import connected
from tests.support.engine import PATIENCE, Gate, eventually
from tests.support.processes import Ledger
from tests.support.workflows import task
from tests.worker.conftest import MakeApp, MakeProcess
from tests.worker.spying import Counted, only_postgres
from tests.worker.tables import Tables

HARDLY_EVER = Settings(poll_interval=60, sweep_interval=60)


def echo_on(app: Stepfast) -> Any:
    return task(app, "echo")


async def hearing(app: Stepfast) -> None:
    """Wait until the application has heard itself: wake-ups work from then on, and its first look is over."""
    store = await app.store()
    await eventually(lambda: store.can_wake)


@only_postgres
async def test_a_word_that_comes_late_is_heard_all_the_same(make_app: MakeApp, monkeypatch: pytest.MonkeyPatch) -> None:
    """A busy server is no pooler: whoever gave up waiting for its own word would poll for as long as it lives."""
    monkeypatch.setattr("stepfast.store.postgres.notifications._PATIENCE", 0)
    app = make_app(HARDLY_EVER)
    echo_on(app)
    async with app.worker():
        await hearing(app)


async def test_a_result_is_there_without_a_poll(make_app: MakeApp) -> None:
    """In the process that executes."""
    app = make_app(HARDLY_EVER)
    echo = echo_on(app)
    async with app.worker():
        runs = [await app.start(echo, n) for n in range(10)]
        assert [await run.result(timeout=PATIENCE) for run in runs] == list(range(10))


async def test_many_wait_for_one_run(make_app: MakeApp) -> None:
    """Rule 12: one watcher for all who wait."""
    app = make_app(HARDLY_EVER)
    gate = Gate()
    wait = task(app, "wait", gate=gate, returns="done")
    run = await app.start(wait)
    async with app.worker():
        waiters = [asyncio.create_task(app.get(run.id).result(timeout=PATIENCE)) for _ in range(50)]
        await gate.reached()
        gate.open()
        assert await asyncio.gather(*waiters) == ["done"] * 50


@only_postgres
async def test_between_applications_nobody_polls(make_app: MakeApp) -> None:
    """Start → claim and end → result, both over LISTEN/NOTIFY."""
    trigger, worker = make_app(HARDLY_EVER), make_app(HARDLY_EVER)
    echo = echo_on(trigger)
    echo_on(worker)
    async with worker.worker():
        await hearing(worker)
        for number in range(5):
            run = await trigger.start(echo, number)
            waiting = asyncio.create_task(run.result(timeout=PATIENCE))
            assert await waiting == number


@only_postgres
async def test_between_processes_nobody_polls(
    program: Callable[..., Stepfast], make_process: MakeProcess, ledger: Ledger
) -> None:
    """The same with a real process."""
    app = program(HARDLY_EVER)
    async with make_process({"poll_interval": 60, "sweep_interval": 60}):
        for number in range(3):
            run = await app.start(app.workflows["quick"], number)
            assert await run.result(timeout=PATIENCE) == number


@only_postgres
async def test_a_retry_by_an_operator_elsewhere_is_heard(make_app: MakeApp) -> None:
    """Whatever makes a run ready wakes somebody."""
    operator, app = make_app(HARDLY_EVER), make_app(HARDLY_EVER)
    broken = [True]

    @app.task(max_attempts=1)
    async def work() -> str:
        if broken:
            raise ValueError("not yet")
        return "done"

    run = await app.start(work)
    async with app.worker():
        await hearing(app)
        await eventually(lambda: _is(run, "failed"))
        broken.clear()
        await operator.get(run.id).retry()
        assert await run.result(timeout=PATIENCE) == "done"


async def _is(run: Any, status: str) -> bool:
    return bool(await run.status() == status)


@only_postgres
async def test_a_broken_ear_is_replaced(make_app: MakeApp, tables: Tables) -> None:
    """The LISTEN connection is lost alone; wake-ups work again without anybody noticing."""
    trigger, worker = make_app(HARDLY_EVER), make_app(HARDLY_EVER)
    echo = echo_on(trigger)
    echo_on(worker)
    store = await worker.store()
    async with worker.worker():
        await hearing(worker)
        await tables.fetch(
            "SELECT pg_terminate_backend(pid) FROM pg_stat_activity "
            "WHERE query ILIKE 'LISTEN%' AND datname = current_database()"
        )
        await eventually(lambda: not store.can_wake)
        during = await trigger.start(echo, 1)
        await hearing(worker)
        after = await trigger.start(echo, 2)
        assert [await during.result(timeout=PATIENCE), await after.result(timeout=PATIENCE)] == [1, 2]


async def test_polling_alone_is_correct(make_app: MakeApp) -> None:
    """Design, section 3: wake-ups are never required. Here none is sent, and none would be heard."""
    trigger, worker = make_app(Settings(poll_interval=0.2)), make_app(Settings(poll_interval=0.2))
    for app in (trigger, worker):
        await _deafen(app)

    @worker.workflow(name="work")
    async def work(ctx: Context, number: int) -> int:
        return await ctx.step("double", lambda: number * 2)

    @trigger.workflow(name="work")
    async def same(ctx: Context, number: int) -> int:
        return await ctx.step("double", lambda: number * 2)

    async with worker.worker(concurrency=3):
        runs = [await trigger.start(same, n) for n in range(20)]
        assert [await run.result(timeout=PATIENCE) for run in runs] == [n * 2 for n in range(20)]
        delayed = await trigger.start(same, 20, delay=0.1)
        assert await delayed.result(timeout=PATIENCE) == 40


async def _deafen(app: Stepfast) -> None:
    store: Any = await app.store()

    async def notify(_wakeups: Wakeups) -> None: ...

    async def listen(_heard: Callable[[Wakeups], None]) -> None:
        await asyncio.Event().wait()

    store.notify, store.listen = notify, listen


@only_postgres
async def test_notifications_are_coalesced(url: str, make_app: MakeApp) -> None:
    """Rule 11: five hundred single starts, a handful of notifications."""
    app = make_app(HARDLY_EVER)
    echo = echo_on(app)
    await app.start(echo, 0)
    heard: list[str] = []
    async with connected(url) as ear:
        await ear.add_listener("stepfast_stepfast", lambda *words: heard.append(words[-1]))
        await asyncio.gather(*(app.start(echo, n) for n in range(500)))
        await ear.execute("NOTIFY stepfast_stepfast, 'the last word'")
        await eventually(lambda: "the last word" in heard and len(heard) > 1)
    assert 1 <= len(heard) - 1 <= 50


# -- whoever may connect may send a notification: none of them stops a worker, and a storm of them costs


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


@only_postgres
async def test_no_notification_stops_a_worker(url: str, make_app: MakeApp, caplog: pytest.LogCaptureFixture) -> None:
    app, trigger = make_app(HARDLY_EVER), make_app(HARDLY_EVER)
    echo_on(app)
    echo = echo_on(trigger)
    async with connected(url) as stranger:
        store = await app.store()
        async with app.worker() as worker:
            await eventually(lambda: store.can_wake)
            for number, text in enumerate(FORGERIES):
                await stranger.execute("SELECT pg_notify('stepfast_stepfast', $1)", text)
                run = await trigger.start(echo, number)
                assert await run.result(timeout=PATIENCE) == number
            assert not worker.broken.is_set()
    assert [record.getMessage() for record in caplog.records if record.levelname in ("ERROR", "CRITICAL")] == []


@only_postgres
async def test_a_storm_of_looks_makes_few_ticks(url: str, make_app: MakeApp) -> None:
    """A hundred at once, then some fifty a second, whatever comes; and the last one is not forgotten."""
    app = make_app(HARDLY_EVER)
    echo_on(app)
    store = await app.store()
    async with connected(url) as stranger:
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
