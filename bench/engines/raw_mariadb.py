"""Raw SQL on MariaDB, coalesced: one transaction carries every waiting write, and each commit reaches the disk."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any, ClassVar

import asyncmy

from bench.engines.base import Engine, Kind
from bench.engines.raw_loop import Claimed, Completion, Finished, RawLoop, Step
from stepfast.model.urls import mysql_parts

SCHEMA = (
    """
CREATE TABLE run (
    id bigint AUTO_INCREMENT PRIMARY KEY, kind varchar(20) NOT NULL, input text NOT NULL,
    status varchar(20) NOT NULL DEFAULT 'queued', owner varchar(20), claim integer NOT NULL DEFAULT 0, output text,
    KEY (status, id))
""",
    """
CREATE TABLE step (run_id bigint NOT NULL, position integer NOT NULL, output text NOT NULL,
    PRIMARY KEY (run_id, position))
""",
)
ROWS = "JSON_TABLE(%s, '$[*]' COLUMNS (run bigint PATH '$[0]', claim integer PATH '$[1]', {})) AS new"
STEP = (
    "INSERT INTO step (run_id, position, output) SELECT new.run, new.position, new.output FROM "
    + ROWS.format("position integer PATH '$[2]', output longtext PATH '$[3]'")
    + " STRAIGHT_JOIN run r FORCE INDEX (PRIMARY) ON r.id = new.run AND r.owner = 'raw' AND r.claim = new.claim"
)
FENCE = (
    "SELECT r.id FROM "
    + ROWS.format("position integer PATH '$[2]'")
    + " STRAIGHT_JOIN run r FORCE INDEX (PRIMARY) ON r.id = new.run AND r.owner = 'raw' AND r.claim = new.claim "
    "FOR UPDATE"
)
COMPLETE = (
    "UPDATE "
    + ROWS.format("output longtext PATH '$[2]'")
    + " STRAIGHT_JOIN run r FORCE INDEX (PRIMARY) ON r.id = new.run AND r.owner = 'raw' AND r.claim = new.claim "
    "SET r.status = 'completed', r.owner = NULL, r.output = new.output"
)
PICK = "SELECT id, claim + 1, kind, input FROM run WHERE status = 'queued' ORDER BY id LIMIT %s FOR UPDATE SKIP LOCKED"
TAKE = (
    "UPDATE JSON_TABLE(%s, '$[*]' COLUMNS (run bigint PATH '$')) AS new STRAIGHT_JOIN run r FORCE INDEX (PRIMARY) "
    "ON r.id = new.run SET r.status = 'running', r.owner = 'raw', r.claim = r.claim + 1"
)
START = "INSERT INTO run (kind, input) VALUES (%s, %s)"


async def connect(url: str) -> Any:
    """A connection as Stepfast has them: statements are prepared, and transactions are begun by name."""
    parts = mysql_parts(url)
    return await asyncmy.connect(
        host=parts.host, port=parts.port, user=parts.user, db=parts.database, charset="utf8mb4", autocommit=True,
        stmt_cache_size=64, init_command="SET SESSION tx_isolation = 'READ-COMMITTED'",
    )  # fmt: skip


async def run(connection: Any, sql: str, given: Any = None) -> Any:
    """A statement: its cursor."""
    cursor = connection.cursor()
    await cursor.execute(sql, given)
    return cursor


class RawMariadb(Engine):
    """One connection carries every write of the worker, another the starts."""

    pace: ClassVar[dict[Kind, int]] = {"noop": 20000, "steps": 6000}

    def __init__(self, url: str) -> None:
        super().__init__(url)
        self._finished = Finished()
        self._loop: MariadbLoop | None = None
        self._starting = asyncio.Lock()

    async def setup(self) -> None:
        await self.open()
        for statement in SCHEMA:
            await run(self.connection, statement)
        await self.close()

    async def open(self) -> None:
        self.connection = await connect(self.url)

    async def start(self, kind: Kind, sent: int) -> object:
        async with self._starting:
            run_id = int((await run(self.connection, START, (kind, str(sent)))).lastrowid)
        self._finished.expect(run_id)
        if self._loop:
            self._loop.look()
        return run_id

    async def finish(self, handle: object) -> None:
        assert isinstance(handle, int)
        await self._finished.expect(handle)

    async def start_many(self, kind: Kind, count: int) -> None:
        await run(self.connection, f"INSERT INTO run (kind, input) SELECT '{kind}', '0' FROM seq_1_to_{count:d}")

    @asynccontextmanager
    async def worker(self, concurrency: int) -> AsyncIterator[None]:
        connection = await connect(self.url)
        self._loop = MariadbLoop(connection, concurrency, self._finished.tell)
        task = asyncio.create_task(self._loop.run())
        try:
            yield
        finally:
            self._loop.stop()
            await task
            connection.close()

    async def busy(self) -> bool:
        async with self._starting:
            cursor = await run(self.connection, "SELECT 1 FROM run WHERE status IN ('queued', 'running') LIMIT 1")
            return bool(await cursor.fetchall())

    async def close(self) -> None:
        self.connection.close()


class MariadbLoop(RawLoop):
    """A cycle is one transaction."""

    def __init__(self, connection: Any, concurrency: int, finished: Callable[[int], None]) -> None:
        super().__init__(concurrency, finished)
        self._connection = connection

    async def cycle(self) -> None:
        steps, waiting = self.take_steps()
        completions = self.take_completions()
        wanted = self.wanted() + (len(completions) if not self._closing else 0)
        if not (steps or completions or wanted):
            return
        rows = await self._transaction(steps, completions, wanted)
        self.wrote_steps(waiting)
        self.wrote_completions(completions)
        if wanted:
            self.claimed(rows, wanted)

    async def _transaction(self, steps: list[Step], completions: list[Completion], wanted: int) -> list[Claimed]:
        db = self._connection
        await db.begin()
        if steps:
            await run(db, FENCE, (json.dumps(steps),))
            await run(db, STEP, (json.dumps(steps),))
        if completions:
            await run(db, COMPLETE, (json.dumps(completions),))
        rows = list(await (await run(db, PICK, (wanted,))).fetchall()) if wanted else []
        if rows:
            await run(db, TAKE, (json.dumps([row[0] for row in rows]),))
        await db.commit()
        return rows
