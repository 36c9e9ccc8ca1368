"""The tables of a namespace on MariaDB and MySQL, as rows of values (``store/tables.py``)."""

from __future__ import annotations

import hashlib
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any

from ...errors import ConfigurationError
from ..migrations import FILLED
from ..tables import META, MOVER, PAGE_BYTES, Mark, Row, Table, Tables, declared_lengths, literal
from .errors import number_of
from .transactions import run, transaction

_WORDS = ("INSERT", "UPDATE", "DELETE")
_AT_ONCE = 32
"""Rows of one statement. There are two statements for each table: for so many rows, and for one."""
_PATIENCE = 10
"""Seconds for which transactions that are under way are waited for."""
_MOST_SAID = 120
"""Characters of an error that a trigger raises."""
_LOGGED = 1419
"""The right to make triggers on a server with a binary log."""
_COLUMNS = """
SELECT TABLE_NAME, COLUMN_NAME, DATA_TYPE FROM information_schema.COLUMNS
WHERE TABLE_SCHEMA = DATABASE() AND TABLE_NAME LIKE ? AND COALESCE(GENERATION_EXPRESSION, '') = ''
"""
_KEYS = """
SELECT TABLE_NAME, COLUMN_NAME FROM information_schema.STATISTICS
WHERE TABLE_SCHEMA = DATABASE() AND TABLE_NAME LIKE ? AND INDEX_NAME = 'PRIMARY' ORDER BY TABLE_NAME, SEQ_IN_INDEX
"""
Ask = Callable[[Any], Awaitable[Any]]


class MysqlTables(Tables):
    """The tables with one prefix."""

    quote = "`"
    texts = frozenset({"char", "varchar", "longtext"})

    def __init__(
        self, prefix: str, names: Sequence[str], with_connection: Callable[[Ask], Awaitable[Any]],
        alone: Callable[[Ask], Awaitable[Any]], packet: int | None,
    ) -> None:  # fmt: skip
        self._prefix = prefix
        self._with_connection = with_connection
        self._alone = alone
        self.packet = packet
        self.page_bytes = min(PAGE_BYTES, (packet or 4 * PAGE_BYTES) // 4)
        super().__init__(names)

    def _short(self, name: str) -> str:
        return name.removeprefix(self._prefix)

    async def ask(self, sql: str, *values: Any) -> list[Row]:
        """The rows of a question."""
        text = sql.replace("octet_length(", "length(").replace("?", "%s")
        found: list[Row] = await self._with_connection(lambda connection: run(connection, text, list(values) or None))
        return found

    async def _describe(self) -> dict[str, Table]:
        """From the catalogue."""
        like = self._prefix.replace("_", r"\_") + "%"
        columns: dict[str, dict[str, str]] = {}
        for table, column, kind in sorted(await self.ask(_COLUMNS, like)):
            columns.setdefault(table, {})[column] = kind.lower()
        keys: dict[str, list[str]] = {}
        for table, column in await self.ask(_KEYS, like):
            keys.setdefault(table, []).append(column)
        return {
            short: Table(short, columns[name], tuple(keys.get(name, ())))
            for short, name in self.names.items()
            if name in columns
        }

    def longest(self) -> Mapping[str, Mapping[str, int]]:
        """Those of the columns."""
        return declared_lengths()

    async def close(self, word: str, mark: Mark) -> None:
        """Three triggers for each table. Each is committed by itself, and waits for transactions that have used its
        table; a transaction that meets one of them is rolled back with all that it wrote."""
        said = literal(mark.said if len(mark.said) <= _MOST_SAID else mark.said[: _MOST_SAID - 1] + "…")
        raises = f"SIGNAL SQLSTATE '45000' SET MESSAGE_TEXT = {said}"
        passing = f"IF NOT @{MOVER} <=> {literal(mark.id)} THEN {raises}; END IF" if word == FILLED else raises

        async def close(connection: Any) -> None:
            await run(connection, f"SET SESSION lock_wait_timeout = {_PATIENCE}")
            await run(
                connection,
                f"INSERT INTO {self.names[META]} (name, value) VALUES (%s, %s) "
                "ON DUPLICATE KEY UPDATE name = VALUES(name)",
                [word, mark.text],
            )
            there = {row[0] for row in await run(connection, _TRIGGERS)}
            for name, what, trigger in self._triggers():
                if trigger not in there:
                    await _make(connection, f"CREATE TRIGGER {trigger} BEFORE {what} ON {name} FOR EACH ROW {passing}")

        await self._alone(close)

    async def put_mark(self, word: str, mark: Mark) -> None:
        """Replace a mark."""
        sql = f"UPDATE {self.names[META]} SET value = %s WHERE name = %s"
        await self._with_connection(lambda connection: run(connection, sql, [mark.text, word]))

    async def open(self, word: str) -> None:
        """Drop the triggers; the mark goes last, so that this can be repeated."""

        async def open_(connection: Any) -> None:
            await run(connection, f"SET SESSION lock_wait_timeout = {_PATIENCE}")
            there = {row[0] for row in await run(connection, _TRIGGERS)}
            for _, _, trigger in self._triggers():
                if trigger in there:
                    await run(connection, f"DROP TRIGGER {trigger}")
            await run(connection, f"DELETE FROM {self.names[META]} WHERE name = %s", [word])

        await self._alone(open_)

    async def write(self, table: Table, rows: Sequence[Row], clear: bool, before: Mark, after: Mark) -> bool:
        """By statements of many rows and of one, which stay prepared."""
        name, columns = self.names[table.name], ", ".join(map(self._quoted, table.columns))
        one = f"({', '.join(['%s'] * len(table.columns))})"
        insert = f"INSERT INTO {name} ({columns}) VALUES "
        whole = len(rows) - len(rows) % _AT_ONCE

        async def write(connection: Any) -> bool:
            await run(connection, f"SET @{MOVER} = %s", [before.id])
            try:
                async with transaction(connection, ours=True):
                    meta = self.names[META]
                    found = await run(connection, f"SELECT value FROM {meta} WHERE name = %s FOR UPDATE", [FILLED])
                    if found != [(before.text,)]:
                        return False
                    await run(connection, f"UPDATE {meta} SET value = %s WHERE name = %s", [after.text, FILLED])
                    if clear:
                        await run(connection, f"DELETE FROM {name}")
                    for start in range(0, whole, _AT_ONCE):
                        values = [value for row in rows[start : start + _AT_ONCE] for value in row]
                        await run(connection, insert + ", ".join([one] * _AT_ONCE), values)
                    for row in rows[whole:]:
                        await run(connection, insert + one, list(row))
                return True
            finally:
                if connection.connected:
                    await run(connection, f"SET @{MOVER} = NULL")

        return bool(await self._with_connection(write))

    def _compared(self, table: Table, key: Sequence[Any], sign: str) -> tuple[str, list[Any]]:
        """Column by column: these servers use no index for a comparison of rows."""
        parts, values = [], list[Any]()
        for number, column in enumerate(table.key):
            last = number == len(table.key) - 1
            same = "".join(f"{self._quoted(name)} = ? AND " for name in table.key[:number])
            parts.append(f"({same}{self._quoted(column)} {sign if last else sign[0]} ?)")
            values += key[: number + 1]
        return f"({' OR '.join(parts)})", values

    def _triggers(self) -> list[tuple[str, str, str]]:
        """Table, kind of write, and trigger, whose name must not be longer than that of a table."""
        return [
            (name, what, f"stepfast_{hashlib.sha256(name.encode()).hexdigest()[:20]}_{what.lower()}")
            for short, name in self.names.items()
            if short != META
            for what in _WORDS
        ]


_TRIGGERS = "SELECT TRIGGER_NAME FROM information_schema.TRIGGERS WHERE TRIGGER_SCHEMA = DATABASE()"


async def _make(connection: Any, trigger: str) -> None:
    try:
        await run(connection, trigger)
    except Exception as error:
        if number_of(error) == _LOGGED:
            raise ConfigurationError(
                "the server keeps a binary log and lets this user make no triggers: run SET GLOBAL "
                "log_bin_trust_function_creators = 1 there until the move is done, or move as a user with SUPER"
            ) from None
        raise
