"""Every SQL example in the documents is one the database takes, on tables that hold something."""

from __future__ import annotations

import sqlite3
from pathlib import Path
from typing import Any

import asyncpg
import pytest

from stepfast import Context, NonRetryableError, Stepfast
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
