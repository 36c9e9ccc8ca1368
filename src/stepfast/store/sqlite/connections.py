"""Connections to the file: how they are set up, and the patience that SQLite's lock asks for.

SQLite's own busy handler sleeps up to 100 ms between two looks and hands the lock to whoever looks first, so that a
busy process starves the others. It is switched off, and ``patiently`` looks again every few milliseconds instead.
"""

from __future__ import annotations

import contextlib
import os
import random
import sqlite3
import time
from collections.abc import Callable
from typing import TypeVar

from .parameters import OwnConnection

T = TypeVar("T")

GIVEN_NOW = "stepfast_now"
"""The function by which SQL asks a clock that is not the machine's."""
_NAP = (0.001, 0.005)
"""Seconds between two looks at a locked file. At random, so that two who wait do not keep in step."""
_CACHE_KIB = 32 * 1024
"""Pages kept in memory: the upper parts of every tree of a few million rows."""
_CHECKPOINT_PAGES = 4000
"""Pages in the write-ahead log before they are copied into the file. Four times SQLite's own choice: the pages at the
end of every tree are written by each commit, and copied once per checkpoint."""
_WAL_LIMIT = 64 * 1024 * 1024
"""A write-ahead log that a burst made larger than this is cut back at the next checkpoint."""


def connect(
    path: str | None,
    patience: float,
    *,
    ours: str,
    read_only: bool = False,
    factory: type[OwnConnection] = OwnConnection,
    now: Callable[[], int] | None = None,
) -> sqlite3.Connection:
    """A connection to the file, or to a new database in memory; transactions are begun and ended by hand. ``ours`` is
    the name of a table by which a file is known to be ours, ``now`` the clock that the database is given, if any."""
    _make_private(path)
    database = sqlite3.connect(
        path or ":memory:", timeout=0, isolation_level=None, cached_statements=256, factory=factory
    )
    try:
        patiently(lambda: _use_wal(database, ours), patience)
        database.execute("PRAGMA synchronous = FULL")
        database.execute(f"PRAGMA cache_size = -{_CACHE_KIB}")
        database.execute(f"PRAGMA wal_autocheckpoint = {_CHECKPOINT_PAGES}")
        database.execute(f"PRAGMA journal_size_limit = {_WAL_LIMIT}")
        database.execute("PRAGMA temp_store = MEMORY")
        if now is not None:
            database.create_function(GIVEN_NOW, 0, now)
        if read_only:
            database.execute("PRAGMA query_only = ON")
    except BaseException:
        database.close()
        raise
    return database


def _make_private(path: str | None) -> None:
    """A new file is for its owner alone, like the logs that SQLite makes beside it, which take its mode: it holds what
    users pass to their workflows. A file that is there keeps the mode it was given."""
    if path is not None:
        with contextlib.suppress(OSError):  # it is there; or SQLite says what is wrong
            os.close(os.open(path, os.O_CREAT | os.O_EXCL | os.O_RDWR, 0o600))


def turn_to_wal(path: str | None, patience: float) -> None:
    """For a file of somebody else's that is to get our tables."""
    if path is not None:
        with contextlib.closing(sqlite3.connect(path, timeout=0, isolation_level=None)) as database:
            patiently(lambda: _switch(database), patience)


def _use_wal(database: sqlite3.Connection, ours: str) -> None:
    """A write-ahead log, for a new file and for one of ours. Whoever only looks into a file of somebody else's leaves
    it as it is."""
    if not database.execute("SELECT count(*) = 0 OR max(name = ?) FROM sqlite_master", (ours,)).fetchone()[0]:
        return
    _switch(database)


def _switch(database: sqlite3.Connection) -> None:
    """The switch takes the whole file for a moment, and fails at once while another process does the same. Once made it
    stays: then nothing is asked for, because the caller himself may hold the lock, in a transaction to be joined."""
    if database.execute("PRAGMA journal_mode").fetchone()[0] != "wal":
        database.execute("PRAGMA journal_mode = WAL").fetchall()


def patiently(action: Callable[[], T], patience: float) -> T:
    """Do it; while another process holds the lock, do it again, for up to ``patience`` seconds."""
    deadline = time.monotonic() + patience
    while True:
        try:
            return action()
        except sqlite3.OperationalError as error:
            if not is_busy(error) or time.monotonic() >= deadline:
                raise
        time.sleep(random.uniform(*_NAP))


def is_busy(error: BaseException) -> bool:
    """Whether somebody else holds the lock, so that trying again helps."""
    return primary_code(error) in (sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED)


def primary_code(error: BaseException) -> int | None:
    """SQLite's result code without its refinements, or None for errors that are not SQLite's own."""
    code = getattr(error, "sqlite_errorcode", None)
    return None if code is None else code & 0xFF
