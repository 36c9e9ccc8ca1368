"""ctx.transaction on MariaDB and MySQL: a user's own statements and the record of their result, committed together.

As on Postgres the fence and the record come last. Whether the function has ended the transaction is told by a savepoint
that was made before it was called: it is gone with the transaction, also where a statement has committed by itself.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from typing import Any

from ...cancellation import raise_if_cancelled, requests
from ...errors import DatabaseUnavailable, RecordsVanished, StepTimeout, sentence
from ...model.records import HasRecordCount, StepDone, StepRecord
from ...settings import Settings
from ..answers import Transacted
from ..flows.flush import step_row
from ..lock_timeout import Breaks
from ..transact import as_read, called, lost, misuse
from .connections import Connector
from .driver import Driver
from .errors import is_savepoint_gone, is_silent, is_to_be_repeated, translate
from .transactions import PATIENCE, borrowed, close_pool, drop, give_up, is_gone, roll_back, run

_SAVEPOINT = "stepfast_transaction"


class Transactions:
    """A small pool of its own."""

    def __init__(self, connector: Connector, driver: Driver, settings: Settings, breaks: Breaks) -> None:
        self._connector = connector
        self._driver = driver
        self._breaks = breaks
        self._bound = settings.command_timeout
        self._size = max(1, settings.transaction_pool)
        self._room = asyncio.Semaphore(self._size)
        self._pool: Any = None
        self._opening = asyncio.Lock()

    async def close(self) -> None:
        """Give the connections up; those that are still in use are dropped."""
        pool, self._pool = self._pool, None
        if pool is not None:
            await close_pool(pool)

    def drop(self) -> None:
        """Drop the connections, without a word to the server."""
        pool, self._pool = self._pool, None
        if pool is not None:
            pool.terminate()

    async def transact(
        self, worker: str, run_id: str, claim: int, address: tuple[str, int], call: Callable[[Any], Any],
        record: Callable[[Any], StepDone], timeout: float | None, unverified: Mapping[str, HasRecordCount],
    ) -> Transacted:  # fmt: skip
        """The record, made now or found."""
        before = requests()
        async with self._room, self._connection() as connection:
            try:
                async with self._ours():
                    await connection.begin()
                    await run(connection, f"SAVEPOINT {_SAVEPOINT}")
                found = await self._recorded(connection, run_id, claim, address)
                raise_if_cancelled(before)  # the driver may have swallowed it
                if found is None:
                    with _theirs(connection):
                        done = record(await called(call, connection, timeout))
                    made = await self._record(connection, worker, done, unverified)
                    if made is not None:
                        await self._commit(connection)
                        return made
                await roll_back(connection, PATIENCE)
                if found is None:
                    # Made while we worked: by an earlier commit of ours that was thought lost, or by another worker.
                    found = await self._recorded(connection, run_id, claim, address)
                if found is None:
                    raise lost(run_id)
                return found
            except BaseException as error:
                if isinstance(error, DatabaseUnavailable):
                    self._breaks.tell()
                if isinstance(error, StepTimeout):
                    await self._stop(connection.thread_id())
                if isinstance(error, Exception):
                    await give_up(connection, error)
                    raise_if_cancelled(before)
                raise

    async def _recorded(self, connection: Any, run_id: str, claim: int, address: tuple[str, int]) -> Transacted | None:
        """The outcome at this address, if this very claim has recorded one."""
        async with self._ours():
            rows = await self._driver.fetch(connection, "recorded_step", run_id, *address, claim)
        return Transacted(StepRecord(*rows[0][1:]), rows[0][0]) if rows else None

    async def _record(
        self, connection: Any, worker: str, done: StepDone, unverified: Mapping[str, HasRecordCount]
    ) -> Transacted | None:
        """Write the record of a step in the transaction of its rows; None: the step has a record already."""
        async with self._ours():
            try:
                await run(connection, f"RELEASE SAVEPOINT {_SAVEPOINT}")
            except Exception as error:
                if is_savepoint_gone(error):
                    raise misuse(done, "SAVEPOINT") from None
                raise
            fence = await self._driver.fetch(connection, "fence_one", done.run_id, worker, done.claim)
            if not fence:
                raise lost(done.run_id)
            [(now, asked)] = fence
            if done.run_id in unverified:
                [(_, number)] = await self._driver.fetch(connection, "stored", [done.run_id])
                if number < unverified[done.run_id].believed():
                    raise RecordsVanished(f"run {done.run_id}: the database has lost records that were committed")
            if not await self._driver.put(connection, "record_steps", [step_row(done, now)]):
                return None
        return Transacted(as_read(done, now), asked)

    async def _commit(self, connection: Any) -> None:
        try:
            with _theirs(connection):
                async with asyncio.timeout(self._bound):
                    await connection.commit()
        except Exception as error:
            if isinstance(error, TimeoutError) or is_to_be_repeated(error):  # in a cluster a commit may be refused
                raise translate(error) from None
            raise

    async def _stop(self, session: int) -> None:
        """End a session that is at work for a function whose time is over: it would keep its locks until it is done."""
        with contextlib.suppress(Exception):
            async with asyncio.timeout(PATIENCE):
                other = await self._connector.connect()
                try:
                    await run(other, f"KILL {session:d}")
                finally:
                    drop(other)

    # -- connections -----------------------------------------------------------------------------------------

    @contextlib.asynccontextmanager
    async def _connection(self) -> AsyncIterator[Any]:
        async with contextlib.AsyncExitStack() as lent:
            async with self._ours():
                connection = await lent.enter_async_context(borrowed(await self._own_pool(), self._bound))
            yield connection

    async def _own_pool(self) -> Any:
        async with self._opening:
            if self._pool is None:
                self._pool = await self._connector.create_pool(self._size, for_users=True)
            return self._pool

    @contextlib.asynccontextmanager
    async def _ours(self) -> AsyncIterator[None]:
        """Around our own statements: bounded, and errors of the driver become those of the store."""
        try:
            async with asyncio.timeout(self._bound):
                yield
        except Exception as error:
            known = translate(error)
            if known is error:
                raise
            raise known from None


@contextlib.contextmanager
def _theirs(connection: Any) -> Iterator[None]:
    """Around what the user does: errors come out as they are, unless they say that the connection is gone."""
    try:
        yield
    except Exception as error:
        if is_silent(error) and is_gone(connection) and not isinstance(error, StepTimeout):
            raise DatabaseUnavailable(f"the database cannot be reached: {sentence(error)}") from error
        raise
