"""Everything of ours on MariaDB and MySQL that is begun and must be ended: transactions, and connections out of a pool.

As on Postgres, a connection about which anything is doubtful is dropped: the server then rolls back by itself, and the
pool makes a new one. A cancellation comes through, whatever error is met on the way out, and also if the driver has
swallowed it: before Python 3.12 ``asyncio.wait_for``, which it reads with, does so when the answer is there already.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from typing import Any

from ...cancellation import raise_if_cancelled, requests
from .errors import is_silent

PATIENCE = 5.0
"""Seconds for a rollback, or for a pool to be closed. Then the connections are dropped."""


@contextlib.asynccontextmanager
async def transaction(connection: Any) -> AsyncIterator[None]:
    """A transaction in which each statement sees what was committed before it, whatever is usual on this server: by
    default MySQL would lock the gaps between rows as well, and workers would wait for each other."""
    before = requests()
    try:
        await run(connection, "SET TRANSACTION ISOLATION LEVEL READ COMMITTED")
        await connection.begin()
        yield
        raise_if_cancelled(before)
        await connection.commit()
    except Exception as error:
        await _give_up(connection, error)
        raise_if_cancelled(before)
        raise
    except BaseException:
        drop(connection)
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


async def _give_up(connection: Any, error: Exception) -> None:
    """Roll back after an error, unless the server may not answer."""
    if is_silent(error):
        drop(connection)
        return
    try:
        async with asyncio.timeout(PATIENCE):
            await connection.rollback()
    except Exception:
        drop(connection)
    except BaseException:
        drop(connection)
        raise


def _give_back(pool: Any, connection: Any) -> None:
    """The pool notices by itself whether it is closed."""
    with contextlib.suppress(KeyError):  # it was terminated meanwhile, and does not know the connection any more
        pool.release(connection)
