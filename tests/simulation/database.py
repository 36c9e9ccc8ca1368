"""The database of the world: the real SQLite store in memory, whose writer serves in the scheduler's thread.

Jobs gather for a moment and are committed together, by the code that does so in life. Triggers of the storms' audit log
every change, with the time of the world.
"""

from __future__ import annotations

import sqlite3
from typing import Any

from stepfast.model.urls import parse_url
from stepfast.settings import Settings
from stepfast.store.sqlite.connections import GIVEN_NOW
from stepfast.store.sqlite.ctx_transaction import GuardedConnection
from stepfast.store.sqlite.store import SqliteStore
from stepfast.store.sqlite.writer import ConnectionThread, T, Work, Writer
from tests.faults import audit
from tests.simulation.loop import EPOCH, Process, SimLoop

_AUDIT = audit.SQLITE.replace(audit._CLOCK, f"{GIVEN_NOW}() * 1000")
_template: list[bytes] = []
"""The tables, made once and copied for each world."""


class Time:
    """What the database takes for its time: that of the world, and what it was stepped by."""

    def __init__(self, loop: SimLoop) -> None:
        self._loop = loop
        self.stepped_ms = 0

    def milliseconds(self) -> int:
        """Since 1970."""
        return int((EPOCH + self._loop.time()) * 1000) + self.stepped_ms

    def microseconds(self) -> int:
        """The same, for evidence."""
        return self.milliseconds() * 1000


class InlineWriter(Writer):
    """The writer without a thread: what has gathered is served in a turn of the database's own process."""

    def __init__(self, loop: SimLoop, process: Process, connection: sqlite3.Connection, settings: Settings) -> None:
        from stepfast.store.sqlite.errors import Troubles

        super().__init__(
            "writer", lambda: connection, Troubles(None, "stepfast", settings.command_timeout), 1.0,
            watched=lambda: False, others_wrote=lambda: None,
        )  # fmt: skip
        self._loop = loop
        self._process = process
        self._database = connection
        self._asked = False
        self.connected.set_result(None)
        self.ended.set_result(None)

    def finish(self) -> None:
        """The world ends it."""

    async def do(self, work: Work[T]) -> T:
        """Have it done in the next group."""
        self._kick()
        return await super().do(work)

    def do_first(self, work: Work[T], patience: float) -> T:
        """The same for threads, before everything that waits."""
        self._kick()
        return super().do_first(work, patience)

    def _kick(self) -> None:
        if not self._asked:
            self._asked = True
            self._loop.call_soon(self._serve_group, context=self._process.blank)

    def _serve_group(self) -> None:
        self._asked = False
        if self._queue.wait(0):
            self._serve()


class SimStore(SqliteStore):
    """The real store, with that writer."""

    def __init__(self, loop: SimLoop, settings: Settings, time: Time, seed: str) -> None:
        super().__init__(parse_url("sqlite://"), "stepfast", settings, time.milliseconds)
        self._loop = loop
        self.given_seed = seed
        self.connection: GuardedConnection
        self.process = loop.process("database")

    def _threads(self) -> tuple[Writer, ConnectionThread]:
        connection = self._connect_writer()
        assert isinstance(connection, GuardedConnection)
        self.connection = connection
        if _template:
            connection.deserialize(_template[0])
        writer = InlineWriter(self._loop, self.process, connection, self._settings)
        return writer, writer

    async def migrate(self) -> list[str]:
        """Make the tables and the audit, once for all worlds."""
        if _template:
            return []
        made = self._schema.migrate(self.connection)
        self.connection.executescript(_AUDIT)
        _template.append(self.connection.serialize())
        return made


class Recorded(audit.Database):
    """The rows of the world, read past the product."""

    def __init__(self, connection: sqlite3.Connection) -> None:
        super().__init__("sqlite://")
        self._connection = connection

    async def fetch(self, sql: str) -> list[tuple[Any, ...]]:
        """Rows; the words of the audit stand for its tables."""
        text = sql.replace("[", "stepfast_").replace("]", "").replace("{", "audit_").replace("}", "")
        return self._connection.execute(text).fetchall()
