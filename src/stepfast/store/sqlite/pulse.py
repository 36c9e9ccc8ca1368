"""The heartbeat: it goes to the front of the writer's queue and rides in the next commit.

A lock of its own would have to be won against every other process; the flush that is about to win it anyway takes
the heartbeat along.
"""

from __future__ import annotations

import sqlite3

from ...model.records import BeatAnswer, Held
from .writer import Writer


class SqlitePulse:
    """Synchronous heartbeats, for a thread of their own."""

    def __init__(self, writer: Writer, statements: dict[str, str], patience: float) -> None:
        self._writer = writer
        self._sql = statements
        self._patience = patience

    def beat(self, worker: str, running: int) -> BeatAnswer:
        """Say that the worker lives; hear what it holds."""
        return self._writer.do_first(lambda database: self._beat(database, worker, running), self._patience)

    def close(self) -> None:
        """Nothing to give up: the connection is the writer's."""

    def _beat(self, database: sqlite3.Connection, worker: str, running: int) -> BeatAnswer:
        if not database.execute(self._sql["beat"], (worker, running)).fetchall():
            return BeatAnswer(False)
        return BeatAnswer(True, [Held(*row) for row in database.execute(self._sql["held"], (worker,))])
