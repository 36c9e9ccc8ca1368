"""Connections that callers bring along: what they may be, and how they are used without harm to their owner."""

from __future__ import annotations

import contextlib
import weakref
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

import asyncpg

from ...callers_thread import refuse_without_loop
from ...errors import ConfigurationError, DatabaseUnavailable
from .arrays import know_arrays
from .foreign import Foreign, adapted, beneath, is_foreign
from .server_errors import translate
from .transactions import callers_transaction, is_gone

_ACCEPTED = (
    "connection= takes a connection of asyncpg's or psycopg's, or a SQLAlchemy Session, Connection, AsyncSession or "
    "AsyncConnection over one of these, with the database that Stepfast works on"
)


class Callers:
    """Lets callers' connections in, once it is known that they lead to our own database: another one may have the same
    tables, and what is started there is started for nobody here."""

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
        """Once for each connection. After a restart, or when another server has taken over, ours is asked for anew."""
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
            theirs = await (_beneath if hasattr(connection, "run_sync") else beneath)(connection)
        except (AttributeError, TypeError):
            raise ConfigurationError(f"{_ACCEPTED}; not {_kind(connection)}") from None
        if not _is_driver(theirs):
            raise ConfigurationError(f"{_ACCEPTED}; not one over {_kind(theirs)}")
    return adapted(theirs) if is_foreign(theirs) else theirs


async def _beneath(connection: Any) -> Any:
    """SQLAlchemy is known by its methods: a session gives its connection, that one the driver's."""
    alchemist = await connection.connection() if hasattr(connection, "get_bind") else connection
    theirs = (await alchemist.get_raw_connection()).driver_connection
    if is_foreign(theirs) or not theirs.is_in_transaction():
        # SQLAlchemy sends its BEGIN with the first statement that passes through it. Before that we would be outside
        # of its transaction, and what we write would stay when it is rolled back.
        await alchemist.exec_driver_sql("SELECT 1")
    return theirs


def _is_driver(connection: Any) -> bool:
    return isinstance(connection, asyncpg.Connection) or is_foreign(connection)  # also one out of a pool


def _kind(thing: Any) -> str:
    return f"{type(thing).__module__}.{type(thing).__qualname__}"
