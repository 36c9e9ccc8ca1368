"""Connections of other drivers than ours, with our driver's words: psycopg's, with an event loop or without, those of
psycopg2, and what SQLAlchemy wraps around them.

None of these packages is imported here: whoever brings a connection along has them loaded. Our statements number their
values (``$1``); theirs name them (``%(1)s``).
"""

from __future__ import annotations

import functools
import re
import sys
from collections.abc import Sequence
from typing import Any, TypeVar

from ...callers_thread import beside_the_loop, callers_thread
from ...errors import ConfigurationError, DatabaseUnavailable

T = TypeVar("T")

_IDLE = 0
"""The status of a connection without a transaction, in the words of libpq, which all of them use."""
_NUMBERED = re.compile(r"%|\$(\d+)")


class Foreign:
    """A connection of another driver. Rows are dicts."""

    def __init__(self, connection: Any) -> None:
        self.connection = connection

    @property
    def gone(self) -> bool:
        """Whether the connection is closed."""
        return bool(self.connection.closed)

    async def fetch(self, sql: str, *values: Any) -> list[dict[str, Any]]:
        """The rows of a statement, none if it has none."""
        raise NotImplementedError

    async def execute(self, sql: str, *values: Any) -> None:
        """Run a statement whose rows nobody wants."""
        await self.fetch(sql, *values)

    async def fetchrow(self, sql: str, *values: Any) -> dict[str, Any] | None:
        """The first row, if there is one."""
        rows = await self.fetch(sql, *values)
        return rows[0] if rows else None

    async def fetchval(self, sql: str, *values: Any) -> Any:
        """The first value of the first row, if there is one."""
        row = await self.fetchrow(sql, *values)
        return None if row is None else next(iter(row.values()))


class ForeignAsync(Foreign):
    """An ``AsyncConnection`` of psycopg's, in its own event loop."""

    async def fetch(self, sql: str, *values: Any) -> list[dict[str, Any]]:
        """The rows of a statement."""
        async with self.connection.cursor(row_factory=_as_tuples) as cursor:
            await cursor.execute(_renamed(sql), _named(values))
            return _rows(cursor, await cursor.fetchall() if cursor.description else [])


class ForeignSync(Foreign):
    """A connection that blocks whoever uses it, so it is used in the caller's own thread or in one of its own."""

    async def fetch(self, sql: str, *values: Any) -> list[dict[str, Any]]:
        """The rows of a statement."""
        return await beside_the_loop(lambda: self._fetch(sql, values), self.connection.cancel)

    def _fetch(self, sql: str, values: Sequence[Any]) -> list[dict[str, Any]]:
        with _plain_cursor(self.connection) as cursor:
            cursor.execute(_renamed(sql), _named(values))
            return _rows(cursor, cursor.fetchall() if cursor.description else [])


def _plain_cursor(connection: Any) -> Any:
    """Whatever its owner has set, one whose rows are tuples."""
    if _comes_from(connection, "psycopg2"):
        return connection.cursor(cursor_factory=_plain_class())
    return connection.cursor(row_factory=_as_tuples)


def _plain_class() -> Any:
    """psycopg2's own class of cursors, found without an import."""
    return sys.modules["psycopg2.extensions"].cursor


def _as_tuples(_cursor: Any) -> Any:
    """A row factory of psycopg's."""
    return tuple


def _rows(cursor: Any, found: Sequence[Any]) -> list[dict[str, Any]]:
    names = [column[0] for column in cursor.description or ()]
    return [dict(zip(names, row, strict=True)) for row in found]


@functools.lru_cache(maxsize=256)
def _renamed(sql: str) -> str:
    return _NUMBERED.sub(lambda found: "%%" if found[1] is None else f"%({found[1]})s", sql)


def _named(values: Sequence[Any]) -> dict[str, Any]:
    return {str(number): value for number, value in enumerate(values, 1)}


# -- which of them it is -------------------------------------------------------------------------------------


def is_foreign(connection: Any) -> bool:
    """Whether this is a connection of one of these drivers."""
    return _comes_from(connection, "psycopg", "psycopg2") and hasattr(connection, "cursor")


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


async def beneath(connection: Any) -> Any:
    """The driver's connection beneath a ``Session`` or ``Connection`` of SQLAlchemy's. A registry of sessions
    (``scoped_session``) has one for each thread, so it is asked in that of the caller."""
    if callers_thread() is None:
        connection = _of_this_thread(connection)
    return await beside_the_loop(lambda: _beneath(_of_this_thread(connection)), lambda: None)


def _of_this_thread(connection: Any) -> Any:
    return connection() if hasattr(connection, "registry") and callable(connection) else connection


def _beneath(connection: Any) -> Any:
    """The driver's connection beneath one of SQLAlchemy's, which must know of a transaction, or it would not commit."""
    if hasattr(connection, "get_bind"):
        connection = connection.connection()  # a session's
    if connection.closed:
        raise DatabaseUnavailable("the connection that was passed is closed")
    if not connection.in_transaction():
        connection.begin()
    return connection.connection.driver_connection


def _comes_from(thing: Any, *packages: str) -> bool:
    """Whether its class, or one that this is derived from, is of one of these packages."""
    return any(kind.__module__.partition(".")[0] in packages for kind in type(thing).__mro__)
