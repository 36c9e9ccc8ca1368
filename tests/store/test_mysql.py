"""What is of MariaDB alone: statements, migrations that were interrupted, and what is refused by name."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from typing import Any

import asyncmy
import pytest

from stepfast.errors import ConfigurationError, DatabaseRefused
from stepfast.model.ids import new_id
from stepfast.model.records import Lane, NewRun
from stepfast.model.urls import mysql_parts, parse_url
from stepfast.settings import Settings
from stepfast.store import open_store
from stepfast.store.dialects import MYSQL
from stepfast.store.flows import claims
from stepfast.store.flows.base import Ask
from stepfast.store.migrations import migrations
from stepfast.store.mysql import caller_connections, connections
from stepfast.store.mysql import schema as mysql_schema
from stepfast.store.mysql.connections import Connector
from stepfast.store.mysql.driver import Driver, load, words_of
from stepfast.store.mysql.schema import Schema
from stepfast.store.mysql.transactions import run
from tests.store.scene import new_run
from tests.support.databases import in_transaction

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


@pytest.mark.parametrize(
    ("namespace", "settings", "says"),
    [
        ("n" * 45, {}, "has 45 characters: on MariaDB and MySQL"),
        ("stepfast", {"max_name": 201}, "the setting max_name is 201"),
    ],
)
def test_names_that_no_table_can_keep_are_refused(namespace: str, settings: dict[str, Any], says: str) -> None:
    with pytest.raises(ConfigurationError, match=says):
        open_store(parse_url("mysql://user@nowhere/none"), namespace, Settings(**settings))


def test_all_tables_of_the_longest_namespace_have_names_that_servers_take() -> None:
    store = open_store(parse_url("mysql://user@nowhere/none"), "n" * mysql_schema.MOST_NAMESPACE, Settings())
    assert max(map(len, store.names())) == 64


async def test_an_old_server_is_refused_before_anything_is_written(
    mariadb_url: str, connection: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(connections, "_OLDEST_MARIADB", (99, 0))
    store = open_store(parse_url(mariadb_url), "stepfast", Settings())
    with pytest.raises(ConfigurationError, match=r"is MariaDB 10\.\d+\.\d+: Stepfast needs MariaDB 10\.6 or later"):
        await store.open()
    assert await run(connection, "SHOW TABLES") == []


async def test_a_caller_s_session_that_loses_characters_is_refused(mariadb_url: str) -> None:
    parts = mysql_parts(mariadb_url)
    theirs = await asyncmy.connect(
        host=parts.host, port=parts.port, user=parts.user, db=parts.database, charset="latin1"
    )
    store = open_store(parse_url(mariadb_url), "stepfast", Settings())
    await store.open()
    await store.migrate()
    with pytest.raises(ConfigurationError, match="the character set latin1, which cannot carry every text"):
        await store.start_within(theirs, [new_run()])
    theirs.close()
    await store.close()


async def test_rows_that_do_not_fit_into_one_packet_go_in_several(mariadb_url: str) -> None:
    """The server of the tests takes two megabytes at once. One row that is larger is refused by its size."""
    store = open_store(parse_url(mariadb_url), "stepfast", Settings())
    await store.open()
    await store.migrate()
    large = f'"{"x" * 700_000}"'
    ids = await store.start([new_run(input=large) for _ in range(7)])
    assert len({row.id for row in await store.runs()} & {*ids}) == 7
    with pytest.raises(DatabaseRefused, match=r"the server takes 2,097,152 at once \(max_allowed_packet\)"):
        await store.start([new_run(input=f'"{"x" * 2_100_000}"')])
    assert len(await store.runs()) == 7
    await store.close()


async def test_a_repeated_keyed_start_leaves_the_row_of_its_run_alone(mariadb_url: str, connection: Any) -> None:
    """An INSERT that finds its key taken would lock that row, and wait for the worker that has it locked."""
    store = open_store(parse_url(mariadb_url), "stepfast", Settings())
    await store.open()
    await store.migrate()
    shape = new_run().shape._replace(tags=("a",))
    [run_id] = await store.start([NewRun(new_id(), shape, "{}", "k")])
    await run(connection, "CREATE TABLE changes (n integer)")
    changed = f"IF OLD.id = '{run_id}' THEN INSERT INTO changes VALUES (1); END IF"
    await run(connection, f"CREATE TRIGGER changed AFTER UPDATE ON stepfast_runs FOR EACH ROW {changed}")
    await connection.begin()
    await run(connection, "SELECT id FROM stepfast_runs FOR UPDATE")
    again = [NewRun(new_id(), shape, "{}", "k"), NewRun(new_id(), shape, "{}", "other")]
    assert await store.start(again, at_once=True) == [run_id, again[1].id]
    await connection.commit()
    assert await run(connection, "SELECT n FROM changes") == []
    await store.close()


async def test_a_deadlock_begins_the_transaction_again(mariadb_url: str, connection: Any) -> None:
    """Two transactions lock two runs in opposite orders."""
    store: Any = open_store(parse_url(mariadb_url), "stepfast", Settings())
    await store.open()
    await store.migrate()
    first, second = await store.start([new_run(), new_run()])
    both, began = asyncio.Barrier(2), list[str]()

    def locking(order: tuple[str, str]) -> Callable[[], Any]:
        def flow() -> Any:
            began.append(order[0])
            yield Ask("lock_runs", ([order[0]],))
            yield Ask("wait", ())
            rows = yield Ask("lock_runs", ([order[1]],))
            return len(rows)

        return flow

    fetch = store._driver.fetch

    async def waiting(connection: Any, name: str, *arguments: Any, **more: Any) -> Any:
        if name != "wait":
            return await fetch(connection, name, *arguments, **more)
        if len(began) <= 2:
            await both.wait()
        return []

    store._driver.fetch = waiting
    async with asyncio.timeout(30):
        found = await asyncio.gather(store._drive(locking((first, second))), store._drive(locking((second, first))))
    assert list(found) == [1, 1]
    assert len(began) == 3, "one of them was begun again"
    await store.close()


async def test_a_cancellation_that_a_caller_s_driver_swallows_comes_out(
    mariadb_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Before Python 3.12 asyncio.wait_for does so, which the drivers read with, if the answer is there already."""
    store = open_store(parse_url(mariadb_url), "stepfast", Settings())
    await store.open()
    await store.migrate()
    execute = caller_connections._Cursor.execute

    async def swallowing(self: Any, text: str, values: Any = None) -> None:
        await execute(self, text, values)
        if text.startswith("INSERT"):
            task = asyncio.current_task()
            assert task is not None
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await asyncio.sleep(0)

    monkeypatch.setattr(caller_connections._Cursor, "execute", swallowing)
    async with in_transaction(mariadb_url) as theirs:
        start = asyncio.ensure_future(store.start_within(theirs, [new_run()]))
        with pytest.raises(asyncio.CancelledError):
            await start
    await store.close()


async def test_a_claim_locks_what_it_takes_and_nothing_else(mariadb_url: str, connection: Any) -> None:
    """Also where it was looked for in several lanes: another worker takes what is in front of the others. All lanes are
    found by a few questions, and results by the ids of their runs."""
    store: Any = open_store(parse_url(mariadb_url), "stepfast", Settings())
    await store.open()
    await store.migrate()
    names = [f"w{number:02}" for number in range(30)]
    shapes = [new_run().shape._replace(workflow=name, priority=number % 2) for number, name in enumerate(names)]
    ids = await store.start([NewRun(new_id(), shape, "{}") for shape in shapes])
    fetch, asked = store._driver.fetch, list[str]()

    async def counting(connection: Any, name: str, *arguments: Any, **more: Any) -> Any:
        asked.append(name)
        return await fetch(connection, name, *arguments, **more)

    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(store._driver, "fetch", counting)
        found = (await store.tick(new_id(), None, True, None)).lanes
    assert found == sorted(Lane(shape.queue, shape.workflow, shape.priority) for shape in shapes)
    assert asked.count("next_lane") <= 2
    lanes, versions = [(lane, 0) for lane in found], dict.fromkeys(names, "v1")
    await connection.begin()
    flow = claims.claim(new_id(), 1, lanes, versions, 1, False, Settings(), {}, True)
    first = await store._driver.join(connection, flow)
    others = await store.claim(new_id(), 2, lanes, versions, 100)
    assert {run.id for run in (*first, *others)} == {*ids}
    assert len(others) == len(ids) - 1
    await connection.rollback()
    [part] = STATEMENTS["outcomes"].parts
    keys = [row[5] for row in await run(connection, f"EXPLAIN {part.text}", [f'["{ids[0]}"]'])]
    assert keys == [None, "PRIMARY"]
    await store.close()


async def test_a_function_is_not_called_after_a_cancellation_that_the_driver_swallowed(
    mariadb_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    store: Any = open_store(parse_url(mariadb_url), "stepfast", Settings())
    await store.open()
    await store.migrate()
    recorded, called = store._transactions._recorded, list[Any]()

    async def swallowing(*given: Any) -> Any:
        task = asyncio.current_task()
        assert task is not None
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await asyncio.sleep(0)
        return await recorded(*given)

    monkeypatch.setattr(store._transactions, "_recorded", swallowing)
    given = (new_id(), new_id(), 1, ("", 0), called.append, called.append, None)
    with pytest.raises(asyncio.CancelledError):
        await asyncio.ensure_future(store.transact(*given))
    assert called == []
    await store.close()
