"""Lets a user's function work on the writer's own connection, and keeps it from harming what else uses that: the jobs
of the same transaction, and those that come after.

The function has the driver's connection itself, no stand-in. What it must not do is refused by SQLite's authorizer,
when a statement is prepared; what it changed on the connection is changed back, and cursors that it left open are
closed: one kept alive, by the traceback of an error perhaps, would hold the writer to an old state of the file.
"""

from __future__ import annotations

import re
import sqlite3
import time
import weakref
from collections.abc import Iterator
from contextlib import contextmanager
from types import TracebackType
from typing import Any, cast

from ...errors import ContextMisuse, StepTimeout
from .parameters import OwnConnection

_INSTRUCTIONS = 10_000
"""Instructions of SQLite's machine between two looks at the clock: well below a millisecond."""
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
        """Once, and never taken away: SQLite prepares every statement anew when an authorizer is set."""
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
                f"the function took longer than {self._seconds:g} s in a transaction; on SQLite nobody else can write "
                "meanwhile, so it has 10 s unless it is given a timeout"
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
