"""SqliteStore: the contract of a store over one file."""

from __future__ import annotations

import asyncio
import contextlib
import sqlite3
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from ...errors import ConfigurationError, DatabaseUnavailable
from ...model.records import (
    NO_DOUBTS,
    Answer,
    Batch,
    BeatAnswer,
    FlushAnswer,
    HasRecordCount,
    Held,
    Look,
    Mail,
    Mailbox,
    NewRun,
    StepDone,
)
from ...model.urls import DatabaseUrl
from ...settings import Settings
from ..answers import Check, SchemaState, Transacted, Wakeups
from ..dialects import SQLITE
from ..flows.base import Flow, T, schedule_columns, standing_columns
from ..flows.events import NewEvent
from ..lock_timeout import Breaks
from ..migrations import migrations, refuse_too_new
from ..readonly import MOST_ROWS, BaseGlance, TableSize, TookTooLong
from ..run_lists import Filters
from ..sql import COUNT, OLDEST, load_all
from ..store import Store
from . import caller_connections, queries, schema
from .bulk_rows import bound_values, fetch
from .connections import GIVEN_NOW, connect, for_this_sqlite, primary_code, turn_to_wal
from .ctx_transaction import GuardedConnection, Undone, transact
from .driver import drive
from .errors import Troubles, closed
from .flush import flush
from .queries import page_statement
from .schema import Schema
from .tables import SqliteTables
from .writer import ConnectionThread, Reader, Work, Writer

LOOK = Wakeups(frozenset(), True, True, True)
"""Something may have changed: look. SQLite does not say what."""


class Bell:
    """Calls every listener in its own event loop, whichever thread rings."""

    def __init__(self) -> None:
        self._listeners: dict[object, tuple[asyncio.AbstractEventLoop, Callable[[Wakeups], None]]] = {}

    @property
    def heard(self) -> bool:
        """Whether there are listeners for wake-ups."""
        return bool(self._listeners)

    def add(self, heard: Callable[[Wakeups], None]) -> object:
        """Listen from now on; the answer is for ``remove``."""
        ticket = object()
        self._listeners[ticket] = (asyncio.get_running_loop(), heard)
        return ticket

    def remove(self, ticket: object) -> None:
        """Take a listener away: it hears nothing more."""
        self._listeners.pop(ticket, None)

    def ring(self) -> None:
        """Wake all listeners."""
        for loop, heard in list(self._listeners.values()):
            _call(loop, heard, LOOK)

    def tell(self, wakeups: Wakeups) -> None:
        """Pass on what this event loop has to say to the others, which work with the same writer."""
        here = asyncio.get_running_loop()
        for loop, heard in list(self._listeners.values()):
            if loop is not here:
                _call(loop, heard, wakeups)


def _call(loop: asyncio.AbstractEventLoop, heard: Callable[[Wakeups], None], wakeups: Wakeups) -> None:
    try:
        loop.call_soon_threadsafe(heard, wakeups)
    except RuntimeError:
        pass  # the loop was closed with the listener still in it


class SqlitePulse:
    """Synchronous heartbeats, for a thread of their own."""

    def __init__(self, writer: Writer, statements: dict[str, str], patience: float) -> None:
        self._writer = writer
        self._sql = statements
        self._patience = patience

    def beat(self, worker: str, running: int) -> BeatAnswer:
        """Say that the worker lives; hear what it holds."""
        return self._writer.do_first(lambda database: self._beat(database, worker, running), self._patience)

    def close(self) -> None:
        """Nothing to give up: the connection is the writer's."""

    def _beat(self, database: sqlite3.Connection, worker: str, running: int) -> BeatAnswer:
        if not database.execute(self._sql["beat"], (worker, running)).fetchall():
            return BeatAnswer(False)
        return BeatAnswer(True, [Held(*row) for row in database.execute(self._sql["held"], (worker,))])


_OFTEN = 20_000
"""Steps of SQLite's machine between two readings of the clock: about a millisecond."""


class SqliteGlance(BaseGlance):
    """Asks in a thread with a connection of its own; of a database in memory there is but one."""

    dialect = "sqlite"

    def __init__(
        self, statements: dict[str, str], prefix: str, settings: Settings, onlooker: Callable[[], ConnectionThread],
        patience: float,
    ) -> None:  # fmt: skip
        super().__init__(settings)
        self._sql = statements
        self._prefix = prefix
        self._onlooker = onlooker
        self._patience = patience

    async def _ask(self, name: str, *arguments: Any) -> list[Any]:
        sql, values = self._sql[name], bound_values(arguments)
        until = time.monotonic() + self._patience
        return await self._onlooker().do(lambda database: self._execute(database, sql, values, until))

    def _execute(self, database: sqlite3.Connection, sql: str, values: Sequence[Any], asked_until: float) -> list[Any]:
        now = time.monotonic()
        if now > asked_until:  # those who waited before it were slow: one more that waits is of no use
            raise TookTooLong(self._patience)
        until = now + self._patience
        database.set_progress_handler(lambda: time.monotonic() > until, _OFTEN)
        try:
            return database.execute(sql, values).fetchmany(MOST_ROWS)
        except sqlite3.OperationalError as error:
            if primary_code(error) == sqlite3.SQLITE_INTERRUPT:
                raise TookTooLong(self._patience) from None
            raise
        finally:
            database.set_progress_handler(None, 0)

    def _way(self, filters: Filters) -> tuple[str, str | None]:
        way, value = super()._way(filters)
        return ("of_workflow", filters.workflow) if way == "runs" and filters.workflow is not None else (way, value)

    async def sizes(self) -> list[TableSize]:
        """The tables by name: how large each is SQLite does not know without looking through the file."""
        return [TableSize(*row) for row in await self._fetch("glance_sizes", self._prefix)]

    async def whole_size(self) -> int | None:
        """How many bytes the file has, without the write-ahead log."""
        return await self._onlooker().do(
            lambda database: int(
                database.execute("PRAGMA page_count").fetchone()[0] * database.execute("PRAGMA page_size").fetchone()[0]
            )
        )


_NOW = "CAST((julianday('now') - 2440587.5) * 86400000 + 0.5 AS INTEGER)"
"""Milliseconds, rounded: the fraction of a day is not exact, and cut off it is a millisecond early every other time."""


_LARGE = 64 * 1024
"""A payload above this is read by itself instead of in one text with many others, which SQLite bounds at 1e9 bytes."""


_FRESH = "(r.counted_attempt IS NOT max(r.attempt, r.first_attempt) AND NOT (r.graph IS NOT NULL AND r.dag_id IS NULL))"
"""Whether a claim of the run begins an attempt, which a rate counts: a dag run that is finished begins none."""


_WENT_ON = "trim(r.output, '\"')"
"""The id of the run that one with the reason 'continued' continued as."""


class SqliteStore(Store):
    """One namespace (a table prefix) of one SQLite file, or of a database in memory."""

    dialect = "sqlite"

    def __init__(
        self, url: DatabaseUrl, namespace: str, settings: Settings, now: Callable[[], int] | None = None
    ) -> None:
        super().__init__(settings)
        self.breaks = Breaks()
        self._path = url.path
        self._ours = f"{namespace}_meta"
        self._prefix = f"{namespace}_"
        self._troubles = Troubles(url.path, namespace, settings.command_timeout)
        self._given_now = now if url.path is None else None
        self.given_seed: str | None = None
        """What the random values of all runs are made from, where a test wants the same ones each time."""
        now_word = _NOW if self._given_now is None else f"{GIVEN_NOW}()"
        words = {"prefix": f"{namespace}_", "now": now_word, "large": str(_LARGE)}
        words |= {
            "listed": str(settings.list_payload_limit),
            "standing": standing_columns(),
            "schedule": schedule_columns(),
            "fresh": _FRESH,
            "went_on": _WENT_ON,
            "join": "CROSS JOIN",
            "server": "NULL",
            "wide": "json_group_array(json_array(",
            "/wide": "))",
        }
        self._sql = for_this_sqlite(load_all(SQLITE, words))
        self._schema = Schema(migrations(SQLITE, words), self._sql)
        self._bell = Bell()
        self._writer: Writer | None = None
        self._reader: ConnectionThread | None = None
        self._onlooker: ConnectionThread | None = None
        self._opening = threading.Lock()

    @property
    def can_wake(self) -> bool:
        """Always: the event loops of a process ring one bell, and other processes see the file change."""
        return True

    # -- opening and the schema -----------------------------------------------------------------------------

    async def open(self) -> None:
        """Connect the writer and, for a file, a reader beside it. In memory there is but one connection. Several event
        loops may do so at once: the first begins, and all of them wait."""
        with self._opening:
            if self._writer is None or self._reader is None:
                self._writer, self._reader = self._threads()
            writer, reader = self._writer, self._reader
        try:
            await asyncio.wrap_future(writer.connected)
            await asyncio.wrap_future(reader.connected)
        except Exception:
            if self._writer is writer:
                self.drop()  # the next caller opens another
            raise

    def _threads(self) -> tuple[Writer, ConnectionThread]:
        """Both begin at once; the reader opens the file when the writer has."""
        patience, path, ours = self._settings.command_timeout, self._path, self._ours
        writer = Writer(
            "stepfast-sqlite-writer",
            self._connect_writer,
            self._troubles,
            patience,
            watched=lambda: path is not None and self._bell.heard,
            others_wrote=self._bell.ring,
        )

        def connect_reader() -> sqlite3.Connection:
            writer.connected.result()
            return connect(path, patience, ours=ours, read_only=True)

        writer.start()
        if path is None:
            return writer, writer
        reader = Reader("stepfast-sqlite-reader", connect_reader, self._troubles, patience)
        reader.start()
        return writer, reader

    def _connect_writer(self) -> sqlite3.Connection:
        patience, now = self._settings.command_timeout, self._given_now
        database = connect(self._path, patience, ours=self._ours, factory=GuardedConnection, now=now)
        database.given_seed = self.given_seed  # type: ignore[attr-defined]
        return database

    async def close(self) -> None:
        """Finish what waits. The threads do so by themselves, also if they are not waited for any more."""
        writer = self._writer
        self.drop()
        if writer is not None:
            await asyncio.wrap_future(writer.ended)

    def drop(self) -> None:
        """Let the threads finish what waits, without waiting for them. The writer goes last, and tidies the write-ahead
        log away."""
        with self._opening:
            writer, reader, onlooker = self._writer, self._reader, self._onlooker
            self._writer = self._reader = self._onlooker = None
        if reader is not None:
            reader.finish()
        if onlooker is not None:
            onlooker.finish()
        if writer is not None and reader is not None and reader is not writer:
            last = reader if onlooker is None else onlooker
            reader.ended.add_done_callback(lambda _: last.ended.add_done_callback(lambda _: writer.finish()))

    async def schema_state(self) -> SchemaState:
        """The state of the tables."""
        return await self._read(self._schema.state)

    async def migrate(self) -> list[str]:
        """Bring the tables up to date; a glance first, so that a process that finds nothing to do takes no lock."""
        state = await self.schema_state()
        refuse_too_new(state)
        if not state.pending:
            return []
        try:
            await asyncio.to_thread(turn_to_wal, self._path, self._settings.command_timeout)
        except sqlite3.Error as error:
            raise self._troubles.explain(error) from None
        return await self._write(self._schema.migrate)

    def migration_sql(self) -> str:
        """The migrations as a script."""
        return self._schema.script()

    def roles_sql(self) -> str:
        """Refused: a user who may open the file may do everything."""
        raise ConfigurationError(
            "SQLite has no roles: users who may write to the file may do everything. Use the rights of the file; "
            "for a Postgres, name it: --url or STEPFAST_URL"
        )

    async def reset(self) -> None:
        """Drop everything of this namespace."""
        await self._write(self._schema.drop)

    def names(self) -> list[str]:
        """The tables and views that a reset drops."""
        return self._schema.names()

    def tables(self) -> SqliteTables:
        """The tables as rows of values."""
        return SqliteTables(self._prefix, self._schema.tables(), self._read, self._write)

    async def doctor(self) -> list[Check]:
        """Look at the library, the file and the clock."""
        return await self._read(lambda database: schema.checks(database, self._path, self._sql["now"]))

    def glance(self, patience: float) -> SqliteGlance:
        """Questions of those who watch."""
        return SqliteGlance(self._sql, self._prefix, self._settings, self._onlooker_thread, patience)

    def _onlooker_thread(self) -> ConnectionThread:
        """The thread of those who watch, made when the first question comes: a slow one must not keep a worker's own
        questions waiting. In memory there is but one connection."""
        with self._opening:
            if self._reader is None:
                raise closed()
            if self._onlooker is None and self._path is not None:
                patience, path, ours = self._settings.command_timeout, self._path, self._ours
                self._onlooker = Reader(
                    "stepfast-sqlite-onlooker",
                    lambda: connect(path, patience, ours=ours, read_only=True),
                    self._troubles,
                    patience,
                )
                self._onlooker.start()
            return self._onlooker or self._reader

    # -- callers --------------------------------------------------------------------------------------------

    async def start_within(self, connection: Any, runs: Sequence[NewRun]) -> list[str]:
        """Insert runs on the caller's connection, in the caller's thread."""
        return await caller_connections.start_within(
            connection, self._sql, runs, self._troubles, self._settings.max_signals, self._settings.max_attribute_names
        )

    async def send_within(self, connection: Any, mail: Mail) -> Answer:
        """A signal on the caller's connection, to be delivered after the commit."""
        return await caller_connections.send_within(
            connection, self._sql, mail, self._troubles, self._settings.max_signals
        )

    async def publish_within(self, connection: Any, rows: Sequence[NewEvent], pairs: Sequence[tuple[str, str]]) -> bool:
        """Events, and subscriptions that are not stored yet, on the caller's connection: it may hold the only lock."""
        await caller_connections.publish_within(connection, self._sql, rows, pairs, self._troubles)
        return False

    # -- workers --------------------------------------------------------------------------------------------

    def pulse(self, patience: float = 10.0) -> SqlitePulse:
        """A heartbeat for a thread of its own."""
        if self._writer is None:
            raise closed()
        return SqlitePulse(self._writer, self._sql, patience)

    async def flush(self, worker: str, batch: Batch) -> FlushAnswer:
        """Write a batch of the journal, fenced."""
        return await self._write(lambda database: flush(database, self._sql, worker, batch))

    async def transact(
        self, worker: str, run_id: str, claim: int, address: tuple[str, int], call: Callable[[Any], Any],
        record: Callable[[Any], StepDone], timeout: float | None, unverified: Mapping[str, HasRecordCount] = NO_DOUBTS,
    ) -> Transacted:  # fmt: skip
        """Call a function in the writer's transaction. What it raises is raised here as it is, and outside of any
        ``except``, so that nothing is added to it. There are no doubts: a file loses no commits."""
        try:
            return await self._write(
                lambda db: transact(db, self._sql, worker, run_id, claim, address, call, record, timeout)
            )
        except Undone as undone:
            cause = undone.cause
        raise cause

    async def mail(self, looks: Sequence[Look]) -> dict[str, Mailbox]:
        """A look into the mailboxes of these runs."""
        return await self._read(lambda database: queries.mail(database, self._sql, looks, self._settings.mail_bytes))

    # -- wake-ups -------------------------------------------------------------------------------------------

    async def notify(self, wakeups: Wakeups) -> None:
        """Tell the other event loops of this process. The commit itself is what the writers of other processes look
        for."""
        self._bell.tell(wakeups)

    async def listen(self, heard: Callable[[Wakeups], None]) -> None:
        """Pass on what is heard, until cancelled."""
        ticket = self._bell.add(heard)
        try:
            with contextlib.suppress(DatabaseUnavailable):  # a job that fails wakes the writer, too
                await self._write(lambda database: None)  # it begins to look around once it knows of a listener
            heard(LOOK)
            await asyncio.Event().wait()
        finally:
            self._bell.remove(ticket)

    # -- plumbing -------------------------------------------------------------------------------------------

    async def _write(self, work: Work[T]) -> T:
        if self._writer is None:
            raise closed()
        return await self._writer.do(work)

    async def _drive(self, flow: Callable[..., Flow[T]], *arguments: Any) -> T:
        """A flow is made when it begins: a job may have to begin again."""
        return await self._write(lambda database: drive(database, self._sql, flow(*arguments)))

    async def _look(self, duty: str, flow: Callable[..., Flow[T]], *arguments: Any) -> T:
        return await self._read(lambda database: drive(database, self._sql, flow(*arguments)))

    async def _page(self, filters: Filters, oldest_first: bool) -> list[Any]:
        statement = self._sql[OLDEST * oldest_first + page_statement(filters.tag, filters.status, filters.workflow)]
        values = filters.usual if filters.tag is None else (*filters.usual, filters.tag)
        return await self._read(lambda database: database.execute(statement, values).fetchall())

    async def _count(self, filters: Filters) -> int:
        statement = self._sql[COUNT + page_statement(filters.tag, filters.status, filters.workflow)]
        values = filters.usual if filters.tag is None else (*filters.usual, filters.tag)
        return int((await self._read(lambda database: database.execute(statement, values).fetchall()))[0][0])

    async def _read(self, work: Work[T]) -> T:
        if self._reader is None:
            raise closed()
        return await self._reader.do(work)

    async def _fetch(self, name: str, *arguments: Any) -> list[Any]:
        return await self._read(lambda database: fetch(database, self._sql[name], arguments))
