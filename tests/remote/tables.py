"""The two tables as somebody else's program sees them: rows are written and read past our own code."""

from __future__ import annotations

import json
import re
from typing import Any

import asyncpg

from stepfast.remote.protocol import MYSQL, parse_transport_url
from stepfast.store.mysql.connections import address

TASK = "step_id, run_id, seq, name, grp, input, attempt, status, created_at"
RESULT = "step_id, run_id, seq, status, output, error, started_at, created_at"


class Tables:
    """Statements for both databases: ``?`` for parameters, ``[tasks]`` and ``[results]`` for the tables."""

    def __init__(self, url: str, prefix: str = "durable") -> None:
        self.url = url
        self._url = parse_transport_url(url)
        self.is_mysql = self._url.dialect == MYSQL
        self._prefix = prefix
        self._connection: Any = None

    async def open(self) -> Tables:
        if self.is_mysql:
            import asyncmy

            self._connection = await asyncmy.connect(**address(self._url.text), autocommit=True)
        else:
            self._connection = await asyncpg.connect(self.url)
        return self

    async def close(self) -> None:
        await (self._connection.ensure_closed() if self.is_mysql else self._connection.close())

    async def fetch(self, sql: str, *given: Any) -> list[tuple[Any, ...]]:
        quote = "`" if self.is_mysql else '"'
        sql = re.sub(r"\[(\w+)\]", rf"{quote}{self._prefix}_transport_\1{quote}", sql)
        if self.is_mysql:
            cursor = self._connection.cursor()
            await cursor.execute(sql.replace("?", "%s"), given)
            return [tuple(row) for row in await cursor.fetchall()] if cursor.description else []
        numbers = iter(range(1, 100))
        sql = re.sub(r"\?", lambda _: f"${next(numbers)}", sql)
        return [tuple(row) for row in await self._connection.fetch(sql, *given)]

    async def now(self) -> int:
        sql = "SELECT CAST(UNIX_TIMESTAMP(NOW(3)) * 1000 AS SIGNED)" if self.is_mysql else (
            "SELECT (extract(epoch FROM clock_timestamp()) * 1000)::bigint"
        )  # fmt: skip
        return int((await self.fetch(sql))[0][0])

    async def put_task(
        self, step_id: str, name: str = "echo", input: Any = None, *, group: str = "echo", attempt: int = 1,
        raw: str | None = None, created_at: int = 1,
    ) -> None:  # fmt: skip
        """A task as an engine in another language inserts it."""
        run_id, _, seq = step_id.rpartition(":")
        text = json.dumps(input) if raw is None else raw
        values = (step_id, run_id, int(seq), name, group, text, attempt, "pending", created_at)
        await self.fetch(f"INSERT INTO [tasks] ({TASK}) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?)", *values)

    async def put_result(self, step_id: str, status: str = "failed", **more: Any) -> None:
        """A result as a worker in another language inserts it."""
        run_id, _, seq = step_id.rpartition(":")
        values = (
            step_id, run_id, int(seq), status, more.get("output"), more.get("error"), more.get("started_at", 1),
            more.get("created_at", 1),
        )  # fmt: skip
        await self.fetch(f"INSERT INTO [results] ({RESULT}) VALUES (?, ?, ?, ?, ?, ?, ?, ?)", *values)

    async def tasks(self) -> list[str]:
        return [row[0] for row in await self.fetch("SELECT step_id FROM [tasks] ORDER BY step_id")]

    async def results(self) -> dict[str, dict[str, Any]]:
        """What lies among the results, by step id, with JSON read."""
        found = {}
        for row in await self.fetch(f"SELECT {RESULT} FROM [results]"):
            result = dict(zip(RESULT.split(", "), row, strict=True))
            for column in ("output", "error"):
                result[column] = None if result[column] is None else json.loads(result[column])
            found[row[0]] = result
        return found

    async def end_connections(self) -> None:
        """The server ends every connection to this database but this one."""
        if self.is_mysql:
            mine = "SELECT id FROM information_schema.processlist WHERE db = DATABASE() AND id <> CONNECTION_ID()"
            for row in await self.fetch(mine):
                await self.fetch(f"KILL {int(row[0])}")
        else:
            await self.fetch(
                "SELECT pg_terminate_backend(pid) FROM pg_stat_activity "
                "WHERE datname = current_database() AND pid <> pg_backend_pid()"
            )
