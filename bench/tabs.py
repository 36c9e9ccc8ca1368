"""Ten tabs of a console, in a process of its own: `python -m bench.tabs URL`.

Each asks for its page again when the page says so; where the page knows where to ask for news, only if there are some,
or when it has grown old. A line on stdin, `look` or `rest`, opens and closes them; the answer
to `rest` is what they asked meanwhile.
"""

from __future__ import annotations

import asyncio
import html
import json
import logging
import re
import sys
from contextlib import suppress
from time import perf_counter
from typing import Any, NamedTuple

import httpx

from stepfast import Stepfast
from stepfast.console import console
from stepfast.monitoring.changes import glance_of

PAGES = (
    "/runs", "/runs?status=failed", "/runs?status=waiting&sort=oldest", "/runs?workflow=nobody+has+it", "/queues",
    "/workers", "/failures", "/system",
)  # fmt: skip
RUNS = 2
"""Tabs that show one run each."""
_AGAIN = re.compile(r'data-again="([0-9.]+)"')
_NEWS = re.compile(r'data-news="([^"]+)" data-latest="([0-9.]+)"')


class Shown(NamedTuple):
    """What a page says of when it is to be shown again."""

    again: float
    news: str
    latest: float


class Tabs:
    """Opens and closes them, and knows what was asked."""

    def __init__(self, app: Stepfast, client: httpx.AsyncClient) -> None:
        self._app = app
        self._client = client
        self._tasks: list[asyncio.Task[None]] = []
        self._took: list[float] = []
        self._began = 0.0
        self._pages = 0

    async def prepare(self) -> None:
        """Measure every question that is put to the database."""
        glance: Any = await glance_of(self._app)
        ask = glance._ask

        async def timed(name: str, *arguments: Any) -> Any:
            begin = perf_counter()
            try:
                return await ask(name, *arguments)
            finally:
                self._took.append(perf_counter() - begin)

        glance._ask = timed

    async def look(self) -> None:
        """Open all tabs; each has shown its page once when this returns."""
        listed = (await self._client.get("/runs", headers={"Accept": "application/json"})).json()
        pages = [*PAGES, *(f"/runs/{run['id']}" for run in listed[:RUNS])]
        first = [(page, await self._show(page)) for page in pages]
        self._took.clear()
        self._pages, self._began = 0, perf_counter()
        self._tasks = [asyncio.create_task(self._tab(page, shown)) for page, shown in first]

    async def _show(self, page: str) -> Shown:
        """Show a page once."""
        answer = (await self._client.get(page)).raise_for_status()
        self._pages += 1
        again = _AGAIN.search(answer.text)
        news = _NEWS.search(answer.text)
        ask, latest = (html.unescape(news[1]), float(news[2])) if news else ("", 0.0)
        return Shown(float(again[1]) if again else 3600.0, ask, latest)

    async def _tab(self, page: str, shown: Shown) -> None:
        while True:
            await self._wait(shown)
            shown = await self._show(page)

    async def _wait(self, shown: Shown) -> None:
        """As the script of the pages does."""
        began, wait = perf_counter(), shown.again
        while True:
            await asyncio.sleep(wait)
            left = shown.latest - (perf_counter() - began)
            if not shown.news or left <= 0:
                return
            told = (await self._client.get(shown.news)).raise_for_status().json()
            if told["changed"]:
                return
            wait = min(told["again"], max(left, 0.1))

    async def rest(self) -> dict[str, float]:
        """Close them."""
        for task in self._tasks:
            task.cancel()
        for task in self._tasks:
            with suppress(asyncio.CancelledError):
                await task
        seconds = perf_counter() - self._began
        return {
            "asked": len(self._took),
            "slowest": max(self._took, default=0.0),
            "pages": self._pages,
            "seconds": seconds,
        }


async def main(url: str) -> None:
    """Answer line by line, until the input ends."""
    logging.disable(logging.WARNING)
    async with Stepfast(url) as app:
        served = console(app, auth=lambda request: ("bench", "view"))
        transport = httpx.ASGITransport(app=served)
        async with httpx.AsyncClient(transport=transport, base_url="http://bench", timeout=60) as client:
            tabs = Tabs(app, client)
            await tabs.prepare()
            while line := await asyncio.to_thread(sys.stdin.readline):
                answer = await (tabs.look() if line.strip() == "look" else tabs.rest())
                print(json.dumps(answer), flush=True)


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1]))
