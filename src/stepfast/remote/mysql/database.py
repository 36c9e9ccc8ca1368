"""Tasks and results in MariaDB and MySQL."""

from __future__ import annotations

import contextlib
import hashlib
import re
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from typing import Any

from ...cancellation import translated
from ...errors import ConfigurationError, DatabaseRefused, sentence
from ...settings import Settings
from ...store.answers import MissingRight
from ...store.mysql.connections import NOW, connect_error, create_pool
from ...store.mysql.errors import is_about_tables, is_no_right, translate
from ...store.mysql.transactions import borrowed, close_pool, run, transaction
from ...store.sql import load_statements, split_statements
from ..protocol import results_table, tasks_table
from ..task_store import CONNECTIONS, PARAMETER, Location, may_not_make_tables, missing_tables

_ROW = re.compile(r"^    \(%\([^\n]*\)$", re.MULTILINE)
"""The line of a statement that is repeated for each row."""
_BYTES = 1024 * 1024
"""About how much one statement for many rows carries."""
_ROOM = 1024
"""Bytes of a packet that are not ours."""


class MysqlDatabase:
    """The tables of one prefix on a MariaDB or MySQL; what it is asked is said in ``Database``."""

    def __init__(self, where: Location, settings: Settings) -> None:
        self._url = where.url
        self._settings = settings
        self._pool = self._given = where.pool
        self._packet: int | None = None
        """The largest statement that the server takes, once it was asked."""
        tasks, results = tasks_table(where.prefix), results_table(where.prefix)
        self._tables = tasks, results
        words = {"tasks": f"`{tasks}`", "results": f"`{results}`", "index": f"`{tasks}_grp_idx`", "now": NOW}
        package = "stepfast.remote.mysql"
        self._script = load_statements(package, "tables.sql", words)
        statements = self._script | load_statements(package, "transport.sql", words)
        self._sql = {name: _formatted(text) for name, text in statements.items() if name != "create"}

    async def open(self) -> None:
        """Connect once, so that an error of the URL is reported now."""
        if self._pool is None:
            assert self._url is not None
            self._pool = await create_pool(self._url.text, self._settings, CONNECTIONS, stmt_cache_size=0)
        with translated(self._meaning):
            async with borrowed(self._pool, self._settings.connect_timeout) as connection:
                self._packet = int((await run(connection, "SELECT @@max_allowed_packet"))[0][0])

    async def close(self) -> None:
        """Close the pool, if it is ours."""
        pool, self._pool = self._pool, self._given
        if pool is not None and self._given is None:
            await close_pool(pool)

    @contextlib.asynccontextmanager
    async def transaction(self) -> AsyncIterator[_Work]:
        """A transaction on a connection of the pool."""
        with translated(self._meaning):
            async with (
                borrowed(self._pool, self._settings.connect_timeout) as connection,
                transaction(connection, ours=self._given is None),
            ):
                yield _Work(connection, self._sql, self._packet)

    @contextlib.asynccontextmanager
    async def within(self, connection: Any) -> AsyncIterator[_Work]:
        """Work in the transaction that a caller has open."""
        with translated(self._meaning):
            yield _Work(connection, self._sql, self._packet)

    async def locate(self) -> None:
        """Do nothing: tables are found by the database of the connection, and only own connections are used."""

    async def create(self) -> bool:
        """Make the tables under a lock, unless they exist."""
        with translated(self._meaning):
            async with borrowed(self._pool, self._settings.connect_timeout) as connection:
                work = _Work(connection, self._sql, self._packet)
                if await self._exist(work):
                    return False
                name = "stepfast transport " + hashlib.sha256(self._tables[0].encode()).hexdigest()[:32]
                await work.fetch("lock", lock=name, seconds=int(self._settings.connect_timeout))
                try:
                    if await self._exist(work):
                        return False
                    for statement in split_statements(self._script["create"]):
                        await _make(connection, statement)
                    return True
                finally:
                    await work.fetch("unlock", lock=name)

    async def _exist(self, work: _Work) -> bool:
        return int((await work.fetch("exist", names=self._tables))[0][0]) == len(self._tables)

    def script(self) -> str:
        """The statements for the mysql client."""
        return self._script["create"] + ";\n"

    def _meaning(self, error: Exception) -> Exception:
        if is_about_tables(error):
            return missing_tables(sentence(error))
        if is_no_right(error):
            return MissingRight(f"the database user lacks a right that remote steps need ({sentence(error)}): grant it")
        return translate(error) if self._url is None else connect_error(error, self._url.text)


class _Work:
    """One open transaction; what it is asked is said in ``Work``."""

    def __init__(self, connection: Any, statements: dict[str, str], packet: int | None) -> None:
        self._connection = connection
        self._sql = statements
        self._packet = packet

    async def fetch(self, name: str, /, **given: Any) -> Sequence[Any]:
        return await run(self._connection, self._sql[name], given)

    async def execute(self, name: str, /, **given: Any) -> None:
        await run(self._connection, self._sql[name], given)

    async def put(self, name: str, /, rows: Sequence[Mapping[str, Any]]) -> None:
        """Several rows in one statement, as many as go well together."""
        statement = self._sql[name]
        found = _ROW.search(statement)
        assert found is not None, name
        cursor = self._connection.cursor()
        texts = [cursor.mogrify(found[0], dict(row)) for row in rows]
        for portion in _portions(texts):
            sql = statement[: found.start()] + ",\n".join(portion) + statement[found.end() :]
            self._refuse_too_large(sql)
            await cursor.execute(sql)

    def _refuse_too_large(self, sql: str) -> None:
        """Refuse a statement that is too large: the server would close the connection, as in an outage."""
        if self._packet is not None and len(sql) * 4 + _ROOM > self._packet:
            size = len(sql.encode())
            if size + _ROOM > self._packet:
                raise DatabaseRefused(
                    f"it has {size:,} bytes, and the server takes {self._packet:,} at once (max_allowed_packet)"
                )


async def _make(connection: Any, statement: str) -> None:
    """Make a table. Whether the user may is decided by the server for each statement."""
    try:
        await run(connection, statement)
    except Exception as error:
        if is_no_right(error):
            raise may_not_make_tables(sentence(error)) from None
        raise


def _portions(texts: list[str]) -> Iterator[list[str]]:
    portion: list[str] = []
    size = 0
    for text in texts:
        if portion and size + len(text) > _BYTES:
            yield portion
            portion, size = [], 0
        portion.append(text)
        size += len(text)
    if portion:
        yield portion


def _formatted(text: str) -> str:
    """The statement as the driver wants it: without comments, its parameters as ``%(name)s``."""
    plain = "\n".join(line for line in text.splitlines() if not line.lstrip().startswith("--"))
    if "%" in plain:
        raise ConfigurationError("a statement for MySQL must not have a per cent sign in it")
    return PARAMETER.sub(r"%(\1)s", plain)
