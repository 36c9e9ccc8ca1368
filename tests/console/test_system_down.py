"""The page on the system is shown when the database cannot be asked: that is when somebody looks at it."""

from __future__ import annotations

from urllib.parse import urlsplit

import pytest

from stepfast import Settings, Stepfast
from stepfast.console import console
from tests.console.conftest import JSON, TOKEN, browse
from tests.support.proxy import Proxy

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
