"""Open tabs ask again by themselves: only where something can change, and together a few questions a second at most."""

from __future__ import annotations

import re

import httpx

from stepfast import Settings, Stepfast
from stepfast.console import console
from stepfast.watching.onlooker import glance_of
from tests.console.conftest import TOKEN, browse, shop


def again(page: httpx.Response) -> float | None:
    found = re.search(r'<body data-again="([^"]+)">', page.text)
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
    app = Stepfast("sqlite://", settings=Settings(watch_rate=4, watch_fresh=0.01))
    async with app:
        async with browse(console(app, token=TOKEN)) as client:
            first = [again(await client.get(f"/runs?workflow=w{n}")) for n in range(30)]
        assert first[0] == 3.0 and all(isinstance(wait, float) for wait in first)
        asked = (await glance_of(app)).remembered.asked
        assert (first[-1] or 0) >= asked / 4 - 5 > 3.0


async def test_tabs_of_one_page_ask_once() -> None:
    app = Stepfast("sqlite://", settings=Settings(watch_fresh=60))
    async with app:
        async with browse(console(app, token=TOKEN)) as client:
            page = (await client.get("/runs")).text
            asked = (await glance_of(app)).remembered.asked
            for _ in range(10):
                assert (await client.get("/runs")).text.partition("<main")[2] == page.partition("<main")[2]
            assert (await glance_of(app)).remembered.asked == asked
