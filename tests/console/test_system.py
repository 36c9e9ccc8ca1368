"""What pages ask of the database: few queries, all with checked plans; and the page on the system while it is away."""

from __future__ import annotations

from typing import Any
from urllib.parse import urlsplit

import pytest

from stepfast import Settings, Stepfast
from stepfast.console import console
from stepfast.monitoring.changes import glance_of
from stepfast.store.sqlite.store import SqliteGlance
from tests.console.conftest import JSON, TOKEN, browse, shop
from tests.support.proxy import Proxy
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


BRIEF = Settings(inline_wait=0, connect_timeout=2.0)


async def test_a_database_that_was_never_there() -> None:
    app = Stepfast("postgresql://ada:geheim@127.0.0.1:1/nothing", settings=BRIEF)
    async with browse(console(app, token=TOKEN)) as client:
        found = await client.get("/system", headers=JSON)
        assert found.status_code == 503
        [check] = found.json()["checks"]
        assert (check["check"], check["ok"]) == ("connection", False)
        assert "cannot be reached" in check["found"] and "check the address" in check["advice"]
        since = found.json()["unreachable_since"]
        assert since and found.json()["tables"] == []
        page = await client.get("/system")
        assert page.status_code == 503 and 'data-again="5.0"' in page.text
        assert "The database has not been reached since" in page.text and "Every page tries to connect" in page.text
        assert "geheim" not in page.text + found.text
        assert (await client.get("/runs")).status_code == 503
        assert (await client.get("/system", headers=JSON)).json()["unreachable_since"] == since
    await app.close()


async def test_a_database_that_goes_and_comes_back(postgres_url: str) -> None:
    parts = urlsplit(postgres_url)
    assert parts.hostname is not None and parts.port is not None
    async with Proxy(parts.hostname, parts.port) as proxy, Stepfast(proxy.url(postgres_url), settings=BRIEF) as app:
        async with browse(console(app, token=TOKEN)) as client:
            assert (await client.get("/system")).status_code == 200
            proxy.refuse()
            proxy.cut()
            assert (await client.get("/runs")).status_code == 503
            page = await client.get("/system")
            assert page.status_code == 503 and "has not been reached since" in page.text
            proxy.refuse(False)
            found = await client.get("/system", headers=JSON)
            assert found.status_code == 200 and found.json()["unreachable_since"] is None


@pytest.mark.empty
async def test_tables_that_are_not_there(postgres_url: str) -> None:
    app = Stepfast(postgres_url, settings=BRIEF, auto_migrate=False)
    async with browse(console(app, token=TOKEN)) as client:
        found = await client.get("/system", headers=JSON)
        assert found.status_code == 503
        [check] = found.json()["checks"]
        assert check["check"] == "schema" and "stepfast migrate" in check["advice"]
        assert found.json()["unreachable_since"] is None and found.json()["versions"]["tables"] is None
    await app.close()
