"""What pages ask of the database: few questions, and none whose plan is not looked at."""

from __future__ import annotations

from typing import Any

import pytest

from stepfast.console import console
from stepfast.monitoring.changes import glance_of
from stepfast.store.sqlite.store import SqliteGlance
from tests.console.conftest import TOKEN, browse, shop
from tests.worker.test_plans import LIFELONG, NOT_HOT

LISTS = [
    "/runs", "/runs?status=failed", "/runs?status=queued", "/runs?status=running", "/runs?status=waiting",
    "/runs?tag=vip", "/runs?key=o-1", "/runs?workflow=order&since=1h", "/runs?text=tea", "/runs?find=abcd",
    "/runs?sort=oldest", "/queues", "/workers", "/schedules", "/failures", "/system", "/audit", "/audit?which=x",
    "/start?workflow=order", "/queues/confirm/pause?queue=order",
]  # fmt: skip


async def test_every_question_is_one_whose_plan_is_looked_at(monkeypatch: pytest.MonkeyPatch) -> None:
    """``tests/worker/test_plans.py`` looks at the plans of all statements but those that are asked once per process;
    of the latter, pages ask only what is about a few rows."""
    asked: set[str] = set()
    ask = SqliteGlance._ask

    async def noted(self: SqliteGlance, name: str, *arguments: Any) -> list[Any]:
        asked.add(name)
        return await ask(self, name, *arguments)

    monkeypatch.setattr(SqliteGlance, "_ask", noted)
    app = shop("sqlite://")
    dag = app.dag("of steps")
    dag.declare(lambda ctx: 1, name="a")
    dag.approval("ok", after=["a"])
    async with app, browse(console(app, token=TOKEN)) as client:
        started: Any = [("order", "tea"), ("breaks", "milk"), ("parent", "x"), ("of steps", None)]
        runs = [await app.start(name, given, key=f"o-{name}", tags=["vip"]) for name, given in started]
        await app.drain()
        await app.start("order", "tea")
        remembered = (await glance_of(app)).remembered
        for most, addresses in ((10, LISTS), (20, [f"/runs/{run.id}" for run in runs])):
            for address in addresses:
                remembered.forget()
                before = remembered.asked
                page = await client.get(address)
                assert page.status_code == 200, (address, page.text)
                assert remembered.asked - before <= most, address
    assert len(asked) > 35
    assert asked & NOT_HOT <= LIFELONG
