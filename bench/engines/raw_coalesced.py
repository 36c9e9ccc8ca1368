"""Raw SQL, coalesced: what the database allows when every waiting write of a worker shares one statement."""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import ClassVar

import asyncpg

from bench.engines.base import Kind
from bench.engines.raw_loop import RawLoop
from bench.engines.raw_tables import CLAIM, RawTables

START_BATCH = """
INSERT INTO run (kind, input)
SELECT kind, input FROM unnest($1::text[], $2::text[]) AS new (kind, input)
RETURNING id
"""

STEP_BATCH = """
INSERT INTO step (run_id, position, output)
SELECT new.run_id, new.position, new.output
FROM unnest($2::bigint[], $3::int[], $4::int[], $5::text[]) AS new (run_id, claim, position, output)
JOIN run ON run.id = new.run_id AND run.owner = $1 AND run.claim = new.claim
FOR SHARE OF run
"""

COMPLETE_BATCH = """
UPDATE run SET status = 'completed', owner = NULL, output = new.output
FROM unnest($2::bigint[], $3::int[], $4::text[]) AS new (run_id, claim, output)
WHERE run.id = new.run_id AND run.owner = $1 AND run.claim = new.claim
"""


class RawCoalesced(RawTables):
    """One connection carries every write of the worker, another all starts."""

    pace: ClassVar[dict[Kind, int]] = {"noop": 30000, "steps": 10000}

    def __init__(self, url: str) -> None:
        super().__init__(url)
        self._starts: list[tuple[str, str, asyncio.Future[int]]] = []
        self._starting: asyncio.Task[None] | None = None

    async def start(self, kind: Kind, sent: int) -> object:
        future: asyncio.Future[int] = asyncio.get_running_loop().create_future()
        self._starts.append((kind, str(sent), future))
        if self._starting is None:
            self._starting = asyncio.create_task(self._flush_starts())
        return await future

    async def _flush_starts(self) -> None:
        while self._starts:
            batch, self._starts = self._starts, []
            kinds, inputs, futures = zip(*batch, strict=True)
            async with self.starter.transaction():
                rows = await self.starter.fetch(START_BATCH, kinds, inputs)
                await self.starter.execute("NOTIFY raw")
            for row, future in zip(rows, futures, strict=True):
                self.finished.expect(row[0])
                future.set_result(row[0])
        self._starting = None

    @asynccontextmanager
    async def worker(self, concurrency: int) -> AsyncIterator[None]:
        flush = await asyncpg.connect(self.url)
        listener = await asyncpg.connect(self.url)
        loop = PostgresLoop(flush, self.owner, concurrency, self.finished.tell)
        await listener.add_listener("raw", lambda *_: loop.look())
        task = asyncio.create_task(loop.run())
        try:
            yield
        finally:
            loop.stop()
            await task
            await flush.close()
            await listener.close()


class PostgresLoop(RawLoop):
    """A cycle is up to three statements; handlers go on as soon as their own steps are durable."""

    def __init__(
        self,
        connection: asyncpg.Connection,
        owner: uuid.UUID,
        concurrency: int,
        finished: Callable[[int], None],
    ) -> None:
        super().__init__(concurrency, finished)
        self._connection = connection
        self._owner = owner

    async def cycle(self) -> None:
        steps, waiting = self.take_steps()
        if steps:
            await self._connection.execute(STEP_BATCH, self._owner, *zip(*steps, strict=True))
            self.wrote_steps(waiting)
        if completions := self.take_completions():
            await self._connection.execute(COMPLETE_BATCH, self._owner, *zip(*completions, strict=True))
            self.wrote_completions(completions)
        if wanted := self.wanted():
            self._told = False
            self.claimed(await self._connection.fetch(CLAIM, self._owner, wanted), wanted)
            if self._told:
                super().look()  # it was committed behind what the claim has seen

    def look(self) -> None:
        self._told = True
        super().look()
