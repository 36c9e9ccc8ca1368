"""A pool of the caller's: it says which database is used, and what cannot be used is refused by name."""

from __future__ import annotations

import asyncio
import inspect
from typing import Any
from urllib.parse import urlsplit

import asyncpg
import psycopg
import pytest
from sqlalchemy.ext.asyncio import create_async_engine

from stepfast import Settings, Stepfast
from stepfast.errors import ConfigurationError
from tests.support.databases import DatabasePool, connected
from tests.support.engine import PATIENCE
from tests.support.postgres import PostgresServer
from tests.support.workflows import calling

QUICK = Settings(poll_interval=0.2, sweep_interval=0.2, lease=3, heartbeat=0.2)


async def works(app: Stepfast) -> None:
    """Execute a run on a worker whose heartbeats succeed."""
    order = calling(app, lambda ctx: ctx.step("pay", lambda: "paid"))
    async with app, app.worker() as worker:
        run = await app.start(order)
        assert await run.result(timeout=PATIENCE) == "paid"
        heartbeat = worker.duties.heartbeat
        sent = heartbeat._last
        heartbeat.hurry()
        async with asyncio.timeout(PATIENCE):
            while heartbeat._last == sent:
                await asyncio.sleep(0.01)


async def stored(url: str) -> int:
    async with connected(url) as connection:
        return int(await connection.fetchval("SELECT count(*) FROM stepfast.runs"))


async def test_the_database_is_that_of_the_pool(postgres_url: str, tmp_path: Any, monkeypatch: Any) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("STEPFAST_URL", raising=False)
    async with asyncpg.create_pool(postgres_url, min_size=0) as pool:
        app = Stepfast(pool=pool, settings=QUICK)
        await works(app)
    assert app.url.kind == "postgres"
    assert app.url_named
    assert await stored(postgres_url) == 1
    assert not list(tmp_path.iterdir())


async def test_a_pool_may_have_been_made_of_single_arguments(postgres_url: str, monkeypatch: Any) -> None:
    monkeypatch.delenv("STEPFAST_URL", raising=False)
    parts = urlsplit(postgres_url)

    async def password() -> str:
        return parts.password or ""

    pool = asyncpg.create_pool(
        host=parts.hostname, port=parts.port, user=parts.username, database=parts.path[1:], password=password,
        min_size=0, server_settings={"application_name": "shop", "lock_timeout": "9s"},
    )  # fmt: skip
    async with pool:
        app = Stepfast(pool=pool, settings=QUICK)
        assert app.url.text == f"postgresql://{parts.username}@{parts.hostname}:{parts.port}{parts.path}"
        await works(app)


@pytest.fixture
def other_url(postgres_server: PostgresServer, postgres_databases: DatabasePool) -> Any:
    name = postgres_databases.take(True)
    yield postgres_server.url(name)
    postgres_databases.give_back(name)


@pytest.mark.parametrize("said", ["url", "environment"])
async def test_a_pool_of_another_database_than_the_url_is_refused(
    postgres_url: str, other_url: str, monkeypatch: Any, said: str
) -> None:
    if said == "environment":
        monkeypatch.setenv("STEPFAST_URL", other_url)
    names = [urlsplit(each).path[1:] for each in (postgres_url, other_url)]
    async with asyncpg.create_pool(postgres_url, min_size=0) as pool:
        app = Stepfast(other_url if said == "url" else None, pool=pool, settings=QUICK)
        with pytest.raises(ConfigurationError, match=f"another database.*{names[0]}.*{names[1]}") as caught:
            await works(app)
    assert "Leave the URL out" in str(caught.value)


async def test_a_url_of_the_same_database_may_stand_beside_a_pool(postgres_url: str) -> None:
    async with asyncpg.create_pool(postgres_url, min_size=0) as pool:
        await works(Stepfast(postgres_url, pool=pool, settings=QUICK))


async def test_a_pool_is_refused_beside_the_url_of_another_kind(monkeypatch: Any) -> None:
    pool = asyncpg.create_pool("postgresql://shop@nowhere.invalid/shop", min_size=0)
    with pytest.raises(ConfigurationError, match="another kind of database"):
        Stepfast("sqlite:///runs.db", pool=pool)
    monkeypatch.setenv("STEPFAST_URL", "sqlite:///runs.db")
    with pytest.raises(ConfigurationError, match=r"another kind of database.*STEPFAST_URL"):
        Stepfast(pool=pool)


async def test_the_password_of_a_pool_is_not_shown(monkeypatch: Any) -> None:
    monkeypatch.delenv("STEPFAST_URL", raising=False)
    pool = asyncpg.create_pool("postgresql://shop:s3cret@a.invalid:6432/shop?password=s4cret", min_size=0)
    app = Stepfast(pool=pool)
    assert app.url.text == "postgresql://shop@a.invalid:6432/shop"
    pool = asyncpg.create_pool(host=["a", "b"], port=[1, 2], user="shop", password="s3cret", database="s", min_size=0)
    assert Stepfast(pool=pool).url.text == "postgresql://shop@a:1,b:2/s"
    pool = asyncpg.create_pool(host="/run/postgresql", database="s", min_size=0)
    assert Stepfast(pool=pool).url.text == "postgresql:///s?host=/run/postgresql"


async def test_what_is_no_pool_of_the_driver_is_refused_by_name(monkeypatch: Any) -> None:
    monkeypatch.delenv("STEPFAST_URL", raising=False)
    engine = create_async_engine("postgresql+asyncpg://shop@nowhere.invalid/shop")
    with pytest.raises(ConfigurationError, match=r"AsyncEngine.*engine\.url\.render_as_string.*connection=session"):
        Stepfast(pool=engine)
    with pytest.raises(ConfigurationError, match=r"psycopg.*connections of its own"):
        Stepfast(pool=psycopg.Connection.__new__(psycopg.Connection))
    with pytest.raises(ConfigurationError, match=r"not builtins\.str; write pool .*a-pool-of-your-own"):
        Stepfast("postgresql://shop@nowhere.invalid/shop", pool="ten")


@pytest.mark.skipif(
    "connect" not in inspect.signature(asyncpg.create_pool).parameters, reason="since release 0.30 of the driver"
)
async def test_a_pool_that_connects_in_a_way_of_its_own_needs_the_url(postgres_url: str, monkeypatch: Any) -> None:
    monkeypatch.delenv("STEPFAST_URL", raising=False)

    async def connect(*arguments: Any, **named: Any) -> Any:
        return await asyncpg.connect(postgres_url, **named)

    async with asyncpg.create_pool(min_size=0, connect=connect) as pool:
        with pytest.raises(ConfigurationError, match=r"Stepfast\(url, pool=pool\)"):
            Stepfast(pool=pool)
        await works(Stepfast(postgres_url, pool=pool, settings=QUICK))


async def test_a_pool_that_is_not_open_or_of_another_loop_is_refused(postgres_url: str) -> None:
    app = Stepfast(postgres_url, pool=asyncpg.create_pool(postgres_url, min_size=0))
    with pytest.raises(ConfigurationError, match=r"not open: write pool = await asyncpg\.create_pool"):
        await app.runs()
    async with asyncpg.create_pool(postgres_url, min_size=0) as pool:
        app = Stepfast(postgres_url, pool=pool)
        with pytest.raises(ConfigurationError, match="another event loop"):
            await asyncio.to_thread(app.sync.runs)
        await asyncio.to_thread(app.sync.close)
