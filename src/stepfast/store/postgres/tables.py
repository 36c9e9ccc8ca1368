"""The tables of a namespace on Postgres, as rows of values (``store/tables.py``)."""

from __future__ import annotations

import itertools
import re
from collections.abc import Awaitable, Callable, Sequence
from typing import Any

from ..migrations import FILLED
from ..tables import META, Mark, Row, Table, Tables, literal
from .errors import MOVED_STATE
from .transactions import transaction

REFUSES = "refuse_moved"
"""The function that the triggers call."""
_PATIENCE = "10s"
"""For how long transactions that are under way are waited for."""
_SETTING = "stepfast.mover"
_COLUMNS = """
SELECT c.relname::text, a.attname::text, t.typname::text
FROM pg_catalog.pg_attribute a
JOIN pg_catalog.pg_class c ON c.oid = a.attrelid
JOIN pg_catalog.pg_namespace n ON n.oid = c.relnamespace
JOIN pg_catalog.pg_type t ON t.oid = a.atttypid
WHERE '"' || n.nspname::text || '"' = ? AND c.relkind IN ('r', 'p') AND a.attnum > 0 AND NOT a.attisdropped
  AND a.attgenerated = ''
ORDER BY 1
"""
_KEYS = """
SELECT c.relname::text, a.attname::text
FROM pg_catalog.pg_index i
JOIN pg_catalog.pg_class c ON c.oid = i.indrelid
JOIN pg_catalog.pg_namespace n ON n.oid = c.relnamespace
JOIN pg_catalog.pg_attribute a ON a.attrelid = c.oid AND a.attnum = ANY (i.indkey)
WHERE '"' || n.nspname::text || '"' = ? AND i.indisprimary
ORDER BY 1, pg_catalog.array_position(i.indkey::int2[], a.attnum)
"""


class PostgresTables(Tables):
    """The tables of one schema."""

    def __init__(
        self, schema: str, names: Sequence[str], with_connection: Callable[[Callable[[Any], Awaitable[Any]]], Any]
    ) -> None:
        super().__init__(names)
        self._schema = schema
        self._with_connection = with_connection

    def _short(self, name: str) -> str:
        return name.rpartition(".")[2]

    async def ask(self, sql: str, *values: Any) -> list[Row]:
        """The rows of a question."""
        places = itertools.count(1)
        text = re.sub(r"\?", lambda _: f"${next(places)}", sql)
        rows: list[Any] = await self._with_connection(lambda connection: connection.fetch(text, *values, timeout=None))
        return [tuple(row) for row in rows]

    async def _describe(self) -> dict[str, Table]:
        """From the catalogue; of other tables in the same schema nothing is known here."""
        columns: dict[str, dict[str, str]] = {}
        for table, column, kind in sorted(await self.ask(_COLUMNS, self._schema)):
            columns.setdefault(table, {})[column] = "truth" if kind == "bool" else kind
        keys: dict[str, list[str]] = {}
        for table, column in await self.ask(_KEYS, self._schema):
            keys.setdefault(table, []).append(column)
        return {
            name: Table(name, found, tuple(keys.get(name, ()))) for name, found in columns.items() if name in self.names
        }

    async def close(self, word: str, mark: Mark) -> None:
        """One trigger for each statement, and the mark, in one transaction. It holds all tables, so that nothing that
        was begun before is still to be committed."""
        passing = f"pg_catalog.current_setting('{_SETTING}', true) IS DISTINCT FROM {literal(mark.id)}"
        condition = passing if word == FILLED else "true"
        fenced = [name for short, name in self.names.items() if short != META]

        async def close(connection: Any) -> None:
            async with transaction(connection):
                await connection.execute(f"SET LOCAL lock_timeout = '{_PATIENCE}'")
                await connection.execute(f"LOCK TABLE {', '.join(fenced)} IN SHARE ROW EXCLUSIVE MODE")
                await connection.execute(
                    f"CREATE OR REPLACE FUNCTION {self._schema}.{REFUSES}() RETURNS trigger LANGUAGE plpgsql\n"
                    f"AS $moved$ BEGIN IF {condition} THEN\n"
                    f"RAISE EXCEPTION USING MESSAGE = {literal(mark.said)}, ERRCODE = '{MOVED_STATE}';\n"
                    "END IF; RETURN NULL; END $moved$"
                )
                for name in fenced:
                    await connection.execute(f"DROP TRIGGER IF EXISTS {REFUSES} ON {name}")
                    await connection.execute(
                        f"CREATE TRIGGER {REFUSES} BEFORE INSERT OR UPDATE OR DELETE OR TRUNCATE ON {name} "
                        f"FOR EACH STATEMENT EXECUTE FUNCTION {self._schema}.{REFUSES}()"
                    )
                await connection.execute(
                    f"INSERT INTO {self.names[META]} (name, value) VALUES ($1, $2) ON CONFLICT (name) DO NOTHING",
                    word, mark.text,
                )  # fmt: skip

        await self._with_connection(close)

    async def open(self, word: str) -> None:
        """Drop the triggers with their function, and the mark."""

        async def open_(connection: Any) -> None:
            async with transaction(connection):
                await connection.execute(f"SET LOCAL lock_timeout = '{_PATIENCE}'")
                await connection.execute(f"DROP FUNCTION IF EXISTS {self._schema}.{REFUSES} CASCADE")
                await connection.execute(f"DELETE FROM {self.names[META]} WHERE name = $1", word)

        await self._with_connection(open_)

    async def write(self, table: Table, rows: Sequence[Row], clear: bool, before: Mark, after: Mark) -> bool:
        """By COPY."""
        truths = [number for number, kind in enumerate(table.columns.values()) if kind == "truth"]
        schema, name = self._schema.strip('"'), self.names[table.name]

        async def write(connection: Any) -> bool:
            async with transaction(connection):
                await connection.execute("SELECT pg_catalog.set_config($1, $2, true)", _SETTING, before.id)
                changed = await connection.execute(
                    f"UPDATE {self.names[META]} SET value = $1 WHERE name = $2 AND value = $3",
                    after.text, FILLED, before.text,
                )  # fmt: skip
                if changed != "UPDATE 1":
                    return False
                if clear:
                    await connection.execute(f"DELETE FROM {name}")
                if rows:
                    await connection.copy_records_to_table(
                        table.name, schema_name=schema, columns=list(table.columns),
                        records=[_ours(row, truths) for row in rows], timeout=None,
                    )  # fmt: skip
                return True

        return bool(await self._with_connection(write))

    async def put_mark(self, word: str, mark: Mark) -> None:
        """Replace a mark."""
        sql = f"UPDATE {self.names[META]} SET value = $1 WHERE name = $2"
        await self._with_connection(lambda connection: connection.execute(sql, mark.text, word))

    def _common(self, table: Table, row: Row) -> Row:
        """Ids as texts, truths as numbers."""
        kinds = table.columns.values()
        return tuple(_plain(value, kind) for value, kind in zip(row, kinds, strict=True))


def _plain(value: Any, kind: str) -> Any:
    if value is None or kind not in ("uuid", "truth"):
        return value
    return str(value) if kind == "uuid" else int(value)


def _ours(row: Row, truths: Sequence[int]) -> Row:
    """A row with truths where this server has them."""
    if not truths:
        return row
    values = list(row)
    for number in truths:
        values[number] = None if values[number] is None else bool(values[number])
    return tuple(values)
