"""The tables: made once, by many at the same time, checked, dropped (rule 40)."""

from __future__ import annotations

import asyncio
import sqlite3
from typing import Any

import asyncpg
import pytest

from stepfast.errors import ConfigurationError, InvalidState, SchemaError
from stepfast.model.ids import new_id
from stepfast.model.urls import parse_url
from stepfast.settings import Settings
from stepfast.store import Store, open_store
from stepfast.store.dialects import SQLITE
from stepfast.store.sql import load_migrations, split_statements
from tests.store.conftest import SHARED, Stores, only_on
from tests.store.scene import Rows
from tests.support.databases import in_transaction
from tests.support.nursery import crowd
from tests.support.postgres import PostgresServer

pytestmark = pytest.mark.empty

MIGRATE = """
import asyncio, os, sys
from stepfast.model.urls import parse_url
from stepfast.settings import Settings
from stepfast.store import open_store

async def main():
    store = open_store(parse_url(sys.argv[1]), "stepfast", Settings())
    os.write(3, b".")
    sys.stdin.read()
    await store.open()
    applied = await store.migrate()
    state = await store.schema_state()
    await store.close()
    print(len(applied), state.pending)

asyncio.run(main())
"""


async def test_migrating_makes_the_tables_and_a_second_time_nothing(bare: Store) -> None:
    before = await bare.schema_state()
    assert before.version == 0
    assert before.pending
    applied = await bare.migrate()
    assert applied == before.pending
    after = await bare.schema_state()
    assert (after.version, after.pending) == (after.newest, [])
    assert await bare.migrate() == []
    assert await bare.schema_state() == after


async def test_twenty_may_migrate_at_once(stores: Stores) -> None:
    opened = [await stores.open() for _ in range(20 if stores.shared else 1)]
    applied = await asyncio.gather(*(store.migrate() for store in opened))
    names = [name for each in applied for name in each]
    assert names and len(names) == len(set(names))
    assert not (await opened[0].schema_state()).pending


def test_eight_processes_may_create_one_file_at_once(sqlite_url: str) -> None:
    """Also the switch of the file to WAL is raced for."""
    answers = crowd(8, MIGRATE, sqlite_url)
    known = len(list(load_migrations(SQLITE)))
    assert sorted(out.strip() for out in answers) == ["0 []"] * 7 + [f"{known} []"]


async def test_tables_that_need_newer_code_are_refused(stores: Stores, store: Store) -> None:
    rows = (await stores.scene(store)).rows
    await rows.fetch("UPDATE [meta] SET value = '99'")
    assert (await store.schema_state()).compatible_from == 99
    with pytest.raises(SchemaError, match="99"):
        await store.migrate()


async def test_newer_tables_that_old_code_may_use_are_not_refused(stores: Stores, store: Store) -> None:
    """Rule 40: only what is too old for ``compatible_from`` is."""
    rows = (await stores.scene(store)).rows
    await rows.fetch("UPDATE [meta] SET value = '99' WHERE name = 'version'")
    assert await store.migrate() == []
    state = await store.schema_state()
    assert (state.version, state.pending) == (99, [])


@only_on(*SHARED)
async def test_the_script_makes_the_same_tables(stores: Stores, bare: Store) -> None:
    script = bare.migration_sql()
    if bare.dialect == "postgres":
        connection = await asyncpg.connect(stores.url.text)
        await connection.execute(script)
        await connection.close()
    elif bare.dialect == "mysql":
        async with in_transaction(stores.url.text) as theirs:
            for statement in split_statements(script):
                await theirs.cursor().execute(statement)
    else:
        assert stores.url.path is not None
        with sqlite3.connect(stores.url.path) as database:
            database.executescript(script)
        database.close()
    state = await bare.schema_state()
    assert (state.version, state.pending) == (state.newest, [])
    assert await bare.migrate() == []


async def test_two_namespaces_of_one_database_do_not_meet(stores: Stores, store: Store) -> None:
    """One name is the beginning of the other, which a careless prefix would mix up."""
    other = await stores.open("stepfast_2")
    await other.migrate()
    first, second = await stores.scene(store), await stores.scene(other, "stepfast_2")
    run_id = await first.start(key="k")
    assert await other.run(run_id) is None
    assert await second.claim() == []
    assert await second.start(key="k") != run_id
    assert len(await other.workers()) == 1


@only_on(*SHARED)
async def test_namespaces_that_differ_in_large_letters_alone_are_refused_where_they_are_one(
    stores: Stores, store: Store
) -> None:
    """Postgres tells them apart, and so does MariaDB on Linux; on SQLite a reset of one would drop the other."""
    other = await stores.open("Stepfast")
    if store.dialect != "sqlite":
        await other.migrate()
        assert await (await stores.scene(other, "Stepfast")).start() is not None
        return
    for deed in (other.schema_state, other.migrate, other.reset):
        with pytest.raises(ConfigurationError, match="'Stepfast' is not usable: the file has a namespace 'stepfast'"):
            await deed()
    assert not (await store.schema_state()).pending


async def test_a_reset_drops_this_namespace_and_no_other(stores: Stores, store: Store) -> None:
    other = await stores.open("stepfast_2")
    await other.migrate()
    scene = await stores.scene(other, "stepfast_2")
    run_id = await scene.start()
    await store.reset()
    state = await store.schema_state()
    assert (state.version, bool(state.pending)) == (0, True)
    assert (await scene.info(run_id)).id == run_id
    await store.migrate()
    assert await store.runs() == []


async def test_a_reset_leaves_what_others_keep_in_the_same_schema(postgres_url: str) -> None:
    """A namespace may be a schema that holds the application's own tables, ``public`` above all."""
    connection = await asyncpg.connect(postgres_url)
    await connection.execute(
        "CREATE TABLE public.orders (id serial PRIMARY KEY); INSERT INTO public.orders DEFAULT VALUES"
    )
    await connection.execute("CREATE VIEW public.recent AS SELECT * FROM public.orders; CREATE SEQUENCE public.numbers")
    store = open_store(parse_url(postgres_url), "public", Settings())
    await store.open()
    try:
        before = await objects_in(connection, "public")
        await store.migrate()
        await store.reset()
        assert (await store.schema_state()).version == 0
        assert await objects_in(connection, "public") == before
        assert await connection.fetchval("SELECT count(*) FROM public.recent") == 1
    finally:
        await store.close()
        await connection.close()


async def test_a_reset_drops_the_schema_that_a_migration_made_unless_others_use_it(postgres_url: str) -> None:
    connection = await asyncpg.connect(postgres_url)
    store = open_store(parse_url(postgres_url), "ours", Settings())
    await store.open()
    try:
        await store.migrate()
        await store.reset()
        assert not await connection.fetchval("SELECT count(*) FROM pg_namespace WHERE nspname = 'ours'")
        await store.migrate()
        await connection.execute("CREATE TABLE ours.theirs (id integer)")
        await store.reset()
        assert await objects_in(connection, "ours") == ["theirs"]
    finally:
        await store.close()
        await connection.close()


async def test_a_reset_drops_nothing_if_something_was_built_upon_it(postgres_url: str) -> None:
    connection = await asyncpg.connect(postgres_url)
    store = open_store(parse_url(postgres_url), "ours", Settings())
    await store.open()
    try:
        await store.migrate()
        before = await objects_in(connection, "ours")
        await connection.execute("CREATE VIEW public.report AS SELECT id, status FROM ours.runs")
        with pytest.raises(InvalidState, match=r"nothing was dropped.*view public\.report depends on table ours\.runs"):
            await store.reset()
        assert await objects_in(connection, "ours") == before
    finally:
        await store.close()
        await connection.close()


async def objects_in(connection: Any, schema: str) -> list[str]:
    """Everything that has a name there: tables, views, indexes, sequences and functions."""
    rows = await connection.fetch(
        "SELECT relname AS name FROM pg_class WHERE relnamespace = $1::regnamespace "
        "UNION ALL SELECT proname FROM pg_proc WHERE pronamespace = $1::regnamespace ORDER BY 1",
        schema,
    )
    return [str(row["name"]) for row in rows]


async def test_a_reset_is_refused_by_code_that_does_not_know_all_tables(stores: Stores, store: Store) -> None:
    rows = (await stores.scene(store)).rows
    await rows.fetch("UPDATE [meta] SET value = '99' WHERE name = 'version'")
    with pytest.raises(SchemaError, match=r"version 99.*would leave some of them behind"):
        await store.reset()
    assert (await store.schema_state()).version == 99


async def test_a_reset_of_nothing_is_nothing(bare: Store) -> None:
    await bare.reset()
    assert (await bare.schema_state()).version == 0


async def test_the_doctor_finds_a_fresh_store_in_good_health(store: Store) -> None:
    checks = await store.doctor()
    names = {check.name for check in checks}
    assert {"server", "clock", "durability"} - names <= ({"durability"} if store.dialect == "sqlite" else set())
    # The test servers run with fsync off, and MariaDB with small packets, and the doctor says so.
    assert [check for check in checks if not check.ok and check.name not in ("durability", "packet")] == []
    assert all(check.found for check in checks)


async def test_rows_helper_reaches_the_tables(stores: Stores, store: Store) -> None:
    """The suite's own key to the tables: a test that sets a time through it must not set nothing."""
    scene = await stores.scene(store)
    run_id = await scene.start()
    assert isinstance(scene.rows, Rows)
    await scene.rows.set(run_id, "wakes", 3)
    await scene.rows.shift(run_id, "wakes", 4)
    assert await scene.rows.get(run_id, "wakes") == 7


async def test_a_database_that_cannot_keep_every_text_is_refused(postgres_server: PostgresServer) -> None:
    """Before there are tables, not when the result of a step that is done does not fit."""
    name = f"latin_{new_id()[-12:]}"
    postgres_server.execute(
        f"CREATE DATABASE {name} ENCODING 'LATIN1' LOCALE_PROVIDER libc LOCALE 'C' TEMPLATE template0"
    )
    store = open_store(parse_url(postgres_server.url(name)), "stepfast", Settings())
    try:
        await store.open()
        for call in (store.migrate, store.schema_state):
            with pytest.raises(ConfigurationError, match=r"LATIN1.*UTF8"):
                await call()
        [check] = [check for check in await store.doctor() if check.name == "encoding"]
        assert (check.ok, check.found) == (False, "the database's is LATIN1")
    finally:
        await store.close()
        postgres_server.drop_database(name)


def test_a_script_is_split_where_statements_end() -> None:
    """Servers that pass statements on to others take one at a time."""
    script = "CREATE FUNCTION f() AS $a$ BEGIN; END; $a$; -- x; y\nSELECT ';', \"a;b\";\n-- the end;\n"
    assert split_statements(script) == [
        "CREATE FUNCTION f() AS $a$ BEGIN; END; $a$",
        "-- x; y\nSELECT ';', \"a;b\"",
    ]
