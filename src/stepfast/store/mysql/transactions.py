"""Everything of ours on MariaDB and MySQL that is begun and must be ended: transactions, and connections out of a pool.

As on Postgres, a connection about which anything is doubtful is dropped: the server then rolls back by itself, and the
pool makes a new one. A cancellation comes through, also past an error on the way out, and also if the driver has
swallowed it: before Python 3.12 ``asyncio.wait_for``, which it reads with, does so when the answer is there already.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any, TypeVar

from ...cancellation import raise_if_cancelled, requests
from ..lock_timeout import longest_wait_ms
from .errors import is_silent, is_to_be_repeated

T = TypeVar("T")

PATIENCE = 5.0
"""Seconds for a rollback, or for a pool to be closed. Then the connections are dropped."""
PATIENCE_OF_CALLERS = 1.0
"""Seconds for the same where the caller was cancelled and the connection is theirs."""
_TRIES = 8
"""How often a transaction is begun that the server has rolled back for the sake of others."""
_PAUSE = 0.002
"""Seconds before the second try; twice as long before each further one."""


@contextlib.asynccontextmanager
async def transaction(connection: Any, ours: bool = False, longest_ms: int | None = None) -> AsyncIterator[None]:
    """A transaction in which each statement sees what was committed before it, also where others are usual: by
    default MySQL would lock the gaps between rows as well, and workers would wait for each other. Sessions of ``ours``
    are set so already. If it is said how many milliseconds it may wait for a lock, here or in the context
    (``store/lock_timeout.py``), it is refused after so long; the server counts in seconds."""
    before, usual = requests(), None
    longest_ms = longest_wait_ms() if longest_ms is None else longest_ms
    try:
        if not ours:
            await run(connection, "SET TRANSACTION ISOLATION LEVEL READ COMMITTED")
        if longest_ms is not None:
            [(usual,)] = await run(connection, "SELECT @@SESSION.innodb_lock_wait_timeout")
            await _wait_at_most(connection, max(1, -(-longest_ms // 1000)))
        await connection.begin()
        yield
        raise_if_cancelled(before)
        await connection.commit()
        await _wait_at_most(connection, usual)
    except Exception as error:
        await give_up(connection, error)
        if not is_gone(connection):
            await _wait_at_most(connection, usual)
        raise_if_cancelled(before)
        raise
    except BaseException:
        drop(connection)
        raise


async def _wait_at_most(connection: Any, seconds: int | None) -> None:
    """Bound how many seconds the statements of a session wait for a lock; None: leave it as it is."""
    if seconds is not None:
        await run(connection, f"SET SESSION innodb_lock_wait_timeout = {seconds:d}")


async def repeatedly(work: Callable[[], Awaitable[T]]) -> T:
    """Do work that is one transaction, again and again while the server rolls it back for the sake of others. That is
    more frequent here than on Postgres: two transactions may meet in the gaps of an index, in any order in which they
    lock their rows."""
    for number in range(1, _TRIES):
        try:
            return await work()
        except Exception as error:
            if not is_to_be_repeated(error):
                raise
        await asyncio.sleep(_PAUSE * 2**number)
    return await work()


@contextlib.asynccontextmanager
async def callers_transaction(connection: Any) -> AsyncIterator[None]:
    """A transaction for one call on a connection that a caller brought along. They may want to use it again, so that it
    is rolled back even when they were cancelled; only if that is not answered is it dropped."""
    before = requests()
    try:
        await connection.begin()
        yield
        raise_if_cancelled(before)
        await connection.commit()
    except asyncio.CancelledError:
        await roll_back(connection, PATIENCE_OF_CALLERS)
        raise
    except Exception as error:
        await give_up(connection, error)
        raise_if_cancelled(before)
        raise


@contextlib.asynccontextmanager
async def borrowed(pool: Any, patience: float) -> AsyncIterator[Any]:
    """A connection out of a pool. It goes back, and if anything is doubtful about it, as one that is closed."""
    before = requests()
    async with asyncio.timeout(patience):
        connection = await pool.acquire()
    try:
        yield connection
    except Exception as error:
        if is_silent(error):
            drop(connection)
        _give_back(pool, connection)
        raise_if_cancelled(before)
        raise
    except BaseException:
        drop(connection)
        _give_back(pool, connection)
        raise
    _give_back(pool, connection)
    raise_if_cancelled(before)


async def run(connection: Any, sql: str, given: Any = None) -> list[Any]:
    """One statement, and its rows."""
    cursor = connection.cursor()
    await cursor.execute(sql, given)
    return list(await cursor.fetchall()) if cursor.description else []


def drop(connection: Any) -> None:
    """Give a connection up without a word to the server."""
    connection.close()


def is_gone(connection: Any) -> bool:
    """Whether it is closed, by us or by the server."""
    return not connection.connected or bool(connection._stream_broken)


async def close_pool(pool: Any) -> None:
    """Close a pool; connections that are not given back in time are dropped."""
    before = requests()
    pool.close()
    try:
        async with asyncio.timeout(PATIENCE):
            await pool.wait_closed()
    except Exception:
        pool.terminate()
        raise_if_cancelled(before)
    except BaseException:
        pool.terminate()
        raise


async def close_quietly(connection: Any) -> None:
    """Close with a farewell, but without an error: the server may be gone already."""
    before = requests()
    try:
        async with asyncio.timeout(2):
            await connection.ensure_closed()
    except Exception:
        drop(connection)
        raise_if_cancelled(before)
    except BaseException:
        drop(connection)
        raise


async def give_up(connection: Any, error: Exception) -> None:
    """Roll back after an error, unless the server may not answer."""
    if is_silent(error):
        drop(connection)
    else:
        await roll_back(connection, PATIENCE)


async def roll_back(connection: Any, patience: float) -> None:
    """Roll back, and if the server does not answer, drop the connection."""
    try:
        async with asyncio.timeout(patience):
            await connection.rollback()
    except Exception:
        drop(connection)
    except BaseException:
        drop(connection)
        raise


def _give_back(pool: Any, connection: Any) -> None:
    """The pool notices by itself whether it is closed."""
    with contextlib.suppress(KeyError):  # it was terminated, and does not know the connection any more
        pool.release(connection)
