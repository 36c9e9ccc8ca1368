"""Rows as a role may write them, or as a hand may damage them: copies of healthy ones with one value that is odd.

Which columns there are is asked of the database, so that a new one is walked by itself.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple
from uuid import UUID

import asyncpg

from stepfast import Stepfast
from stepfast.model.ids import new_id
from stepfast.store.sqlite.store import SqliteStore

Row = dict[str, Any]

META = "meta"
"""A damaged one is refused at once: it says which version the tables have."""

HUGE = "x" * 300_000
TEXTS: tuple[str | None, ...] = (
    "{", None, "", "nothing known", "[]", "{}", "null", "-1", "1e999", '"x"', '{"a": [1, {"b": 2}]}',
    "\x01<b>é\u2028", HUGE,
)  # fmt: skip
"""In place of a text, most of which are JSON, words or names."""
LARGE: tuple[int | None, ...] = (2**63 - 1, 253402300799999, None, -(2**63), 253402300800000, -1, 0, 1)
SMALL: tuple[int | None, ...] = (2_000_000_000, 2**31 - 1, None, -(2**31), -1, 0)
TINY: tuple[int | None, ...] = (None, 2**15 - 1, -1, 0)
NOT_CHANGED = {"id", "run_id"}
"""These say which run a row is of: each odd run has its own."""


class Column(NamedTuple):
    """A column of a table."""

    table: str
    name: str
    type: str
    nullable: bool

    def oddities(self) -> Iterator[Any]:
        """Values that do not belong there."""
        kind = self.type.lower()
        if kind == "boolean":
            values: tuple[Any, ...] = (None, True, False)
        elif kind == "uuid":
            values = (None, UUID(int=2**128 - 1), UUID(new_id()))
        elif kind == "smallint":
            values = TINY
        elif kind == "integer" and not self.sqlite:
            values = SMALL
        elif kind in ("bigint", "integer"):
            values = LARGE
        else:
            values = TEXTS
        return (value for value in values if value is not None or self.nullable)

    @property
    def sqlite(self) -> bool:
        """Whether the database is one whose numbers are all large."""
        return self.type.isupper()


class Oddity(NamedTuple):
    """One odd value."""

    table: str
    column: str
    value: Any
    like: str
    """What the row was before."""

    def __str__(self) -> str:
        value = repr(self.value)
        return f"{self.table}.{self.column} = {value if len(value) < 60 else value[:50] + '…'} (was {self.like})"


class Tables:
    """The tables of an application, by a connection of its own."""

    def __init__(self, app: Stepfast, store: Any, connection: Any) -> None:
        self._app = app
        self._store = store
        self._connection = connection
        self.columns: dict[str, list[Column]] = {}
        self.of_runs: dict[str, str] = {}
        """Tables with rows of runs, and the column that says of which."""
        self.apart: list[str] = []
        """Tables of other things."""

    @classmethod
    async def of(cls, app: Stepfast) -> Tables:
        store = await app.store()
        connection = None if isinstance(store, SqliteStore) else await asyncpg.connect(app.url.text)
        tables = cls(app, store, connection)
        for table in await tables._names():
            columns = tables.columns[table] = [column async for column in tables._columns_of(table)]
            if table == "runs" or any(column.name == "run_id" for column in columns):
                tables.of_runs[table] = "id" if table == "runs" else "run_id"
            elif table != META:
                tables.apart.append(table)
        return tables

    async def _names(self) -> list[str]:
        """All tables that there are; that of the runs first."""
        if self._connection is None:
            begin = f"{self._app.namespace}_"
            rows = await self.fetch(
                "SELECT name FROM sqlite_master WHERE type = 'table' AND substr(name, 1, ?) = ?", len(begin), begin
            )
            names = [name.removeprefix(begin) for (name,) in rows]
        else:
            sql = "SELECT table_name::text FROM information_schema.tables "
            sql += "WHERE table_schema = $1 AND table_type = 'BASE TABLE'"
            names = [name for (name,) in await self._connection.fetch(sql, self._app.namespace)]
        return sorted(names, key=lambda name: (name != "runs", name))

    async def _columns_of(self, table: str) -> Any:
        if self._connection is None:
            for _, name, kind, required, *_ in await self.fetch(f"PRAGMA table_info({self.name(table)})"):
                yield Column(table, name, kind, not required)
        else:
            sql = "SELECT column_name, data_type, is_nullable FROM information_schema.columns "
            sql += "WHERE table_schema = $1 AND table_name = $2 ORDER BY ordinal_position"
            for name, kind, nullable in await self._connection.fetch(sql, self._app.namespace, table):
                yield Column(table, name, kind, nullable == "YES")

    @property
    def sqlite(self) -> bool:
        """Which of the two databases it is."""
        return self._connection is None

    def name(self, table: str) -> str:
        return f"{self._app.namespace}_{table}" if self._connection is None else f'"{self._app.namespace}"."{table}"'

    async def fetch(self, sql: str, *values: Any) -> list[Any]:
        if self._connection is None:
            return await self._store._writer.do(lambda database: database.execute(sql, values).fetchall())  # type: ignore[no-any-return]
        return await self._connection.fetch(sql, *values)  # type: ignore[no-any-return]

    async def execute(self, sql: str, *values: Any) -> None:
        """A statement with {} in place of each value."""
        if self._connection is None:
            await self.fetch(sql.format(*["?"] * len(values)), *values)
        else:
            await self._connection.execute(sql.format(*[f"${n}" for n in range(1, len(values) + 1)]), *values)

    async def rows(self, table: str) -> list[Row]:
        names = [column.name for column in self.columns[table]]
        listed = ", ".join(f'"{name}"' for name in names)
        return [
            dict(zip(names, row, strict=True)) for row in await self.fetch(f"SELECT {listed} FROM {self.name(table)}")
        ]

    async def put(self, group: list[tuple[str, Row]]) -> bool:
        """Insert rows, all or none. False: the database itself refuses one."""
        if self._connection is None:
            return await self._store._writer.do(lambda database: self._put_sqlite(database, group))  # type: ignore[no-any-return]
        try:
            async with self._connection.transaction():
                for table, row in group:
                    marks = ", ".join(f"${n}" for n in range(1, len(row) + 1))
                    listed = ", ".join(f'"{name}"' for name in row)
                    await self._connection.execute(
                        f"INSERT INTO {self.name(table)} ({listed}) VALUES ({marks})", *row.values()
                    )
        except asyncpg.PostgresError:
            return False
        return True

    def _put_sqlite(self, database: Any, group: list[tuple[str, Row]]) -> bool:
        database.execute("SAVEPOINT odd")
        try:
            for table, row in group:
                marks = ", ".join("?" * len(row))
                listed = ", ".join(f'"{name}"' for name in row)
                database.execute(f"INSERT INTO {self.name(table)} ({listed}) VALUES ({marks})", list(row.values()))
        except Exception:
            database.execute("ROLLBACK TO odd")
            return False
        finally:
            database.execute("RELEASE odd")
        return True

    def id(self, text: str) -> Any:
        """An id as this database has it."""
        return text if self._connection is None else UUID(text)

    async def close(self) -> None:
        if self._connection is not None:
            await self._connection.close()


class Family:
    """A run with all its rows, and where it is a dag run, its steps with all of theirs."""

    def __init__(self, like: str, members: list[str], rows: list[tuple[str, Row]]) -> None:
        self.like = like
        self.members = members
        self.rows = rows

    def copy(self, tables: Tables) -> tuple[list[str], list[tuple[str, Row]]]:
        """The same again under other ids."""
        names = {old: new_id() for old in self.members}
        ids = {tables.id(old): tables.id(new) for old, new in names.items()}
        copied = []
        for table, row in self.rows:
            row = {
                name: ids.get(value, value) if not isinstance(value, (dict, list)) else value
                for name, value in row.items()
            }
            if table == "runs" and row["key"] is not None:
                row["key"] = new_id()
            if table == "runs" and row["debounced"] is not None:
                row["debounced"] = new_id()
            if table == "runs" and row["unique_name"] is not None:
                row["unique_name"] = new_id()
            if table == "mailbox":
                row["id"] = tables.id(new_id())
            if table == "remote_steps":
                row["id"] = f"{row['run_id']}:{row['seq']}"
            copied.append((table, row))
        return list(names.values()), copied


async def families(tables: Tables) -> list[Family]:
    """All runs that are there, as they stand."""
    found = {table: await tables.rows(table) for table in tables.of_runs}
    return [
        Family(_like(top), [str(row["id"]) for row in members], list(_rows_of(tables, found, members)))
        for top in found["runs"]
        if top["dag_id"] is None
        for members in [[top, *(row for row in found["runs"] if row["dag_id"] == top["id"])]]
    ]


def _like(run: Row) -> str:
    return f"{run['workflow']}, {run['status']}"


def _rows_of(tables: Tables, found: Mapping[str, list[Row]], members: list[Row]) -> Iterator[tuple[str, Row]]:
    ids = {row["id"] for row in members}
    for table, by in tables.of_runs.items():
        yield from ((table, row) for row in found[table] if row[by] in ids)


class Odd(NamedTuple):
    """A row with an odd value, and all that goes with it."""

    oddity: Oddity
    run: str | None
    """The run that has it, or is its dag run."""
    step: str | None
    """The step of a dag run that has it."""
    rows: list[tuple[str, Row]]


def odd_runs(tables: Tables, found: list[Family], *, whole: bool) -> Iterator[Odd]:
    """Copies of runs with one value that does not belong where it is: of each column each value, in a run of each kind;
    or, if not the ``whole`` is wanted, of each column one value, in a run of another kind each time."""
    turn = itertools.count()
    for table in tables.of_runs:
        places = list(_places(found, table))
        for column in tables.columns[table]:
            if column.name in NOT_CHANGED:
                continue
            odd = [
                (family, number, value)
                for value in column.oddities()
                for family, number in places
                if family.rows[number][1][column.name] != value
            ]
            if odd and not whole:
                odd = [odd[next(turn) * 7 % len(odd)]]
            for family, number, value in odd:
                yield _odd_run(tables, family, number, column, value)


def _places(found: list[Family], table: str) -> Iterator[tuple[Family, int]]:
    """Where a row of a table is, once in each kind of run, and once among its steps."""
    for family in found:
        seen = set()
        for number, (name, row) in enumerate(family.rows):
            is_step = row.get("dag_step") is not None
            if name == table and is_step not in seen:
                seen.add(is_step)
                yield family, number


def _odd_run(tables: Tables, family: Family, number: int, column: Column, value: Any) -> Odd:
    ids, copied = family.copy(tables)
    row = copied[number][1]
    row[column.name] = value
    of = str(row[tables.of_runs[column.table]])
    return Odd(Oddity(column.table, column.name, value, family.like), ids[0], of if of != ids[0] else None, copied)


def odd_others(tables: Tables, table: str, row: Row, *, whole: bool) -> Iterator[Odd]:
    """The same for a row of another table, under another name."""
    numbers, turn = itertools.count(1), itertools.count()
    for column in tables.columns[table]:
        values = [value for value in column.oddities() if value != row[column.name]]
        if values and not whole:
            values = [values[next(turn) % len(values)]]
        for value in values:
            copied = dict(row)
            if table in ("workers", "past_workers", "audit"):
                copied["id"] = tables.id(new_id())
            elif table in ("queues", "schedules", "definitions"):
                copied["name"] = f"odd {next(numbers)}"
            elif table == "queue_starts":
                copied["key"] = f"odd {next(numbers)}"
            copied[column.name] = value
            yield Odd(Oddity(table, column.name, value, "healthy"), None, None, [(table, copied)])
