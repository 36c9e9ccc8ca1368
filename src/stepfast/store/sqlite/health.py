"""What ``stepfast doctor`` looks at on SQLite."""

from __future__ import annotations

import os
import sqlite3
import time

from ..protocol import Check

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
