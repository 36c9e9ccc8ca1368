"""Procrastinate: a job queue on Postgres, one statement per fetch and per finish."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any, ClassVar

from procrastinate import App, PsycopgConnector

from bench.engines.base import Kind, PostgresEngine
from bench.probe import PROBE

BULK = 1000


class ProcrastinateEngine(PostgresEngine):
    """One asynchronous worker on a pool of connections, woken by notifications."""

    kinds: ClassVar[frozenset[Kind]] = frozenset({"noop"})
    pace: ClassVar[dict[Kind, int]] = {"noop": 300}
    busy_sql: ClassVar[str] = "SELECT 1 FROM procrastinate_jobs WHERE status IN ('todo', 'doing') LIMIT 1"
    seed_sql: ClassVar[str] = """
        ALTER TABLE procrastinate_jobs DISABLE TRIGGER USER;
        WITH made AS (
            INSERT INTO procrastinate_jobs (queue_name, task_name, args, status)
            SELECT 'default', 'noop', '{{"sent": 0}}', 'succeeded' FROM generate_series(1, {finished})
            RETURNING id
        )
        INSERT INTO procrastinate_events (job_id, type, at)
        SELECT id, type, now()
        FROM made, unnest(ARRAY['deferred', 'started', 'succeeded']::procrastinate_job_event_type[]) AS type;
        ALTER TABLE procrastinate_jobs ENABLE TRIGGER USER;
    """

    async def setup(self) -> None:
        await self.open()
        await self._app.schema_manager.apply_schema_async()
        await self.close()

    async def open(self) -> None:
        logging.getLogger("procrastinate").setLevel(logging.WARNING)
        self._app = App(connector=PsycopgConnector(conninfo=self.url, min_size=4, max_size=20))

        @self._app.task(name="noop")
        async def noop(sent: int) -> None:
            PROBE.leave(PROBE.enter(sent))

        self._noop = noop
        await self._app.open_async()

    async def start(self, kind: Kind, sent: int) -> object:
        return await self._noop.defer_async(sent=sent)

    async def start_many(self, kind: Kind, count: int) -> None:
        for begin in range(0, count, BULK):
            jobs: list[dict[str, Any]] = [{"sent": 0}] * min(BULK, count - begin)
            await self._noop.batch_defer_async(*jobs)

    @asynccontextmanager
    async def worker(self, concurrency: int) -> AsyncIterator[None]:
        task = asyncio.create_task(self._app.run_worker_async(concurrency=concurrency, install_signal_handlers=False))
        try:
            yield
        finally:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)

    async def close(self) -> None:
        await self._app.close_async()
        await self.close_side()
