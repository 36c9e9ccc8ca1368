"""A user's function inside the writer's transaction.

What it writes is committed with the record of its result, and nothing else is harmed.
"""

from __future__ import annotations

import inspect
import re
import sqlite3
import time
import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import TracebackType
from typing import Any, cast

from ...errors import ContextMisuse, LeaseLost, StepTimeout
from ...model.records import StepDone, StepRecord
from ..answers import Transacted
from ..flows.flush import step_row
from .bulk_rows import execute_wide
from .connections import OwnConnection
from .errors import is_away

_INSTRUCTIONS = 10_000
"""Instructions of SQLite's machine between two readings of the clock: well below a millisecond."""
_CONTROL = (sqlite3.SQLITE_TRANSACTION, sqlite3.SQLITE_SAVEPOINT)
_CONNECTION = (sqlite3.SQLITE_ATTACH, sqlite3.SQLITE_DETACH)
_HARMLESS = re.compile(
    r"(table|index)_x?(info|list)|foreign_key_(list|check)|(integrity|quick)_check|defer_foreign_keys"
)
"""Pragmas that may be given a value: it does not outlive the transaction."""
_NOT_YOURS = ("close", "set_authorizer", "set_progress_handler")


class GuardedConnection(OwnConnection):
    """A connection that can have a guard."""

    guard: Guard | None = None
    given_seed: str | None = None
    """What the random values of all runs are made from, where a test wants the same ones each time."""
    _authorized = False

    def use_authorizer(self) -> None:
        """Once, and never taken away: SQLite prepares every statement again when an authorizer is set."""
        if not self._authorized:
            self._authorized = True
            self.set_authorizer(self._authorize)

    @contextmanager
    def unguarded(self) -> Iterator[None]:
        """Let Stepfast's own statements pass within a user's function: a start or a signal that joins its transaction.
        Their texts must not be those of statements that the function may try, which would be found prepared."""
        guard, self.guard = self.guard, None
        try:
            yield
        finally:
            self.guard = guard

    def _authorize(self, action: int, first: str | None, second: str | None, *_: str | None) -> int:
        return sqlite3.SQLITE_OK if self.guard is None else self.guard.judge(action, first, second)


class Guard:
    """Around one call of a user's function. Asks afterwards: did it do what it must not, or take too long?"""

    def __init__(self, database: GuardedConnection, seconds: float) -> None:
        self._database = database
        self._seconds = seconds
        self._deadline = time.monotonic() + seconds
        self._misuse: str | None = None
        self._cursors: weakref.WeakSet[sqlite3.Cursor] = weakref.WeakSet()
        self._before = (database.row_factory, database.text_factory, getattr(database, "autocommit", None))

    def __enter__(self) -> Guard:
        database: Any = self._database
        database.use_authorizer()
        database.set_progress_handler(self._is_late, _INSTRUCTIONS)
        database.guard = self
        database.cursor = self._cursor
        database.execute = lambda *arguments: self._cursor().execute(*arguments)
        database.executemany = lambda *arguments: self._cursor().executemany(*arguments)
        for name in _NOT_YOURS:
            setattr(database, name, self._refuse)
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None) -> None:
        for name in ("cursor", "execute", "executemany", *_NOT_YOURS):
            delattr(self._database, name)
        for cursor in list(self._cursors):
            cursor.close()
        self._put_back()
        self._database.guard = None
        self._database.set_progress_handler(None, 0)
        if self._misuse is None and error is None and not self._database.in_transaction:
            self._misuse = (
                "rolled the transaction back"  # INSERT OR ROLLBACK, a trigger: nothing that can be seen before
            )
        if self._is_late():
            raise StepTimeout(
                f"the function took longer than {self._seconds:g} s in a transaction; on SQLite it keeps all other "
                "writers waiting, so it has 10 s unless it is given a timeout"
            ) from error
        if self._misuse is not None:
            raise ContextMisuse(
                f"a function in ctx.transaction {self._misuse}, which was undone: its work is committed together with "
                "the record of its result, so it must not commit or roll back, nor use savepoints, `with connection:` "
                "or executescript()"
            ) from error

    def judge(self, action: int, first: str | None, second: str | None) -> int:
        """Answer for every action of a statement that is prepared."""
        if action in _CONTROL:
            self._misuse = f"committed or rolled back ({first})"
        elif action in _CONNECTION or (action == sqlite3.SQLITE_PRAGMA and second and not _is_harmless(first)):
            self._misuse = "changed the connection, which is not its own"
        elif not self._database.in_transaction:
            self._misuse = "went on after a rollback"
        else:
            return sqlite3.SQLITE_OK
        return sqlite3.SQLITE_DENY

    def _cursor(self, *arguments: Any, **named: Any) -> sqlite3.Cursor:
        if not self._database.in_transaction:
            self._misuse = "went on after a rollback"
            raise ContextMisuse("the transaction was rolled back")
        cursor: sqlite3.Cursor = sqlite3.Connection.cursor(self._database, *arguments, **named)
        self._cursors.add(cursor)
        return cursor

    def _refuse(self, *_: object) -> None:
        self._misuse = "changed the connection, which is not its own"
        raise ContextMisuse("the connection is not the function's own")

    def _is_late(self) -> bool:
        return time.monotonic() > self._deadline

    def _put_back(self) -> None:
        """Python commits when it sets the isolation level; the authorizer, still there, denies that."""
        database, misuse = cast("Any", self._database), self._misuse
        database.row_factory, database.text_factory, autocommit = self._before
        try:
            if getattr(database, "autocommit", None) != autocommit:
                database.autocommit = autocommit
            if database.isolation_level is not None:
                database.isolation_level = None
        except sqlite3.Error:
            pass  # what was to be set is set
        self._misuse = misuse


def _is_harmless(pragma: str | None) -> bool:
    return _HARMLESS.fullmatch((pragma or "").lower()) is not None


SECONDS = 10.0
"""What a function has if it is given no timeout. A third of a lease: heartbeats wait for it too."""


class Undone(Exception):
    """The job is to be rolled back, and its caller to get the cause as it is, even a BaseException."""

    def __init__(self, cause: BaseException) -> None:
        super().__init__(repr(cause))
        self.cause = cause


def transact(
    database: sqlite3.Connection, sql: dict[str, str], worker: str, run_id: str, claim: int, address: tuple[str, int],
    call: Callable[[Any], Any], record: Callable[[Any], StepDone], timeout: float | None,
) -> Transacted:  # fmt: skip
    """Call it and record what it returns, unless that is recorded already."""
    where = (run_id, *address, claim)
    found = database.execute(sql["recorded_step"], where).fetchone()
    if found is None:
        _fence(database, sql, worker, run_id, claim)
        done = _result(database, call, record, timeout)
        _fence(database, sql, worker, run_id, claim)
        (now,) = database.execute(sql["now"]).fetchone()
        execute_wide(database, sql["record_steps"], [step_row(done, now)])
        found = database.execute(sql["recorded_step"], where).fetchone()
    if found is None:
        raise Undone(_lost(run_id, claim))  # the record of another claim is there
    asked, *columns = found
    return Transacted(StepRecord(*columns), asked)


def _fence(database: sqlite3.Connection, sql: dict[str, str], worker: str, run_id: str, claim: int) -> None:
    held = database.execute(sql["held_run"], (run_id, worker)).fetchone()
    if held is None or held[0] != claim:
        raise Undone(_lost(run_id, claim))


def _result(
    database: sqlite3.Connection, call: Callable[[Any], Any], record: Callable[[Any], StepDone], timeout: float | None
) -> StepDone:
    """Errors of the function are the caller's, and no trouble of the writer; unless the disk is at fault."""
    assert isinstance(database, GuardedConnection)
    try:
        with Guard(database, SECONDS if timeout is None else timeout):
            result = call(database)
            _refuse_awaitable(result)
        return record(result)
    except BaseException as error:
        if is_away(error):
            raise
        raise Undone(error) from None


def _refuse_awaitable(result: Any) -> None:
    if not inspect.isawaitable(result):
        return
    close = getattr(result, "close", None)
    if close is not None:
        close()  # or Python complains that it was never awaited
    raise ContextMisuse(
        "on SQLite the function given to ctx.transaction must be a plain def: it runs in the one thread that writes, "
        "which cannot wait for a coroutine"
    )


def _lost(run_id: str, claim: int) -> LeaseLost:
    return LeaseLost(f"run {run_id} is no longer this worker's (claim {claim})")
