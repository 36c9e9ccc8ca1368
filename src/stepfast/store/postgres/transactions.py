"""Everything of ours on Postgres that is begun and must be ended: transactions, connections out of a pool, and flows
(``store/flows``), which are driven within transactions.

The driver's own blocks talk to the server while they unwind: they roll back, wait until a statement has stopped, reset
the session. If the caller was cancelled, or the network has fallen silent, that takes long, and its error hides the
cancellation. Here a connection is dropped instead: the server then rolls back by itself, and a pool makes a new one.
"""

from __future__ import annotations

import asyncio
import contextlib
import re
from collections.abc import AsyncIterator, Iterator, Sequence
from typing import TYPE_CHECKING, Any

import asyncpg

from ...cancellation import raise_if_cancelled, requests, seen
from ...errors import StepTimeout
from ..answers import TransportConnection
from ..flows.base import Ask, Commit, Flow, Put, PutAndAsk, PutEach, Remove, Request, Rows, SendTasks, T
from ..lock_timeout import longest_wait_ms

if TYPE_CHECKING:
    from .starts import Starts

PATIENCE = 5.0
"""Seconds for a rollback or a reset to be answered. Then the connection is dropped."""

PATIENCE_OF_CALLERS = 1.0
"""Seconds for the same where the caller was cancelled and the connection is theirs."""

_SILENT = (OSError, TimeoutError, asyncpg.PostgresConnectionError, asyncpg.InternalClientError)
"""After one of these it is not known what the server still does for us, so it is not asked."""


def transaction(connection: Any, longest_ms: int | None = None) -> contextlib.AbstractAsyncContextManager[None]:
    """A transaction on a connection of our own. Read committed, with any default of the database: our statements lock
    first and then look, and under a stricter level they would see what was there before they waited. If it is said how
    many milliseconds they may wait for a lock, here or in the context (``store/lock_timeout.py``), one that has to wait
    longer is refused (LockNotAvailableError)."""
    if longest_ms is None:
        longest_ms = longest_wait_ms()
    if longest_ms is None:
        return _within(connection, connection.transaction(isolation="read_committed"))
    return _within(connection, _Brief(connection, longest_ms))


def glancing(connection: Any, longest_ms: int) -> contextlib.AbstractAsyncContextManager[None]:
    """A transaction for a question of an observer: it cannot write, the server gives it up after so many
    milliseconds, and takes no second process for it. Said together with the BEGIN, so that it holds behind a pooler,
    too, and costs no round trip."""
    return _within(connection, _Glancing(connection, longest_ms))


@contextlib.asynccontextmanager
async def _within(connection: Any, block: Any) -> AsyncIterator[None]:
    """Begin the block, and commit it; or give it up, however it ends."""
    before = requests()
    try:
        await block.start()
        yield
        await block.commit()
    except Exception as error:
        await give_up(connection, block, error)
        raise_if_cancelled(before)
        raise
    except BaseException:
        drop(connection)
        raise


class _Brief:
    """The driver's block, but one that waits for no lock longer than it is told. It says so together with its BEGIN:
    that costs no round trip, and holds behind a pooler and in sessions that are not ours, too."""

    def __init__(self, connection: Any, longest_ms: int) -> None:
        self._connection = connection
        self._begin = f"BEGIN ISOLATION LEVEL READ COMMITTED; SET LOCAL lock_timeout = {longest_ms:d}"

    async def start(self) -> None:
        await self._connection.execute(self._begin)

    async def commit(self) -> None:
        await self._connection.execute("COMMIT")

    async def rollback(self) -> None:
        await self._connection.execute("ROLLBACK")


class _Glancing(_Brief):
    """A block for questions alone, which bounds how long each may take."""

    def __init__(self, connection: Any, longest_ms: int) -> None:
        super().__init__(connection, longest_ms)
        self._begin = (
            "BEGIN ISOLATION LEVEL READ COMMITTED READ ONLY; "
            f"SET LOCAL statement_timeout = {longest_ms:d}; SET LOCAL lock_timeout = {longest_ms:d}; "
            "SET LOCAL max_parallel_workers_per_gather = 0; SET LOCAL jit = off"
        )


@contextlib.asynccontextmanager
async def callers_transaction(connection: Any) -> AsyncIterator[None]:
    """A transaction for one call on a connection that a caller brought along. They may want to use it again, so that it
    is rolled back even when they were cancelled; only if that is not answered is it dropped."""
    before = requests()
    block = connection.transaction()
    try:
        await block.start()
        yield
        await block.commit()
    except asyncio.CancelledError:
        await roll_back(connection, block, PATIENCE_OF_CALLERS)
        raise
    except Exception as error:
        await give_up(connection, block, error)
        raise_if_cancelled(before)
        raise


@contextlib.asynccontextmanager
async def borrowed(pool: Any, patience: float) -> AsyncIterator[Any]:
    """A connection out of a pool. It goes back, and if anything is doubtful about it, as one that is closed."""
    before = requests()
    async with asyncio.timeout(patience):  # the pool's own timeout may swallow a cancellation
        connection = await pool.acquire()
    try:
        yield connection
    except Exception as error:
        if isinstance(error, _SILENT):
            drop(connection)
        await give_back(pool, connection)
        raise_if_cancelled(before)
        raise
    except BaseException:
        drop(connection)
        await give_back(pool, connection)  # does not wait: the pool knows already
        raise
    await give_back(pool, connection)


@contextlib.asynccontextmanager
async def closing(connection: Any) -> AsyncIterator[Any]:
    """A connection made for this block alone."""
    try:
        yield connection
    except Exception:
        await close_quietly(connection)
        raise
    except BaseException:
        drop(connection)
        raise
    await close_quietly(connection)


async def give_up(connection: Any, block: Any, error: BaseException) -> None:
    """Roll back after an error, in any state of the transaction: begun or not, ended, already rolled back. If the
    connection may not answer, or is still used, it is dropped, and the server rolls back. A statement that
    took a step's time is cancelled and waited for instead: behind a pooler, dropping it would leave it at work, with
    its locks, until it ends by itself."""
    silent = isinstance(error, _SILENT) and not isinstance(error, StepTimeout)
    if silent or not isinstance(error, Exception):
        drop(connection)
    else:
        await roll_back(connection, block, PATIENCE)


async def roll_back(connection: Any, block: Any, patience: float) -> None:
    """Roll back, and if the server does not answer, drop the connection."""
    try:
        async with asyncio.timeout(patience):
            await block.rollback()
    except asyncpg.InterfaceError:  # there is nothing to roll back; or there is, and the driver cannot
        if not is_gone(connection) and connection.is_in_transaction():
            drop(connection)
    except Exception:
        drop(connection)
    except BaseException:
        drop(connection)
        raise


async def give_back(pool: Any, connection: Any) -> None:
    """Give a connection back to its pool, which may have something to tell the server first."""
    before = requests()
    release = asyncio.ensure_future(pool.release(connection, timeout=PATIENCE))
    try:
        await asyncio.shield(release)  # the driver shields it too, and its error would be lost
    except Exception:
        drop(connection)
        raise_if_cancelled(before)
    except BaseException:
        release.add_done_callback(seen)
        drop(connection)
        raise


async def close_pool(pool: Any) -> None:
    """Close a pool; connections that are not given back in time are dropped."""
    before = requests()
    try:
        async with asyncio.timeout(PATIENCE):
            await pool.close()
    except Exception:
        pool.terminate()
        raise_if_cancelled(before)
    except BaseException:
        pool.terminate()
        raise


async def close_quietly(connection: Any) -> None:
    """Close without a word: the server may be gone already."""
    before = requests()
    try:
        await connection.close(timeout=2)
    except Exception:
        drop(connection)
        raise_if_cancelled(before)
    except BaseException:
        drop(connection)
        raise


def drop(connection: Any) -> None:
    """Give a connection up without a word to the server. One out of a pool may have gone back already."""
    with contextlib.suppress(asyncpg.InterfaceError):
        connection.terminate()


def is_gone(connection: Any) -> bool:
    """Whether it is closed; one out of a pool then knows nothing any more, and says so by raising."""
    try:
        return bool(connection.is_closed())
    except asyncpg.InterfaceError:
        return True


# -- flows -------------------------------------------------------------------------------------------------


_OWN_PARTS = re.compile(r"\A((?:--.*\n)*)WITH ")
"""The beginning of a statement that has parts itself, behind what is said of it."""


class Driver:
    """Answers the requests of flows over a connection to Postgres."""

    def __init__(self, statements: dict[str, str], starts: Starts | None) -> None:
        self._sql = statements
        self._starts = starts
        self._joined: dict[tuple[str, ...], str] = {}
        self.joins = True
        """Whether the server takes several writes as one statement."""
        self.carrier: TransportConnection | None = None
        """The transport of remote steps, if it is in this database and open."""

    async def run(self, connection: Any, flow: Flow[T]) -> T:
        """Drive a whole flow, in a transaction, or in as many as it requests."""
        answer: Any = None
        while True:
            async with transaction(connection):
                try:
                    while not isinstance(request := flow.send(answer), Commit):
                        answer = await self._answer(connection, request)
                except StopIteration as end:
                    result: T = end.value
                    return result
            answer = None

    async def join(self, connection: Any, flow: Flow[T]) -> T:
        """Drive a flow within a transaction that is open."""
        answer: Any = None
        try:
            while True:
                answer = await self._answer(connection, flow.send(answer))
        except StopIteration as end:
            result: T = end.value
            return result

    def _all_in_one(self, names: tuple[str, ...]) -> str:
        """Join statements into one, once, so that the server has it prepared."""
        if names not in self._joined:
            *others, last = names
            parts = ", ".join(f"{name} AS (\n{self._sql[name]}\n)" for name in others)
            rest = _OWN_PARTS.sub(r"\1, ", self._sql[last], count=1)
            self._joined[names] = f"WITH {parts}\n{rest}"
        return self._joined[names]

    async def _put_each(self, connection: Any, names: tuple[str, ...], rows: Sequence[tuple[Any, ...]]) -> list[Any]:
        """What the last of the statements returns."""
        columns = list(map(list, zip(*rows, strict=True)))
        found: list[Any] = []
        for text in [self._all_in_one(names)] if self.joins else [self._sql[name] for name in names]:
            found = await connection.fetch(text, *columns)
        return found

    async def _carry(self, connection: Any, request: SendTasks | Remove) -> None:
        """Send tasks, or remove results, in this transaction."""
        assert self.carrier is not None, "the transport is in another database"
        if isinstance(request, SendTasks):
            await self.carrier.dispatch(request.tasks, connection)
        else:
            await self.carrier.remove(request.results, connection)

    async def _answer(self, connection: Any, request: Request) -> Any:
        if isinstance(request, Ask):
            return await connection.fetch(self._sql[request.name], *as_columns(request.arguments))
        if isinstance(request, Put):
            columns = map(list, zip(*request.rows, strict=True))
            tag = await connection.execute(self._sql[request.name], *columns)
            return int(tag.rsplit(" ", 1)[-1])
        if isinstance(request, PutEach):
            await self._put_each(connection, request.names, request.rows)
            return None
        if isinstance(request, PutAndAsk):
            return await self._put_each(connection, request.names, request.rows)
        if isinstance(request, (SendTasks, Remove)):
            return await self._carry(connection, request)
        assert not isinstance(request, Commit), "the transaction is not this flow's"
        if self._starts is None:
            return None
        return await self._starts.insert(connection, request.runs)


def as_columns(arguments: Sequence[Any]) -> Iterator[Any]:
    """Turn rows of values into columns, and keep anything else as it is."""
    for argument in arguments:
        if isinstance(argument, Rows):
            yield from map(list, zip(*argument, strict=True))
        else:
            yield argument
