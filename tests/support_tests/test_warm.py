"""Sessions that outlive a test: the same one comes back, with nothing of what was done on it."""

from __future__ import annotations

from typing import Any

import asyncpg
import pytest

from tests.support.databases import DatabasePool
from tests.support.postgres import PostgresServer
from tests.support.warm import WarmDatabase, is_warm


async def use(url: str, *statements: str) -> tuple[int, list[Any]]:
    """The server's process that a connection came to, and the rows of the last statement."""
    connection = await asyncpg.connect(url)
    try:
        rows = [await connection.fetch(statement) for statement in statements]
        return connection.get_server_pid(), [tuple(row) for row in rows[-1]]
    finally:
        await connection.close()


@pytest.fixture
def warm(request: pytest.FixtureRequest, postgres_server: PostgresServer, postgres_databases: DatabasePool) -> Any:
    request.node.add_marker(pytest.mark.warm)
    if not is_warm(request.node):
        pytest.skip("this pytest-asyncio has no event loop for several tests")
    database = WarmDatabase(postgres_server, postgres_databases, request.getfixturevalue("_session_scoped_runner"))
    yield database
    database.retire()


def test_a_session_comes_back_clean(warm: WarmDatabase, postgres_server: PostgresServer) -> None:
    run = warm._runner.run
    url = postgres_server.url(warm.take())
    with warm.shelf.serving(url):
        pid, _ = run(
            use(
                url,
                "SET work_mem = '3MB'",
                "CREATE TEMP TABLE mine (n int)",
                "LISTEN ears",
                "SELECT pg_advisory_lock(1)",
                "CREATE TABLE public.notes (n int)",
                "INSERT INTO stepfast.queues (name) VALUES ('q')",
            )
        )
    assert postgres_server.url(warm.take()) == url
    with warm.shelf.serving(url):
        again, left = run(
            use(
                url,
                "SELECT current_setting('work_mem'), to_regclass('mine'), to_regclass('notes'), "
                "(SELECT count(*) FROM pg_listening_channels()), (SELECT count(*) FROM stepfast.queues), "
                "(SELECT count(*) FROM pg_locks WHERE locktype = 'advisory' AND pid = pg_backend_pid())",
            )
        )
    assert again == pid
    assert left == [("4MB", None, None, 0, 0, 0)]


def test_a_closed_connection_says_so(warm: WarmDatabase, postgres_server: PostgresServer) -> None:
    async def closed() -> Any:
        connection = await asyncpg.connect(url)
        await connection.close()
        return connection

    url = postgres_server.url(warm.take())
    with warm.shelf.serving(url):
        connection = warm._runner.run(closed())
        assert connection.is_closed()
        with pytest.raises(asyncpg.InterfaceError, match="closed"):
            warm._runner.run(connection.fetch("SELECT 1"))


@pytest.mark.parametrize("change", ["ALTER TABLE stepfast.runs ADD more int", "DROP TABLE stepfast.steps CASCADE"])
def test_changed_tables_are_not_given_to_the_next(
    warm: WarmDatabase, postgres_server: PostgresServer, change: str
) -> None:
    url = postgres_server.url(warm.take())
    with warm.shelf.serving(url):
        warm._runner.run(use(url, change))
    assert postgres_server.url(warm.take()) != url
