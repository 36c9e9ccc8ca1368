"""SQLite's errors in Holdfast's words: one sentence each, that says what to do."""

from __future__ import annotations

import os
import sqlite3

from ...errors import ConfigurationError, DatabaseUnavailable, HoldfastError, SchemaError
from .connections import primary_code


class Troubles:
    """Explains the errors of one file."""

    def __init__(self, path: str | None, namespace: str, patience: float) -> None:
        self._path = path
        self._name = "the SQLite database in memory" if path is None else f"the SQLite file {path!r}"
        self._namespace = namespace
        self._patience = patience

    def explain(self, error: Exception) -> Exception:
        """A new error for what SQLite said; what it did not say (a value that does not fit) stays as it is."""
        code = primary_code(error)
        if isinstance(error, sqlite3.Error):
            if code in (sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED):
                return DatabaseUnavailable(
                    f"{self._name} was locked by another process for more than {self._patience:g} s"
                )
            if code == sqlite3.SQLITE_CANTOPEN:
                return self._cannot_open()
            if code in (sqlite3.SQLITE_NOTADB, sqlite3.SQLITE_CORRUPT):
                return ConfigurationError(f"{self._name} is not a usable database: {error}")
            if code in (sqlite3.SQLITE_READONLY, sqlite3.SQLITE_PERM):
                return ConfigurationError(
                    f"{self._name} cannot be written to: {error}; check its permissions and its folder's"
                )
            if code in (
                sqlite3.SQLITE_IOERR,
                sqlite3.SQLITE_FULL,
                sqlite3.SQLITE_NOMEM,
                sqlite3.SQLITE_PROTOCOL,
            ):
                return DatabaseUnavailable(f"{self._name} cannot be used at the moment: {error}")
            if "no such table" in str(error):
                return SchemaError(
                    f"there are no Holdfast tables in namespace {self._namespace!r} of {self._name}: run `holdfast migrate`"
                )
            if isinstance(error, sqlite3.ProgrammingError) and "closed" in str(error):
                return closed()
        return error

    def _cannot_open(self) -> HoldfastError:
        path = os.path.abspath(self._path or "")
        folder = os.path.dirname(path)
        if os.path.isdir(path):
            return ConfigurationError(f"{self._name} cannot be opened: it is a folder")
        if not os.path.isdir(folder):
            return ConfigurationError(
                f"{self._name} cannot be opened: there is no folder {folder!r}; create it first"
            )
        return ConfigurationError(
            f"{self._name} cannot be opened: check the permissions of it and of {folder!r}"
        )


def closed() -> HoldfastError:
    """What is said to callers who come too late."""
    return DatabaseUnavailable("the store is closed")
