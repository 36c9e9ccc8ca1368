"""The tables on MariaDB: every statement is one to the server, and a migration that was interrupted is begun again."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import pytest

from stepfast.errors import ConfigurationError
from stepfast.model.urls import parse_url
from stepfast.settings import Settings
from stepfast.store.dialects import MYSQL
from stepfast.store.migrations import migrations
from stepfast.store.mysql import schema as mysql_schema
from stepfast.store.mysql.connections import Connector
from stepfast.store.mysql.driver import Driver, load, words_of
from stepfast.store.mysql.schema import Schema
from stepfast.store.mysql.transactions import run

pytestmark = pytest.mark.empty

WORDS = words_of("stepfast", 1000)
STATEMENTS = load(WORDS)


@pytest.fixture
async def connection(mariadb_url: str) -> AsyncIterator[Any]:
    made = await Connector(parse_url(mariadb_url), Settings()).connect()
    yield made
    made.close()


@pytest.fixture
def schema() -> Schema:
    return Schema("stepfast", migrations(MYSQL, WORDS), STATEMENTS, Driver(STATEMENTS, lambda: None))


async def test_every_statement_is_one_to_the_server(connection: Any, schema: Schema) -> None:
    assert await schema.migrate(connection) == ["0001_initial"]
    assert await schema.migrate(connection) == []
    refused = {}
    for name, statement in STATEMENTS.items():
        for part in statement.parts if name not in ("script_head", "script_tail") else ():
            try:
                prepared = await connection.prepare(part.text.replace("%s", "?").replace("%%", "%"))
            except Exception as error:
                refused[name] = error
            else:
                await prepared.close()
    assert refused == {}


@pytest.mark.parametrize("at", [0, 1, 20])
async def test_a_migration_that_was_interrupted_is_begun_again(
    connection: Any, schema: Schema, monkeypatch: pytest.MonkeyPatch, at: int
) -> None:
    made = 0

    async def dies(connection: Any, sql: str, given: Any = None) -> Any:
        nonlocal made
        if given is None:
            if made > at:
                raise OSError("cut")
            made += 1
        return await run(connection, sql, given)

    with monkeypatch.context() as patched:
        patched.setattr(mysql_schema, "run", dies)
        with pytest.raises(OSError, match="cut"):
            await schema.migrate(connection)
    assert (await schema.state(connection)).version == 0
    assert await schema.migrate(connection) == ["0001_initial"]
    await schema.drop(connection)
    assert await run(connection, "SHOW TABLES") == []


async def test_tables_of_others_are_in_the_way(connection: Any, schema: Schema) -> None:
    await run(connection, "CREATE TABLE stepfast_runs (id integer)")
    await run(connection, "CREATE TABLE mine (id integer)")
    with pytest.raises(ConfigurationError, match=r"are: stepfast_runs; choose another namespace"):
        await schema.migrate(connection)
    assert [row[0] for row in await run(connection, "SHOW TABLES")] == ["mine", "stepfast_runs"]
