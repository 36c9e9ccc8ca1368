"""The store on SQLite 3.35 or later: the standard library's driver, one file, one writing thread per process."""

from .store import SqliteStore

__all__ = ["SqliteStore"]
