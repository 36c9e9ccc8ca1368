"""DBOS on Postgres: durable workflows whose steps are checkpointed one transaction at a time.

Of its two ways to write a workflow, plain functions were the quicker one; 8 connections were the best number.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager
from time import perf_counter_ns, sleep
from typing import Any, ClassVar

from dbos import DBOS, DBOSClient, DBOSConfig

from bench.engines.base import Kind, PostgresEngine
from bench.probe import ITEMS, PAUSE, PROBE, STEPS, TRICKLE

QUEUE = "bench"
POOL = 8


@DBOS.step()
def one(i: int) -> int:
    """A step that does nothing."""
    return i + 1


@DBOS.workflow(name="noop")
def noop(sent: int) -> None:
    """A workflow without steps."""
    PROBE.leave(PROBE.enter(sent))


@DBOS.workflow(name="steps")
def steps(sent: int) -> int:
    """A workflow of five steps."""
    entered = PROBE.enter(sent)
    value = 0
    for i in range(STEPS):
        value = one(i)
    PROBE.leave(entered)
    return value


@DBOS.step()
def stream_out() -> None:
    """Send many items as fast as they can be sent."""
    for number in range(ITEMS):
        DBOS.write_stream("items", number)


@DBOS.step()
def trickle_out() -> None:
    """Send an item now and then: the time at which it was sent."""
    for _ in range(TRICKLE):
        sleep(PAUSE)
        DBOS.write_stream("items", perf_counter_ns())


@DBOS.workflow(name="stream")
def stream(sent: int) -> None:
    """A workflow that sends many items."""
    entered = PROBE.enter(sent)
    stream_out()
    PROBE.leave(entered)


@DBOS.workflow(name="trickle")
def trickle(sent: int) -> None:
    """A workflow that sends an item now and then."""
    trickle_out()
    DBOS.close_stream("items")


class DbosEngine(PostgresEngine):
    """Runs are enqueued by a client and dequeued by a process that polls every 10 ms."""

    kinds: ClassVar[frozenset[Kind]] = frozenset({"noop", "steps", "stream", "trickle"})
    pace: ClassVar[dict[Kind, int]] = {"noop": 300, "steps": 40, "stream": 1}
    busy_sql: ClassVar[str] = "SELECT 1 FROM dbos.workflow_status WHERE status IN ('ENQUEUED', 'PENDING') LIMIT 1"
    seed_sql: ClassVar[str] = """
        CREATE TEMP TABLE made AS
            SELECT gen_random_uuid()::text AS workflow_uuid FROM generate_series(1, {finished});
        INSERT INTO dbos.workflow_status
            SELECT copy.* FROM (SELECT * FROM dbos.workflow_status LIMIT 1) AS one, made,
                LATERAL jsonb_populate_record(one::dbos.workflow_status, to_jsonb(made)) AS copy;
        INSERT INTO dbos.operation_outputs
            SELECT copy.* FROM (SELECT * FROM dbos.operation_outputs LIMIT 5) AS one, made,
                LATERAL jsonb_populate_record(one::dbos.operation_outputs, to_jsonb(made)) AS copy;
        DROP TABLE made;
    """

    def __init__(self, url: str) -> None:
        super().__init__(url)
        # DBOS replaces the event loop's own threads with some that end when it does: keep threads apart.
        self._threads = ThreadPoolExecutor(POOL)

    async def _call(self, function: Any, *args: Any) -> Any:
        return await asyncio.get_running_loop().run_in_executor(self._threads, function, *args)

    async def setup(self) -> None:
        await self._call(DBOS.migrate, self.url)
        await self.open()
        await self._call(lambda: self._client.register_queue(QUEUE, polling_interval_sec=0.01))
        await self.close()

    async def open(self) -> None:
        self._client = DBOSClient(system_database_url=self.url, system_database_pool_size=POOL)

    async def start(self, kind: Kind, sent: int) -> object:
        return await self._call(lambda: self._client.enqueue({"workflow_name": kind, "queue_name": QUEUE}, sent))

    async def start_many(self, kind: Kind, count: int) -> None:
        await asyncio.gather(*(self.start(kind, 0) for _ in range(count)))

    async def finish(self, handle: Any) -> None:
        await self._call(lambda: handle.get_result(polling_interval_sec=0.01))

    async def follow(self, handle: Any) -> AsyncIterator[int]:
        items = self._client.read_stream(handle.workflow_id, "items", polling_interval_sec=0.01)
        while (item := await self._call(next, items, None)) is not None:
            yield item

    @asynccontextmanager
    async def worker(self, concurrency: int) -> AsyncIterator[None]:
        queue = await self._call(self._client.retrieve_queue, QUEUE)
        await self._call(queue.set_worker_concurrency, concurrency)
        await self._call(self._launch)
        try:
            yield
        finally:
            await self._call(DBOS.destroy)

    def _launch(self) -> None:
        config: DBOSConfig = {
            "name": "bench",
            "system_database_url": self.url,
            "sys_db_pool_size": POOL,
            "log_level": "ERROR",
        }
        DBOS(config=config)
        DBOS.launch()

    async def close(self) -> None:
        self._client.destroy()
        await self.close_side()
