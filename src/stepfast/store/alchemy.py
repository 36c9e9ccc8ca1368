"""What SQLAlchemy has beneath its sessions and connections, found without an import of it."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

from ..caller_thread import beside_the_loop, callers_thread, refuse_without_loop
from ..errors import ConfigurationError, DatabaseUnavailable


async def beneath(connection: Any) -> Any:
    """The driver's connection beneath a session or a connection of SQLAlchemy's, one for an event loop or one that
    blocks. AttributeError or TypeError: it is none of these."""
    if not hasattr(connection, "run_sync"):
        return await beneath_sync(connection)
    refuse_without_loop()
    alchemist = await connection.connection() if hasattr(connection, "get_bind") else connection
    theirs = unlent((await alchemist.get_raw_connection()).driver_connection)
    # SQLAlchemy notes that a transaction is open with the first statement that passes through it: it would not commit.
    await alchemist.exec_driver_sql("SELECT 1")
    return theirs


async def beneath_sync(connection: Any) -> Any:
    """The driver's connection beneath a ``Session`` or ``Connection`` that blocks. A registry of sessions
    (``scoped_session``) has one for each thread, so it is asked in that of the caller."""
    if callers_thread() is None:
        connection = _of_this_thread(connection)
    return await beside_the_loop(lambda: _driver_connection(_of_this_thread(connection)), lambda: None)


def comes_from(thing: Any, *packages: str) -> bool:
    """Whether its class, or one that this is derived from, is of one of these packages."""
    return any(kind.__module__.partition(".")[0] in packages for kind in type(thing).__mro__)


def kind_of(thing: Any) -> str:
    """The class of something, for a message."""
    return f"{type(thing).__module__}.{type(thing).__qualname__}"


def _of_this_thread(connection: Any) -> Any:
    return connection() if hasattr(connection, "registry") and callable(connection) else connection


def _driver_connection(connection: Any) -> Any:
    """The driver's connection beneath one of SQLAlchemy's, which must know of a transaction, or it would not commit."""
    if hasattr(connection, "get_bind"):
        connection = connection.connection()  # a session's
    if connection.closed:
        raise DatabaseUnavailable("the connection that was passed is closed")
    if not connection.in_transaction():
        connection.begin()
    return unlent(connection.connection.driver_connection)


def with_session(function: Callable[..., Any]) -> Callable[..., Any]:
    """A function of a session and arguments as one of a driver's connection and them. Refused without SQLAlchemy, which
    nothing else needs."""
    try:
        from . import alchemy_session
    except ImportError:
        raise ConfigurationError(
            "ctx.options(session=True) needs SQLAlchemy 2: pip install 'sqlalchemy[asyncio]'"
        ) from None
    return functools.partial(alchemy_session.with_session, function)


class Lent:
    """A driver's connection that its borrower neither ends nor closes."""

    def __init__(self, connection: Any) -> None:
        self.connection = connection

    def __getattr__(self, name: str) -> Any:
        return getattr(self.connection, name)


def unlent(connection: Any) -> Any:
    """A driver's connection itself."""
    return connection.connection if type(connection).__mro__[-2] is Lent else connection
