"""How the benchmark looks into a SQLite file: with a connection of its own, for one question."""

from __future__ import annotations

import sqlite3


def any_row(url: str, sql: str) -> bool:
    """Whether this query finds anything. Blocks: to be called in a thread."""
    connection = sqlite3.connect(url.removeprefix("sqlite:///"), timeout=30)
    try:
        return connection.execute(sql).fetchone() is not None
    finally:
        connection.close()
