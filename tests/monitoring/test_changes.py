"""Changes that open pages ask for: one task of the process polls for all of them, for as long as one asks."""

from __future__ import annotations

import asyncio
import logging
from typing import Any

import asyncpg
import pytest

from stepfast import Context, Settings, Stepfast
from stepfast.errors import DatabaseUnavailable
from stepfast.monitoring import changes, queue_stats
from stepfast.monitoring.changes import LISTS, News, TabPace, forget_cached, glance_of, news_of, onlooker
from stepfast.monitoring.queue_stats import Hour, depths_of
from tests.monitoring.conftest import MakeApp

pytestmark = pytest.mark.enough_on("sqlite")


QUICK = Settings(inline_wait=0, console_query_cache=0.02)


@pytest.fixture(autouse=True)
def soon(monkeypatch: pytest.MonkeyPatch) -> None:
    """Looks by the clock are frequent, so that no test waits for one."""
    monkeypatch.setattr(changes, "_EVERY", 0.05)


async def until(found: News, what: str, other_than: str) -> str:
    """The next print that is another one."""
    async with asyncio.timeout(10):
        while (now := await found.ask(what)) is None or now.text == other_than:
            await asyncio.sleep(0.01)
        return now.text


async def looked(found: News, what: str) -> str:
    """The print by a look that begins now."""
    async with found._one:
        await found._look([what])
        return found._states[what].text


async def counted(app: Stepfast, monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """The arguments of every look, from now on."""
    glance, looks = await glance_of(app), list[Any]()
    ask = glance._ask

    async def noted(name: str, *arguments: Any) -> Any:
        if name == "glance_news":
            looks.append(arguments)
        return await ask(name, *arguments)

    monkeypatch.setattr(glance, "_ask", noted)
    return looks


async def test_a_print_changes_with_all_that_happens_to_a_run(make_app: MakeApp) -> None:
    app = make_app(settings=QUICK)

    @app.workflow
    async def order(ctx: Context, what: str) -> str:
        await ctx.step("pack", ascii, what)
        await ctx.wait_signal("paid")
        await ctx.set("sent", True)
        child = await ctx.start("leaf", what)
        await ctx.wait_signal("over")
        return child.id

    @app.task
    async def leaf(what: str) -> None:
        pass

    async with app:
        run, found = await app.start(order, "tea"), await news_of(app)
        prints = [(await found.of(run.id)).text]

        async def changed() -> None:
            prints.append(await until(found, run.id, prints[-1]))

        await app.drain()
        await changed()
        await run.signal("other", 1)
        await changed()
        await run.pause()
        await changed()
        await run.resume()
        await run.signal("paid", 1)
        await app.drain()
        await changed()
        assert len(set(prints)) == len(prints)
        before = await looked(found, run.id)
        assert await looked(found, run.id) == before, "nothing has happened since"
        assert (await found.of(LISTS)).text != before
        await found.close()


async def test_one_look_is_for_all_who_ask(monkeypatch: pytest.MonkeyPatch) -> None:
    async with Stepfast("sqlite://", settings=QUICK) as app:
        app.task(name="noop")(lambda given: None)
        ids = [(await app.start("noop", n)).id for n in range(5)]
        looks, found = await counted(app, monkeypatch), await news_of(app)
        for what in (*ids, LISTS) * 4:
            await found.ask(what)
        looks.clear()
        while len(looks) < 2:
            await asyncio.sleep(0.01)
        assert all(sorted(runs) == sorted(ids) and newest for runs, newest in looks)
        monkeypatch.setattr(changes, "MOST", 6)
        assert await found.ask(ids[0]) is not None
        assert await found.ask("00000000-0000-7000-8000-000000000000") is None, "that would be one more"
        await found.close()


async def test_nothing_runs_when_nobody_asks_any_more(make_app: MakeApp, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(changes, "_GRACE", 0.2)
    async with make_app(settings=QUICK) as app:
        looks, found = await counted(app, monkeypatch), await news_of(app)
        switchboard = (await app._connect()).switchboard
        await found.of(LISTS)
        assert not found.watches() and switchboard._ear is None, "a page that is read once is not watched"
        await found.ask(LISTS)
        assert found.watches()
        async with asyncio.timeout(10):
            while found.watches():
                await asyncio.sleep(0.01)
        assert switchboard._ear is None and not switchboard._listeners
        looks.clear()
        await asyncio.sleep(0.1)
        assert not looks
        await found.ask(LISTS)
        assert found.watches(), "somebody is back"
        await found.close()


async def test_the_bell_makes_it_look_at_once_and_is_not_believed(
    postgres_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with Stepfast(postgres_url, settings=QUICK) as app:
        looks, found = await counted(app, monkeypatch), await news_of(app)
        connected = await app._connect()
        before = await found.ask(LISTS)
        async with asyncio.timeout(10):
            while not connected.store.can_wake:
                await asyncio.sleep(0.01)
        monkeypatch.setattr(changes, "_EVERY", 3600.0)
        await asyncio.sleep(0.1)
        looks.clear()
        stranger = await asyncpg.connect(postgres_url)
        try:
            for word in ("run 1 has ended", '{"ended": true}', "[" * 2000):
                await stranger.execute("SELECT pg_notify($1, $2)", connected.store._listener._channel, word)  # type: ignore[attr-defined]
        finally:
            await stranger.close()
        async with asyncio.timeout(10):
            while not looks:
                await asyncio.sleep(0.01)
        assert before is not None and (await found.of(LISTS)).text == before.text, "nothing has happened"
        await found.close()


async def test_where_no_bell_can_be_heard_it_says_so_once_and_looks_by_the_clock(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(changes, "_DEAF", 0.0)
    monkeypatch.setattr(changes, "_EVERY", 3600.0)
    monkeypatch.setattr("stepfast.store.sqlite.store.SqliteStore.can_wake", False)
    async with Stepfast("sqlite://", settings=QUICK) as app:
        app.task(name="noop")(lambda given: None)
        with caplog.at_level(logging.INFO):
            looks, found = await counted(app, monkeypatch), await news_of(app)
            await found.ask(LISTS)
            while len(looks) < 5:
                await asyncio.sleep(0.01)
        assert len([line for line in caplog.messages if "no wake-ups of the database arrive" in line]) == 1
        await found.close()


@pytest.mark.slow  # two seconds until it is known that nothing arrives
async def test_behind_a_pooler_in_transaction_mode_it_looks_by_the_clock(
    pooled_url: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(changes, "_DEAF", 2.5)
    async with Stepfast(pooled_url, settings=QUICK) as app:
        app.task(name="noop")(lambda given: None)
        with caplog.at_level(logging.INFO):
            found = await news_of(app)
            before = await found.ask(LISTS)
            async with asyncio.timeout(20):
                while not any("no wake-ups of the database arrive" in line for line in caplog.messages):
                    await found.ask(LISTS)
                    await asyncio.sleep(0.05)
        await app.start("noop", 1)
        assert before is not None and await until(found, LISTS, before.text)
        await found.close()


async def test_trouble_with_the_database_is_ridden_out(monkeypatch: pytest.MonkeyPatch) -> None:
    async with Stepfast("sqlite://", settings=QUICK) as app:
        app.task(name="noop")(lambda given: None)
        glance, found = await glance_of(app), await news_of(app)
        before, ask, refused = await found.ask(LISTS), glance._ask, list[str]()

        async def gone(name: str, *arguments: Any) -> Any:
            refused.append(name)
            raise DatabaseUnavailable("the database is gone")

        with monkeypatch.context() as patch:
            patch.setattr(glance, "_ask", gone)
            while len(refused) < 3:
                await asyncio.sleep(0.01)
        await app.start("noop", 1)
        assert before is not None and await until(found, LISTS, before.text)
        assert glance._ask == ask
    async with asyncio.timeout(10):  # the application is closed: nothing goes on behind its back
        while found.watches():
            await asyncio.sleep(0.01)


# -- the numbers of queues, and how often pages ask


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
    await forget_cached(app)
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
