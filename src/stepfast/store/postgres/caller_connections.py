"""Connections that callers bring along.

Which drivers and libraries are supported, and how they are used without harm to their owner.
"""

from __future__ import annotations

import contextlib
import functools
import re
import sys
import weakref
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from typing import Any, TypeVar

import asyncpg

from ...caller_thread import beside_the_loop, refuse_without_loop
from ...errors import ConfigurationError, DatabaseUnavailable
from ..alchemy import beneath_sync, comes_from, kind_of, unlent
from .connections import know_arrays
from .errors import translate
from .transactions import callers_transaction, is_gone

T = TypeVar("T")

_IDLE = 0
"""The status of a connection without a transaction, in the words of libpq, which all of them use."""
_NUMBERED = re.compile(r"%|\$(\d+)")


class Foreign:
    """A connection of another driver."""

    def __init__(self, connection: Any) -> None:
        self.connection = connection

    @property
    def gone(self) -> bool:
        """Whether the connection is closed."""
        return bool(self.connection.closed)

    async def fetch(self, sql: str, *values: Any) -> list[Row]:
        """The rows of a statement, none if it has none."""
        raise NotImplementedError

    async def execute(self, sql: str, *values: Any) -> str:
        """Run a statement whose rows are not needed; what it has done, as the server says it."""
        raise NotImplementedError

    async def fetchrow(self, sql: str, *values: Any) -> Row | None:
        """The first row, if there is one."""
        rows = await self.fetch(sql, *values)
        return rows[0] if rows else None

    async def fetchval(self, sql: str, *values: Any) -> Any:
        """The first value of the first row, if there is one."""
        row = await self.fetchrow(sql, *values)
        return None if row is None else row[0]


class ForeignAsync(Foreign):
    """An ``AsyncConnection`` of psycopg's, in its own event loop."""

    async def fetch(self, sql: str, *values: Any) -> list[Row]:
        """The rows of a statement."""
        async with self.connection.cursor(row_factory=_as_tuples) as cursor:
            await cursor.execute(_renamed(sql), _named(values))
            return _rows(cursor, await cursor.fetchall() if cursor.description else [])

    async def execute(self, sql: str, *values: Any) -> str:
        """Run a statement whose rows are not needed."""
        async with self.connection.cursor(row_factory=_as_tuples) as cursor:
            await cursor.execute(_renamed(sql), _named(values))
            return cursor.statusmessage or ""


class ForeignSync(Foreign):
    """A connection that blocks its thread, so it is used in the caller's own thread or in one of its own."""

    async def fetch(self, sql: str, *values: Any) -> list[Row]:
        """The rows of a statement."""
        return await beside_the_loop(lambda: self._fetch(sql, values)[0], self.connection.cancel)

    async def execute(self, sql: str, *values: Any) -> str:
        """Run a statement whose rows are not needed."""
        return await beside_the_loop(lambda: self._fetch(sql, values)[1], self.connection.cancel)

    def _fetch(self, sql: str, values: Sequence[Any]) -> tuple[list[Row], str]:
        with _plain_cursor(self.connection) as cursor:
            cursor.execute(_renamed(sql), _named(values))
            rows = _rows(cursor, cursor.fetchall() if cursor.description else [])
            return rows, cursor.statusmessage or ""


def _plain_cursor(connection: Any) -> Any:
    """One whose rows are tuples, with any settings of the connection's owner."""
    if comes_from(connection, "psycopg2"):
        return connection.cursor(cursor_factory=_plain_class())
    return connection.cursor(row_factory=_as_tuples)


def _plain_class() -> Any:
    """psycopg2's own class of cursors, found without an import."""
    return sys.modules["psycopg2.extensions"].cursor


def _as_tuples(_cursor: Any) -> Any:
    """A row factory of psycopg's."""
    return tuple


class Row(tuple[Any, ...]):
    """A row by the numbers of its columns and by their names, as our own driver has it."""

    names: list[str]

    def __getitem__(self, key: Any) -> Any:
        return tuple.__getitem__(self, self.names.index(key) if isinstance(key, str) else key)

    def values(self) -> Row:
        """The values of all columns."""
        return self


def _rows(cursor: Any, found: Sequence[Any]) -> list[Row]:
    names, rows = [column[0] for column in cursor.description or ()], [Row(row) for row in found]
    for row in rows:
        row.names = names
    return rows


@functools.lru_cache(maxsize=256)
def _renamed(sql: str) -> str:
    return _NUMBERED.sub(lambda found: "%%" if found[1] is None else f"%({found[1]})s", sql)


def _named(values: Sequence[Any]) -> dict[str, Any]:
    return {str(number): value for number, value in enumerate(values, 1)}


# -- which of them it is -------------------------------------------------------------------------------------


def is_foreign(connection: Any) -> bool:
    """Whether this is a connection of one of these drivers."""
    return comes_from(connection, "psycopg", "psycopg2") and hasattr(connection, "cursor")


def adapted(connection: Any) -> Foreign:
    """The connection with our words. Most drivers begin a transaction with the first statement. One that commits each
    by itself would commit a start before its owner has decided anything, so it is refused unless one is open."""
    is_async = hasattr(type(connection), "__aenter__")
    theirs = ForeignAsync(connection) if is_async else ForeignSync(connection)
    ask = getattr(connection, "get_transaction_status", None)  # psycopg2's
    status = int(ask() if ask is not None else connection.info.transaction_status)
    if not theirs.gone and connection.autocommit and status == _IDLE:
        raise ConfigurationError(
            "connection= commits each statement by itself (autocommit), and no transaction is open on it: nothing was "
            "written. Begin one (`with connection.transaction(): …`), or leave connection= out"
        )
    return theirs


_ACCEPTED = (
    "connection= takes a connection of asyncpg's or psycopg's, or a SQLAlchemy Session, Connection, AsyncSession or "
    "AsyncConnection over one of these, with the database that Stepfast works on"
)


class Callers:
    """Lets callers' connections in, once it is known that they lead to our own database: another one may have the same
    tables, and what is started there is executed by no worker of this one."""

    def __init__(self, identity: str, ask_ours: Callable[[str], Awaitable[Any]]) -> None:
        self._identity = identity
        self._ask_ours = ask_ours
        self._ours: Any = None
        self._known: weakref.WeakSet[Any] = weakref.WeakSet()
        """Connections that were compared with ours."""

    async def learn(self, connection: Any) -> None:
        """Which database is ours, from a connection that is at hand: later there may be none to spare."""
        self._ours = await connection.fetchrow(self._identity)

    @contextlib.asynccontextmanager
    async def within(self, connection: Any) -> AsyncIterator[Any]:
        """The driver's connection, in the transaction that its owner has open; if there is none, in one for this call.

        What goes wrong with the owner's transaction (a deadlock, a serialisation failure) comes out as it is: only the
        owner can begin again."""
        theirs = await _driver_connection(connection)
        if _gone(theirs):
            raise DatabaseUnavailable("the connection that was passed is closed")
        try:
            async with _joined(theirs):
                await self._compare(theirs)
                yield theirs if isinstance(theirs, Foreign) else know_arrays(theirs)
        except Exception as error:
            known = translate(error)
            if known is error or (isinstance(known, DatabaseUnavailable) and not _gone(theirs)):
                raise
            raise known from error

    async def _compare(self, connection: Any) -> None:
        """Once for each connection. After a restart, or when another server has taken over, ours is read again."""
        if isinstance(connection, Foreign):
            itself = connection.connection
        else:
            itself = getattr(connection, "_con", connection)  # a pool gives a new wrapper each time
        if itself in self._known:
            return
        theirs: Any = await connection.fetchrow(self._identity)
        if not _same(theirs, self._ours):
            self._ours = await self._ask_ours(self._identity)
        if not _same(theirs, self._ours):
            raise ConfigurationError(
                f"connection= leads to another database ({theirs['name']!r}) than the one that Stepfast works on "
                f"({self._ours['name']!r}), or to another server: nothing was written"
            )
        self._known.add(itself)


def _joined(theirs: Any) -> contextlib.AbstractAsyncContextManager[None]:
    """The owner's transaction; with our own driver, where none is open, one for this call."""
    if isinstance(theirs, Foreign) or theirs.is_in_transaction():
        return contextlib.nullcontext()
    return callers_transaction(theirs)


def _same(one: Any, other: Any) -> bool:
    """Whether two drivers tell of the same database."""
    return other is not None and [*one.values()] == [*other.values()]


def _gone(theirs: Any) -> bool:
    return theirs.gone if isinstance(theirs, Foreign) else is_gone(theirs)


async def _driver_connection(connection: Any) -> Any:
    """The driver's connection, which may have something of SQLAlchemy's around it; one that is not of our own driver
    with our driver's words."""
    theirs = connection
    if hasattr(type(connection), "__aenter__") or isinstance(connection, asyncpg.Connection):
        refuse_without_loop()
    if not _is_driver(connection):
        try:
            theirs = await (_beneath if hasattr(connection, "run_sync") else beneath_sync)(connection)
        except (AttributeError, TypeError):
            raise ConfigurationError(f"{_ACCEPTED}; not {kind_of(connection)}") from None
        if not _is_driver(theirs):
            raise ConfigurationError(f"{_ACCEPTED}; not one over {kind_of(theirs)}")
    return adapted(theirs) if is_foreign(theirs) else theirs


async def _beneath(connection: Any) -> Any:
    """SQLAlchemy is known by its methods: a session gives its connection, that one the driver's."""
    alchemist = await connection.connection() if hasattr(connection, "get_bind") else connection
    theirs = unlent((await alchemist.get_raw_connection()).driver_connection)
    if is_foreign(theirs) or not theirs.is_in_transaction():
        # SQLAlchemy sends its BEGIN with the first statement that passes through it. Before that we would be outside
        # of its transaction, and what we write would stay when it is rolled back.
        await alchemist.exec_driver_sql("SELECT 1")
    return theirs


def _is_driver(connection: Any) -> bool:
    return isinstance(connection, asyncpg.Connection) or is_foreign(connection)  # also one out of a pool
