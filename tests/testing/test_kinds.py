"""Everything an application has can be tried in a lab: dags, children, threads, transactions, remote steps."""

from __future__ import annotations

import asyncio
import gc
import sqlite3
import threading
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from stepfast import ConfigurationError, Context, DagContext, RunFailed, Stepfast, SyncContext, step
from stepfast.remote import FatalError
from stepfast.testing import InjectedFailure, Lab, LabError
from tests.support.engine import eventually

app = Stepfast("sqlite:///must-not-be-made.db")
fulfil = app.dag("fulfil")


@fulfil.step(retries=0)
async def pick(ctx: DagContext) -> str:
    return "picked"


@fulfil.step(after=["pick"])
def pack(ctx: Any) -> str:
    return "packed"


fulfil.approval("ship", after=["pack"])


@step
def measure(value: int) -> int:
    return value * 2


@app.workflow
def in_threads(ctx: SyncContext, value: int) -> int:
    twice = ctx.step(measure, value)
    ctx.sleep(60)
    return twice


@app.workflow
async def parent(ctx: Context) -> list[int]:
    return await ctx.gather(*(ctx.call(in_threads, value) for value in range(3)))


def note(connection: sqlite3.Connection, text: str) -> str:
    raise AssertionError("the real one")


@app.workflow
async def noting(ctx: Context) -> str:
    return await ctx.transaction(note, "hello")


@app.workflow
async def reading(ctx: Context, page: int) -> str:
    return await ctx.remote("pages.read", page, retries=2, type=str)


async def test_a_dag_with_an_approval() -> None:
    async with Lab(app) as lab:
        lab.fail("pick", error=ValueError("no stock"))
        run = await lab.start(fulfil, {})
        assert await run.status() == "failed"

        async def other_pick(ctx: DagContext) -> str:
            return "found"

        lab.replace(pick, other_pick)
        run = await lab.start(fulfil, {})
        await run.signal("ship", True)
        await lab.settle()
        assert await run.result() == {"pick": "found", "pack": "packed", "ship": True}
        assert (lab.calls("pick"), lab.calls("pack")) == (2, 1)


async def test_children_and_plain_functions() -> None:
    async with Lab(app) as lab:
        run = await lab.start(parent)
        assert await run.status() == "waiting"
        assert lab.calls(measure) == 3
        await lab.advance(60)
        assert await run.result() == [0, 2, 4]
        assert lab.calls(measure) == 3


async def test_a_transaction_is_replaced_and_writes_to_the_database_of_the_lab() -> None:
    def fake_note(connection: sqlite3.Connection, text: str) -> str:
        return f"{text} to {connection.execute('SELECT count(*) FROM stepfast_runs').fetchone()[0]}"

    async with Lab(app) as lab:
        lab.replace(note, fake_note)
        run = await lab.start(noting)
        assert await run.result() == "hello to 1"


async def test_remote_steps_wait_until_somebody_stands_in_for_their_workers() -> None:
    async with Lab(app) as lab:
        run = await lab.start(reading, 7)
        assert (await run.info()).waiting_for == "remote:pages.read"
        lab.replace("pages.read", lambda page: f"page {page}")
        await lab.settle()
        assert await run.result() == "page 7"
        assert lab.calls("pages.read") == 1


async def test_remote_steps_fail_and_are_tried_again_with_time() -> None:
    async def unreadable(page: int) -> str:
        raise FatalError("torn")

    async with Lab(app) as lab:
        lab.replace("pages.read", lambda page: f"page {page}")
        lab.fail("pages.read", times=2)
        run = await lab.start(reading, 7)
        assert await run.status() == "waiting"
        await lab.advance(timedelta(minutes=5))
        assert await run.result() == "page 7"
        assert lab.calls("pages.read") == 3
        lab.replace("pages.read", unreadable)
        run = await lab.start(reading, 7)
        await lab.advance(timedelta(minutes=5))
        assert await run.status() == "failed"


async def test_a_remote_step_of_a_dag_is_served_with_its_input_whenever_somebody_stands_in() -> None:
    mine = Stepfast("sqlite://")
    scan = mine.dag("scan")
    scan.remote("pages.read", input=lambda ctx: ctx.input["page"], retries=1)

    async with Lab(mine) as lab:
        run = await lab.start(scan, {"page": 7})
        assert (await run.info()).waiting_for == "remote:pages.read"
        lab.replace("pages.read", lambda page: f"page {page}")
        await lab.settle()
        assert await run.result() == {"pages.read": "page 7"}
        lab.fail("pages.read")
        run = await lab.start(scan, {"page": 8})
        await lab.advance(60)
        assert await run.result() == {"pages.read": "page 8"}
        assert lab.calls("pages.read") == 3


async def test_an_injected_failure_is_what_the_run_fails_with() -> None:
    async with Lab(app) as lab:
        lab.fail(measure, times=9)
        run = await lab.start(in_threads, 1)
        await lab.advance(timedelta(hours=1))
        with pytest.raises(RunFailed, match=InjectedFailure.__name__):
            await run.result()


async def test_a_step_that_does_not_come_back_is_named() -> None:
    async def hang(value: int) -> int:
        await asyncio.Event().wait()
        return value

    async with Lab(app, patience=1.0) as lab:
        lab.replace(measure, hang)
        with pytest.raises(LabError, match=r"step 'measure' .at .*test_kinds.py"):
            await lab.start(in_threads, 1)


async def test_what_a_lab_is_not() -> None:
    with pytest.raises(ConfigurationError, match="takes an application"):
        Lab("app")  # type: ignore[arg-type]
    with pytest.raises(ConfigurationError, match="within its block"):
        await Lab(app).settle()
    async with Lab(app) as lab:
        with pytest.raises(ConfigurationError, match=r"lab\.replace takes"):
            lab.replace(3, measure)
        with pytest.raises(ConfigurationError, match="times must be"):
            lab.fail("measure", times=0)


async def test_labs_leave_nothing_behind() -> None:
    async with Lab(app) as lab:
        await lab.start(parent)
        await lab.crash()
    before, tasks, threshold = threading.active_count(), len(asyncio.all_tasks()), gc.get_threshold()
    for _ in range(5):
        async with Lab(app) as lab:
            await lab.start(parent)
            lab.crash()
    assert len(asyncio.all_tasks()) == tasks
    await eventually(lambda: threading.active_count() <= before)  # a thread that was told to end takes a moment
    assert gc.get_threshold() == threshold
    assert not Path("must-not-be-made.db").exists()
