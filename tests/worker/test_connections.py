"""How many connections an event loop holds on Postgres: one number, the same in code, doctor and documents."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

from stepfast import Context, Settings, Stepfast
from stepfast.store.postgres.connections import DUTIES, HELD
from tests.support.databases import connected
from tests.support.workflows import task

DOCS = Path(__file__).parents[2] / "docs"


async def test_a_process_that_does_everything_holds_no_more_than_is_said(postgres_url: str) -> None:
    settings = Settings(pool_size=1, transaction_pool=1, inline_wait=0.01, poll_interval=0.1, sweep_interval=0.2)
    async with Stepfast(postgres_url, settings=settings) as app:
        child = task(app, "child", returns=1)

        @app.workflow
        async def order(ctx: Context) -> Any:
            await ctx.sleep(0.2)
            await ctx.wait_signal("go")
            return await ctx.call(child) + await ctx.step("add", lambda: 1)

        async with app.worker():
            runs = await app.start_many(order, [None] * 5, keys=list("abcde"))
            runs += [await app.start(order) for _ in range(5)]
            await asyncio.gather(*(run.signal("go") for run in runs))
            assert await asyncio.gather(*(run.result(timeout=30) for run in runs)) == [2] * 10
            held = await connections(postgres_url)
    assert len(DUTIES) <= held <= HELD + settings.pool_size


async def connections(url: str) -> int:
    async with connected(url) as connection:
        count: int = await connection.fetchval(
            "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND pid <> pg_backend_pid()"
        )
        return count


def test_the_documents_say_the_same_number() -> None:
    operations = (DOCS / "operations.md").read_text()
    assert f"holds at most {HELD} connections" in operations
    assert f"give it at least {len(DUTIES) + 2}" in operations
    assert f"must hold at least {len(DUTIES) + 2} connections" in (DOCS / "reference" / "python.md").read_text()
