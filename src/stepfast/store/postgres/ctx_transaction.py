"""ctx.transaction on Postgres: a user's own statements and the record of their result, committed together.

The fence and the record come last, so that the run's row is locked for a moment only. When the reply to a COMMIT was
lost the whole is done again: then the record is found before the call or, if that commit was still under way, in
the way of a second one, and what the second call did is undone.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from typing import Any

import asyncpg

from ...errors import DatabaseUnavailable, RecordsVanished, sentence
from ...model.records import HasRecordCount, StepDone, StepRecord
from ...settings import Settings
from ..answers import Transacted
from ..flows.flush import step_row
from ..transact import as_read, called, lost, misuse
from .connections import Connector, Continuity, know_arrays
from .errors import translate
from .transactions import PATIENCE, borrowed, close_pool, give_up, is_gone, roll_back

_GONE = (asyncpg.PostgresConnectionError, asyncpg.AdminShutdownError, asyncpg.CrashShutdownError)
_DRIVER = (asyncpg.PostgresError, asyncpg.InterfaceError, asyncpg.InternalClientError, OSError)


class Transactions:
    """A small pool of its own; with a pool of the user's, a few of its connections."""

    def __init__(
        self,
        connector: Connector,
        statements: dict[str, str],
        settings: Settings,
        reserved: int,
        continuity: Continuity,
    ) -> None:
        self._continuity = continuity
        self._connector = connector
        self._sql = statements
        self._bound = settings.command_timeout
        self._pool: Any = None
        self._opening = asyncio.Lock()
        shared = connector.shared_pool
        self._size = max(1, settings.transaction_pool)
        self._room = asyncio.Semaphore(self._size if shared is None else min(self._size, _spare(shared, reserved)))

    async def close(self) -> None:
        """Give the connections up; those that are still used are dropped."""
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
        async with self._room, self._connection() as connection:
            transaction = connection.transaction()
            try:
                async with self._ours():
                    await transaction.start()
                txid, found = await self._recorded(connection, run_id, claim, address)
                if found is None:
                    with _theirs(connection):
                        done = record(await called(call, connection, timeout))
                    made = await self._record(connection, txid, worker, done, unverified)
                    if made is not None:
                        await self._commit(connection, transaction)
                        return made
                await roll_back(connection, transaction, PATIENCE)
                if found is None:
                    # Made while we worked: by an earlier commit of ours that was thought lost, or by another process.
                    _, found = await self._recorded(connection, run_id, claim, address)
                if found is None:
                    raise lost(run_id)
                return found
            except BaseException as error:
                if isinstance(error, DatabaseUnavailable):
                    self._continuity.broke()
                await give_up(connection, transaction, error)
                raise

    async def _recorded(
        self, connection: Any, run_id: str, claim: int, address: tuple[str, int]
    ) -> tuple[int, Transacted | None]:
        """The number of the transaction, and the outcome at this address, if this very claim has recorded one."""
        async with self._ours():
            row = await connection.fetchrow(self._sql["recorded_step"], run_id, *address, claim)
        self._continuity.met(row["server"])
        return row["txid"], None if row["position"] is None else Transacted(StepRecord(*row[3:]), row["asked"])

    async def _record(
        self, connection: Any, txid: int, worker: str, done: StepDone, unverified: Mapping[str, HasRecordCount]
    ) -> Transacted | None:
        """Write the record of a step in the transaction of its rows; None: the step has a record already."""
        if not is_gone(connection) and not connection.is_in_transaction():
            raise misuse(done, "connection.transaction()")
        async with self._ours():
            fence = await connection.fetchrow(self._sql["fence_one"], done.run_id, worker, done.claim)
            if fence["txid"] != txid:
                raise misuse(done, "connection.transaction()")
            now = fence["now_ms"]
            if now is None:
                raise lost(done.run_id)
            if done.run_id in unverified:
                await self._compare(connection, done.run_id, unverified[done.run_id])
            columns = [[value] for value in step_row(done, now)]
            if await connection.execute(self._sql["record_steps"], *columns) != "INSERT 0 1":
                return None
        return Transacted(as_read(done, now), fence["asked"])

    async def _compare(self, connection: Any, run_id: str, believer: HasRecordCount) -> None:
        """Whether all is stored that was acknowledged before a connection broke."""
        [row] = await connection.fetch(self._sql["stored"], [run_id])
        if row["number"] < believer.believed():
            raise RecordsVanished(f"run {run_id}: the database has lost records of it that were committed")

    async def _commit(self, connection: Any, transaction: Any) -> None:
        """What the user's deferred constraints say comes out as it is."""
        try:
            with _theirs(connection):
                async with asyncio.timeout(self._bound):
                    await transaction.commit()
        except TimeoutError as error:
            raise translate(error) from None

    # -- connections -----------------------------------------------------------------------------------------

    @contextlib.asynccontextmanager
    async def _connection(self) -> AsyncIterator[Any]:
        async with contextlib.AsyncExitStack() as lent:
            async with self._ours():
                pool = self._connector.shared_pool or await self._own_pool()
                connection = know_arrays(await lent.enter_async_context(borrowed(pool, self._bound)))
            yield connection

    async def _own_pool(self) -> Any:
        async with self._opening:
            if self._pool is None:
                options = await self._connector.options_for_users()
                self._pool = await asyncpg.create_pool(min_size=0, max_size=self._size, **options)
            return self._pool

    @contextlib.asynccontextmanager
    async def _ours(self) -> AsyncIterator[None]:
        """Around our own statements: bounded, and errors of the driver become those of the store. But if the function
        went on after a statement of its own had failed, the server refuses ours, and that is the function's error."""
        try:
            async with asyncio.timeout(self._bound):
                yield
        except asyncpg.InFailedSQLTransactionError:
            raise
        except Exception as error:
            known = translate(error)
            if known is error:
                raise
            raise known from None


def _spare(pool: Any, reserved: int) -> int:
    """What the duties and the questions leave over of a user's pool."""
    return max(1, int(pool.get_max_size()) - reserved)


@contextlib.contextmanager
def _theirs(connection: Any) -> Iterator[None]:
    """Around what the user does: errors come out as they are, unless they say that the connection is gone."""
    try:
        yield
    except Exception as error:
        if isinstance(error, _GONE) or (isinstance(error, _DRIVER) and is_gone(connection)):
            raise DatabaseUnavailable(f"the database cannot be reached: {sentence(error)}") from error
        raise
