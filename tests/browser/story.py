"""A few days in the life of a shop, told in a lab: what the pages show when they are looked at and pictured."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import UTC, datetime, timedelta
from typing import NamedTuple

import httpx

from stepfast.console.responses import NAVIGATION
from stepfast.testing import Lab
from tests.browser.serving import TOKEN, listening
from tests.browser.shop import Order, World, make_shop

_LASTS = timedelta(hours=30)
"""How long ago the story begins: it ends now. The page that says whether clocks agree comes first."""


class Told(NamedTuple):
    """Where the console of the shop is, and which pages it has."""

    url: str
    pages: dict[str, str]
    """Name → address, below the console's own."""


@asynccontextmanager
async def told() -> AsyncIterator[Told]:
    """The shop after all that has happened, and its console."""
    world = World()
    async with Lab(make_shop(world), now=datetime.now(UTC) - _LASTS) as lab:
        async with listening(lab.app) as url:
            yield Told(url, await _happened(lab, world, url))


async def _operated(url: str, lab: Lab) -> None:
    """Somebody acts by the console."""
    headers = {"Authorization": f"Bearer {TOKEN}", "Origin": url}
    async with httpx.AsyncClient(base_url=url, headers=headers) as client:
        for path, form in (
            ("/queues/pause", {"queue": "import-catalogue"}),
            ("/queues/limits", {"queue": "mail", "concurrency": "10"}),
            ("/schedules/trigger", {"schedule": "nightly-report"}),
        ):
            answer = await client.post(path, data=form)
            assert answer.status_code == 303, answer.text
    await lab.settle()


async def _happened(lab: Lab, world: World, url: str) -> dict[str, str]:
    clock = lab._clock
    world.take = lambda seconds: clock.move_to(clock.passed_ms + round(seconds * 1000))
    world.remote_dispatcher.set()
    for number in range(6):
        await lab.start("checkout", Order(f"o-{1000 + number}", 4_900 + number), key=f"o-{1000 + number}", tags=["web"])
        await lab.advance(timedelta(minutes=7))
    imported = await lab.start("import-catalogue", 40, tags=["nightly"])
    await lab.advance(timedelta(hours=5))
    world.bank_away = 2
    approved = await lab.start("checkout", Order("o-1017", 249_900, parcels=3), key="o-1017", tags=["web", "vip"])
    await lab.advance(timedelta(hours=22))
    await approved.signal("approved", True)
    undone = await lab.start("order-fulfilment", {"gift": True, "to": "nowhere"}, key="f-2201")
    await lab.advance(timedelta(hours=2))
    await undone.signal("manager_ok", True)
    await lab.settle()
    for name in ("bounce@example.org", "bob@example.org", "bounce@example.net"):
        await lab.start("send-mail", name)
    await lab.advance(timedelta(minutes=4))
    declined = await lab.start("checkout", Order("o-1020", 66_600), key="o-1020", tags=["web"])
    await _operated(url, lab)
    await lab.start("import-catalogue", 12, tags=["nightly"])
    waiting = await lab.start("order-fulfilment", {"gift": False, "to": "Ada"}, key="f-2202")
    asked = await lab.start("checkout", Order("o-1021", 120_000), key="o-1021", tags=["web"])
    await lab.advance(_LASTS - timedelta(milliseconds=clock.passed_ms))
    clock.epoch_ms = round(time.time() * 1000) - clock.passed_ms
    pages = {path: f"/{path}" for _, path in NAVIGATION}
    return (
        {"system": "/system"}
        | pages
        | {
            "run": f"/runs/{approved.id}",
            "run-undone": f"/runs/{undone.id}",
            "run-graph": f"/runs/{waiting.id}",
            "run-failed": f"/runs/{declined.id}",
            "run-waiting": f"/runs/{asked.id}",
            "run-map": f"/runs/{imported.id}",
            "bulk": "/bulk/retry?status=failed",
            "failed": "/runs?status=failed",
            "confirm": f"/runs/{asked.id}/confirm/cancel",
            "signal": f"/runs/{asked.id}/confirm/signal",
            "start": "/start?workflow=checkout",
        }
    )
