"""Every SQL example in the documents is one the database takes, on tables that hold something."""

from __future__ import annotations

import sqlite3
from pathlib import Path
from typing import Any

import asyncpg
import pytest

from stepfast import Context, NonRetryableError, RunNotFound, Stepfast
from stepfast.store.statements import split_script
from tests.docs.pages import Block, all_blocks

pytestmark = pytest.mark.empty

SQLITE = [block for block in all_blocks("sql") if block.direction == "sqlite"]
POSTGRES = [block for block in all_blocks("sql") if block.direction != "sqlite"]


async def populate(url: str) -> None:
    """A completed run, a failed one and one that sleeps, in the namespace that the documents use."""
    app = Stepfast(url)

    @app.workflow
    async def checkout(ctx: Context, order: dict[str, Any]) -> dict[str, str]:
        await ctx.step("charge", lambda: {"receipt": "r-1"})
        if order["cents"] == 0:
            raise NonRetryableError("nothing to pay")
        return {"receipt": "r-1"}

    async with app:
        await app.start(checkout, {"id": "o-1", "cents": 999}, tags=["web"])
        await app.start(checkout, {"id": "o-2", "cents": 0}, key="o-2")
        await app.start(checkout, {"id": "o-3", "cents": 1}, delay=3600)
        await app.drain()


def test_there_are_examples_for_both() -> None:
    assert SQLITE
    assert POSTGRES
    assert {block.direction for block in POSTGRES} == {""}


@pytest.mark.parametrize("block", POSTGRES, ids=lambda block: block.where)
async def test_postgres_takes_it(block: Block, postgres_url: str) -> None:
    await populate(postgres_url)
    connection = await asyncpg.connect(postgres_url)
    try:
        for statement in split_script(block.text):
            await connection.execute(statement)
    finally:
        await connection.close()


async def test_retention_deletes_what_ended_and_nothing_that_is_still_needed(postgres_url: str) -> None:
    """Dag runs that go on have steps that ended long ago; parents have such children."""
    [block] = [block for block in POSTGRES if "gone_steps" in block.text]
    app, undone = Stepfast(postgres_url), []
    fulfil = app.dag("fulfil")

    @fulfil.step(compensate=lambda ctx: undone.append(ctx.output))
    async def reserve(ctx: Any) -> str:
        return "r-1"

    fulfil.approval("ok", after=["reserve"])

    @app.workflow
    async def child(ctx: Context) -> str:
        return "child"

    @app.workflow
    async def parent(ctx: Context, patient: bool) -> str:
        started = await ctx.start(child)
        if patient:
            await ctx.wait_signal("go")
        return await started.result()

    @app.workflow
    async def chain(ctx: Context, n: int) -> None:
        if n:
            await ctx.continue_as(n - 1)
        await ctx.wait_signal("go")

    async with app:
        approved, cancelled, finished = [await app.start(fulfil) for _ in range(3)]
        waits, over = await app.start(parent, True), await app.start(parent, False)
        first = await app.start(chain, 3, key="c")
        await finished.signal("ok", True)
        await app.drain()
        connection = await asyncpg.connect(postgres_url)
        try:
            await connection.execute("UPDATE stepfast.runs SET completed_at = completed_at - 40 * 86400000::bigint")
            deleted = [await connection.fetchval(block.text) for _ in range(3)]
            assert deleted == [2, 1, 0]  # the dag run and the parent that are over; then its child
            rows = await connection.fetch(
                "SELECT run_id FROM stepfast.steps s WHERE run_id NOT IN (SELECT id FROM stepfast.runs)"
            )
            assert rows == []
        finally:
            await connection.close()
        for run in (finished, over):
            with pytest.raises(RunNotFound):
                await run.info()
        assert (await app.start(chain, 3, key="c")).id == first.id
        await approved.signal("ok", True)
        await cancelled.cancel()
        await waits.signal("go")
        await first.signal("go")
        await app.drain()
        assert await approved.result() == {"reserve": "r-1", "ok": True}
        assert ((await cancelled.info()).status, undone) == ("compensated", ["r-1"])
        assert await waits.result() == "child"
        await first.result()


@pytest.mark.parametrize("block", SQLITE, ids=lambda block: block.where)
async def test_sqlite_takes_it(block: Block, tmp_path: Path) -> None:
    path = tmp_path / "stepfast.db"
    await populate(f"sqlite:///{path}")
    database = sqlite3.connect(path)
    try:
        for statement in split_script(block.text):
            database.execute(statement).fetchall()
    finally:
        database.close()
