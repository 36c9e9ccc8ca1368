"""Raw SQL, one statement per step: a hand-written durable loop without coalescing, on 40 connections."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import ClassVar

import asyncpg

from bench.engines.base import Kind
from bench.engines.raw_tables import CLAIM, START, RawTables
from bench.probe import PROBE, STEPS, work

CONNECTIONS = 40

STEP = """
INSERT INTO step (run_id, position, output)
SELECT id, $4, $5 FROM run WHERE id = $1 AND owner = $2 AND claim = $3 FOR SHARE
"""
COMPLETE = """
UPDATE run SET status = 'completed', owner = NULL, output = $4 WHERE id = $1 AND owner = $2 AND claim = $3
"""


class RawSingle(RawTables):
    """As many loops as connections; each claims one run, writes its steps one by one, and completes it."""

    pace: ClassVar[dict[Kind, int]] = {"noop": 4000, "steps": 1000}

    async def open(self) -> None:
        await super().open()
        self._pool = await asyncpg.create_pool(self.url, min_size=1, max_size=CONNECTIONS)

    async def start(self, kind: Kind, sent: int) -> object:
        async with self._pool.acquire() as connection, connection.transaction():
            run_id = await connection.fetchval(START, kind, str(sent))
            await connection.execute("NOTIFY raw")
        return run_id

    async def close(self) -> None:
        await self._pool.close()
        await super().close()

    @asynccontextmanager
    async def worker(self, concurrency: int) -> AsyncIterator[None]:
        listener = await asyncpg.connect(self.url)
        connections = [await asyncpg.connect(self.url) for _ in range(min(concurrency, CONNECTIONS))]
        wake = asyncio.Semaphore(0)  # one notice wakes one loop
        await listener.add_listener("raw", lambda *_: wake.release())
        loops = [asyncio.create_task(self._loop(connection, wake)) for connection in connections]
        try:
            yield
        finally:
            for task in loops:
                task.cancel()
            await asyncio.gather(*loops, return_exceptions=True)
            for connection in (listener, *connections):
                await connection.close()

    async def _loop(self, connection: asyncpg.Connection, wake: asyncio.Semaphore) -> None:
        while True:
            row = await connection.fetchrow(CLAIM, self.owner, 1)
            if row is not None:
                await self._handle(connection, *row)
                continue
            try:
                await asyncio.wait_for(wake.acquire(), 1.0)
            except TimeoutError:
                pass

    async def _handle(self, connection: asyncpg.Connection, run_id: int, claim: int, kind: str, sent: str) -> None:
        entered = PROBE.enter(json.loads(sent))
        value = 0
        for position in range(STEPS if kind == "steps" else 0):
            value = await work(position)
            await connection.execute(STEP, run_id, self.owner, claim, position, json.dumps(value))
        PROBE.leave(entered)
        await connection.execute(COMPLETE, run_id, self.owner, claim, json.dumps(value))
        self.finished.tell(run_id)
