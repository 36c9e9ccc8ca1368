"""The tables of a namespace as rows of values, for a move to another database: read in the order of their keys, filled,
counted, and closed against every writer.

Which tables and columns there are is read from the catalogue of the database, so that none can be forgotten. Between
databases rows have values that all of them know: texts, whole numbers and null.

A namespace is closed by triggers, so that the database itself refuses what any process writes into it, and by a row of
``meta``, which a process reads when it connects.
"""

from __future__ import annotations

import functools
import re
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar, NamedTuple

import msgspec

from .sql import FOLDER, split_statements

Row = tuple[Any, ...]

META = "meta"
"""Describes the tables of one namespace, and is not moved."""
OWN = frozenset({"turns"})
"""Tables that only one database has: rows that are locked, and say nothing."""
SEEDED = frozenset({"event_order"})
"""Tables that have rows from the beginning."""
MOVER = "stepfast_mover"
"""The name by which triggers know the one session that may write into a namespace that is being filled."""
PAGE_BYTES = 4 * 1024 * 1024


class Table(NamedTuple):
    """A table as its database describes it."""

    name: str
    columns: Mapping[str, str]
    """Kinds by name: ``truth``, or the database's own word. In the order of the names."""
    key: tuple[str, ...]


class Mark(msgspec.Struct, kw_only=True):
    """What the row of ``meta`` says of a namespace that is moved, or filled by a move."""

    id: str
    """Of the move: both sides have the same."""
    said: str
    """What a process is told that opens the namespace, or writes into it."""
    done: bool = False
    finished: list[str] = []
    """Tables that were copied."""
    table: str = ""
    """The one that is being copied, and the key of its last row that was."""
    after: list[Any] = []

    @property
    def text(self) -> str:
        """As it is stored."""
        return msgspec.json.encode(self).decode()


class Size(NamedTuple):
    """How much there is in a table."""

    rows: int
    largest: int
    """The bytes of the texts of its largest row."""


class Tables(ABC):
    """The tables of one namespace. Statements here have ``?`` where values go."""

    quote = '"'
    octets = "octet_length({0})"
    """How many bytes a text has."""
    texts: ClassVar[frozenset[str]] = frozenset({"text"})
    """The database's words for texts."""
    page_rows = 500
    page_bytes = PAGE_BYTES
    """A page has no more, but for one row that is larger by itself."""
    packet: int | None = None
    """The largest statement that the database takes, if there is a bound."""

    def __init__(self, names: Sequence[str]) -> None:
        self.names = {self._short(name): name for name in names}
        """Names in statements, by the names that all databases have."""
        self._described: dict[str, Table] = {}

    @abstractmethod
    def _short(self, name: str) -> str:
        """The name of a table in all databases."""

    @abstractmethod
    async def ask(self, sql: str, *values: Any) -> list[Row]:
        """The rows of a question."""

    @abstractmethod
    async def _describe(self) -> dict[str, Table]:
        """Read the catalogue."""

    async def describe(self) -> dict[str, Table]:
        """The tables that are there, without columns that the database works out by itself. Once there are tables they
        are not looked for again."""
        if META not in self._described:
            self._described = await self._describe()
        return self._described

    def longest(self) -> Mapping[str, Mapping[str, int]]:
        """How many characters the columns of tables take, where that is bounded."""
        return {}

    @abstractmethod
    async def close(self, word: str, mark: Mark) -> None:
        """Let the database refuse all writes: of every process, for a namespace that was moved; of all but a mover, for
        one that is being filled. Waits for transactions that are under way. May be repeated: a mark that is there
        stays as it is."""

    @abstractmethod
    async def put_mark(self, word: str, mark: Mark) -> None:
        """Replace a mark."""

    @abstractmethod
    async def open(self, word: str) -> None:
        """Undo it."""

    @abstractmethod
    async def write(self, table: Table, rows: Sequence[Row], clear: bool, before: Mark, after: Mark) -> bool:
        """Insert rows into a namespace that is being filled, in one transaction with the mark. False, and nothing was
        written, if the mark is not what it was ``before``: another process fills it, too."""

    async def mark(self, word: str) -> Mark | None:
        """What is said about a move."""
        if META not in await self.describe():
            return None
        found = await self.ask(f"SELECT value FROM {self.names[META]} WHERE name = ?", word)
        return None if not found else msgspec.json.decode(found[0][0], type=Mark)

    async def count(self, name: str) -> int:
        """How many rows a table has."""
        [(rows,)] = await self.ask(f"SELECT count(*) FROM {self.names[name]}")
        return int(rows)

    async def has_rows(self, name: str) -> bool:
        """Whether it has any."""
        return bool(await self.ask(f"SELECT 1 FROM {self.names[name]} LIMIT 1"))

    async def size(self, table: Table) -> Size:
        """How much there is in it."""
        [(rows, largest)] = await self.ask(
            f"SELECT count(*), COALESCE(max({self._bytes(table)}), 0) FROM {self.names[table.name]}"
        )
        return Size(int(rows), int(largest))

    async def too_long(self, table: Table, longest: Mapping[str, int]) -> str | None:
        """A column that has longer texts than so many characters."""
        for column, most in longest.items():
            name = self._quoted(column)
            if await self.ask(f"SELECT 1 FROM {self.names[table.name]} WHERE char_length({name}) > ? LIMIT 1", most):
                return column
        return None

    async def page(self, table: Table, after: Sequence[Any], most_bytes: int) -> list[Row]:
        """The next rows after a key: as many as are bounded by number and by bytes, but one at least."""
        key = ", ".join(map(self._quoted, table.key))
        name = self.names[table.name]
        behind, values = self._compared(table, after, ">") if after else ("1 = 1", [])
        ahead = await self.ask(
            f"SELECT {key}, {self._bytes(table)} FROM {name} WHERE {behind} ORDER BY {key} LIMIT {self.page_rows}",
            *values,
        )
        if not ahead:
            return []
        last, size = ahead[0], int(ahead[0][-1])
        for row in ahead[1:]:
            size += int(row[-1])
            if size > most_bytes:
                break
            last = row
        up_to, bounds = self._compared(table, last[:-1], "<=")
        columns = ", ".join(map(self._quoted, table.columns))
        found = await self.ask(
            f"SELECT {columns} FROM {name} WHERE {behind} AND {up_to} ORDER BY {key}", *values, *bounds
        )
        return [self._common(table, row) for row in found]

    def _compared(self, table: Table, key: Sequence[Any], sign: str) -> tuple[str, list[Any]]:
        """A comparison with a key, as the database uses an index for it."""
        columns = ", ".join(map(self._quoted, table.key))
        return f"({columns}) {sign} ({', '.join('?' * len(key))})", [*key]

    def _bytes(self, table: Table) -> str:
        texts = [column for column, kind in table.columns.items() if kind in self.texts]
        return " + ".join(f"COALESCE({self.octets.format(self._quoted(column))}, 0)" for column in texts) or "0"

    def _quoted(self, name: str) -> str:
        return f"{self.quote}{name}{self.quote}"

    def _common(self, table: Table, row: Row) -> Row:
        """A row of this database, with values that all of them know."""
        return tuple(row)


@functools.cache
def declared_lengths() -> dict[str, dict[str, int]]:
    """The lengths of texts that the migrations declare, by table and column, also of tables that are not there yet."""
    found = dict[str, dict[str, int]]()
    for file in sorted((FOLDER / "migrations").iterdir(), key=lambda entry: entry.name):
        for statement in split_statements(file.read_text(encoding="utf-8")):
            if table := re.search(r"^(?:CREATE|ALTER) TABLE \{(\w+)\}", statement, re.MULTILINE):
                columns = re.findall(r"^\s+(?:ADD COLUMN )?(\w+) +varchar\((\d+)\)", statement, re.MULTILINE)
                found.setdefault(table[1], {}).update({name: int(length) for name, length in columns})
    return found


def key_of(table: Table, row: Row) -> list[Any]:
    """The key of a row."""
    columns = list(table.columns)
    return [row[columns.index(name)] for name in table.key]


def literal(text: str) -> str:
    """A text in a statement that makes a trigger."""
    return "'" + text.replace("\\", "/").replace("'", "''") + "'"
