"""A database whose usual level of isolation is stricter than ours: what locks first and then looks still sees."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any

import asyncpg
import pytest

from stepfast import Context, Stepfast
from tests.support.engine import PATIENCE

LEVELS = ("repeatable read", "serializable")


@asynccontextmanager
async def strict(url: str, level: str) -> AsyncIterator[None]:
    """Every new session begins with this level unless it says otherwise."""
    name = url.rpartition("/")[2].partition("?")[0]
    connection = await asyncpg.connect(url)
    try:
        await connection.execute(f"ALTER DATABASE \"{name}\" SET default_transaction_isolation = '{level}'")
        yield
        await connection.execute(f'ALTER DATABASE "{name}" RESET default_transaction_isolation')
    finally:
        await connection.close()


@pytest.mark.empty
@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize("own_pool", [False, True])
async def test_many_may_migrate_at_once(postgres_url: str, level: str, own_pool: bool) -> None:
    async with strict(postgres_url, level), AsyncExitStack() as stack:
        apps = []
        for _ in range(6):
            pool: Any = await asyncpg.create_pool(postgres_url, min_size=0, max_size=10) if own_pool else None
            if pool is not None:
                stack.push_async_callback(pool.close)
            apps.append(Stepfast(postgres_url, pool=pool))
            stack.push_async_callback(apps[-1].close)
        applied = await asyncio.gather(*(app.migrate() for app in apps))
        assert len([names for names in applied if names]) == 1, "one of them has made the tables"


@pytest.mark.parametrize("level", LEVELS)
async def test_runs_that_others_write_to_come_to_their_end(postgres_url: str, level: str) -> None:
    async with strict(postgres_url, level), Stepfast(postgres_url) as app:

        @app.workflow
        async def wait(ctx: Context, _: None) -> int:
            return await ctx.wait_signal("go", type=int)

        async with app.worker(), app.worker():
            runs = await app.start_many(wait, [None] * 20)
            await asyncio.gather(*(run.signal("go", n) for n, run in enumerate(runs)))
            ended = await asyncio.gather(*(run.result(timeout=PATIENCE) for run in runs))
        assert ended == list(range(20))
