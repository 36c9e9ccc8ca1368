"""Stepfast on MariaDB."""

from __future__ import annotations

from typing import ClassVar

from bench.engines.base import Kind
from bench.engines.raw_mariadb import connect
from bench.engines.stepfast import StepfastEngine


class StepfastMariadb(StepfastEngine):
    """Only the address differs, and how the benchmark looks at it."""

    pace: ClassVar[dict[Kind, int]] = {"noop": 8000, "steps": 2000, "hold": 1000}
    busy_sql: ClassVar[str] = "SELECT 1 FROM stepfast_runs WHERE worker IS NOT NULL OR place IS NOT NULL LIMIT 1"

    async def busy(self) -> bool:
        connection = await connect(self.url)
        try:
            return bool(await connection.cursor().execute(self.busy_sql))
        finally:
            connection.close()
