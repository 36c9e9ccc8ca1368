"""Starts and signals on a connection of the caller's, in the caller's transaction and thread.

Accepted are sqlite3's connections and what SQLAlchemy wraps around them. Nothing of them is changed, and nothing is
begun or committed that the caller would have to know of: a transaction that is open is joined by a savepoint, one that
Python begins by itself at the first write is left open, and without either the savepoint is the transaction.
"""

from __future__ import annotations

import os
import sqlite3
from collections.abc import Callable, Sequence
from contextlib import closing
from typing import Any, TypeVar

from ...caller_thread import callers_thread, refuse_without_loop
from ...errors import ConfigurationError, DatabaseUnavailable
from ...model import status
from ...model.attributes import check_types
from ...model.names import SIGNAL_ID
from ...model.records import Answer, Mail, NewRun
from ...model.transitions.signals import way_to_signal
from ..flows import events
from ..flows.attributes import name as name_attributes
from ..flows.events import NewEvent
from ..flows.unique import start
from .connections import bindable, is_busy
from .ctx_transaction import GuardedConnection
from .driver import drive
from .errors import Troubles
from .queries import post, post_to_step, refuse_if_full

T = TypeVar("T")

_ACCEPTED = (
    "connection= must be a sqlite3.Connection to the same file, or a SQLAlchemy Session or Connection over one "
    "(AsyncSession, AsyncConnection too)"
)

_SAVEPOINT = "SAVEPOINT stepfast -- a part of the caller's"
_ROLLBACK = "ROLLBACK TO stepfast -- a part of the caller's"
_RELEASE = "RELEASE stepfast -- a part of the caller's"
"""With words of their own: a statement is judged when it is prepared, and one that a function in ``ctx.transaction``
tries must not find the same text prepared."""


class Borrowed:
    """A caller's connection with sqlite3's words; its row factory, if it has one, does not apply."""

    def __init__(self, connection: Any) -> None:
        self._connection = connection

    def execute(self, sql: str, values: Any = ()) -> Fetched:
        """Run a statement on the caller's connection."""
        with closing(self._connection.cursor()) as cursor:
            if isinstance(cursor, sqlite3.Cursor):
                cursor.row_factory = None
            cursor.execute(*bindable(sql, values))
            return Fetched(cursor.rowcount, cursor.fetchall() if cursor.description else [])

    def executemany(self, sql: str, rows: Sequence[Any]) -> None:
        """Run a statement for each row."""
        for row in rows:
            self.execute(sql, row)


class Fetched:
    """What a statement brought, read to its end."""

    def __init__(self, rowcount: int, rows: Sequence[Any]) -> None:
        self.rowcount = rowcount
        self._rows = [tuple(_text(value) for value in row) for row in rows]

    def fetchall(self) -> list[tuple[Any, ...]]:
        """Every row that the last statement gave."""
        return self._rows

    def fetchone(self) -> tuple[Any, ...] | None:
        """The first row that the last statement gave."""
        return self._rows[0] if self._rows else None


async def start_within(
    connection: Any, sql: dict[str, str], runs: Sequence[NewRun], troubles: Troubles, most: int, most_names: int
) -> list[str]:
    """Insert runs, all or none. Names of attributes get their types in the same transaction: it may hold the only
    lock."""
    attributes = [attribute for run in runs for attribute in run.attributes]

    def insert(database: Any) -> list[str]:
        if attributes:
            check_types(attributes, drive(database, sql, name_attributes(attributes, most_names, joins=True)))
        return drive(database, sql, start(runs, most, True))

    return await _within(connection, insert, sql, troubles)


async def send_within(connection: Any, sql: dict[str, str], mail: Mail, troubles: Troubles, most: int) -> Answer:
    """Post a signal, unless the run has ended. A sender to a run that continued as another posts to the last of them
    instead. On Postgres the signal is left with the run that was named, because earlier ones may be there, to be passed
    on first; with one writer at a time, all messages go with the run."""

    def send(database: Any) -> Answer:
        post(database, sql, mail)
        row = database.execute(sql["status_of"], (mail.run_id,)).fetchone()
        if row is None:
            return Answer(None)
        state, reason, is_dag, _ = row
        if mail.given and database.execute(sql["has_signal_id"], (mail.run_id, SIGNAL_ID + mail.given)).fetchone():
            database.execute(sql["unpost"], (mail.run_id, mail.id))
            return Answer(state, reason, done=True)
        if way_to_signal(state, reason) != "take":
            return Answer(state, reason)
        receiver = post_to_step(database, sql, mail) if is_dag else mail.run_id
        if receiver is None:
            return Answer(state, status.NO_SUCH_STEP)
        if mail.given is not None:
            database.execute(sql["put_signal_id"], (mail.run_id, SIGNAL_ID + mail.given)).fetchall()
        refuse_if_full(database, sql, receiver, most)
        return Answer(state, reason, done=True)

    return await _within(connection, send, sql, troubles)


async def publish_within(
    connection: Any, sql: dict[str, str], rows: Sequence[NewEvent], pairs: Sequence[tuple[str, str]], troubles: Troubles
) -> None:
    """Publish events, all or none, after what they start is stored."""

    def publish(database: Any) -> None:
        drive(database, sql, events.subscribe(pairs))
        drive(database, sql, events.publish(rows))

    await _within(connection, publish, sql, troubles)


async def _within(connection: Any, work: Callable[[Any], T], sql: dict[str, str], troubles: Troubles) -> T:
    if hasattr(connection, "run_sync"):
        refuse_without_loop()
    if (own := callers_thread()) is not None:
        return await own.do(lambda: _blocking(connection, work, sql, troubles))
    if hasattr(connection, "run_sync"):
        result: T = await connection.run_sync(lambda inner: _in_alchemy(inner, work, sql, troubles))
        return result
    return _blocking(connection, work, sql, troubles)


def _blocking(connection: Any, work: Callable[[Any], T], sql: dict[str, str], troubles: Troubles) -> T:
    if isinstance(connection, GuardedConnection):  # the writer's own, within ctx.transaction
        with connection.unguarded():
            return _in_transaction(connection, connection, work, sql, troubles)
    if isinstance(connection, sqlite3.Connection):
        return _in_transaction(connection, connection, work, sql, troubles)
    return _in_alchemy(connection, work, sql, troubles)


def _in_alchemy(connection: Any, work: Callable[[Any], T], sql: dict[str, str], troubles: Troubles) -> T:
    """On what SQLAlchemy has beneath. It must know of a transaction, or it would not commit."""
    if callable(getattr(connection, "connection", None)):
        connection = connection.connection()  # a session's
    pooled = getattr(connection, "connection", None)
    if getattr(getattr(connection, "dialect", None), "name", None) != "sqlite" or pooled is None:
        raise ConfigurationError(f"{_ACCEPTED}; this is a {type(connection).__name__}")
    if not connection.in_transaction():
        connection.begin()
    driver = pooled.driver_connection
    if isinstance(driver, sqlite3.Connection):
        return _in_transaction(driver, driver, work, sql, troubles)
    return _in_transaction(driver, pooled, work, sql, troubles)  # aiosqlite's, in its own thread


def _in_transaction(
    driver: Any, connection: Any, work: Callable[[Any], T], sql: dict[str, str], troubles: Troubles
) -> T:
    """All of the work, or nothing of it. The driver's connection says whether it is in a transaction; the other has
    sqlite3's words, and may be the same.

    Where the connection leads is looked at when the work is done, and can still be undone: SQLite waits for the lock
    of another writer only as long as nothing was read in the same transaction."""
    database = Borrowed(connection)
    try:
        begins_itself = not driver.in_transaction and _begins_at_first_write(driver)
        if not begins_itself:
            database.execute(_SAVEPOINT)
        try:
            try:
                result = work(database)
            finally:
                _refuse_other_file(database, sql, troubles)
        except BaseException:
            if begins_itself:
                connection.rollback()  # nothing else was written in it yet
            elif driver.in_transaction:
                database.execute(_ROLLBACK)
                database.execute(_RELEASE)
            raise
        if not begins_itself:
            database.execute(_RELEASE)
        return result
    except Exception as error:
        raise _explained(error, troubles) from error


def _refuse_other_file(database: Any, sql: dict[str, str], troubles: Troubles) -> None:
    """Another file may have the same tables, and what is started there is executed by no worker of this one. Of several
    files that are attached to one connection, SQLite takes the first that has the table; they may be attached or
    detached at any moment, so that each call looks."""
    found = database.execute(sql["files"]).fetchone()
    if found is not None and _same_file(found[0], troubles.path):
        return
    ours = "a database in memory, which no other connection reaches" if troubles.path is None else troubles.path
    raise ConfigurationError(
        f"connection= does not lead to the database that Stepfast works on ({ours}): nothing was written"
    )


def _same_file(file: str, ours: str | None) -> bool:
    try:
        return bool(file) and ours is not None and os.path.samefile(file, ours)
    except OSError:
        return False


def _begins_at_first_write(connection: Any) -> bool:
    """Python's older way of transactions, which is still the usual one."""
    legacy = getattr(sqlite3, "LEGACY_TRANSACTION_CONTROL", None)
    return getattr(connection, "autocommit", legacy) == legacy and connection.isolation_level is not None


def _explained(error: Exception, troubles: Troubles) -> Exception:
    text = str(error)
    if isinstance(error, sqlite3.ProgrammingError) and ("thread" in text or "closed" in text):
        return ConfigurationError(f"the connection given as connection= cannot be used here: {text}")
    if is_busy(error):
        return DatabaseUnavailable(
            "the connection given as connection= could not get SQLite's lock for writing: begin its transaction with "
            "BEGIN IMMEDIATE, and give it time to wait (sqlite3.connect(…, timeout=…))"
        )
    return troubles.explain(error)


def _text(value: Any) -> Any:
    return value.decode() if isinstance(value, bytes) else value  # a text_factory of bytes
