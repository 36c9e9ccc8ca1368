"""DBOS on SQLite: the same workflows, on its embedded database."""

from __future__ import annotations

from typing import ClassVar

from bench.engines.base import Kind
from bench.engines.dbos import DbosEngine
from bench.engines.looking import any_row


class DbosSqlite(DbosEngine):
    """Only the address differs, and how the benchmark looks at it."""

    pace: ClassVar[dict[Kind, int]] = {"noop": 150, "steps": 30}
    busy_sql: ClassVar[str] = "SELECT 1 FROM workflow_status WHERE status IN ('ENQUEUED', 'PENDING') LIMIT 1"

    async def busy(self) -> bool:
        return bool(await self._call(any_row, self.url, self.busy_sql))
