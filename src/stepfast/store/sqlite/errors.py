"""SQLite's errors in Stepfast's words: one sentence each, that says what to do."""

from __future__ import annotations

import os
import sqlite3

from ...errors import (
    AppClosed,
    ConfigurationError,
    DatabaseRefused,
    DatabaseUnavailable,
    NamespaceMoved,
    SchemaError,
    StepfastError,
    sentence,
)
from ..migrations import IS_FILLED, OTHERWISE_MADE, move_in
from ..tables import MOVER
from .connections import primary_code

_AWAY = (sqlite3.SQLITE_IOERR, sqlite3.SQLITE_FULL, sqlite3.SQLITE_NOMEM, sqlite3.SQLITE_PROTOCOL)
_OTHER_TABLES = ("no such table", "no such column", "has no column")
_REFUSALS = (
    sqlite3.IntegrityError,
    sqlite3.DataError,
    sqlite3.InterfaceError,
    sqlite3.ProgrammingError,  # a value of a type SQLite does not know
    OverflowError,  # a number beyond 64 bits
    UnicodeEncodeError,  # a lone surrogate
)


def is_away(error: BaseException) -> bool:
    """Whether the file cannot be used at the moment, for any purpose."""
    return isinstance(error, sqlite3.Error) and primary_code(error) in _AWAY


class Troubles:
    """Explains the errors of one file."""

    def __init__(self, path: str | None, namespace: str, patience: float) -> None:
        self.path = self._path = path
        self._name = "the SQLite database in memory" if path is None else f"the SQLite file {path!r}"
        self.namespace = self._namespace = namespace
        self._patience = patience

    def explain(self, error: Exception) -> Exception:
        """What SQLite's error means to us: away for now, set up wrongly, refused; or a bug, and then itself."""
        code = primary_code(error)
        if isinstance(error, sqlite3.Error) and (moved := self._moved(str(error))) is not None:
            return moved
        if code in (sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED):
            return DatabaseUnavailable(f"{self._name} was locked by another process for more than {self._patience:g} s")
        if code == sqlite3.SQLITE_CANTOPEN:
            return self._cannot_open()
        if code in (sqlite3.SQLITE_NOTADB, sqlite3.SQLITE_CORRUPT):
            return ConfigurationError(f"{self._name} is not a usable database: {error}")
        if code in (sqlite3.SQLITE_READONLY, sqlite3.SQLITE_PERM):
            return ConfigurationError(
                f"{self._name} cannot be written to ({error}): check its permissions and its folder's"
            )
        if code in _AWAY:
            return DatabaseUnavailable(f"{self._name} cannot be used at the moment: {error}")
        if isinstance(error, sqlite3.OperationalError) and any(words in str(error) for words in _OTHER_TABLES):
            return SchemaError(
                f"{self._name} has no Stepfast tables {self._namespace}_…, or others than this version made ({error}): "
                + OTHERWISE_MADE
            )
        if isinstance(error, _REFUSALS):
            return DatabaseRefused(sentence(error))
        return error

    def _moved(self, said: str) -> NamespaceMoved | None:
        """What a trigger says, or the lack of the function that lets a mover pass it."""
        if f"no such function: {MOVER}" in said:
            return NamespaceMoved(f"{IS_FILLED} by a move from another database: `stepfast doctor` names it")
        return move_in(said)

    def _cannot_open(self) -> StepfastError:
        path = os.path.abspath(self._path or "")
        folder = os.path.dirname(path)
        if os.path.isdir(path):
            return ConfigurationError(f"{self._name} cannot be opened: it is a folder")
        if not os.path.isdir(folder):
            return ConfigurationError(f"{self._name} cannot be opened: there is no folder {folder!r}; create it first")
        return ConfigurationError(f"{self._name} cannot be opened: check the permissions of it and of {folder!r}")


def closed() -> StepfastError:
    """What is said to callers who come too late."""
    return AppClosed()
