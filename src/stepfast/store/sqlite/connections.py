"""Connections to the file: how they are set up, how numbered parameters are bound, and the patience that SQLite's lock
requires.
"""

from __future__ import annotations

import contextlib
import os
import random
import re
import sqlite3
import sys
import time
from collections.abc import Callable, Iterable
from functools import lru_cache
from typing import Any, TypeVar

from ..sql import same_kind

TAKES_NUMBERS_FOR_NAMES = (3, 12) <= sys.version_info[:3] < (3, 12, 4)
_PARAMETER = re.compile(r"--[^\n]*|'[^']*'|\?(\d*)")
"""A parameter with its number, if it has one; or a remark or a text in quotes, in which a question mark is none."""


class OwnConnection(sqlite3.Connection):
    """A connection that our statements are run on."""

    if TAKES_NUMBERS_FOR_NAMES:

        def execute(self, sql: str, parameters: Any = (), /) -> sqlite3.Cursor:
            """Run one of our statements."""
            return super().execute(*without_numbers(sql, parameters))

        def executemany(self, sql: str, parameters: Iterable[Any], /) -> sqlite3.Cursor:
            """Run one of our statements for each row of values."""
            text, *_ = _without_numbers(sql)
            return super().executemany(text, (without_numbers(sql, row)[1] for row in parameters))


def bindable(sql: str, values: Any) -> tuple[str, Any]:
    """A statement and its values, as a connection that is not our own takes them."""
    return without_numbers(sql, values) if TAKES_NUMBERS_FOR_NAMES else (sql, values)


def without_numbers(sql: str, values: Any) -> tuple[str, Any]:
    """A statement with nameless parameters instead, and its values in the order in which it asks for them. One whose
    parameters have names stays as it is."""
    text, places, count = _without_numbers(sql)
    if not places:
        return sql, values
    if len(values) != count:
        raise sqlite3.ProgrammingError(f"the statement uses {count} values, and {len(values)} were given")
    return text, [values[place] for place in places]


@lru_cache(maxsize=4096)
def _without_numbers(sql: str) -> tuple[str, list[int], int]:
    """A statement without numbers, which value is bound at each of its parameters, and how many values there are. A
    parameter that had no number has, as SQLite counts, the number that follows the highest before it."""
    places: list[int] = []
    count = 0

    def place(found: re.Match[str]) -> str:
        nonlocal count
        if found[1] is None:
            return found[0]
        number = int(found[1]) if found[1] else count + 1
        count = max(count, number)
        places.append(number - 1)
        return "?"

    return _PARAMETER.sub(place, sql), places, count


T = TypeVar("T")

GIVEN_NOW = "stepfast_now"
"""The function by which SQL asks a clock that is not the machine's."""
_NAP = (0.001, 0.005)
"""Seconds between two attempts at a locked file. At random, so that two who wait do not keep in step."""
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
    """For a file of the application that is to get our tables."""
    if path is not None:
        with contextlib.closing(sqlite3.connect(path, timeout=0, isolation_level=None)) as database:
            patiently(lambda: _switch(database), patience)


def _use_wal(database: sqlite3.Connection, ours: str) -> None:
    """A write-ahead log, for a new file and for one of ours. A file of another application that is only read is left
    as it is."""
    if not database.execute("SELECT count(*) = 0 OR max(name = ?) FROM sqlite_master", (ours,)).fetchone()[0]:
        return
    _switch(database)


def _switch(database: sqlite3.Connection) -> None:
    """The switch takes the whole file for a moment, and fails at once while another process does the same. Once made it
    stays: then the mode is left, because the caller itself may hold the lock, in a transaction to be joined."""
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
    """Whether another connection holds the lock, so that trying again helps."""
    return primary_code(error) in (sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED)


def primary_code(error: BaseException) -> int | None:
    """SQLite's result code without its refinements, or None for errors that are not SQLite's own."""
    code = getattr(error, "sqlite_errorcode", None)
    return None if code is None else code & 0xFF


# -- older libraries ------------------------------------------------------------------------------------------------

_SIZED = re.compile(r"\boctet_length\(([\w.]+)\)")
_HAS_SIZE = sqlite3.sqlite_version_info >= (3, 43)


def for_this_sqlite(statements: dict[str, str]) -> dict[str, str]:
    """Statements as the library at hand understands them."""
    return statements if _HAS_SIZE else {name: same_kind(text, older(text)) for name, text in statements.items()}


@lru_cache(maxsize=1024)
def older(sql: str) -> str:
    """A statement for a SQLite before 3.43, which has no ``octet_length``. Its ``length`` counts the characters of a
    text, but the bytes of a blob."""
    return _SIZED.sub(r"length(CAST(\1 AS BLOB))", sql)
