"""Open tabs ask again by themselves: only where something can change, and together a few questions a second at most;
where something may be new, they ask about that first."""

from __future__ import annotations

import asyncio
import html
import re
import time
from typing import Any

import httpx
import pytest

from stepfast import Settings, Stepfast
from stepfast.console import console
from stepfast.console.app import prefixed
from stepfast.monitoring.changes import glance_of, news_of
from tests.console.conftest import JSON, TOKEN, browse, shop


def again(page: httpx.Response) -> float | None:
    found = re.search(r'<body data-again="([^"]+)"', page.text)
    return float(found[1]) if found else None


async def test_only_what_can_change_is_asked_for_again() -> None:
    async with shop("sqlite://") as app:
        waiting, failed = await app.start("order", "tea"), await app.start("breaks", "milk")
        await app.drain()
        async with browse(console(app, token=TOKEN)) as client:
            assert again(await client.get(f"/runs/{waiting.id}")) is not None
            assert again(await client.get("/runs")) is not None
            for still in (f"/runs/{failed.id}", "/runs?text=tea", f"/runs/{waiting.id}/confirm/cancel", "/runs?find=x"):
                assert again(await client.get(still)) is None, still


async def test_the_more_tabs_there_are_the_less_often_each_asks() -> None:
    app = Stepfast("sqlite://", settings=Settings(console_query_rate=4, console_query_cache=0.01))
    async with app:
        async with browse(console(app, token=TOKEN)) as client:
            began = time.monotonic()
            first = [again(await client.get(f"/runs?workflow=w{n}")) for n in range(30)]
            took = time.monotonic() - began
        assert first[0] == 2.0 and all(isinstance(wait, float) for wait in first)
        asked = (await glance_of(app)).remembered.asked
        assert (first[-1] or 0) >= asked / 4 - took - 0.2 and asked / 4 > 8.0


async def test_tabs_of_one_page_ask_once() -> None:
    app = Stepfast("sqlite://", settings=Settings(console_query_cache=60))
    async with app:
        async with browse(console(app, token=TOKEN)) as client:
            page = (await client.get("/runs")).text
            asked = (await glance_of(app)).remembered.asked
            for _ in range(10):
                assert (await client.get("/runs")).text.partition("<main")[2] == page.partition("<main")[2]
            assert (await glance_of(app)).remembered.asked == asked


@pytest.fixture(autouse=True)
def often(monkeypatch: pytest.MonkeyPatch) -> None:
    """The clock of those who look for news is quick here."""
    monkeypatch.setattr("stepfast.monitoring.changes._EVERY", 0.05)


def news(page: httpx.Response) -> str:
    """Where a tab with this page asks whether there is anything new; empty: it does not."""
    found = re.search(r'<body [^>]*data-news="([^"]+)"', page.text)
    return html.unescape(found[1]) if found else ""


async def test_a_tab_is_told_when_something_has_happened_to_its_run(
    shared_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("stepfast.store.readonly._TIMES", 0)  # nothing is kept because it took long
    async with shop(shared_url) as app:
        run, other = await app.start("order", "tea"), await app.start("order", "milk")
        await app.drain()
        async with browse(console(app, token=TOKEN)) as client:
            ask, ask_other = [news(await client.get(f"/runs/{each.id}")) for each in (run, other)]
            assert (await client.get(ask)).json() == {"changed": False, "again": 1.0}
            await run.signal("approved", True)
            await app.drain()
            await _until_changed(client, ask)
            assert (await client.get(ask_other)).json()["changed"] is False
            assert news(await client.get(f"/runs/{run.id}")) == "", "it has ended"
        await (await news_of(app)).close()


async def _until_changed(client: httpx.AsyncClient, ask: str) -> None:
    """What was asked a moment ago holds for a moment."""
    for _ in range(300):
        if (await client.get(ask)).json()["changed"]:
            return
        await asyncio.sleep(0.05)
    raise AssertionError("it was not told")


async def test_lists_are_told_of_new_runs_and_scripts_of_nothing() -> None:
    app = Stepfast("sqlite://", settings=Settings(console_query_cache=0.01))
    async with app:
        app.task(name="noop")(lambda given: None)
        async with browse(console(app, token=TOKEN)) as client:
            for without in ("/queues", "/runs?text=x", "/runs?find=x", "/system", "/audit"):
                assert news(await client.get(without)) == "", without
            await client.get("/runs", headers=JSON)
            assert not (await news_of(app)).watches(), "nobody waits for news"
            ask = news(await client.get("/runs?workflow=noop"))
            assert (await client.get(ask)).json()["changed"] is False
            await app.start("noop", 1)
            await _until_changed(client, ask)
        await (await news_of(app)).close()


async def test_a_page_of_answers_that_are_older_than_the_news_has_no_mark(monkeypatch: pytest.MonkeyPatch) -> None:
    """Somebody had asked before the change was seen, and the page shows what they were told: the tab asks again. So it
    does as long as that answer is given because it took long to find."""
    monkeypatch.setattr("stepfast.store.readonly._TIMES", 1000)
    app = shop("sqlite://")
    async with app:
        run = await app.start("order", "tea")
        glance, found = await glance_of(app), await news_of(app)
        held, ask = asyncio.Event(), glance._ask

        async def slow(name: str, *arguments: Any) -> Any:
            rows = await ask(name, *arguments)
            if name == "run":
                await held.wait()
            return rows

        monkeypatch.setattr(glance, "_ask", slow)
        async with browse(console(app, token=TOKEN)) as client:
            early = asyncio.create_task(client.get(f"/runs/{run.id}", headers=JSON))
            while not glance.remembered._under_way:
                await asyncio.sleep(0)
            await app.drain()
            await found.of(run.id)
            page = asyncio.create_task(client.get(f"/runs/{run.id}"))
            await asyncio.sleep(0.05)
            held.set()
            assert "mark=" not in news(await page)
            assert (await client.get(news(await page))).json()["changed"] is True
            assert "mark=" not in news(await client.get(f"/runs/{run.id}")), "it took long, and is given again"
            glance.remembered.forget()
            assert "mark=" in news(await client.get(f"/runs/{run.id}")), "what is asked now is new enough"
            await early
        await found.close()


async def test_news_are_asked_under_a_prefix_and_by_those_who_may(monkeypatch: pytest.MonkeyPatch) -> None:
    let_in = [True]
    async with shop("sqlite://") as app:
        run = await app.start("order", "tea")
        served = prefixed(console(app, auth=lambda _: ("ada", "view") if let_in[0] else None), "/deep/down")
        async with browse(served, token=None) as client:
            ask = news(await client.get(f"/deep/down/runs/{run.id}"))
            assert ask.startswith(f"/deep/down/news?run={run.id}&mark=")
            assert (await client.get(ask)).status_code == 200
            assert (await client.get("/deep/down/news?run=x")).status_code == 404
            let_in[0] = False
            assert (await client.get(ask)).status_code == 401
        await (await news_of(app)).close()
