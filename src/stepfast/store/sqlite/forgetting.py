"""Records that a new attempt is to make anew; a signal that one of them took goes back into the mailbox."""

from __future__ import annotations

import sqlite3

Place = tuple[str, str, int]
"""(run, branch, position)"""


def forget_steps(database: sqlite3.Connection, sql: dict[str, str], places: list[Place]) -> None:
    """Forget the records at these places."""
    if places:
        database.executemany(sql["untake"], places)
        database.executemany(sql["forget"], places)
