"""A glance at a SQLite file: questions over a connection of their own, given up in time."""

from __future__ import annotations

import sqlite3
import time
from collections.abc import Callable, Sequence
from typing import Any

from ...settings import Settings
from ..base import Filters
from ..glance import MOST_ROWS, BaseGlance, TableSize, TookTooLong
from .connections import primary_code
from .threads import ConnectionThread
from .wide import bound_values

_OFTEN = 20_000
"""Steps of SQLite's machine between two looks at the time: about a millisecond."""


class SqliteGlance(BaseGlance):
    """Asks in a thread with a connection of its own; of a database in memory there is but one."""

    dialect = "sqlite"

    def __init__(
        self, statements: dict[str, str], prefix: str, settings: Settings, onlooker: Callable[[], ConnectionThread],
        patience: float,
    ) -> None:  # fmt: skip
        super().__init__(settings)
        self._sql = statements
        self._prefix = prefix
        self._onlooker = onlooker
        self._patience = patience

    async def _ask(self, name: str, *arguments: Any) -> list[Any]:
        sql, values = self._sql[name], bound_values(arguments)
        until = time.monotonic() + self._patience
        return await self._onlooker().do(lambda database: self._execute(database, sql, values, until))

    def _execute(self, database: sqlite3.Connection, sql: str, values: Sequence[Any], asked_until: float) -> list[Any]:
        now = time.monotonic()
        if now > asked_until:  # those who waited before it were slow: one more who waits helps nobody
            raise TookTooLong(self._patience)
        until = now + self._patience
        database.set_progress_handler(lambda: time.monotonic() > until, _OFTEN)
        try:
            return database.execute(sql, values).fetchmany(MOST_ROWS)
        except sqlite3.OperationalError as error:
            if primary_code(error) == sqlite3.SQLITE_INTERRUPT:
                raise TookTooLong(self._patience) from None
            raise
        finally:
            database.set_progress_handler(None, 0)

    def _way(self, filters: Filters) -> tuple[str, str | None]:
        way, value = super()._way(filters)
        return ("of_workflow", filters.workflow) if way == "runs" and filters.workflow is not None else (way, value)

    async def sizes(self) -> list[TableSize]:
        """The tables by name: how large each is SQLite does not know without looking through the file."""
        return [TableSize(*row) for row in await self._fetch("glance_sizes", self._prefix)]

    async def whole_size(self) -> int | None:
        """How many bytes the file has, without the write-ahead log."""
        return await self._onlooker().do(
            lambda database: int(
                database.execute("PRAGMA page_count").fetchone()[0] * database.execute("PRAGMA page_size").fetchone()[0]
            )
        )
