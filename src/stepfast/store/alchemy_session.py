"""Sessions of SQLAlchemy over the connection of ``ctx.transaction``, which commits and rolls back by itself.

An engine is made once for each event loop and driver, without a pool: what it takes for a new connection is the one
that is lent to the function, by a context variable. Closing it has no effect.
"""

from __future__ import annotations

import asyncio
import contextlib
import inspect
import sqlite3
import weakref
from collections.abc import Callable, Generator
from contextvars import ContextVar
from typing import Any

from sqlalchemy import create_engine, event
from sqlalchemy.ext.asyncio import AsyncSession, create_async_engine
from sqlalchemy.orm import Session, SessionTransaction
from sqlalchemy.pool import NullPool

from ..errors import ContextMisuse
from .alchemy import Lent, comes_from

_LENT: ContextVar[Any] = ContextVar("stepfast_lent_connection")
_DIALECTS = {"asyncpg": "postgresql+asyncpg://", "asyncmy": "mysql+asyncmy://"}
_engines: weakref.WeakKeyDictionary[asyncio.AbstractEventLoop, dict[str, Any]] = weakref.WeakKeyDictionary()


def with_session(function: Callable[..., Any], connection: Any, *args: Any, **kwargs: Any) -> Any:
    """What a function returns that is called with a session over a connection, and the arguments. A plain ``def`` gets
    a ``Session`` on every database, an ``async def`` an ``AsyncSession``."""
    if isinstance(connection, sqlite3.Connection):
        return _with_plain(function, connection, args, kwargs)
    return _with_async(function, connection, args, kwargs)


class _LentPlain(Lent):
    """Of sqlite3."""

    def commit(self) -> None:
        """What was flushed stays in the transaction."""

    def rollback(self) -> None:
        """It is undone with the transaction."""

    def close(self) -> None:
        """It goes back to its owner."""


class _LentAsyncpg(Lent):
    """Of asyncpg. SQLAlchemy's transaction is a savepoint of ours."""

    async def close(self, **_: Any) -> None:
        """It goes back to its owner."""

    def terminate(self) -> None:
        """The same."""


class _LentAsyncmy(Lent):
    """Of asyncmy."""

    async def commit(self) -> None:
        """What was flushed stays in the transaction."""

    async def rollback(self) -> None:
        """It is undone with the transaction."""

    async def ensure_closed(self) -> None:
        """It goes back to its owner."""

    def close(self) -> None:
        """The same."""


@contextlib.contextmanager
def _lent(lent: Lent) -> Generator[None]:
    token = _LENT.set(lent)
    try:
        yield
    finally:
        _LENT.reset(token)


@contextlib.contextmanager
def _kept(session: Session) -> Generator[None]:
    """Around the function. One that rolled back and returned has lost what it wrote."""
    rolled_back: list[SessionTransaction] = []

    def note(_: Session, transaction: SessionTransaction) -> None:
        if transaction.parent is None:
            rolled_back.append(transaction)

    event.listen(session, "after_soft_rollback", note)
    yield
    if rolled_back:
        raise ContextMisuse(
            "a function in ctx.transaction rolled its session back and returned: what it writes is committed together "
            "with the record of its result, so raise an error instead; for a part that may fail there is "
            "session.begin_nested(), but not on SQLite"
        )


def _with_plain(function: Callable[..., Any], connection: Any, args: Any, kwargs: Any) -> Any:
    if inspect.iscoroutinefunction(function):
        raise ContextMisuse(
            "on SQLite the function given to ctx.transaction must be a plain def, which gets a Session: it runs in the "
            "one thread that writes, which cannot wait for a coroutine"
        )
    lent: Any = _LentPlain(connection)
    engine = create_engine("sqlite://", creator=lambda: lent, poolclass=NullPool, pool_reset_on_return=None)
    with Session(engine, expire_on_commit=False) as session:
        with _kept(session):
            result = function(session, *args, **kwargs)
        session.commit()
        return result


async def _with_async(function: Callable[..., Any], connection: Any, args: Any, kwargs: Any) -> Any:
    is_asyncpg = comes_from(connection, "asyncpg")
    with _lent(_LentAsyncpg(connection) if is_asyncpg else _LentAsyncmy(connection)):
        async with AsyncSession(_engine(is_asyncpg), expire_on_commit=False) as session:
            with _kept(session.sync_session):
                if inspect.iscoroutinefunction(function):
                    result = await function(session, *args, **kwargs)
                else:
                    result = await session.run_sync(lambda plain: function(plain, *args, **kwargs))
            await session.commit()
    return result


def _engine(is_asyncpg: bool) -> Any:
    """The engine of this event loop for a driver."""
    driver = "asyncpg" if is_asyncpg else "asyncmy"
    engines = _engines.setdefault(asyncio.get_running_loop(), {})
    if driver not in engines:
        engines[driver] = create_async_engine(
            _DIALECTS[driver], async_creator=_take, poolclass=NullPool, pool_reset_on_return=None
        )
    return engines[driver]


async def _take(*_: Any, **__: Any) -> Any:
    return _LENT.get()
