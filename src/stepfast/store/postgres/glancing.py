"""A glance at Postgres: questions in transactions of their own that cannot write and that the server gives up."""

from __future__ import annotations

import asyncio
import functools
from collections.abc import Callable
from typing import Any

import asyncpg

from ...settings import Settings
from ..glance import MOST_ROWS, BaseGlance, TableSize, TookTooLong
from .transactions import glancing

_AT_ONCE = 2
"""Questions that are asked at once: the other connections of the pool are for those who work."""


class PostgresGlance(BaseGlance):
    """Asks over connections of the store's pool."""

    dialect = "postgres"

    def __init__(
        self, statements: dict[str, str], schema: str, settings: Settings, with_connection: Callable[..., Any],
        patience: float,
    ) -> None:  # fmt: skip
        super().__init__(settings)
        self._sql = statements
        self._schema = schema
        self._with_connection = with_connection
        self._patience = patience
        self._room = asyncio.Semaphore(_AT_ONCE)

    async def _ask(self, name: str, *arguments: Any) -> list[Any]:
        sql = _bounded(self._sql[name])

        async def put(connection: Any) -> list[Any]:
            try:
                async with glancing(connection, int(self._patience * 1000)):
                    rows: list[Any] = await connection.fetch(sql, *arguments)
                    return rows
            except (asyncpg.QueryCanceledError, asyncpg.LockNotAvailableError):
                raise TookTooLong(self._patience) from None

        patience = asyncio.timeout(self._patience)
        try:
            async with patience, self._room:
                patience.reschedule(None)
                found: list[Any] = await self._with_connection(put)
        except TimeoutError:
            if not patience.expired():
                raise
            # Others wait for a slow database already: one more who waits helps nobody.
            raise TookTooLong(self._patience) from None
        return found

    async def sizes(self) -> list[TableSize]:
        """How large the tables are, with their indexes and what is stored beside them."""
        return [TableSize(*row) for row in await self._fetch("glance_sizes", self._schema)]


@functools.lru_cache(maxsize=256)
def _bounded(sql: str) -> str:
    """A question as one that brings a bounded number of rows."""
    return f"SELECT * FROM (\n{sql}\n) AS looked LIMIT {MOST_ROWS}"
