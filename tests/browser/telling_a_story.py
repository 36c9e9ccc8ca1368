"""A few days in the life of a shop, in a lab: the same every time, to the last id."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

from stepfast.testing import Lab
from tests.browser.shop import Order, World


async def story(lab: Lab, world: World) -> dict[str, str]:
    """Name of a page → its address. What happens is what the pages show."""
    clock: Any = lab._clock
    world.take = lambda seconds: clock.move_to(clock.passed_ms + round(seconds * 1000))
    world.courier.set()
    await lab.advance(timedelta(hours=3))
    for number in range(6):
        await lab.start("checkout", Order(f"o-{1000 + number}", 4_900 + number), key=f"o-{1000 + number}", tags=["web"])
        await lab.advance(timedelta(minutes=7))
    imported = await lab.start("import-catalogue", 40, tags=["nightly"])
    await lab.advance(timedelta(hours=5))
    world.bank_away = 2
    approved = await lab.start("checkout", Order("o-1017", 249_900, parcels=3), key="o-1017", tags=["web", "vip"])
    await lab.advance(timedelta(hours=22))
    await approved.signal("approved", True)
    await lab.settle()
    undone = await lab.start("order-fulfilment", {"gift": True, "to": "nowhere"}, key="f-2201")
    await lab.advance(timedelta(hours=2))
    await undone.signal("manager_ok", True)
    await lab.settle()
    for name in ("bounce@example.org", "bob@example.org", "bounce@example.net"):
        await lab.start("send-mail", name)
    await lab.advance(timedelta(minutes=4))
    failed = await lab.start("checkout", Order("o-1020", 66_600), key="o-1020", tags=["web"])
    waiting = await lab.start("order-fulfilment", {"gift": False, "to": "Ada"}, key="f-2202")
    asked = await lab.start("checkout", Order("o-1021", 120_000), key="o-1021", tags=["web"])
    await lab.advance(timedelta(minutes=11))
    return {
        "runs": "/runs",
        "run": f"/runs/{approved.id}",
        "undone": f"/runs/{undone.id}",
        "dag": f"/runs/{waiting.id}",
        "failed": f"/runs/{failed.id}",
        "waiting": f"/runs/{asked.id}",
        "map": f"/runs/{imported.id}",
        "confirm": f"/runs/{asked.id}/confirm/cancel",
    }
