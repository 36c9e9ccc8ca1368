"""The tables on Postgres: making, checking and dropping them, the roles of least privilege, and what ``stepfast
doctor`` reads.
"""

from __future__ import annotations

import asyncio
import functools
import time
from collections.abc import Awaitable, Callable
from typing import Any, TypeVar

import asyncpg

from ...errors import ConfigurationError, InvalidState, sentence
from ...model.stored import MOST_COUNTED
from ..answers import Check, SchemaState
from ..migrations import Migration, due, made_by, meta_of, refuse_to_drop, refuse_too_new, script_of, state_of
from ..sql import fill, load_statements, split_statements
from .connections import HELD, qualify
from .engines import Engine, engine_checks
from .tables import REFUSES
from .transactions import transaction

T = TypeVar("T")

_PAUSE = 0.05
"""Seconds between two tries to change the tables while another process does."""
_CHANGED_BY_ANOTHER = (
    asyncpg.UniqueViolationError, asyncpg.DuplicateTableError, asyncpg.DuplicateSchemaError,
    asyncpg.UndefinedTableError,
)  # fmt: skip
_TRIES = 3

OPERATING = ("cancel", "resume", "reschedule", "complete", "fail", "beat")
"""Functions that are granted to the worker's role alone; the other functions do nothing that a role may not do."""

_LAST = 237_623_846_400_000
"""The beginning of the year 9500: a start is due before the year 9000, and may expire a hundred years later. What the
tables refuse is far off, so that no sum with such a time comes near it."""
_LONGEST = 10_000_000_000_000
"""Three hundred years, of which a span may have one."""
_TIMES = ("created_at", "started_at", "ready_at", "visible_at", "deadline_at", "expires_at")
_SPANS = ("timeout_ms", "deadline_ms")
_MOST_STEPS = 1_000_000
"""More than a graph can have: one transaction starts them all."""
_BOUNDED = {
    "pending": _MOST_STEPS,
    "ordinal": _MOST_STEPS,
    "max_attempts": MOST_COUNTED,
    "place": _LAST * 1000,
}

_CHECKED = {
    "runs": " AND ".join(
        (
            "worker IS NULL AND claim = 0 AND output IS NULL",
            "parent_id IS NULL AND parent_branch IS NULL AND parent_position IS NULL",
            "reply_to IS NULL AND origin_id IS NULL",
            "(dag_id IS NULL) = (dag_step IS NULL)",
            "(dag_id IS NULL OR (graph IS NOT NULL AND {schema}.sql_is_step(dag_id, dag_step)))",
            "(dag_id IS NULL OR COALESCE(key, unique_name) IS NULL)",
            "(status IN ('queued', 'waiting') OR (status = 'running' AND graph IS NOT NULL AND dag_id IS NULL))",
            "format IN (1, 2)",
            *(f"COALESCE({time}, 0) BETWEEN 0 AND {_LAST}" for time in _TIMES),
            *(f"COALESCE({span}, 0) BETWEEN 0 AND {_LONGEST}" for span in _SPANS),
            *(f"COALESCE({number}, 0) BETWEEN 0 AND {most}" for number, most in _BOUNDED.items()),
            "(graph IS NULL OR dag_id IS NOT NULL OR pending > 0)",
        )
    ),
    "run_tags": "{schema}.sql_is_tag(run_id, tag)",
    "run_attributes": "{schema}.sql_is_attribute(run_id, name)",
    "mailbox": "kind IN ('signal', 'next') AND name NOT LIKE '~%' AND NOT delivered AND error IS NULL"
    f" AND format IN (1, 2) AND sent_at BETWEEN 0 AND {_LAST}",
    "events": f"number IS NULL AND format IN (1, 2) AND published_at BETWEEN 0 AND {_LAST}",
    "run_values": "(key = '~graph' AND {schema}.sql_is_graph(run_id)) OR (key LIKE '~signal/%' AND value = 'null')",
}
"""What the rows must be that a starter inserts: runs of its own, with times that a calendar has, and nothing that adds
to a run which another process started."""


class Roles:
    """The script that makes the roles of one namespace. It is rendered when it is first needed: few stores need it."""

    def __init__(self, namespace: str, schema: str, known: list[Migration]) -> None:
        self._namespace = namespace
        self._schema = schema
        self._migrations = known

    @property
    def known(self) -> str:
        """The question whether the roles are there."""
        return self._sql["have_roles"]

    @property
    def grants(self) -> list[str]:
        """The statements that say what each role may do. The owner of the tables may run them."""
        return split_statements(self._grants)

    def script(self) -> str:
        """The whole of it for psql. Making the roles needs the right to, unless they are there."""
        parts = [self._sql["roles_head"], self._sql["make_roles"], self._grants, "COMMIT"]
        return ";\n\n".join(parts) + ";\n"

    @functools.cached_property
    def _words(self) -> dict[str, str]:
        made = {kind: made_by(self._migrations, kind) for kind in ("TABLE", "VIEW", "FUNCTION")}
        functions = [name for name in made["FUNCTION"] if name.rpartition(".")[2] not in OPERATING]
        return {
            "schema": self._schema,
            "namespace": self._namespace,
            "tables": ", ".join(made["TABLE"]),
            "views": ", ".join(made["VIEW"]),
            "functions": ", ".join(functions),
            **{role: f'"{self._namespace}_{role}"' for role in ("starter", "worker", "reader")},
        }

    @functools.cached_property
    def _sql(self) -> dict[str, str]:
        statements = load_statements("stepfast.store", "sql/postgres/roles.sql", self._words)
        return {name: qualify(text) for name, text in statements.items()}

    @functools.cached_property
    def _grants(self) -> str:
        each = self._sql["policies_of_all"]
        policies = [
            fill(each, {"table": f"{self._schema}.{table}", "rule": fill(rule, self._words)})
            for table, rule in _CHECKED.items()
        ]
        return fill(self._sql["grant_roles"], {"policies": ";\n".join(policies)})


ENCODING_ADVICE = "use one made with ENCODING 'UTF8' TEMPLATE template0"


async def checks(
    connection: Any, facts: str, schema: str, engine: Engine, behind_pooler: bool, wakes: bool
) -> list[Check]:
    """Version, clock, durability, room for connections, and how we are connected; ``facts`` is the query."""
    sent = time.time()
    row = await connection.fetchrow(facts)
    skew = row["now"] - (sent + time.time()) / 2
    return [
        Check("server", row["number"] >= 120000, f"PostgreSQL {row['text']}", "use PostgreSQL 12 or later"),
        Check("encoding", row["encoding"] == "UTF8", f"the database's is {row['encoding']}", ENCODING_ADVICE),
        *await engine_checks(connection, engine, schema),
        *_unwritable(row["read_only"]),
        _clock(skew),
        _durability(row["durability"]),
        _room(row["connections"], row["max_connections"]),
        _wake_ups(behind_pooler, wakes),
    ]


def _unwritable(read_only: bool) -> list[Check]:
    """Of this only those hear who are connected to a server that does not take writes."""
    if not read_only:
        return []
    advice = "name all servers in the URL, and ask for the one that takes writes: ?target_session_attrs=read-write"
    return [Check("writes", False, "this server is read-only: a standby, or a primary that was one", advice)]


def _clock(skew: float) -> Check:
    advice = "only the server's clock decides, but logs will be hard to read: check the time service"
    return Check("clock", abs(skew) < 5, f"the server is {skew:+.3f} s from here", advice)


def _durability(levels: str) -> Check:
    """``levels``: those of fsync and of synchronous_commit."""
    durable = levels.startswith("on") and not levels.endswith("off")
    advice = "a crash of the server may lose what was acknowledged: turn them on"
    return Check("durability", durable, f"fsync, synchronous_commit: {levels}", advice)


def _room(used: int, most: int) -> Check:
    advice = f"a worker holds up to {HELD}, beside its pools: raise max_connections or put a pooler in between"
    return Check("pool", most - used >= HELD, f"{used} of {most} connections in use", advice)


def _wake_ups(behind_pooler: bool, wakes: bool) -> Check:
    cause = "there is a pooler in transaction mode in between: " if behind_pooler else ""
    return Check(
        "wake_ups",
        wakes or behind_pooler,
        "LISTEN/NOTIFY works" if wakes else "LISTEN does not deliver",
        cause + "workers poll instead; connect directly, or in session mode, to be woken",
    )


_MADE_SCHEMA = "made_schema"
"""The word in `meta` that says that the schema itself was made by a migration, and not by an operator for us."""


class Schema:
    """The tables of one namespace."""

    def __init__(self, schema: str, known: list[Migration], statements: dict[str, str], roles: Roles) -> None:
        self._schema = schema
        self._known = known
        self._sql = statements
        self._roles = roles

    async def state(self, connection: Any) -> SchemaState:
        """The state of the tables."""
        refuse_encoding(connection)
        if not await connection.fetchval(self._sql["meta_exists"], self._schema):
            return state_of(self._known, {})
        return state_of(self._known, dict(await connection.fetch(self._sql["meta"])))

    async def migrate(self, connection: Any) -> list[str]:
        """Apply what is pending, everything in one transaction, one process at a time."""

        async def apply(state: SchemaState) -> list[str]:
            refuse_too_new(state)
            if not state.pending:
                return []
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
            await self._grant_added(connection)
            return state.pending

        state = await self.state(connection)
        refuse_too_new(state)
        return await self._one_at_a_time(connection, apply) if state.pending else []

    async def _one_at_a_time(self, connection: Any, change: Callable[[SchemaState], Awaitable[T]]) -> T:
        """Change the tables in a transaction. Where there are none, the first statement that makes something waits for
        another process that makes the same, and fails when that has committed. A lock in `meta` is polled, because a
        session that waits for it keeps the table from being dropped."""
        for tries_left in reversed(range(_TRIES)):
            try:
                while True:
                    async with transaction(connection):
                        state = await self.state(connection)
                        if state.version == 0 or await connection.fetch(self._sql["lock_meta"]):
                            return await change(await self.state(connection))
                    await asyncio.sleep(_PAUSE)
            except _CHANGED_BY_ANOTHER:
                if not tries_left:
                    raise
        raise AssertionError("unreachable")

    async def _grant_added(self, connection: Any) -> None:
        """If there are roles of least privilege, they hear of what was added."""
        if await connection.fetchval(self._roles.known, self._schema):
            for statement in self._roles.grants:
                await connection.execute(statement)

    async def drop(self, connection: Any) -> None:
        """What the migrations made, by name: in the same schema there may be tables of others. The schema goes too, if
        a migration made it and nothing is left in it."""

        async def remove(state: SchemaState) -> None:
            refuse_to_drop(state)
            if state.version == 0:
                return
            made_schema = _MADE_SCHEMA in dict(await connection.fetch(self._sql["meta"]))
            for kind in ("VIEW", "FUNCTION", "TABLE"):  # views call functions, and functions take rows of tables
                await self._drop_all(connection, kind)
            await connection.execute(f"DROP FUNCTION IF EXISTS {self._schema}.{REFUSES}")
            if made_schema:
                await self._drop_schema(connection)

        await self._one_at_a_time(connection, remove)

    async def _drop_all(self, connection: Any, kind: str) -> None:
        """In one statement, because views are made of each other. What other objects depend on is not dropped."""
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
            pass  # it contains something that is not ours

    def names(self) -> list[str]:
        """The tables, views and functions that a reset drops."""
        return [name for kind in ("TABLE", "VIEW", "FUNCTION") for name in made_by(self._known, kind)]

    def tables(self) -> list[str]:
        """The tables alone, by name."""
        return made_by(self._known, "TABLE")

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
