"""A run that workers have died with gives its slot back at its first wait, which clears it (rules 5 and 52)."""

from __future__ import annotations

from typing import Any

import pytest

from stepfast import Context, Stepfast
from stepfast.settings import Settings
from tests.support.engine import PATIENCE, eventually, stopped_at_once
from tests.worker.tables import Tables

LONG = Settings(poll_interval=0.05, inline_wait=300)
"""Whoever may wait in memory does so for longer than any test."""


@pytest.fixture
async def tables(url: str) -> Any:
    tables = Tables(url)
    yield tables
    await tables.close()


async def lose(tables: Tables, losses: int, workflow: str) -> None:
    """So many workers have died with these runs."""
    await tables.fetch(
        "UPDATE [runs] SET losses = ?, unrecorded_losses = ? WHERE workflow = ?", losses, losses, workflow
    )


@pytest.mark.parametrize("losses", [1, 4])
async def test_it_gives_its_slot_back_at_once_and_its_losses_are_over(url: str, tables: Tables, losses: int) -> None:
    """Whatever it waits for. In memory it would count a loss each time its worker dies for another reason."""
    app = Stepfast(url, settings=LONG)

    @app.workflow
    async def child(ctx: Context) -> None:
        await ctx.sleep(200)

    @app.workflow
    async def patient(ctx: Context, what: str) -> None:
        if what == "signal":
            await ctx.wait_signal("go")
        elif what == "first":
            await ctx.first(go=ctx.wait_signal("go"), stop=ctx.wait_signal("stop", timeout=100))
        elif what == "child":
            await ctx.call(child)
        else:
            await ctx.wait_until(_never, every=100)

    async with app:
        runs = await app.start_many(patient, ["signal", "first", "child", "check"])
        await lose(tables, losses, "patient")
        async with stopped_at_once(app):
            for run in runs:
                await eventually(lambda run=run: _waits(run))  # type: ignore[misc]
        assert [(await run.info()).losses for run in runs] == [0] * 4


async def _never() -> bool:
    return False


async def _waits(run: Any) -> bool:
    return bool((await run.info()).status == "waiting")


async def test_waiting_suspects_do_not_keep_others_from_work(url: str, tables: Tables) -> None:
    """They are tried alone. Something wakes them that they do not wait for; each is back at its wait at once, and its
    seat is free for the next."""
    app = Stepfast(url, settings=LONG)

    @app.workflow
    async def patient(ctx: Context) -> str:
        return str(await ctx.wait_signal("go"))

    @app.workflow
    async def busy(ctx: Context) -> str:
        return await ctx.step("work", lambda: "done")

    async with app:
        await app.start_many(patient, [None] * 15, priority=5)
        run = await app.start(busy)
        await tables.fetch("UPDATE [runs] SET losses = 4, unrecorded_losses = 4")
        async with stopped_at_once(app):
            assert await run.result(timeout=PATIENCE) == "done"
        assert await tables.fetch("SELECT count(*) FROM [runs] WHERE losses > 0") == [(0,)]
