"""The tables on MariaDB and MySQL: making, checking and dropping them.

A statement that makes a table commits by itself. So a migration says in ``meta`` that it was begun, and is begun again
where it was not finished; one process at a time holds a lock of the server for it.
"""

from __future__ import annotations

import hashlib
import time
from typing import Any

from ...errors import ConfigurationError, DatabaseUnavailable
from ..answers import Check, SchemaState
from ..migrations import Migration, due, made_by, meta_of, refuse_to_drop, refuse_too_new, script_of, state_of
from ..sql import split_statements
from .connections import HELD, Server
from .driver import Driver, Statement
from .transactions import run

MOST_NAMESPACE = 44
"""Characters of a namespace: the servers take names of 64, and what comes behind it may have 20."""
MOST_NAME = 200
"""Characters of a name or a key: those of a column."""
_PATIENCE = 5
"""Seconds for which another process is waited for at a time that makes the tables."""
_TRIES = 12
_SCRIPT = ("script_head", "script_tail")
_LARGE = 16 * 1024 * 1024
"""What is usual for MariaDB; the largest payload that is taken has half of it."""
_UNFINISHED = "unfinished"
"""The word in ``meta`` that says that the tables are being made for the first time."""


def check_names(namespace: str, longest: int) -> None:
    """Refuse a namespace with which the names of tables would be too long, and names that are longer than columns."""
    if longest > MOST_NAME:
        raise ConfigurationError(
            f"the setting max_name is {longest}: on MariaDB and MySQL names and keys have up to {MOST_NAME} characters"
        )
    if len(namespace) > MOST_NAMESPACE:
        raise ConfigurationError(
            f"namespace {namespace!r} has {len(namespace)} characters: on MariaDB and MySQL it is the beginning of the "
            f"names of tables, and may have {MOST_NAMESPACE}"
        )


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
        """The state of the tables."""
        return state_of(self._known, await self._meta(connection))

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

    def tables(self) -> list[str]:
        """The tables alone, by name."""
        return made_by(self._known, "TABLE")

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
        if made != self._namespace and made.lower() == self._namespace.lower():
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
        there = {*await self._there(connection)}
        for kind in ("VIEW", "TABLE"):
            for name in there.intersection(made_by(self._known, kind)):
                await run(connection, f"DROP {kind} IF EXISTS {name}")

    async def _lock(self, connection: Any) -> None:
        """Take a lock of the server's, which ends with the connection."""
        name = "stepfast " + hashlib.sha256(self._namespace.encode()).hexdigest()[:23]
        for _ in range(_TRIES):
            if (await run(connection, "SELECT GET_LOCK(CONCAT(%s, MD5(DATABASE())), %s)", (name, _PATIENCE)))[0][0]:
                return
        raise DatabaseUnavailable("another process has been changing the tables for a minute: try it again")


async def checks(connection: Any, driver: Driver, server: Server | None) -> list[Check]:
    """Version, clock, durability, room for connections and for payloads."""
    sent = time.time()
    [(now, flushes, connections, packet, read_only, used)] = await driver.fetch(connection, "server_facts")
    skew = float(now) - (sent + time.time()) / 2
    assert server is not None, "a connection was made"
    unwritable = "connect to the server that takes writes"
    return [
        Check("server", not server.is_old, server.name, "use MariaDB 10.6, MySQL 8.0.21 or a later release"),
        *([Check("writes", False, "this server is read-only: a replica", unwritable)] if read_only else []),
        Check("clock", abs(skew) < 5, f"the server is {skew:+.3f} s from here",
              "only the server's clock decides, but logs will be hard to read: check the time service"),
        Check("durability", flushes == 1, f"innodb_flush_log_at_trx_commit: {flushes}",
              "a crash of the server may lose what was acknowledged: set it to 1"),
        Check("pool", connections - used >= HELD, f"{used} of {connections} connections in use",
              f"a worker holds up to {HELD}, beside its pools: raise max_connections"),
        Check("packet", packet >= _LARGE, f"max_allowed_packet: {packet:,} bytes",
              "an input or a result that is larger with all others of its statement is refused: raise it"),
        Check("wake_ups", True, "these servers have no notifications: workers poll"),
        *(await _cluster_checks(connection) if server.in_cluster else []),
    ]  # fmt: skip


_NODE = """
SHOW GLOBAL STATUS WHERE Variable_name IN
    ('wsrep_cluster_size', 'wsrep_cluster_status', 'wsrep_local_state_comment', 'wsrep_flow_control_paused')
"""
_MOST_PAUSED = 0.1
"""The part of the time for which a node may wait for slower ones."""


async def _cluster_checks(connection: Any) -> list[Check]:
    """Of a node of a Galera cluster: whether it takes part, who else does, and whether the others keep up."""
    facts = dict(await run(connection, _NODE))
    size, status = int(facts["wsrep_cluster_size"]), facts["wsrep_cluster_status"]
    state, paused = facts["wsrep_local_state_comment"], float(facts["wsrep_flow_control_paused"])
    takes_part = status == "Primary" and state == "Synced"
    return [
        Check("cluster", takes_part, f"Galera: {size} nodes, this one is {state} in a component that is {status}",
              "it refuses statements until it has found the others: look at its log, or connect to another node"),
        Check("cluster_size", size >= 3, f"{size} nodes",  # with two, neither goes on alone
              "with fewer than three nodes the loss of one stops the others: add one, or an arbitrator (garbd)"),
        Check("cluster_pace", paused < _MOST_PAUSED, f"writes waited for slower nodes {paused:.0%} of the time",
              "raise wsrep_slave_threads, or look for the node that is slow"),
    ]  # fmt: skip
