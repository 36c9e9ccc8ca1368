"""Raw SQLite, coalesced: one transaction carries every waiting write, and each commit reaches the disk."""

from __future__ import annotations

import asyncio
import sqlite3
from collections.abc import AsyncIterator, Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager
from typing import Any, ClassVar

from bench.engines.base import Engine, Kind
from bench.engines.raw_loop import Claimed, Completion, Finished, RawLoop, Step

SCHEMA = """
CREATE TABLE run (
    id INTEGER PRIMARY KEY,
    kind TEXT NOT NULL,
    input TEXT NOT NULL,
    status TEXT NOT NULL DEFAULT 'queued',
    owner TEXT,
    claim INTEGER NOT NULL DEFAULT 0,
    output TEXT
);
CREATE INDEX run_queued ON run (id) WHERE status = 'queued';
CREATE TABLE step (
    run_id INTEGER NOT NULL,
    position INTEGER NOT NULL,
    output TEXT NOT NULL,
    PRIMARY KEY (run_id, position)
) WITHOUT ROWID;
"""

CLAIM = """
UPDATE run SET status = 'running', owner = ?, claim = claim + 1
WHERE id IN (SELECT id FROM run WHERE status = 'queued' ORDER BY id LIMIT ?)
RETURNING id, claim, kind, input
"""
STEP = """
INSERT INTO step (run_id, position, output) SELECT id, ?, ? FROM run WHERE id = ? AND owner = ? AND claim = ?
"""
COMPLETE = """
UPDATE run SET status = 'completed', owner = NULL, output = ? WHERE id = ? AND owner = ? AND claim = ?
"""
START = "INSERT INTO run (kind, input) VALUES (?, ?) RETURNING id"
OWNER = "raw"


class RawSqlite(Engine):
    """One connection in one thread, as SQLite has one writer anyway."""

    pace: ClassVar[dict[Kind, int]] = {"noop": 20000, "steps": 8000}

    def __init__(self, url: str) -> None:
        super().__init__(url)
        self._thread = ThreadPoolExecutor(1)
        self._finished = Finished()
        self._loop: SqliteLoop | None = None

    async def in_thread(self, function: Callable[..., Any], *args: Any) -> Any:
        """Call this where the connection lives."""
        return await asyncio.get_running_loop().run_in_executor(self._thread, function, *args)

    async def setup(self) -> None:
        await self.open()
        await self.in_thread(lambda: self.connection.executescript(SCHEMA))
        await self.close()

    async def open(self) -> None:
        await self.in_thread(self._connect)

    def _connect(self) -> None:
        path = self.url.removeprefix("sqlite:///")
        self.connection = sqlite3.connect(path, isolation_level=None, timeout=30)
        self.connection.execute("PRAGMA journal_mode = WAL")
        self.connection.execute("PRAGMA synchronous = FULL")

    async def start(self, kind: Kind, sent: int) -> object:
        run_id = await self.in_thread(lambda: self.connection.execute(START, (kind, str(sent))).fetchone()[0])
        self._finished.expect(run_id)
        if self._loop:
            self._loop.look()
        return run_id

    async def finish(self, handle: object) -> None:
        assert isinstance(handle, int)
        await self._finished.expect(handle)

    async def start_many(self, kind: Kind, count: int) -> None:
        def insert() -> None:
            self.connection.execute("BEGIN IMMEDIATE")
            self.connection.executemany("INSERT INTO run (kind, input) VALUES (?, '0')", [(kind,)] * count)
            self.connection.execute("COMMIT")

        await self.in_thread(insert)

    @asynccontextmanager
    async def worker(self, concurrency: int) -> AsyncIterator[None]:
        self._loop = SqliteLoop(self, concurrency, self._finished.tell)
        task = asyncio.create_task(self._loop.run())
        try:
            yield
        finally:
            self._loop.stop()
            await task

    async def busy(self) -> bool:
        unfinished = "SELECT 1 FROM run WHERE status IN ('queued', 'running') LIMIT 1"
        return await self.in_thread(lambda: self.connection.execute(unfinished).fetchone()) is not None

    async def close(self) -> None:
        await self.in_thread(self.connection.close)


class SqliteLoop(RawLoop):
    """A cycle is one transaction."""

    def __init__(self, engine: RawSqlite, concurrency: int, finished: Callable[[int], None]) -> None:
        super().__init__(concurrency, finished)
        self._engine = engine

    async def cycle(self) -> None:
        steps, waiting = self.take_steps()
        completions = self.take_completions()
        wanted = self.wanted() + (len(completions) if not self._closing else 0)
        if not (steps or completions or wanted):
            return
        rows = await self._engine.in_thread(self._transaction, steps, completions, wanted)
        self.wrote_steps(waiting)
        self.wrote_completions(completions)
        if wanted:
            self.claimed(rows, wanted)

    def _transaction(self, steps: list[Step], completions: list[Completion], wanted: int) -> list[Claimed]:
        db = self._engine.connection
        db.execute("BEGIN IMMEDIATE")
        if steps:
            db.executemany(STEP, [(position, out, run, OWNER, claim) for run, claim, position, out in steps])
        if completions:
            db.executemany(COMPLETE, [(output, run, OWNER, claim) for run, claim, output in completions])
        rows = db.execute(CLAIM, (OWNER, wanted)).fetchall() if wanted else []
        db.execute("COMMIT")
        return rows
