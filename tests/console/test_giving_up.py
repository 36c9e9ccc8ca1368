"""Actions that the database does not carry out in time are given up, and whoever sent them is told what is known."""

from __future__ import annotations

import asyncio
import sqlite3
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import asyncpg
import pytest

from stepfast import Settings, Stepfast, bulk
from stepfast.console import console
from stepfast.monitoring import audit
from stepfast.store.lock_timeout import RowsHeld, brief
from tests.console.conftest import JSON, OWN, TOKEN, browse


def shop(url: str, seconds: float = 0.6) -> Stepfast:
    app = Stepfast(url, settings=Settings(inline_wait=0, act_timeout=seconds))
    app.task(name="noop")(lambda given: None)
    return app


@asynccontextmanager
async def held(url: str, statement: str, *arguments: Any) -> AsyncIterator[None]:
    """Somebody's transaction that has taken a lock, and does not end."""
    other = await asyncpg.connect(url)
    try:
        async with other.transaction():
            await other.execute(statement, *arguments)
            yield
    finally:
        await other.close()


async def outcomes(client: Any) -> list[tuple[str, str]]:
    lines = (await client.get("/audit", headers=JSON)).json()
    return [(line["outcome"], line["said"] or "") for line in lines]


ROW = "SELECT FROM stepfast.runs WHERE id = $1 FOR UPDATE"


async def test_a_run_that_somebody_holds_is_left_alone(postgres_url: str) -> None:
    async with shop(postgres_url, 3) as app, browse(console(app, token=TOKEN)) as client:
        run = await app.start("noop", 1)
        async with held(postgres_url, ROW, run.id):
            for action in ("cancel", "pause"):
                answer = await client.post(f"/runs/{run.id}/{action}", headers=OWN)
                assert answer.status_code == 503
                assert (
                    "nothing was done: another transaction held what this is about for more than 1.5 s" in answer.text
                )
        assert (await run.info()).status == "queued"
        [(outcome, said), _] = await outcomes(client)
        assert outcome == "refused" and said.startswith("nothing was done")
        assert (await client.post(f"/runs/{run.id}/cancel", headers=OWN)).status_code == 303
        assert (await run.info()).status == "cancelled"


async def test_without_a_line_in_the_audit_nothing_is_done(postgres_url: str) -> None:
    async with shop(postgres_url) as app, browse(console(app, token=TOKEN)) as client:
        run = await app.start("noop", 1)
        async with held(postgres_url, "LOCK TABLE stepfast.audit IN ACCESS EXCLUSIVE MODE"):
            answer = await client.post(f"/runs/{run.id}/cancel", headers=OWN | JSON)
        assert answer.status_code == 503
        assert answer.json()["error"].startswith("nothing was done: its line could not be written into the audit")
        assert (await run.info()).status == "queued" and await outcomes(client) == []


async def test_a_file_that_somebody_holds_is_left_alone(sqlite_url: str) -> None:
    async with shop(sqlite_url) as app, browse(console(app, token=TOKEN)) as client:
        run = await app.start("noop", 1)
        other = sqlite3.connect(sqlite_url.removeprefix("sqlite:///"), isolation_level=None)
        other.execute("BEGIN IMMEDIATE")
        answer = await client.post(f"/runs/{run.id}/cancel", headers=OWN)
        other.execute("ROLLBACK")
        other.close()
        assert answer.status_code == 503 and "nothing was done" in answer.text
        assert (await run.info()).status == "queued"


async def test_what_may_have_been_done_is_said_to(monkeypatch: pytest.MonkeyPatch) -> None:
    bounded = audit._bounded
    monkeypatch.setattr(audit, "_bounded", lambda act, _: bounded(act, 0.1))
    async with shop("sqlite://", 10) as app, browse(console(app, token=TOKEN)) as client:

        async def never(name: str) -> None:
            await asyncio.Event().wait()

        setattr(app, "pause_queue", never)  # noqa: B010
        answer = await client.post("/queues/pause", data={"queue": "mail"}, headers=OWN)
        assert answer.status_code == 504 and "it may have been done, now or a little later" in answer.text
        assert await outcomes(client) == [("failed", "given up; it may have been done")]


async def test_a_bulk_job_does_not_wait_for_one_run(postgres_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bulk, "_HELD", 0.2)
    async with shop(postgres_url, 10) as app, browse(console(app, token=TOKEN)) as client:
        runs = [await app.start("noop", n) for n in range(3)]
        async with held(postgres_url, ROW, runs[1].id):
            form = {"workflow": "noop", "status": "queued"}
            begun = (await client.post("/bulk/cancel", data=form, headers=OWN | JSON)).json()
            async with asyncio.timeout(20):
                while not (shape := (await client.get(f"/bulk/jobs/{begun['job']}", headers=JSON)).json())["ended"]:
                    await asyncio.sleep(0.02)
        assert shape["cancelled"] == 2 and shape["error"] is None
        [refused] = shape["refused"]
        assert refused["id"] == runs[1].id and "another transaction holds" in refused["error"]


async def test_only_the_task_that_said_so_is_hurried(postgres_url: str) -> None:
    """One that an action happens to start may work for others, and for long."""
    async with shop(postgres_url) as app:
        run = await app.start("noop", 1)
        async with held(postgres_url, ROW, run.id):
            with brief(0.1):
                cancelling = asyncio.create_task(run.cancel())
                with pytest.raises(RowsHeld):
                    await run.cancel()
            done, _ = await asyncio.wait([cancelling], timeout=0.3)
            assert not done
        await cancelling
        assert (await run.info()).status == "cancelled"
