"""Behind PgBouncer in transaction mode everything works by polling.

Needs pgbouncer on the machine; without one these tests are left out, except in CI.
"""

from __future__ import annotations

import asyncio

import asyncpg

from stepfast import Backoff, Context, Stepfast
from stepfast.settings import Settings
from tests.support.engine import PATIENCE, Calls, eventually

SETTINGS = Settings(lease=3, sweep_interval=0.2, poll_interval=0.2)


def make_app(url: str, calls: Calls) -> Stepfast:
    app = Stepfast(url, settings=SETTINGS)

    @app.workflow(name="work", backoff=Backoff(base=0.05))
    async def work(ctx: Context, number: int) -> int:
        async def double(value: int) -> int:
            if calls.hit(f"{number} {value}") == 1 and number % 10 == 0 and value == number:
                raise ValueError("once")
            return value * 2

        value = number
        for _ in range(3):
            value = await ctx.step(double, value)
        return value

    return app


async def test_everything_works_behind_a_pooler(pooled_url: str) -> None:
    """Two workers, a trigger, retries, delays, results; and no prepared statement is left behind."""
    calls = Calls()
    trigger, first, second = (make_app(pooled_url, calls) for _ in range(3))
    async with trigger, first, second, first.worker(concurrency=20), second.worker(concurrency=20):
        store = await first.store()
        runs = await trigger.start_many(trigger.workflows["work"], list(range(100)))
        single = [await trigger.start(trigger.workflows["work"], n, key=f"k{n}") for n in (101, 102, 101)]
        delayed = await trigger.start(trigger.workflows["work"], 103, delay=0.3)
        results = await asyncio.wait_for(asyncio.gather(*(run.result() for run in runs)), PATIENCE)
        assert results == [n * 8 for n in range(100)]
        assert [await run.result(timeout=PATIENCE) for run in (*single, delayed)] == [808, 816, 808, 824]
        by_sql = await asyncpg.connect(pooled_url, statement_cache_size=0)
        run_id = await by_sql.fetchval("SELECT stepfast.start('work', '1')")
        await by_sql.close()
        assert await trigger.get(str(run_id)).result(timeout=PATIENCE) == 8
        assert single[0].id == single[2].id
        assert not store.can_wake
        assert "does not deliver" in {check.name: check.found for check in await store.doctor()}["wake_ups"]


async def test_leases_hold_and_the_lost_is_found_behind_a_pooler(pooled_url: str, postgres_url: str) -> None:
    """Heartbeats and reaping need no session."""
    calls = Calls()
    app = make_app(pooled_url, calls)
    async with app:
        run = await app.start(app.workflows["work"], 7)
        connection = await asyncpg.connect(postgres_url)
        await connection.execute(
            "UPDATE stepfast.runs SET status = 'running', place = NULL, claim = 1, attempt = 1, "
            "worker = '00000000-0000-7000-8000-000000000001'"
        )
        async with app.worker():
            assert await run.result(timeout=PATIENCE) == 56
            await eventually(lambda: _beats(connection))
        assert await connection.fetchval("SELECT losses + claim FROM stepfast.runs") >= 2
        left = await connection.fetchval("SELECT count(*) FROM stepfast.workers")
        await connection.close()
    assert left == 0


async def _beats(connection: asyncpg.Connection) -> bool:
    return bool(await connection.fetchval("SELECT count(*) FROM stepfast.workers WHERE beat_at > started_at"))
