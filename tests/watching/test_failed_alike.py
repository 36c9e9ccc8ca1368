"""Runs that failed alike, as the groups of failures tell of them: those that can be retried, and no others."""

from __future__ import annotations

import json

from stepfast import Context, step
from stepfast.monitoring.changes import glance_of
from stepfast.store.answers import Alike
from tests.watching.conftest import MakeApp

HOUR = 3_600_000


async def test_runs_that_failed_alike_are_found_and_those_that_were_undone_are_not(make_app: MakeApp) -> None:
    app = make_app()

    @step(compensate=lambda output, given: None)
    def pack(given: str) -> str:
        return given

    @app.workflow(max_attempts=1)
    async def order(ctx: Context, given: str) -> None:
        if given == "packed":
            await ctx.step(pack, given)
        await ctx.step("weigh", json.loads, given)

    @app.task(max_attempts=1)
    async def plain(given: str) -> None:
        raise ValueError(given)

    async with app:
        left = [await app.start(order, "left") for _ in range(2)]
        undone, other = await app.start(order, "packed"), await app.start(plain, "x")
        await app.drain()
        glance = await glance_of(app)
        groups = [Alike(*row[:4]) for row in await glance.failures(HOUR, 100)]
        assert sorted(groups) == [
            Alike("order", "code", "weigh", "json.decoder.JSONDecodeError"), Alike("plain", "code", None, "ValueError"),
        ]  # fmt: skip
        assert await glance.failed_alike(groups[groups.index(max(groups))], HOUR, 100) == [other.id]
        found = await glance.failed_alike(min(groups), HOUR, 100)
        assert found == sorted(run.id for run in left) and undone.id not in found
        assert await glance.failed_alike(Alike("order", "code", None, "json.decoder.JSONDecodeError"), HOUR, 100) == []
