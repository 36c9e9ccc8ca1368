"""The private Postgres does what the crash tests rely on."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import asyncpg
import pytest

from tests.support import postgres, wire
from tests.support.databases import DatabasePool
from tests.support.postgres import HOST, PostgresServer, PostgresUnavailable, PrivatePostgres

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture(scope="module")
def durable() -> Iterator[PrivatePostgres]:
    with PrivatePostgres(fsync=True, in_memory=True, settings={"application_name": "durable"}) as server:
        yield server


@pytest.mark.thorough
async def test_a_killed_server_comes_back_with_what_was_committed(durable: PrivatePostgres) -> None:
    """At the same place, as after a restart in good order; a kill cuts the connections of drivers."""
    assert durable.execute("SHOW fsync") == ["on"]
    assert durable.execute("SHOW application_name") == ["durable"]
    durable.execute("CREATE TABLE kept AS SELECT 7 AS n")
    url = durable.url()
    durable.restart()
    assert durable.execute("SELECT n FROM kept") == ["7"]
    connection = await asyncpg.connect(url)
    durable.kill9()
    with pytest.raises((OSError, asyncpg.PostgresConnectionError, asyncpg.InterfaceError)):
        await connection.fetch("SELECT 1")
    connection.terminate()
    with pytest.raises(OSError):
        durable.execute("SELECT 1")
    durable.restart()
    assert durable.url() == url
    assert durable.execute("SELECT n FROM kept") == ["7"]
    assert "was not properly shut down" in durable.log


@pytest.mark.thorough
def test_a_taken_port_is_refused_if_it_was_chosen_and_else_another_is_tried(
    durable: PrivatePostgres, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(PostgresUnavailable, match="free port") as refused:
        PrivatePostgres(port=durable.port).start()
    assert "Address already in use" in str(refused.value)
    ports = iter([durable.port, postgres._free_port()])
    monkeypatch.setattr(postgres, "_free_port", lambda: next(ports))
    with PrivatePostgres() as server:
        assert server.execute("SELECT 1") == ["1"]
        assert server.port != durable.port


@pytest.mark.thorough
def test_stop_leaves_nothing_behind() -> None:
    server = PrivatePostgres().start()
    folder = Path(server.execute("SHOW data_directory")[0]).parent
    server.stop()
    server.stop()
    assert not folder.exists()
    assert not server.running


@pytest.mark.thorough
def test_a_setting_that_does_not_exist_is_reported_from_the_log() -> None:
    with pytest.raises(PostgresUnavailable, match="no_such_setting"):
        PrivatePostgres(settings={"no_such_setting": 1}).start()


@pytest.mark.thorough
def test_a_test_process_that_is_killed_takes_its_server_along() -> None:
    program = (
        "import time; from tests.support.postgres import PrivatePostgres; s = PrivatePostgres().start(); "
        "print(s.port, s.execute('SHOW data_directory')[0], flush=True); time.sleep(60)"
    )
    with subprocess.Popen([sys.executable, "-c", program], cwd=ROOT, stdout=subprocess.PIPE, text=True) as owner:
        assert owner.stdout
        port, folder = owner.stdout.readline().split()
        assert wire.execute(HOST, int(port), "SELECT 1") == ["1"]
        os.kill(owner.pid, signal.SIGKILL)
    deadline = time.monotonic() + 20
    while Path(folder).parent.exists() and time.monotonic() < deadline:
        time.sleep(0.02)
    assert not Path(folder).parent.exists()
    with pytest.raises(OSError):
        socket.create_connection((HOST, int(port)))


def test_nothing_to_run_is_said_in_a_sentence(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(postgres, "_wheel_bindir", lambda: None)
    monkeypatch.setattr(postgres, "_system_bindirs", dict)
    with pytest.raises(PostgresUnavailable, match="STEPFAST_TEST_POSTGRES"):
        postgres.find_bindir()
    monkeypatch.setattr("shutil.which", lambda name: None)
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(PostgresUnavailable, match="npm"):
        postgres._npm()


@pytest.mark.thorough
def test_the_oldest_postgres_runs() -> None:
    with PrivatePostgres(postgres.fetch_postgres(12)) as server:
        assert server.execute("SHOW server_version")[0].startswith("12.")
        assert server.create_database("old") == server.url("old")
        server.kill9()
        server.restart()
        assert server.execute("SELECT 1", database="old") == ["1"]


def test_every_test_has_an_empty_database_and_loses_the_old_one(
    postgres_server: PostgresServer, postgres_databases: DatabasePool
) -> None:
    first = postgres_databases.take()
    for statement in ("CREATE SCHEMA s", "CREATE TABLE s.t (n int)", "CREATE TABLE u (n int)"):
        postgres_server.execute(statement, database=first)
    postgres_databases.give_back(first)

    second = postgres_databases.take()
    try:
        assert first != second
        assert postgres_server.execute("SELECT 1 FROM pg_tables WHERE schemaname IN ('s', 'public')", second) == []
        with pytest.raises(Exception, match="does not exist"):
            postgres_server.execute("SELECT 1", database=first)
    finally:
        postgres_databases.give_back(second)


def test_tables_are_kept_from_test_to_test_and_emptied(
    postgres_server: PostgresServer, postgres_databases: DatabasePool
) -> None:
    which = "SELECT 'stepfast.workers'::regclass::oid"
    first = postgres_databases.take(tables=True)
    made = postgres_server.execute(which, first)
    postgres_server.execute("CREATE TABLE mine (n int)", first)
    postgres_server.execute(
        "INSERT INTO stepfast.definitions (name, version, kind, queue, options, registered_at, seen_at) "
        "VALUES ('x', '1', 'task', 'q', '{}', 1, 1)",
        first,
    )
    postgres_databases.give_back(first)

    second = postgres_databases.take(tables=True)
    assert postgres_server.execute(which, second) == made
    assert postgres_server.execute("SELECT 1 FROM pg_tables WHERE schemaname = 'public'", second) == []
    assert postgres_server.execute("SELECT name FROM stepfast.definitions", second) == []
    postgres_server.execute("ALTER TABLE stepfast.workers ADD COLUMN n int", second)
    postgres_databases.give_back(second)

    third = postgres_databases.take(tables=True)
    assert postgres_server.execute(which, third) != made
    postgres_databases.give_back(third)
    empty = postgres_databases.take()
    assert postgres_server.execute("SELECT 1 FROM pg_tables WHERE schemaname = 'stepfast'", empty) == []
    postgres_databases.give_back(empty)


def test_a_database_that_was_asked_for_without_tables_is_not_taken_for_one_with_them(
    postgres_server: PostgresServer,
) -> None:
    """Nobody had touched its tables before they were dropped, and nobody touches it without them."""
    databases = DatabasePool(postgres_server)
    databases._made = 1_000_000  # names that the other pool of this process does not give
    for tables in (True, False, True, False, False, True):
        name = databases.take(tables)
        there = postgres_server.execute("SELECT 1 FROM pg_tables WHERE tablename = 'definitions'", name)
        assert bool(there) is tables
        databases.give_back(name)
    databases.close()


async def test_a_connection_left_open_does_not_hold_up_the_next_test(
    postgres_server: PostgresServer, postgres_databases: DatabasePool
) -> None:
    name = postgres_databases.take()
    left_open = await asyncpg.connect(postgres_server.url(name))
    postgres_databases.give_back(name)

    started = time.monotonic()
    postgres_databases.give_back(postgres_databases.take())

    assert time.monotonic() - started < 8
    left_open.terminate()


@pytest.mark.parametrize(
    "change",
    ["CREATE TABLE public.orders (id int)", "CREATE FUNCTION public.f() RETURNS int LANGUAGE sql AS 'SELECT 1'",
     "CREATE SCHEMA shop", "ALTER TABLE stepfast.runs ADD colour text", "ALTER TABLE stepfast.runs DISABLE TRIGGER ALL",
     "DROP TABLE stepfast.steps CASCADE", "DROP SCHEMA stepfast CASCADE",
     "UPDATE stepfast.meta SET value = '99' WHERE name = 'version'",
     "INSERT INTO stepfast.meta VALUES ('colour', 'red')"],
)  # fmt: skip
def test_whatever_a_test_changes_is_as_new_for_the_next(
    postgres_server: PostgresServer, postgres_databases: DatabasePool, change: str
) -> None:
    """Also in a database that was found unchanged before, which is not looked at closely."""
    facts = (
        "SELECT string_agg(schemaname || tablename, ',' ORDER BY tablename) FROM pg_tables WHERE schemaname !~ '^pg_'",
        "SELECT count(*) FROM pg_attribute WHERE attrelid = to_regclass('stepfast.runs')",
        "SELECT count(*) FROM pg_proc p JOIN pg_namespace n ON n.oid = pronamespace WHERE nspname = 'public'",
        "SELECT count(*) FROM pg_namespace",
        "SELECT string_agg(tgenabled::text, '') FROM pg_trigger",
        "SELECT string_agg(name || value, ',' ORDER BY name) FROM stepfast.meta",
    )

    def look(name: str) -> list[list[str]]:
        return [postgres_server.execute(fact, database=name) for fact in facts]

    for _ in range(3):
        name = postgres_databases.take(tables=True)
        expected = look(name)
        postgres_databases.give_back(name)
    name = postgres_databases.take(tables=True)
    postgres_server.execute(change, database=name)
    postgres_databases.give_back(name)
    name = postgres_databases.take(tables=True)
    assert look(name) == expected
    postgres_databases.give_back(name)
