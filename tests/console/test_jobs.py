"""Bulk jobs that are interrupted, sent twice, or overtaken by new runs."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest

from stepfast import Stepfast, bulk
from stepfast.console import console
from stepfast.console.app import Console
from stepfast.model.bulk_actions import CANCEL
from stepfast.store import queries
from tests.console.conftest import JSON, OWN, browse, shop


class Halfway:
    """Holds a job after its first batch of two."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.come = asyncio.Event()
        self.go_on = asyncio.Event()
        whole = bulk.Bulk._batch

        async def batch(bulk: bulk.Bulk, ids: Any) -> None:
            await whole(bulk, ids)
            self.come.set()
            await self.go_on.wait()

        monkeypatch.setattr(bulk, "_BATCH", 2)
        monkeypatch.setattr(bulk, "_PATIENCE", 0.01)
        monkeypatch.setattr(bulk.Bulk, "_batch", batch)


@pytest.fixture
async def halfway(monkeypatch: pytest.MonkeyPatch) -> Halfway:
    return Halfway(monkeypatch)


@pytest.fixture
async def app(sqlite_url: str) -> AsyncIterator[Stepfast]:
    async with shop(sqlite_url) as app:
        await app.start_many("order", ["tea"] * 5)
        yield app


@pytest.fixture
def served(app: Stepfast) -> Console:
    return console(app, auth=lambda request: ("ada", "operate"))


async def asked(served: Console, **form: str) -> str:
    """Send a bulk cancel; the id of its job."""
    async with browse(served, token=None) as client:
        answer = await client.post("/bulk/cancel", data=form or {"workflow": "order"}, headers=OWN | JSON)
        assert answer.status_code == 200, answer.text
        return str(answer.json()["job"])


async def lines(app: Stepfast) -> list[tuple[str, str | None]]:
    return [(line.outcome, line.said) for line in await (await app.store()).audit()]


async def left(app: Stepfast) -> int:
    return len(await app.runs(workflow="order", status="queued"))


INTERRUPTED = ("interrupted", "2 runs cancelled; then the console was stopped. Ask again for the rest")


async def test_a_job_of_a_mounted_console_ends_with_its_application(
    app: Stepfast, served: Console, halfway: Halfway
) -> None:
    await asked(served)
    await halfway.come.wait()
    await app.close()
    assert await lines(app) == [INTERRUPTED]
    assert await left(app) == 3
    async with browse(served, token=None) as client:
        page = (await client.get("/audit")).text
        assert 'href="/bulk/cancel?workflow=order">Ask again</a>' in page
    halfway.go_on.set()
    job = served._state.jobs.get(await asked(served))
    assert job._task is not None
    await job._task
    assert (await lines(app))[0] == ("done", "3 runs cancelled")


async def test_the_rest_of_a_group_of_failures_is_asked_for_by_a_link_to_that_group(
    app: Stepfast, served: Console, halfway: Halfway
) -> None:
    await app.start_many("breaks", ["milk"] * 3)
    await app.drain(queues=["breaks"])
    async with browse(served, token=None) as client:
        group = {"workflow": "breaks", "reason": "code", "error": "ValueError", "since": "2h"}
        assert (await client.post("/failures/retry", data=group, headers=OWN)).status_code == 303
        await halfway.come.wait()
        await app.close()
        page = (await client.get("/audit")).text
        assert "2 runs retried; then the console was stopped" in page
        link = "/failures/retry?workflow=breaks&amp;reason=code&amp;error=ValueError&amp;since=2h"
        assert f'href="{link}">Ask again</a>' in page


async def test_a_job_of_a_server_that_stops_says_how_far_it_came(
    app: Stepfast, served: Console, halfway: Halfway
) -> None:
    await asked(served)
    await halfway.come.wait()
    told = iter([{"type": "lifespan.startup"}, {"type": "lifespan.shutdown"}])

    async def receive() -> Any:
        return next(told)

    async def send(_: Any) -> None: ...

    await served({"type": "lifespan"}, receive, send)
    assert await lines(app) == [INTERRUPTED]


async def test_what_the_batch_in_hand_did_is_counted(
    app: Stepfast, served: Console, monkeypatch: pytest.MonkeyPatch
) -> None:
    committed = asyncio.Event()
    store = await app.store()
    whole = store.apply_bulk

    async def apply_bulk(*arguments: Any) -> Any:
        outcome = await whole(*arguments)
        committed.set()
        await asyncio.sleep(0.01)  # the answer takes its time
        return outcome

    monkeypatch.setattr(store, "apply_bulk", apply_bulk)
    monkeypatch.setattr(bulk, "_BATCH", 2)
    await asked(served)
    await committed.wait()
    await app.close()
    assert await lines(app) == [INTERRUPTED]
    assert await left(app) == 3


async def test_the_line_of_a_job_whose_process_was_killed_does_not_stay_begun(
    app: Stepfast, served: Console, halfway: Halfway, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("stepfast.console.bulk_jobs._REPORT_INTERVAL", 0.01)
    await asked(served)
    await halfway.come.wait()
    async with asyncio.timeout(20):
        while (await lines(app)) != [("begun", "2 runs cancelled so far")]:
            await asyncio.sleep(0.01)
    monkeypatch.setattr(queries, "_SILENT", -1)  # as if nothing had been heard for a minute
    assert await lines(app) == [("unknown", "2 runs cancelled so far; then nothing was heard of it any more")]
    [line] = await (await app.store()).audit()
    assert line.detail is None
    halfway.go_on.set()


async def test_a_job_ends_though_runs_that_fit_are_started_faster(
    app: Stepfast, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = bulk.Bulk._batch

    async def batch(bulk: bulk.Bulk, ids: Any) -> None:
        await whole(bulk, ids)
        await app.start_many("order", ["more tea"] * len(ids))

    monkeypatch.setattr(bulk.Bulk, "_batch", batch)
    monkeypatch.setattr(bulk, "_SLACK", 0)
    job = bulk.Bulk(app, CANCEL)
    async with asyncio.timeout(10):
        await job.run(
            [{"workflow": "order", "status": "queued"}, {"workflow": "order", "status": "paused"}], None, print
        )
    assert len(await app.runs(workflow="order", status="cancelled", limit=1000)) >= 5
    assert await left(app) > 0


async def test_a_second_click_joins_the_job_that_is_under_way(app: Stepfast, served: Console, halfway: Halfway) -> None:
    first, second = await asyncio.gather(asked(served), asked(served))
    other = await asked(served, tag="another")
    assert first == second != other
    halfway.go_on.set()
    job = served._state.jobs.get(first)
    assert job._task is not None
    await job._task
    outcomes = await lines(app)
    assert ("done", "5 runs cancelled") in outcomes
    assert ("done", "the same was under way already") in outcomes
