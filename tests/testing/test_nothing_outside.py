"""What code in a lab does with the application itself stays in the lab: the application's database is not touched."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from stepfast import Context, Stepfast, SyncContext, step
from stepfast.testing import Lab, crash_everywhere

app = Stepfast("sqlite:///must-not-be-made.db")


@app.task
async def mail(text: str) -> str:
    return text


@app.task
async def mail_twice(text: str) -> list[str]:
    return [(await app.start(mail, text)).id, (await app.start("mail", text)).id]


@step
async def order_mail(text: str) -> str:
    run = await app.start(mail, text)
    await app.put_schedule("later", mail, every=3600, input=text)
    return f"{(await run.info()).workflow} of {len(await app.runs())}"


@step
def order_mail_plainly(text: str) -> str:
    run = app.sync.start(mail, text)
    app.sync.get(run.id).info()
    return run.id


@app.workflow
async def ordering(ctx: Context, text: str) -> str:
    return await ctx.step(order_mail, text)


@app.workflow
def ordering_plainly(ctx: SyncContext, text: str) -> str:
    return ctx.step(order_mail_plainly, text)


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.chdir(tmp_path)
    yield
    assert os.listdir(tmp_path) == []
    assert not app._connections.open


async def test_a_step_that_starts_runs_starts_them_in_the_lab() -> None:
    now = datetime(2026, 1, 1, tzinfo=UTC)
    async with Lab(app, now=now) as lab, Lab(app) as other:
        run = await lab.start(ordering, "hello")
        assert await run.result() == "mail of 2"
        assert lab.calls(mail) == 1
        await lab.advance(timedelta(hours=2))
        assert lab.calls(mail) == 3
        assert [info.created_at for info in await lab.app.runs(workflow=mail)][-1] == now
        twice = await lab.start(mail_twice, "hello")
        assert [await lab.app.get(each).result() for each in await twice.result()] == ["hello", "hello"]
        assert await other.app.runs() == []


async def test_so_does_a_plain_one() -> None:
    async with Lab(app) as lab:
        run = await lab.start(ordering_plainly, "hello")
        mailed = lab.app.get(await run.result())
        await lab.settle()
        assert (await mailed.info()).workflow == "mail"


async def test_no_task_is_left_behind_where_workers_die() -> None:
    mine = Stepfast("sqlite://")

    @mine.workflow
    async def reader(ctx: Context) -> Any:
        first = await ctx.first(go=ctx.wait_signal("go"), late=ctx.sleep(60))
        started = await ctx.start(writer)
        return [first[0], await started.result()]

    @mine.workflow
    async def writer(ctx: Context) -> str:
        await ctx.sleep(1)
        return "written"

    before = asyncio.all_tasks()
    await crash_everywhere(mine, reader)
    assert asyncio.all_tasks() <= before
