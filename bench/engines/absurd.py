"""Absurd: durable tasks in stored procedures; its schema comes with `absurdctl`."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from functools import partial
from typing import Any, ClassVar

import asyncpg
from absurd_sdk import AsyncAbsurd, AsyncTaskContext
from absurdctl import BUNDLED_SCHEMA_SQL

from bench.engines.base import Kind, PostgresEngine
from bench.probe import PROBE, STEPS, work

QUEUE = "bench"
CLIENTS = 8
MOST = 96
POLL = 0.02


class AbsurdEngine(PostgresEngine):
    """A client has one connection, so a busy process runs several of them beside each other.

    A client claims again only when its whole batch is done: more than a hundred runs at once make it slower.
    """

    pace: ClassVar[dict[Kind, int]] = {"noop": 1500, "steps": 250}
    busy_sql: ClassVar[str] = "SELECT 1 FROM absurd.r_bench WHERE state IN ('pending', 'running', 'sleeping') LIMIT 1"
    seed_sql: ClassVar[str] = """
        CREATE TEMP TABLE made AS
            SELECT absurd.portable_uuidv7() AS task_id, absurd.portable_uuidv7() AS run_id
            FROM generate_series(1, {finished});
        INSERT INTO absurd.t_bench (task_id, task_name, params, state, attempts, last_attempt_run,
            first_started_at, completed_payload)
            SELECT task_id, 'steps', '0', 'completed', 1, run_id, now(), '5' FROM made;
        INSERT INTO absurd.r_bench (run_id, task_id, attempt, state, claimed_by, available_at, started_at,
            completed_at, result)
            SELECT run_id, task_id, 1, 'completed', 'seed', now(), now(), now(), '5' FROM made;
        INSERT INTO absurd.c_bench (task_id, checkpoint_name, state, owner_run_id)
            SELECT task_id, 'step-' || n, to_jsonb(n), run_id FROM made, generate_series(1, 5) AS n;
        DROP TABLE made;
    """

    async def setup(self) -> None:
        connection = await asyncpg.connect(self.url)
        await connection.execute(BUNDLED_SCHEMA_SQL)
        await connection.close()
        client = AsyncAbsurd(self.url, queue_name=QUEUE)
        await client.create_queue(QUEUE)
        await client.close()

    async def open(self) -> None:
        self._clients = [self._client() for _ in range(CLIENTS)]
        self._next = 0

    def _client(self) -> AsyncAbsurd:
        client = AsyncAbsurd(self.url, queue_name=QUEUE)

        @client.register_task("noop")
        async def noop(sent: Any, ctx: AsyncTaskContext) -> None:
            PROBE.leave(PROBE.enter(sent))

        @client.register_task("steps")
        async def steps(sent: Any, ctx: AsyncTaskContext) -> int:
            entered = PROBE.enter(sent)
            value = 0
            for i in range(STEPS):
                value = await ctx.step(f"step-{i}", partial(work, i))
            PROBE.leave(entered)
            return value

        return client

    async def start(self, kind: Kind, sent: int) -> object:
        self._next = (self._next + 1) % CLIENTS
        return (await self._clients[self._next].spawn(kind, sent))["task_id"]

    async def start_many(self, kind: Kind, count: int) -> None:
        connection = await self.side()
        await connection.execute(
            "SELECT count(*) FROM generate_series(1, $3::int) AS n,"
            " LATERAL absurd.spawn_task($1, $2, to_jsonb(n * 0), '{}'::jsonb)",
            QUEUE,
            kind,
            count,
        )

    async def finish(self, handle: object) -> None:
        client = self._clients[0]
        await client.await_task_result(str(handle))

    @asynccontextmanager
    async def worker(self, concurrency: int) -> AsyncIterator[None]:
        clients = [self._client() for _ in range(min(CLIENTS, concurrency))]
        share = max(1, min(concurrency, MOST) // len(clients))
        async with AsyncExitStack() as stack:
            for client in clients:
                stack.push_async_callback(client.close)
            workers = [
                asyncio.create_task(client.start_worker(worker_id=f"w{i}", concurrency=share, poll_interval=POLL))
                for i, client in enumerate(clients)
            ]
            try:
                yield
            finally:
                for client in clients:
                    client.stop_worker()
                await asyncio.gather(*workers)

    async def close(self) -> None:
        for client in self._clients:
            await client.close()
        await self.close_side()
