"""The tables of a namespace on SQLite, as rows of values (``store/tables.py``)."""

from __future__ import annotations

import sqlite3
from collections.abc import Awaitable, Callable, Sequence
from typing import Any

from ..migrations import FILLED
from ..tables import META, MOVER, Mark, Row, Table, Tables, literal

_COLUMNS = """
SELECT m.name, c.name, c.type, c.pk FROM sqlite_master m JOIN pragma_table_info(m.name) c
WHERE m.type = 'table' ORDER BY m.name, c.name
"""
_WORDS = ("INSERT", "UPDATE", "DELETE")
Work = Callable[[sqlite3.Connection], Any]


class SqliteTables(Tables):
    """The tables with one prefix."""

    octets = "length({0})"
    texts = frozenset({"TEXT"})

    def __init__(
        self, prefix: str, names: Sequence[str], read: Callable[[Work], Awaitable[Any]],
        write: Callable[[Work], Awaitable[Any]],
    ) -> None:  # fmt: skip
        self._prefix = prefix
        self._read = read
        self._write = write
        super().__init__(names)

    def _short(self, name: str) -> str:
        return name.removeprefix(self._prefix)

    async def ask(self, sql: str, *values: Any) -> list[Row]:
        """The rows of a question, in the thread that reads."""
        found: list[Row] = await self._read(
            lambda database: database.execute(sql.replace("char_length(", "length("), values).fetchall()
        )
        return found

    async def _describe(self) -> dict[str, Table]:
        """From the catalogue."""
        columns: dict[str, dict[str, str]] = {}
        keys: dict[str, list[tuple[int, str]]] = {}
        for table, column, kind, place in await self.ask(_COLUMNS):
            columns.setdefault(table, {})[column] = kind
            keys.setdefault(table, []).extend([(place, column)] if place else [])
        return {
            short: Table(short, columns[name], tuple(column for _, column in sorted(keys[name])))
            for short, name in self.names.items()
            if name in columns
        }

    async def close(self, word: str, mark: Mark) -> None:
        """Three triggers for each table, and the mark, in one transaction. A function that only the mover's connection
        has lets it pass: for all others the statement cannot be prepared."""
        passing = f" WHERE {MOVER}() IS NOT 1" if word == FILLED else ""

        def close(database: sqlite3.Connection) -> None:
            for name in self._fenced():
                for what in _WORDS:
                    database.execute(f"DROP TRIGGER IF EXISTS {name}_{what.lower()}_moved")
                    database.execute(
                        f"CREATE TRIGGER {name}_{what.lower()}_moved BEFORE {what} ON {name} "
                        f"BEGIN SELECT RAISE(ABORT, {literal(mark.said)}){passing}; END"
                    )
            database.execute(f"INSERT OR IGNORE INTO {self.names[META]} (name, value) VALUES (?, ?)", (word, mark.text))

        await self._write(close)

    async def put_mark(self, word: str, mark: Mark) -> None:
        """Replace a mark."""
        sql = f"UPDATE {self.names[META]} SET value = ? WHERE name = ?"
        await self._write(lambda database: database.execute(sql, (mark.text, word)))

    async def open(self, word: str) -> None:
        """Drop the triggers and the mark."""

        def open_(database: sqlite3.Connection) -> None:
            for name in self._fenced():
                for what in _WORDS:
                    database.execute(f"DROP TRIGGER IF EXISTS {name}_{what.lower()}_moved")
            database.execute(f"DELETE FROM {self.names[META]} WHERE name = ?", (word,))

        await self._write(open_)

    async def write(self, table: Table, rows: Sequence[Row], clear: bool, before: Mark, after: Mark) -> bool:
        """In the transaction of the writer's job."""
        name, columns = self.names[table.name], ", ".join(map(self._quoted, table.columns))
        insert = f"INSERT INTO {name} ({columns}) VALUES ({', '.join('?' * len(table.columns))})"

        def write(database: sqlite3.Connection) -> bool:
            database.create_function(MOVER, 0, lambda: 1)
            changed = database.execute(
                f"UPDATE {self.names[META]} SET value = ? WHERE name = ? AND value = ?",
                (after.text, FILLED, before.text),
            )
            if changed.rowcount != 1:
                return False
            if clear:
                database.execute(f"DELETE FROM {name}")
            database.executemany(insert, rows)
            return True

        return bool(await self._write(write))

    def _fenced(self) -> list[str]:
        return [name for short, name in self.names.items() if short != META]
