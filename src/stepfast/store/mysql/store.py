"""MysqlStore: the contract of a store over asyncmy, on MariaDB 10.6 or MySQL 8."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any

from ...cancellation import raise_if_cancelled, requests
from ...errors import AppClosed, ConfigurationError, DatabaseUnavailable
from ...model.records import (
    NO_DOUBTS,
    Answer,
    Batch,
    BeatAnswer,
    Claimed,
    FlushAnswer,
    HasRecordCount,
    Held,
    Lane,
    Mail,
    NewRun,
    StepDone,
)
from ...model.status import AT_REST, RUNNING
from ...model.urls import DatabaseUrl
from ...settings import Settings
from ..answers import NOTHING, Check, KeysHeld, SchemaState, Transacted, TransportConnection, Wakeups
from ..dialects import MYSQL
from ..flows import claims, events, unique
from ..flows import flush as flushes
from ..flows.base import Flow, T
from ..flows.events import NewEvent
from ..lock_timeout import Breaks
from ..migrations import migrations
from ..readonly import MOST_ROWS, BaseGlance, TableSize, TookTooLong
from ..run_lists import Filters
from ..sql import COUNT, OLDEST
from ..store import Store
from . import schema
from .caller_connections import CallerDriver, Callers, leave
from .connections import DUTIES, Connector, KeptConnection
from .ctx_transaction import Transactions
from .driver import Driver, load, words_of
from .errors import is_locked, is_timed_out, translate
from .schema import Schema
from .tables import MysqlTables
from .transactions import PATIENCE, borrowed, close_pool, close_quietly, drop, is_gone, run

Ask = Callable[[Any], Awaitable[Any]]
"""Something that is done with a connection."""
_WAITING = 2
"""Starts at once that wait for a transaction of another process that holds their key."""
_AT_ONCE = 2
"""Questions of those who watch that are asked at once: the other connections of the pool are for those who work."""


class MysqlPulse:
    """Synchronous heartbeats over a connection of their own."""

    def __init__(self, connector: Connector, driver: Driver, patience: float) -> None:
        self._connector = connector
        self._driver = driver
        self._patience = patience
        self._loop = asyncio.new_event_loop()
        self._connection: Any = None

    def beat(self, worker: str, running: int) -> BeatAnswer:
        """Say that the worker lives; hear what it holds."""
        return self._loop.run_until_complete(self._beat_once(worker, running))

    def close(self) -> None:
        """Give the connection up."""
        if self._connection is not None:
            self._loop.run_until_complete(close_quietly(self._connection))
        self._loop.close()

    async def _beat_once(self, worker: str, running: int) -> BeatAnswer:
        try:
            async with asyncio.timeout(self._patience):
                if self._connection is None or is_gone(self._connection):
                    self._connection = await self._connector.connect()
                if not await self._driver.fetch(self._connection, "beat", worker, running):
                    return BeatAnswer(False)
                rows = await self._driver.fetch(self._connection, "held", worker)
                return BeatAnswer(True, [Held(*row) for row in rows])
        except Exception as error:
            known = translate(error)
            if isinstance(known, DatabaseUnavailable) and self._connection is not None:
                drop(self._connection)
                self._connection = None
            raise known from None


class MysqlGlance(BaseGlance):
    """Asks over connections of the store's pool."""

    dialect = "mysql"

    def __init__(
        self, driver: Driver, tables: list[str], settings: Settings, with_connection: Callable[[Ask], Awaitable[Any]],
        patience: float,
    ) -> None:  # fmt: skip
        super().__init__(settings)
        self._driver = driver
        self._tables = tables
        self._with_connection = with_connection
        self._patience = patience
        self._room = asyncio.Semaphore(_AT_ONCE)

    async def _ask(self, name: str, *arguments: Any) -> list[Any]:
        async def put(connection: Any) -> list[Any]:
            try:
                return await self._driver.fetch(connection, name, *arguments, seconds=self._patience)
            except Exception as error:
                if is_timed_out(error):
                    raise TookTooLong(self._patience) from None
                raise

        patience = asyncio.timeout(self._patience)
        try:
            async with patience, self._room:
                patience.reschedule(asyncio.get_running_loop().time() + 2 * self._patience)
                found: list[Any] = await self._with_connection(put)
        except TimeoutError:
            if not patience.expired():
                raise
            raise TookTooLong(self._patience) from None
        return found[:MOST_ROWS]

    async def sizes(self) -> list[TableSize]:
        """How large the tables are, as the server estimates."""
        prefix = self._tables[0].removesuffix("audit")
        return [TableSize(*row) for row in await self._fetch("glance_sizes", prefix, self._tables)]


class MysqlStore(Store):
    """One namespace (a prefix of tables) of one database."""

    dialect = "mysql"

    def __init__(self, url: DatabaseUrl, namespace: str, settings: Settings) -> None:
        super().__init__(settings)
        schema.check_names(namespace, settings.max_name)
        words = words_of(namespace, settings.list_payload_limit)
        self._prefix = words["prefix"]
        self._sql = load(words)
        self.breaks = Breaks()
        connector = self._connector = Connector(url, settings)
        self._driver = Driver(self._sql, lambda: connector.packet, lambda: connector.in_cluster)
        self._schema = Schema(namespace, migrations(MYSQL, words), self._sql, self._driver)
        self._kept = {duty: KeptConnection(connector, self.breaks) for duty in DUTIES}
        self._kept["keyed"] = KeptConnection(Connector(url, settings, impatient=True), self.breaks)
        self._waiting = asyncio.Semaphore(_WAITING)
        self._transactions = Transactions(connector, self._driver, settings, self.breaks)
        self._callers = Callers(self._ask_ours)
        self._callers_driver = CallerDriver(self._sql, lambda: connector.packet, self._fetch)
        self._pool: Any = None

    @property
    def can_wake(self) -> bool:
        """Never: these servers have no notifications, so that everything polls."""
        return False

    # -- opening and the schema ------------------------------------------------------------------------------

    async def open(self) -> None:
        """Make the pool; the first connection tells what is wrong, if anything is."""
        for each in self._kept.values():
            each.closed = False
        self._pool = await self._connector.create_pool(self._settings.pool_size)

    async def close(self) -> None:
        """Give every connection back, all at once."""
        farewells = [self._transactions.close(), *(each.close() for each in self._kept.values())]
        try:
            async with asyncio.timeout(PATIENCE):
                await asyncio.gather(*farewells, *([] if self._pool is None else [close_pool(self._pool)]))
        except TimeoutError:
            pass  # one is still in use
        finally:
            self.drop()

    def drop(self) -> None:
        """Give every connection up without a word to the server, also those that are in use."""
        for each in self._kept.values():
            each.closed = True
            each.drop()
        self._transactions.drop()
        pool, self._pool = self._pool, None
        if pool is not None:
            pool.terminate()

    async def schema_state(self) -> SchemaState:
        """The state of the tables."""
        state: SchemaState = await self._with_connection(self._schema.state)
        return state

    async def migrate(self) -> list[str]:
        """Bring the tables up to date."""
        state = await self.schema_state()
        return await self._alone(self._schema.migrate) if state.pending or state.compatible_from > state.newest else []

    def migration_sql(self) -> str:
        """The migrations as a script."""
        return self._schema.script()

    def roles_sql(self) -> str:
        """Refused: roles of least privilege need policies for rows, which these servers do not have."""
        raise ConfigurationError(
            "on MariaDB and MySQL there is no script for roles: a user that starts runs needs SELECT, INSERT, UPDATE "
            "and DELETE on the tables of the namespace"
        )

    async def reset(self) -> None:
        """Drop everything of this namespace."""
        await self._alone(self._schema.drop)

    def names(self) -> list[str]:
        """The tables and views that a reset drops."""
        return self._schema.names()

    def tables(self) -> MysqlTables:
        """The tables as rows of values."""
        prefix, names = self._prefix, self._schema.tables()
        return MysqlTables(prefix, names, self._with_connection, self._alone, self._connector.packet)

    async def doctor(self) -> list[Check]:
        """Look at the server and the connection."""
        found: list[Check] = await self._with_connection(
            lambda c: schema.checks(c, self._driver, self._connector.server)
        )
        return found

    def glance(self, patience: float) -> MysqlGlance:
        """Questions of those who watch."""
        return MysqlGlance(self._driver, self._schema.tables(), self._settings, self._with_connection, patience)

    # -- starts and callers ------------------------------------------------------------------------------------

    async def start(self, runs: Sequence[NewRun], at_once: bool = False) -> list[str]:
        """All or none. Starts with keys or names go over a connection of their own that waits for no other transaction;
        those that have to wait do so apart."""
        given = (unique.start, runs, self._settings.max_signals)
        if all(run.key is None and run.unique is None for run in runs):
            return await self._on("start", *given)
        async with self._kept["keyed"].use() as connection:
            try:
                return await self._driver.run(connection, *given)
            except Exception as error:
                if not is_locked(error):
                    raise
        if at_once:
            raise KeysHeld
        async with self._waiting:
            return await self._drive(*given)

    async def start_within(self, connection: Any, runs: Sequence[NewRun]) -> list[str]:
        """Insert runs in the caller's transaction. New names of attributes have one of their own."""
        if attributes := [attribute for run in runs for attribute in run.attributes]:
            await self.name_attributes(attributes)
        async with self._callers.within(connection) as theirs:
            return await self._callers_driver.join(theirs, unique.start(runs, self._settings.max_signals, True))

    async def send_within(self, connection: Any, mail: Mail) -> Answer:
        """A signal in the sender's transaction."""
        async with self._callers.within(connection) as theirs:
            return await self._callers_driver.join(theirs, leave(mail, self._settings.max_signals))

    async def publish_within(self, connection: Any, rows: Sequence[NewEvent], pairs: Sequence[tuple[str, str]]) -> bool:
        """Events in the caller's transaction. Subscriptions have one of their own."""
        if pairs:
            await self.subscribe(pairs)
        async with self._callers.within(connection) as theirs:
            await self._callers_driver.join(theirs, events.publish(rows))
        return True

    # -- workers -----------------------------------------------------------------------------------------------

    async def flush(self, worker: str, batch: Batch) -> FlushAnswer:
        """Write the journal. Whether a record is there already is learned by writing it."""
        if flushes.is_simple(batch):
            try:
                return await self._on("flush", flushes.flush_new, worker, batch, self._met)
            except flushes.NotAllNew:
                pass
        return await super().flush(worker, batch)

    async def claim(
        self, worker: str, token: int, lanes: Sequence[tuple[Lane, int]], versions: dict[str, str], limit: int,
        remembered: Mapping[str, int] = NOTHING,
    ) -> list[Claimed]:  # fmt: skip
        """Ready runs of these lanes. All lanes are looked up together, and only what is taken is locked."""
        again = self._last_claims.is_repeated(worker, token)
        given = (lanes, versions, limit, again, self._settings, remembered, True)
        return await self._on("claim", claims.claim, worker, token, *given)

    def pulse(self, patience: float = 10.0) -> MysqlPulse:
        """A heartbeat for a thread of its own."""
        return MysqlPulse(self._connector, self._driver, patience)

    async def transact(
        self, worker: str, run_id: str, claim: int, address: tuple[str, int], call: Callable[[Any], Any],
        record: Callable[[Any], StepDone], timeout: float | None, unverified: Mapping[str, HasRecordCount] = NO_DOUBTS,
    ) -> Transacted:  # fmt: skip
        """A function's own statements and the record of its result, in one transaction."""
        return await self._transactions.transact(worker, run_id, claim, address, call, record, timeout, unverified)

    def carry(self, carrier: TransportConnection) -> None:
        """The transport takes part in transactions from now on."""
        self._driver.carrier = carrier

    async def notify(self, wakeups: Wakeups) -> None:
        """Do nothing: others poll."""

    async def listen(self, heard: Callable[[Wakeups], None]) -> None:
        """Hear nothing, until cancelled."""
        await asyncio.Event().wait()

    # -- plumbing ----------------------------------------------------------------------------------------------

    async def _fetch(self, name: str, *arguments: Any) -> list[Any]:
        rows: list[Any] = await self._with_connection(lambda c: self._driver.fetch(c, name, *arguments))
        return rows

    async def _fetch_of_dags(self, name: str, *arguments: Any) -> list[Any]:
        async with self._kept["mail"].use() as connection:
            return await self._driver.fetch(connection, name, *arguments)

    async def _ask_ours(self, sql: str) -> list[Any]:
        rows: list[Any] = await self._with_connection(lambda c: run(c, sql))
        return rows

    async def _drive(self, flow: Callable[..., Flow[T]], *arguments: Any) -> T:
        result: T = await self._with_connection(lambda c: self._driver.run(c, flow, *arguments))
        return result

    async def _on(self, duty: str, flow: Callable[..., Flow[T]], *arguments: Any) -> T:
        async with self._kept[duty].use() as connection:
            return await self._driver.run(connection, flow, *arguments)

    async def _look(self, duty: str, flow: Callable[..., Flow[T]], *arguments: Any) -> T:
        async with self._kept[duty].use() as connection:
            return await self._driver.join(connection, flow(*arguments))

    async def _page(self, filters: Filters, oldest_first: bool) -> list[Any]:
        return await self._listed(OLDEST * oldest_first, filters)

    async def _count(self, filters: Filters) -> int:
        return int((await self._listed(COUNT, filters))[0][0])

    async def _listed(self, which: str, filters: Filters) -> list[Any]:
        if filters.tag is not None:
            return await self._fetch(which + "runs_tagged", *filters.usual, filters.tag)
        name = "runs_running" if filters.status == RUNNING else "runs_at_rest" if filters.status in AT_REST else "runs"
        return await self._fetch(which + name, *filters.usual)

    async def _alone(self, call: Ask) -> Any:
        """Do something with a connection that is closed afterwards."""
        connection = await self._connector.connect()
        try:
            done = await call(connection)
        except Exception as error:
            await close_quietly(connection)
            raise translate(error) from None
        except BaseException:
            drop(connection)
            raise
        await close_quietly(connection)
        return done

    async def _with_connection(self, call: Ask) -> Any:
        pool, before = self._pool, requests()
        if pool is None:
            raise AppClosed
        try:
            async with borrowed(pool, self._settings.connect_timeout) as connection:
                return await call(connection)
        except Exception as error:
            raise_if_cancelled(before)
            if self._pool is None:
                raise AppClosed from None
            raise translate(error) from None
