"""The tables on MariaDB and MySQL: making, checking and dropping them.

A statement that makes a table commits by itself. So a migration says in ``meta`` that it was begun, and is begun again
where it was not finished; one process at a time holds a lock of the server for it.
"""

from __future__ import annotations

import hashlib
from typing import Any

from ...errors import ConfigurationError, DatabaseUnavailable
from ..answers import SchemaState
from ..migrations import Migration, due, made_by, meta_of, refuse_to_drop, refuse_too_new, script_of, state_of
from ..sql import split_statements
from .driver import Driver, Statement
from .transactions import run

MOST_NAMESPACE = 45
"""Characters of a namespace: the servers take names of 64, and what comes behind it may have 19."""
_PATIENCE = 5
"""Seconds for which another process is waited for at a time that makes the tables."""
_TRIES = 12
_SCRIPT = ("script_head", "script_tail")
_UNFINISHED = "unfinished"
"""The word in ``meta`` that says that the tables are being made for the first time."""


class Schema:
    """The tables of one namespace."""

    def __init__(
        self, namespace: str, known: list[Migration], statements: dict[str, Statement], driver: Driver
    ) -> None:
        self._namespace = namespace
        self._known = known
        self._sql = statements
        self._driver = driver

    async def state(self, connection: Any) -> SchemaState:
        """Where the tables stand."""
        meta = await self._meta(connection)
        if "version" not in meta:
            return state_of(self._known, 0, 0)
        return state_of(self._known, int(meta["version"]), int(meta["compatible_from"]))

    async def migrate(self, connection: Any) -> list[str]:
        """Apply what is pending, one process at a time. The connection has a lock afterwards: it is to be closed."""
        if not (await self._pending(connection)).pending:
            return []
        await self._lock(connection)
        state = await self._pending(connection)
        if state.version == 0:
            await self._make_room(connection)
        for migration in due(self._known, state):
            for number, statement in enumerate(split_statements(migration.text)):
                await run(connection, statement)
                if number == 0 and migration is self._known[0]:
                    await self._driver.fetch(connection, "put_meta", _UNFINISHED, "yes")
            for item in meta_of(migration).items():
                await self._driver.fetch(connection, "put_meta", *item)
        await self._driver.fetch(connection, "drop_meta", _UNFINISHED)
        return state.pending

    async def drop(self, connection: Any) -> None:
        """Everything that the migrations made, by name, under the same lock."""
        await self._lock(connection)
        refuse_to_drop(await self.state(connection))
        await self._drop_all(connection)

    def names(self) -> list[str]:
        """The tables and views that a reset drops."""
        return [name for kind in ("VIEW", "TABLE") for name in made_by(self._known, kind)]

    def script(self) -> str:
        """The whole of it for the mysql client."""
        texts = {name: ";\n".join(part.text for part in self._sql[name].parts) for name in _SCRIPT}
        return script_of(self._known, texts)

    async def _pending(self, connection: Any) -> SchemaState:
        state = await self.state(connection)
        refuse_too_new(state)
        return state

    async def _meta(self, connection: Any) -> dict[str, str]:
        """What is said about the tables; nothing, if there are none."""
        if f"{self._namespace}_meta" not in await self._there(connection):
            return {}
        found = dict(await self._driver.fetch(connection, "meta"))
        made = found.get("prefix", f"{self._namespace}_")[:-1]
        if made != self._namespace:
            raise ConfigurationError(
                f"namespace {self._namespace!r} is not usable: the database has a namespace {made!r}, and this server "
                "does not tell large letters from small ones in the names of tables"
            )
        return found

    async def _there(self, connection: Any) -> list[str]:
        return [row[0] for row in await self._driver.fetch(connection, "there", self.names())]

    async def _make_room(self, connection: Any) -> None:
        """Refuse tables that are not ours; drop what a migration left that did not come to its end."""
        there = await self._there(connection)
        meta = await self._meta(connection)
        if there and _UNFINISHED not in meta and (meta or there != [f"{self._namespace}_meta"]):
            raise ConfigurationError(
                f"the database has tables of other programs that are named as those of namespace {self._namespace!r} "
                f"are: {', '.join(sorted(there))}; choose another namespace"
            )
        await self._drop_all(connection)

    async def _drop_all(self, connection: Any) -> None:
        for kind in ("VIEW", "TABLE"):
            for name in made_by(self._known, kind):
                await run(connection, f"DROP {kind} IF EXISTS {name}")

    async def _lock(self, connection: Any) -> None:
        """Take a lock of the server's, which ends with the connection."""
        name = "stepfast " + hashlib.sha256(self._namespace.encode()).hexdigest()[:23]
        for _ in range(_TRIES):
            if (await run(connection, "SELECT GET_LOCK(CONCAT(%s, MD5(DATABASE())), %s)", (name, _PATIENCE)))[0][0]:
                return
        raise DatabaseUnavailable("another process has been changing the tables for a minute: try it again")
