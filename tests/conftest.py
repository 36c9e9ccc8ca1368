"""The databases that tests run on: a private Postgres per test process, a fresh database per test.

`url` runs a test on every database; `postgres_url`, `postgres12_url` (the oldest release we support) and
`sqlite_url` on one. On Postgres the tables are there already, unless the test is marked `empty`; a SQLite file is not.
"""

from __future__ import annotations

import gc
import os
import tempfile
import zlib
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support import bounds, needs
from tests.support.databases import DatabasePool
from tests.support.postgres import PostgresServer, PrivatePostgres, fetch_postgres, server_for_tests

pytest_configure = bounds.pytest_configure
pytest_runtest_protocol = bounds.pytest_runtest_protocol
pytest_terminal_summary = needs.pytest_terminal_summary

MEMORY = "/dev/shm"

MANY, SHARE = 10, 4
"""Of the command line's tests, and of tests with many cases, `make test` runs all on Postgres and one in so many on
SQLite, always the same; `make test-all` runs them all."""


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    cases = Counter(item.nodeid.partition("[")[0] for item in items)
    for item in items:
        parameters = getattr(item, "callspec", None)
        on_sqlite = parameters is not None and parameters.params.get("url") == "sqlite"
        name = item.nodeid.partition("[")[0]
        if on_sqlite and ("tests/cli/" in name or cases[name] >= MANY) and zlib.crc32(item.name.encode()) % SHARE:
            item.add_marker(pytest.mark.thorough)


def pytest_collection_finish() -> None:
    """What lives now lives until the end: the garbage collector need not look at ten thousand tests again and again."""
    gc.collect()
    gc.freeze()


@pytest.fixture(scope="session")
def postgres_server() -> Iterator[PostgresServer]:
    """One server per test process, fsync off. Crash tests leave it alone and start one of their own. A private one has
    no TLS, and drivers are told so: each would ask for it with every connection, and make a context for it."""
    with server_for_tests() as server, pytest.MonkeyPatch.context() as patch:
        if isinstance(server, PrivatePostgres):
            patch.setenv("PGSSLMODE", "disable")
        yield server


@pytest.fixture(scope="session")
def postgres_databases(postgres_server: PostgresServer) -> Iterator[DatabasePool]:
    pool = DatabasePool(postgres_server)
    yield pool
    pool.close()


@pytest.fixture
def postgres_url(
    request: pytest.FixtureRequest, postgres_server: PostgresServer, postgres_databases: DatabasePool
) -> Iterator[str]:
    """A Postgres database of this test's own."""
    name = postgres_databases.take(_with_tables(request))
    yield postgres_server.url(name)
    postgres_databases.give_back(name)


@pytest.fixture(scope="session")
def postgres12_server() -> Iterator[PrivatePostgres]:
    """The oldest release we support, started by the first test that asks for it."""
    with PrivatePostgres(bindir=fetch_postgres(12)) as server:
        yield server


@pytest.fixture(scope="session")
def postgres12_databases(postgres12_server: PrivatePostgres) -> Iterator[DatabasePool]:
    pool = DatabasePool(postgres12_server)
    yield pool
    pool.close()


@pytest.fixture
def postgres12_url(
    request: pytest.FixtureRequest, postgres12_server: PrivatePostgres, postgres12_databases: DatabasePool
) -> Iterator[str]:
    """The same on the oldest release."""
    name = postgres12_databases.take(_with_tables(request))
    yield postgres12_server.url(name)
    postgres12_databases.give_back(name)


@pytest.fixture
def sqlite_url(tmp_path: Path) -> Iterator[str]:
    """A SQLite file of this test's own, not yet created. It lies in memory where the system has a folder there: every
    commit waits for the disk, and no test here pulls the plug."""
    if not os.access(MEMORY, os.W_OK):
        yield f"sqlite:///{tmp_path / 'stepfast.db'}"
        return
    with tempfile.TemporaryDirectory(prefix="stepfast-", dir=MEMORY) as folder:
        yield f"sqlite:///{folder}/stepfast.db"


@pytest.fixture(params=["postgres", "sqlite"])
def url(request: pytest.FixtureRequest) -> str:
    """The test runs once per database."""
    return str(request.getfixturevalue(f"{request.param}_url"))


def _with_tables(request: pytest.FixtureRequest) -> bool:
    return request.node.get_closest_marker("empty") is None
