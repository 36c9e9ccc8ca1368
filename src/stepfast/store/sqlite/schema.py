"""Making, checking and dropping the tables on SQLite; all of it called in the writer's thread."""

from __future__ import annotations

import sqlite3

from ...errors import ConfigurationError
from ..migrations import Migration, due, made_by, meta_of, refuse_to_drop, refuse_too_new, script_of, state_of
from ..protocol import SchemaState
from ..statements import split_script


class Schema:
    """The tables of one namespace."""

    def __init__(self, known: list[Migration], statements: dict[str, str]) -> None:
        self._known = known
        self._sql = statements

    def state(self, database: sqlite3.Connection) -> SchemaState:
        """Where the tables stand."""
        found = database.execute(self._sql["meta_exists"]).fetchone()
        if found is None:
            return state_of(self._known, 0, 0)
        _refuse_other_spelling(*found)
        rows = dict(database.execute(self._sql["meta"]).fetchall())
        return state_of(self._known, int(rows["version"]), int(rows["compatible_from"]))

    def migrate(self, database: sqlite3.Connection) -> list[str]:
        """Apply what is pending. The writer's transaction keeps every other process out meanwhile."""
        state = self.state(database)
        refuse_too_new(state)
        for migration in due(self._known, state):
            # Statement by statement: executescript() would commit first.
            for statement in split_script(migration.text):
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
