"""The tables on SQLite: making, checking and dropping them, and what ``stepfast doctor`` reads."""

from __future__ import annotations

import os
import sqlite3
import time

from ...errors import ConfigurationError
from ..answers import Check, SchemaState
from ..migrations import Migration, due, made_by, meta_of, refuse_to_drop, refuse_too_new, script_of, state_of
from ..sql import split_statements


class Schema:
    """The tables of one namespace."""

    def __init__(self, known: list[Migration], statements: dict[str, str]) -> None:
        self._known = known
        self._sql = statements

    def state(self, database: sqlite3.Connection) -> SchemaState:
        """The state of the tables."""
        found = database.execute(self._sql["meta_exists"]).fetchone()
        if found is None:
            return state_of(self._known, {})
        _refuse_other_spelling(*found)
        return state_of(self._known, dict(database.execute(self._sql["meta"]).fetchall()))

    def migrate(self, database: sqlite3.Connection) -> list[str]:
        """Apply what is pending. The writer's transaction keeps every other process out until it is done."""
        state = self.state(database)
        refuse_too_new(state)
        for migration in due(self._known, state):
            # Statement by statement: executescript() would commit first.
            for statement in split_statements(migration.text):
                database.execute(statement)
            for item in meta_of(migration).items():
                database.execute(self._sql["put_meta"], item)
        return state.pending

    def drop(self, database: sqlite3.Connection) -> None:
        """Everything of this namespace: what the migrations made, by name. The prefix alone would not do: it may be the
        beginning of another one. Views go first, indexes with their tables."""
        refuse_to_drop(self.state(database))
        for kind in ("VIEW", "TABLE"):
            for name in made_by(self._known, kind):
                database.execute(f"DROP {kind} IF EXISTS {name}")

    def names(self) -> list[str]:
        """The tables and views that a reset drops."""
        return made_by(self._known, "TABLE") + made_by(self._known, "VIEW")

    def tables(self) -> list[str]:
        """The tables alone, by name."""
        return made_by(self._known, "TABLE")

    def script(self) -> str:
        """The whole of it for the sqlite3 shell."""
        return script_of(self._known, self._sql)


def _refuse_other_spelling(made: str, wanted: str) -> None:
    """Two namespaces that SQLite takes for one would share their runs."""
    if made != wanted:
        there, this = made.removesuffix("_meta"), wanted.removesuffix("_meta")
        raise ConfigurationError(
            f"namespace {this!r} is not usable: the file has a namespace {there!r}, and SQLite does not tell large "
            "letters from small ones"
        )


OLDEST = (3, 35, 0)
"""RETURNING and materialised CTEs came with it."""


def checks(database: sqlite3.Connection, path: str | None, clock: str) -> list[Check]:
    """Version, durability, integrity, permissions, clock and wake-ups."""
    found = [_version(), _integrity(database), _clock(database, clock)]
    if path is not None:
        found += [_journal(database), _writable(path)]
    wakes = "within the process at once" if path is None else "other processes are noticed within about 40 ms"
    return [*found, Check("wake_ups", True, wakes)]


def _version() -> Check:
    advice = "use a Python whose SQLite is 3.35 or later"
    return Check("server", sqlite3.sqlite_version_info >= OLDEST, f"SQLite {sqlite3.sqlite_version}", advice)


def _journal(database: sqlite3.Connection) -> Check:
    (mode,) = database.execute("PRAGMA journal_mode").fetchone()
    (level,) = database.execute("PRAGMA synchronous").fetchone()
    return Check(
        "durability",
        mode == "wal" and level >= 2,
        f"journal_mode {mode}, synchronous {'FULL' if level >= 2 else level}",
        "readers and the writer block each other without WAL: put the file on a local disk, not on a network share",
    )


def _integrity(database: sqlite3.Connection) -> Check:
    (answer,) = database.execute("PRAGMA quick_check(1)").fetchone()
    return Check("integrity", answer == "ok", f"quick_check: {answer}", "restore the file from a backup")


def _writable(path: str) -> Check:
    """The folder too: the write-ahead log lives beside the file."""
    folder = os.path.dirname(os.path.abspath(path))
    ok = os.access(path, os.W_OK) and os.access(folder, os.W_OK)
    return Check("file", ok, os.path.abspath(path), "this user must be able to write the file and its folder")


def _clock(database: sqlite3.Connection, clock: str) -> Check:
    (now,) = database.execute(clock).fetchone()
    skew = now / 1000 - time.time()
    return Check("clock", abs(skew) < 5, f"SQLite is {skew:+.3f} s from here", "check the system's time service")
