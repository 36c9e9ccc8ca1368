"""A look at the rows past the store, on either database."""

from __future__ import annotations

import asyncio
import itertools
import re
import sqlite3
from typing import Any

import asyncpg

from stepfast.model.urls import parse_url
from stepfast.settings import Settings
from stepfast.store.mysql.connections import Connector
from stepfast.store.mysql.transactions import is_gone, run


class Tables:
    """``[runs]`` stands for the table's full name and ``?`` for a value, in every dialect."""

    def __init__(self, url: str, namespace: str = "stepfast") -> None:
        self._url = parse_url(url)
        self._namespace = namespace
        self._connection: Any = None

    async def fetch(self, sql: str, *values: Any) -> list[tuple[Any, ...]]:
        if self._url.kind == "sqlite":
            return await asyncio.to_thread(self._fetch_sqlite, sql, values)
        if self._url.kind == "mysql":
            return await self._fetch_mysql(sql, values)
        if self._connection is None or self._connection.is_closed():
            self._connection = await asyncpg.connect(self._url.text)
        numbers = itertools.count(1)
        text = re.sub(r"\[(\w+)\]", rf'"{self._namespace}".\1', sql)
        text = re.sub(r"\?", lambda _: f"${next(numbers)}", text)
        return [_plain(row) for row in await self._connection.fetch(text, *values)]

    async def one(self, sql: str, *values: Any) -> Any:
        """The first column of the only row."""
        [row] = await self.fetch(sql, *values)
        return row[0]

    async def run(self, run_id: str, columns: str) -> tuple[Any, ...]:
        """Columns of a run."""
        [row] = await self.fetch(f"SELECT {columns} FROM [runs] WHERE id = ?", run_id)
        return row

    async def workers(self) -> dict[str, int]:
        """Id → process id of every worker that is not dead."""
        return dict(await self.fetch("SELECT id, pid FROM [workers] WHERE state <> 'dead'"))

    async def close(self) -> None:
        if self._connection is not None:
            closed = self._connection.close()
            await (closed or asyncio.sleep(0))

    async def _fetch_mysql(self, sql: str, values: tuple[Any, ...]) -> list[tuple[Any, ...]]:
        if self._connection is None or is_gone(self._connection):
            self._connection = await Connector(self._url, Settings()).connect()
        text = re.sub(r"\b(key|row)\b(?!`)", r"`\1`", re.sub(r"\[(\w+)\]", rf"{self._namespace}_\1", sql))
        return await run(self._connection, text.replace("?", "%s"), values or None)

    def _fetch_sqlite(self, sql: str, values: tuple[Any, ...]) -> list[tuple[Any, ...]]:
        text = re.sub(r"\[(\w+)\]", rf"{self._namespace}_\1", sql)
        connection = sqlite3.connect(str(self._url.path), timeout=10, isolation_level=None)
        try:
            return connection.execute(text, values).fetchall()
        finally:
            connection.close()


def _plain(row: Any) -> tuple[Any, ...]:
    return tuple(str(value) if type(value).__name__ == "UUID" else value for value in row)
