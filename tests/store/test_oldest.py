"""The oldest release that we support understands every statement. What they do there is tried by `make test-all`."""

from __future__ import annotations

import asyncpg

from stepfast.model.url import parse_url
from stepfast.settings import Settings
from stepfast.store.postgres import PostgresStore
from stepfast.store.postgres.arrays import know_arrays

SCRIPTS = ("script_head", "script_tail")
"""Several statements in one, for people; a migration is such a script, and this database was made by one."""


async def test_every_statement_is_understood(postgres12_url: str) -> None:
    store = PostgresStore(parse_url(postgres12_url), "stepfast", Settings())
    connection = know_arrays(await asyncpg.connect(postgres12_url))
    try:
        assert connection.get_server_version() < (13, 0)
        statements = {name: sql for name, sql in store._sql.items() if name not in SCRIPTS}
        assert len(statements) > 100
        for name, sql in statements.items():
            assert await connection.prepare(sql), name
    finally:
        await connection.close()
