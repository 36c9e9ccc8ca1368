"""PgQueuer: a job queue on Postgres that keeps no results and has no steps."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import ClassVar

import asyncpg
from pgqueuer import AsyncpgPoolDriver, Job, PgQueuer, Queries

from bench.engines.base import Kind, PostgresEngine
from bench.probe import PROBE

BULK = 5000


class PgQueuerEngine(PostgresEngine):
    """One manager on an asyncpg pool; the batch is as large as the number of jobs in flight."""

    kinds: ClassVar[frozenset[Kind]] = frozenset({"noop"})
    pace: ClassVar[dict[Kind, int]] = {"noop": 10000}
    busy_sql: ClassVar[str] = "SELECT 1 FROM pgqueuer LIMIT 1"
    seed_sql: ClassVar[str] = """
        INSERT INTO pgqueuer_log (job_id, status, priority, entrypoint)
        SELECT n, status, 0, 'noop'
        FROM generate_series(1, {finished}) AS n,
             unnest(ARRAY['queued', 'picked', 'successful']::pgqueuer_status[]) AS status
    """

    async def setup(self) -> None:
        await self.open()
        await self._queries.install()
        await self.close()

    async def open(self) -> None:
        self._pool = await asyncpg.create_pool(self.url, min_size=4, max_size=20)
        self._queries = Queries(AsyncpgPoolDriver(self._pool))

    async def start(self, kind: Kind, sent: int) -> object:
        return await self._queries.enqueue("noop", str(sent).encode())

    async def start_many(self, kind: Kind, count: int) -> None:
        for begin in range(0, count, BULK):
            size = min(BULK, count - begin)
            await self._queries.enqueue(["noop"] * size, [b"0"] * size, [0] * size)

    @asynccontextmanager
    async def worker(self, concurrency: int) -> AsyncIterator[None]:
        pool = await asyncpg.create_pool(self.url, min_size=4, max_size=20)
        manager = PgQueuer(AsyncpgPoolDriver(pool))

        @manager.entrypoint("noop")
        async def noop(job: Job) -> None:
            PROBE.leave(PROBE.enter(int(job.payload or b"0")))

        task = asyncio.create_task(manager.run(batch_size=concurrency))
        try:
            yield
        finally:
            manager.shutdown.set()
            await task
            await pool.close()

    async def close(self) -> None:
        await self._pool.close()
        await self.close_side()
