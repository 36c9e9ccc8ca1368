"""Stepfast on SQLite."""

from __future__ import annotations

import asyncio
from typing import ClassVar

from bench.engines.base import Kind
from bench.engines.looking import any_row
from bench.engines.stepfast import StepfastEngine


class StepfastSqlite(StepfastEngine):
    """Only the address differs, and how the benchmark looks at it."""

    pace: ClassVar[dict[Kind, int]] = {"noop": 10000, "steps": 4000, "hold": 1000}
    busy_sql: ClassVar[str] = "SELECT 1 FROM stepfast_runs WHERE worker IS NOT NULL OR place IS NOT NULL LIMIT 1"

    async def busy(self) -> bool:
        return await asyncio.to_thread(any_row, self.url, self.busy_sql)
