"""``app.bulk``: one action on all runs that filters select."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from stepfast import ConfigurationError, Context, Stepfast, UnknownOption, bulk
from tests.engine.conftest import ON_BOTH, ON_SQLITE
from tests.support.engine import drained
from tests.support.workflows import task


@ON_BOTH
async def test_every_action_selects_the_runs_it_applies_to(app: Stepfast) -> None:
    broken = True

    @app.task(max_attempts=1)
    async def flaky(number: int) -> None:
        if broken:
            raise ValueError("down")

    ours = await app.start_many(flaky, [1, 2, 3], attributes={"customer": "c-1"}, tags=["a"])
    other = await app.start(flaky, 4)
    counted = await app.bulk("cancel", workflow=flaky, attributes={"customer": "c-1"}, dry_run=True)
    assert (counted.matched, counted.done, counted.refused) == (3, 0, {})
    paused = await app.bulk("pause", workflow="flaky", tag="a", status="queued", limit=2)
    assert (paused.matched, paused.done) == (2, 2)
    assert (await app.bulk("resume", attributes={"customer": "c-1"})).done == 2
    await app.drain()
    broken = False
    seen = []
    retried = await app.bulk("retry", attributes={"customer": "c-1"}, progress=lambda result: seen.append(result.done))
    assert (retried.done, seen) == (3, [3])
    refused = await app.bulk("cancel", status="failed", workflow=flaky)
    assert refused.done == 0 and list(refused.refused) == [other.id] and "is failed" in refused.refused[other.id]
    await app.drain()
    assert (await app.bulk("delete", status="completed", workflow=flaky)).done == 3
    assert [info.id for info in await app.runs()] == [other.id]
    assert await app.count(attributes={"customer": "c-1"}) == 0
    assert ours


@ON_SQLITE
async def test_a_chain_and_a_family_are_deleted_in_the_order_they_need(app: Stepfast) -> None:
    task(app, "child")

    @app.workflow(max_attempts=1)
    async def chain(ctx: Context, left: int) -> None:
        await ctx.call("child", 1)
        if left:
            await ctx.continue_as(left - 1)
        raise ValueError("the last one fails, so that its child is needed")

    await drained(app, chain, 2)
    kept = await app.bulk("delete", workflow="child", parent=(await app.runs(workflow=chain, status="failed"))[0].id)
    assert (kept.done, len(kept.refused)) == (0, 1)
    gone = await app.bulk("delete", since=3600)
    assert (gone.matched, gone.done, gone.refused, await app.count()) == (6, 6, {}, 0)


@ON_SQLITE
async def test_an_interrupted_action_is_called_again(app: Stepfast, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bulk, "_BATCH", 2)
    await app.start_many(task(app, "job"), list(range(7)))
    reached = asyncio.Event()

    def progress(result: bulk.BulkResult) -> None:
        if result.done >= 4:
            reached.set()
            acting.cancel()

    acting = asyncio.ensure_future(app.bulk("cancel", workflow="job", progress=progress))
    with pytest.raises(asyncio.CancelledError):
        await acting
    done = await app.count(status="cancelled")
    assert reached.is_set() and 4 <= done < 7
    assert (await app.bulk("cancel", workflow="job")).done == 7 - done


@ON_SQLITE
async def test_a_call_that_selects_by_mistake_is_refused(app: Stepfast) -> None:
    await app.start(task(app, "job"), 1)
    wrong: list[tuple[Any, dict[str, Any], type[Exception], str]] = [
        ("cancl", {"workflow": "job"}, ConfigurationError, "no bulk action 'cancl'; did you mean 'cancel'"),
        ("cancel", {}, ConfigurationError, "at least one filter"),
        ("cancel", {"attributes": {}, "workflow": None}, ConfigurationError, "at least one filter"),
        ("cancel", {"worklow": "job"}, UnknownOption, "did you mean 'workflow'"),
        ("cancel", {"status": "lost"}, ConfigurationError, "there is no status 'lost'"),
        ("cancel", {"workflow": "job", "limit": 0}, ConfigurationError, "limit must be at least 1"),
    ]
    for verb, given, error, why in wrong:
        with pytest.raises(error, match=why):
            await app.bulk(verb, **given)
    assert await app.count(status="queued") == 1
    assert (await asyncio.to_thread(lambda: app.sync.bulk("cancel", workflow="job"))).done == 1
