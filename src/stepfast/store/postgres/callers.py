"""Connections that callers bring along: what they may be, and how they are used without harm to their owner."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator
from typing import Any

import asyncpg

from ...errors import ConfigurationError, DatabaseUnavailable
from .arrays import know_arrays
from .server_errors import translate
from .transactions import callers_transaction, is_gone

_ACCEPTED = (
    "connection= takes an asyncpg connection, or a SQLAlchemy AsyncSession or AsyncConnection over asyncpg "
    "(postgresql+asyncpg://…), with the database that Stepfast works on"
)


@contextlib.asynccontextmanager
async def within(connection: Any) -> AsyncIterator[Any]:
    """The driver's connection, in the transaction that its owner has open; if there is none, in one for this call.

    What goes wrong with the owner's transaction (a deadlock, a serialisation failure) comes out as it is: only the
    owner can begin again."""
    theirs = await _driver_connection(connection)
    if is_gone(theirs):
        raise DatabaseUnavailable("the connection that was passed is closed")
    try:
        async with contextlib.nullcontext() if theirs.is_in_transaction() else callers_transaction(theirs):
            yield know_arrays(theirs)
    except Exception as error:
        known = translate(error)
        if known is error or (isinstance(known, DatabaseUnavailable) and not is_gone(theirs)):
            raise
        raise known from error


async def _driver_connection(connection: Any) -> Any:
    """SQLAlchemy is known by its methods: a session gives its connection, that one the driver's."""
    if isinstance(connection, asyncpg.Connection):  # also one out of a pool
        return connection
    try:
        alchemist = await connection.connection() if hasattr(connection, "get_bind") else connection
        theirs = (await alchemist.get_raw_connection()).driver_connection
    except (AttributeError, TypeError):
        raise ConfigurationError(f"{_ACCEPTED}; not {_kind(connection)}") from None
    if not isinstance(theirs, asyncpg.Connection):
        raise ConfigurationError(f"{_ACCEPTED}; not one over {_kind(theirs)}")
    if not theirs.is_in_transaction():
        # SQLAlchemy sends its BEGIN with the first statement that passes through it. Before that we would be outside
        # of its transaction, and what we write would stay when it is rolled back.
        await alchemist.exec_driver_sql("SELECT 1")
    return theirs


def _kind(thing: Any) -> str:
    return f"{type(thing).__module__}.{type(thing).__qualname__}"
