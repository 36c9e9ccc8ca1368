"""Making, checking and dropping the tables on Postgres."""

from __future__ import annotations

from typing import Any

import asyncpg

from ...errors import ConfigurationError, InvalidState, sentence
from ..migrations import Migration, due, made_by, meta_of, refuse_to_drop, refuse_too_new, script_of, state_of
from ..protocol import SchemaState
from ..statements import split_statements
from .health import ENCODING_ADVICE
from .roles import Roles
from .transactions import transaction

_MADE_SCHEMA = "made_schema"
"""The word in `meta` that says that the schema itself was made by a migration, and not by somebody else for us."""


class Schema:
    """The tables of one namespace."""

    def __init__(self, schema: str, known: list[Migration], statements: dict[str, str], roles: Roles) -> None:
        self._schema = schema
        self._known = known
        self._sql = statements
        self._roles = roles

    async def state(self, connection: Any) -> SchemaState:
        """Where the tables stand."""
        refuse_encoding(connection)
        if not await connection.fetchval(self._sql["meta_exists"], self._schema):
            return state_of(self._known, 0, 0)
        rows = dict(await connection.fetch(self._sql["meta"]))
        return state_of(self._known, int(rows["version"]), int(rows["compatible_from"]))

    async def migrate(self, connection: Any) -> list[str]:
        """Apply what is pending, everything in one transaction under one lock."""
        state = await self.state(connection)
        refuse_too_new(state)
        if not state.pending:
            return []
        async with transaction(connection):
            await connection.execute(self._sql["lock"], self._schema)
            state = await self.state(connection)
            refuse_too_new(state)
            made_schema = not await connection.fetchval(self._sql["schema_exists"], self._schema)
            if made_schema:
                await connection.execute(self._sql["create_schema"])
            for migration in due(self._known, state):
                # One by one, because a server that passes them on to others cannot take several at once.
                for statement in split_statements(migration.text):
                    await connection.execute(statement)
                for key, value in meta_of(migration).items():
                    await connection.execute(self._sql["put_meta"], key, value)
            if made_schema:
                await connection.execute(self._sql["put_meta"], _MADE_SCHEMA, "yes")
            await self._grant_anew(connection)
            return state.pending

    async def _grant_anew(self, connection: Any) -> None:
        """If there are roles of least privilege, they hear of what was added."""
        if await connection.fetchval(self._roles.known, self._schema):
            for statement in self._roles.grants:
                await connection.execute(statement)

    async def drop(self, connection: Any) -> None:
        """What the migrations made, by name: in the same schema there may be tables of others. The schema goes too, if
        a migration made it and nothing is left in it."""
        async with transaction(connection):
            await connection.execute(self._sql["lock"], self._schema)
            state = await self.state(connection)
            refuse_to_drop(state)
            if state.version == 0:
                return
            made_schema = _MADE_SCHEMA in dict(await connection.fetch(self._sql["meta"]))
            for kind in ("VIEW", "FUNCTION", "TABLE"):  # views call functions, and functions take rows of tables
                await self._drop_all(connection, kind)
            if made_schema:
                await self._drop_schema(connection)

    async def _drop_all(self, connection: Any, kind: str) -> None:
        """In one statement, because views are made of each other. What somebody else has built upon is not dropped."""
        try:
            await connection.execute(f"DROP {kind} IF EXISTS {', '.join(made_by(self._known, kind))}")
        except asyncpg.DependentObjectsStillExistError as error:
            detail = getattr(error, "detail", "")
            raise InvalidState(
                f"nothing was dropped: {sentence(error)} ({detail}). Drop what depends on it first"
            ) from None

    async def _drop_schema(self, connection: Any) -> None:
        try:
            async with transaction(connection):
                await connection.execute(self._sql["drop_schema"])
        except asyncpg.DependentObjectsStillExistError:
            pass  # somebody else keeps something in it

    def names(self) -> list[str]:
        """The tables, views and functions that a reset drops."""
        return [name for kind in ("TABLE", "VIEW", "FUNCTION") for name in made_by(self._known, kind)]

    def script(self) -> str:
        """The whole of it for psql."""
        return script_of(self._known, self._sql)


def refuse_encoding(connection: Any) -> None:
    """A database that cannot keep every character would refuse results of steps that are done already. The server has
    told its encoding when the connection was made."""
    encoding = getattr(connection.get_settings(), "server_encoding", "UTF8")
    if encoding != "UTF8":
        raise ConfigurationError(
            f"the database has the encoding {encoding}, which cannot keep every text: {ENCODING_ADVICE}"
        )
