"""The tables and statements of the raw loops: the least a durable engine needs, and nothing else."""

from __future__ import annotations

import uuid
from typing import ClassVar

import asyncpg

from bench.engines.base import Kind, PostgresEngine
from bench.engines.raw_loop import Finished

SCHEMA = """
CREATE TABLE run (
    id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    kind text NOT NULL,
    input text NOT NULL,
    status text NOT NULL DEFAULT 'queued',
    owner uuid,
    claim integer NOT NULL DEFAULT 0,
    output text
);
CREATE INDEX run_queued ON run (id) WHERE status = 'queued';
CREATE TABLE step (
    run_id bigint NOT NULL,
    position integer NOT NULL,
    output text NOT NULL,
    PRIMARY KEY (run_id, position)
);
"""

CLAIM = """
WITH next AS MATERIALIZED (
    SELECT id FROM run WHERE status = 'queued' ORDER BY id LIMIT $2 FOR UPDATE SKIP LOCKED
)
UPDATE run SET status = 'running', owner = $1, claim = claim + 1
FROM next WHERE run.id = next.id
RETURNING run.id, run.claim, run.kind, run.input
"""

START = "INSERT INTO run (kind, input) VALUES ($1, $2) RETURNING id"
START_MANY = "INSERT INTO run (kind, input) SELECT $1, '0' FROM generate_series(1, $2::int)"


class RawTables(PostgresEngine):
    """What both raw loops on Postgres share."""

    busy_sql: ClassVar[str] = """
        SELECT 1 WHERE EXISTS (SELECT FROM run WHERE status = 'queued')
            OR EXISTS (SELECT FROM run WHERE status = 'running')
    """
    seed_sql: ClassVar[str] = """
        WITH made AS (
            INSERT INTO run (kind, input, status, owner, claim, output)
            SELECT 'steps', '0', 'completed', '00000000-0000-0000-0000-000000000000', 1, '5'
            FROM generate_series(1, {finished}) RETURNING id
        )
        INSERT INTO step SELECT id, position, position::text FROM made, generate_series(1, 5) AS position
    """

    def __init__(self, url: str) -> None:
        super().__init__(url)
        self.owner = uuid.uuid4()
        self.finished = Finished()

    async def setup(self) -> None:
        connection = await asyncpg.connect(self.url)
        await connection.execute(SCHEMA)
        await connection.close()

    async def open(self) -> None:
        self.starter = await asyncpg.connect(self.url)

    async def start_many(self, kind: Kind, count: int) -> None:
        await self.starter.execute(START_MANY, kind, count)

    async def finish(self, handle: object) -> None:
        assert isinstance(handle, int)
        await self.finished.expect(handle)

    async def close(self) -> None:
        await self.starter.close()
        await self.close_side()
