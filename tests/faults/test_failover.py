"""A failover to a standby that lagged behind: commits that were acknowledged are gone.

The standby is sent nothing for a while before the primary is killed. The worker lives on, and finds the standby,
promoted, by its URL with both hosts.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from typing import Any

import asyncpg
import pytest

from stepfast import Context, RunNotFound, Stepfast
from stepfast.settings import Settings
from tests.support.engine import eventually
from tests.support.standby import Pair

pytestmark = [pytest.mark.slow, pytest.mark.timeout(240)]

RUNS, STEPS, LATE = 60, 12, 5
LONG = 90.0


def make_app(url: str, calls: Counter[str]) -> Stepfast:
    app = Stepfast(
        url, settings=Settings(lease=20, poll_interval=0.2, sweep_interval=0.5, outage_backoff_max=0.3, inline_wait=5)
    )

    async def book(connection: Any, run: str, number: int) -> int:
        await connection.execute("INSERT INTO bookings VALUES ($1, $2)", run, number)
        return number

    @app.workflow
    async def order(ctx: Context) -> list[int]:
        async def act(number: int) -> int:
            calls[f"{ctx.run_id} {number}"] += 1
            await asyncio.sleep(0.1)
            return number

        done = []
        for number in range(STEPS):
            call = ctx.transaction(book, ctx.run_id, number) if number % 4 == 3 else ctx.step(act, number)
            done.append(await call)
        return done

    return app


@pytest.mark.parametrize("lag", [0.0, 0.6])
async def test_no_history_has_holes_after_a_failover(lag: float) -> None:
    calls: Counter[str] = Counter()
    with Pair(synchronous=False) as pair:
        url = pair.create_database("app")
        pair.primary.execute("CREATE TABLE bookings (run text, number integer)", "app")
        app = make_app(url, calls)
        async with app:
            runs = await app.start_many(app.workflows["order"], [None] * RUNS)
            await eventually(lambda: pair.caught_up)
            async with app.worker():
                await eventually(lambda: len(calls) > RUNS * 2, LONG)
                late = await _fail_over(pair, app, lag)
                results = await asyncio.wait_for(asyncio.gather(*(run.result() for run in runs)), LONG)
                gone = await asyncio.gather(
                    *(asyncio.wait_for(run.result(), LONG) for run in late), return_exceptions=True
                )
        assert results == [list(range(STEPS))] * RUNS
        assert {type(error) for error in gone} <= {RunNotFound}, "a start that vanished is said to be unknown"
        await _audit(url)
    again = sum(count - 1 for count in calls.values())
    print(f"lag {lag:g} s: {again} of {RUNS * STEPS} steps called again, {len(gone)} starts vanished")


async def _fail_over(pair: Pair, app: Stepfast, lag: float) -> list[Any]:
    """What was started when nobody else could know of it any more."""
    late: list[Any] = []
    if lag:
        pair.fall_behind()
        late = await app.start_many(app.workflows["order"], [None] * LATE)
        await asyncio.sleep(lag)  # what is committed meanwhile is lost
    await asyncio.to_thread(pair.fail_over)
    return late


async def _audit(url: str) -> None:
    connection = await asyncpg.connect(url)
    try:
        rows = await connection.fetch(
            "SELECT count(*), min(position), max(position) FROM stepfast.steps GROUP BY run_id"
        )
        assert {tuple(row) for row in rows} == {(STEPS, 0, STEPS - 1)}
        assert len(rows) == RUNS
        booked = await connection.fetch("SELECT run, number, count(*) FROM bookings GROUP BY run, number")
        assert {row["count"] for row in booked} == {1}
        assert len(booked) == RUNS * STEPS // 4
    finally:
        await connection.close()
