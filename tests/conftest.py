"""The databases that tests run on: a private Postgres per test process, a fresh database per test.

`url` runs a test on every database; `postgres_url`, `postgres12_url` (the oldest release we support) and
`sqlite_url` on one. Where a test says `@pytest.mark.enough_on("sqlite")`, or its file `pytestmark = …`, `make test`
runs it there, and `make test-all` on every database. The tables are there already, unless the test is marked `empty`:
then a database on Postgres is an empty one, and a SQLite file is not there yet.
"""

from __future__ import annotations

import asyncio
import gc
import os
import signal
import tempfile
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit, urlunsplit

import pytest

from tests.support import bounds, collecting, given, needs
from tests.support.databases import DatabasePool, file_with_tables
from tests.support.mariadb import PrivateMariaDb
from tests.support.pgbouncer import pgbouncer
from tests.support.postgres import MEMORY, PostgresServer, PrivatePostgres, fetch_postgres, server_for_tests
from tests.support.warm import WarmDatabase, is_warm

pytest_configure = bounds.pytest_configure
pytest_runtest_protocol = bounds.pytest_runtest_protocol
pytest_terminal_summary = needs.pytest_terminal_summary
pytest_generate_tests = collecting.pytest_generate_tests

if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    # A shell starts what goes on in the background so, and all processes of the tests would be deaf to Ctrl+C.
    signal.signal(signal.SIGINT, signal.default_int_handler)


def pytest_collection_modifyitems(items: list[pytest.Item], config: pytest.Config) -> None:
    """A test that says on which databases it is enough to run is thorough on the others."""
    made_for: dict[str, set[str]] = defaultdict(set)
    for item in items:
        made_for[_function(item)].add(_database(item))
    for item in items:
        mark = item.get_closest_marker("enough_on")
        if mark is not None and _database(item) not in mark.args and made_for[_function(item)] & {*mark.args}:
            item.add_marker(pytest.mark.thorough)
    if given.URL:
        given.select(items, config, _database)
    # A process that is done takes tests from the end of what others have left. Tests that share what takes seconds to
    # start or to fill stand at the beginning, so that one process keeps them all, and starts and fills it once.
    items.sort(key=_shared)


SHARED = (
    ("full_database",),
    ("mariadb_server", "mariadb_url", "mariadb"),
    ("postgres12_server", "postgres12_url", "postgres12"),
    ("durable_server", "durable_url", "storm_url", "scene_url"),
    ("pooler", "pooled_url", "pooled"),
)
"""Fixtures, and values of parameters, by which it is known which of these a test needs."""


def _shared(item: pytest.Item) -> int:
    """Where a test stands: first those that need the first of these, last those that need none."""
    parameters = getattr(item, "callspec", None)
    needed = {*getattr(item, "fixturenames", ())}
    needed.update(value for value in (parameters.params.values() if parameters else ()) if isinstance(value, str))
    return next((number for number, names in enumerate(SHARED) if needed.intersection(names)), len(SHARED))


def _function(item: pytest.Item) -> str:
    return item.nodeid.partition("[")[0]


def _database(item: pytest.Item) -> str:
    """The database that a case of a test runs on, if the test runs once on each."""
    parameters = getattr(item, "callspec", None)
    return collecting.database(parameters.params) if parameters is not None else ""


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_collection() -> Iterator[None]:
    """What is made now lives until the end: the garbage collector need not look at ten thousand tests now and later.
    The little that is garbage already stays, too: to look for it would take a second in each process."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.freeze()
        gc.enable()


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


@pytest.fixture(scope="session")
def warm_database(
    postgres_server: PostgresServer, postgres_databases: DatabasePool, _session_scoped_runner: Any
) -> Iterator[WarmDatabase]:
    """The one that keeps its sessions from test to test."""
    database = WarmDatabase(postgres_server, postgres_databases, _session_scoped_runner)
    yield database
    database.retire()


@pytest.fixture(scope="session")
def given_database() -> given.GivenDatabase:
    """The database of `make test-engine`."""
    return given.GivenDatabase(given.URL)


@pytest.fixture
def postgres_url(request: pytest.FixtureRequest) -> Iterator[str]:
    """A Postgres database of this test's own."""
    if given.URL:
        yield request.getfixturevalue("given_database").prepare(_with_tables(request))
        return
    postgres_server: PostgresServer = request.getfixturevalue("postgres_server")
    if is_warm(request.node):
        warm: WarmDatabase = request.getfixturevalue("warm_database")
        url = postgres_server.url(warm.take())
        with warm.shelf.serving(url):
            yield url
        return
    postgres_databases: DatabasePool = request.getfixturevalue("postgres_databases")
    name = postgres_databases.take(_with_tables(request))
    yield postgres_server.url(name)
    postgres_databases.give_back(name)


@pytest.fixture
def _function_scoped_runner(request: pytest.FixtureRequest) -> Iterator[Any]:
    """The event loop of a test, by the name that pytest-asyncio looks for it. Tests whose connections outlive them
    share one, because a connection belongs to its loop; what a test left running there ends with it."""
    if not is_warm(request.node):
        yield request.getfixturevalue("_function_scoped_runner")
        return
    runner = request.getfixturevalue("_session_scoped_runner")
    yield runner
    runner.run(_end_all_tasks())


async def _end_all_tasks() -> None:
    others = asyncio.all_tasks() - {asyncio.current_task()}
    for task in others:
        task.cancel()
    await asyncio.gather(*others, return_exceptions=True)


@pytest.fixture(scope="session")
def pooler(postgres_server: PostgresServer) -> Iterator[str]:
    """PgBouncer in transaction mode before the server of this test process."""
    with pgbouncer(postgres_server.url()) as url:
        yield url


@pytest.fixture
def pooled_url(pooler: str, postgres_url: str) -> str:
    """The same through a pooler, whose sessions are anybody's."""
    return urlunsplit(urlsplit(pooler)._replace(path=urlsplit(postgres_url).path))


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


@pytest.fixture(scope="session")
def mariadb_server() -> Iterator[PrivateMariaDb]:
    """One server per test process that has tests for it; its data is in memory."""
    server = PrivateMariaDb()
    try:
        yield server.start()
    finally:
        server.close()


@pytest.fixture
def mariadb_url(request: pytest.FixtureRequest, mariadb_server: PrivateMariaDb) -> Iterator[str]:
    """A database of this test's own."""
    if _with_tables(request):
        url = mariadb_server.take_database()
        yield url
        mariadb_server.give_back(url)
    else:
        url = mariadb_server.create_database()
        yield url
        mariadb_server.drop_database(url)


@pytest.fixture
def sqlite_url(request: pytest.FixtureRequest) -> Iterator[str]:
    """A SQLite file of this test's own. It lies in memory where the system has a folder there: every commit waits for
    the disk, and no test here pulls the plug."""
    parent = MEMORY if os.access(MEMORY, os.W_OK) else None
    with tempfile.TemporaryDirectory(prefix="stepfast-", dir=parent) as folder:
        file = Path(folder, "stepfast.db")
        if _with_tables(request):
            file.write_bytes(file_with_tables())
        yield f"sqlite:///{file}"


@pytest.fixture(params=["postgres", "sqlite"])
def url(request: pytest.FixtureRequest) -> str:
    """The test runs once per database."""
    return str(request.getfixturevalue(f"{request.param}_url"))


def _with_tables(request: pytest.FixtureRequest) -> bool:
    return request.node.get_closest_marker("empty") is None
