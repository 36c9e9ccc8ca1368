"""Tasks and results in PostgreSQL."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator, Mapping, Sequence
from typing import Any

import asyncpg

from ...cancellation import translated
from ...errors import SchemaError, sentence
from ...model.urls import parse_url
from ...settings import Settings
from ...store.postgres.connections import Connector, connect_error, qualify
from ...store.postgres.errors import translate
from ...store.postgres.transactions import borrowed, close_pool, transaction
from ...store.sql import load_statements, split_statements
from ..protocol import results_table, tasks_table
from ..task_store import (
    CONNECTIONS,
    PARAMETER,
    Location,
    may_not_make_tables,
    may_not_use_tables,
    missing_tables,
)

_NOW = "(extract(epoch FROM statement_timestamp())::double precision * 1000::double precision)::bigint"
"""The database's clock in milliseconds, when the statement came."""
_ALREADY_MADE = (asyncpg.UniqueViolationError, asyncpg.DuplicateTableError, asyncpg.DuplicateObjectError)
"""Errors if another process has made the same table at the same time."""
_TIMES = 5
_PACKAGE = __package__ or ""

Statements = dict[str, tuple[str, list[str]]]


class PostgresDatabase:
    """The tables of one prefix on a Postgres; what it is asked is said in ``Database``."""

    def __init__(self, where: Location, settings: Settings) -> None:
        self._url = where.url
        self._settings = settings
        self._pool = self._given = where.pool
        names = [f'"{table(where.prefix)}"' for table in (tasks_table, results_table)]
        index = f'"{tasks_table(where.prefix)}_grp_idx"'
        self._names = names
        self._script = load_statements(_PACKAGE, "tables.sql", self._words(*names) | {"index": index})
        self._sql = self._statements(*names)

    def _words(self, tasks: str, results: str) -> dict[str, str]:
        return {"tasks": tasks, "results": results, "now": _NOW}

    def _statements(self, tasks: str, results: str) -> Statements:
        statements = self._script | load_statements(_PACKAGE, "transport.sql", self._words(tasks, results))
        return {name: _numbered(qualify(text)) for name, text in statements.items()}

    async def open(self) -> None:
        """Connect once, so that an error of the URL is reported now."""
        if self._pool is None:
            assert self._url is not None
            connector = Connector(parse_url(self._url.text), self._settings)
            options = await connector.options_for_users()  # the tables are found by the search_path of the user
            options["command_timeout"] = self._settings.command_timeout
            if "server_settings" in options:
                # Rows that a vanished machine has locked are passed over by every claim for as long as they are.
                lease = str(int(self._settings.lease * 1000))
                options["server_settings"]["idle_in_transaction_session_timeout"] = lease
            try:
                self._pool = await asyncpg.create_pool(min_size=0, max_size=CONNECTIONS, **options)
            except Exception as error:
                raise connect_error(error, self._url.text) from None

    async def close(self) -> None:
        """Close the pool, if it is ours."""
        pool, self._pool = self._pool, self._given
        if pool is not None and self._given is None:
            await close_pool(pool)

    @contextlib.asynccontextmanager
    async def transaction(self) -> AsyncIterator[_Work]:
        """A transaction on a connection of the pool."""
        with translated(self._meaning):
            async with borrowed(self._pool, self._settings.connect_timeout) as connection, transaction(connection):
                yield _Work(connection, self._sql)

    @contextlib.asynccontextmanager
    async def within(self, connection: Any) -> AsyncIterator[_Work]:
        """Work in the transaction that a caller has open."""
        with translated(self._meaning):
            yield _Work(connection, self._sql)

    async def locate(self) -> None:
        """Qualify statements with the schema, because the engine's sessions have no search_path. A missing right is
        reported now: later it would fail transactions that other runs share."""
        with translated(self._meaning):
            async with borrowed(self._pool, self._settings.connect_timeout) as connection:
                work = _Work(connection, self._sql)
                found = [(await work.fetch("located", name=name))[0][0] for name in self._names]
                usable = [(await work.fetch("usable", name=name))[0][0] for name in self._names]
        if None in found:
            raise missing_tables("they are not on the search_path of this user")
        if not all(usable):
            raise may_not_use_tables()
        self._sql = self._statements(*found)

    async def create(self) -> bool:
        """Make the tables, unless they exist. Of two processes that make them, the second waits for the first,
        fails, and then finds them."""
        for _ in range(_TIMES):
            with contextlib.suppress(*_ALREADY_MADE):
                return await self._create()
        return await self._create()

    async def _create(self) -> bool:
        try:
            async with borrowed(self._pool, self._settings.connect_timeout) as connection:
                work = _Work(connection, self._sql)
                if await self._exist(work):
                    return False
                async with transaction(connection):
                    for statement in split_statements(self._script["create"]):
                        await connection.execute(statement)
                    return True
        except _ALREADY_MADE:
            raise
        except asyncpg.InsufficientPrivilegeError as error:
            raise may_not_make_tables(sentence(error)) from None
        except Exception as error:
            raise self._meaning(error) from None

    async def _exist(self, work: _Work) -> bool:
        return bool((await work.fetch("exist", tasks=self._names[0], results=self._names[1]))[0][0])

    def script(self) -> str:
        """The statements for psql."""
        return self._script["create"] + ";\n"

    def _meaning(self, error: Exception) -> Exception:
        known = translate(error)
        if isinstance(known, SchemaError) and isinstance(error, asyncpg.PostgresError):
            return missing_tables(sentence(error))
        not_let_in = (asyncpg.InvalidAuthorizationSpecificationError, asyncpg.InvalidCatalogNameError)
        if self._url is not None and isinstance(error, not_let_in):
            return connect_error(error, self._url.text)
        return known


class _Work:
    """One open transaction; what it is asked is said in ``Work``."""

    def __init__(self, connection: Any, statements: Statements) -> None:
        self._connection = connection
        self._sql = statements

    async def fetch(self, name: str, /, **given: Any) -> Sequence[Any]:
        sql, order = self._sql[name]
        rows: list[Any] = await self._connection.fetch(sql, *(given[word] for word in order))
        return rows

    async def execute(self, name: str, /, **given: Any) -> None:
        sql, order = self._sql[name]
        await self._connection.execute(sql, *(given[word] for word in order))

    async def put(self, name: str, /, rows: Sequence[Mapping[str, Any]]) -> None:
        """Each column goes as one array."""
        sql, order = self._sql[name]
        await self._connection.execute(sql, *([row[word] for row in rows] for word in order))


def _numbered(text: str) -> tuple[str, list[str]]:
    """The statement with numbers in place of the names of its parameters, and the names in that order."""
    order: list[str] = []

    def number(found: Any) -> str:
        if found[1] not in order:
            order.append(found[1])
        return f"${order.index(found[1]) + 1}"

    return PARAMETER.sub(number, text), order
