"""Where tasks and results are: addresses, missing and foreign tables, pools, outages."""

from __future__ import annotations

import asyncio
import contextlib
import re
import uuid
from collections.abc import AsyncIterator
from importlib import resources
from typing import Any

import asyncmy
import asyncpg
import pytest

from stepfast.errors import ConfigurationError, DatabaseRefused, DatabaseUnavailable, SchemaError
from stepfast.remote import RemoteWorker, SqlTransport, Task
from stepfast.remote.protocol import TaskOutcome, parse_transport_url
from stepfast.remote.task_store import Serving, located, open_database
from stepfast.settings import Settings
from stepfast.store.mysql.connections import address
from tests.remote.scene import quick_worker, result_of, slow_worker
from tests.remote.tables import Tables
from tests.support.engine import Gate, eventually
from tests.support.mariadb import PrivateMariaDb
from tests.support.overloads import overloads
from tests.support.postgres import PrivatePostgres
from tests.support.proxy import Proxy


async def test_tables_that_are_missing_are_told_with_what_to_do(url: str) -> None:
    async with SqlTransport(url, create=False) as transport:
        with pytest.raises(SchemaError, match="stepfast migrate --transport"):
            await transport.results(["run:0"])


async def test_a_worker_that_may_not_make_the_tables_waits_for_them(url: str, caplog: pytest.LogCaptureFixture) -> None:
    async with quick_worker(url, create=False, settings=Settings(outage_backoff_max=0.1)):
        await eventually(lambda: "stepfast migrate --transport" in caplog.text)
        async with SqlTransport(url):
            tables = await Tables(url).open()
        await tables.put_task("run:0")
        await result_of(tables, "run:0")
        await tables.close()


async def test_who_may_not_make_the_tables_is_told_who_does_and_what_is_to_be_granted(postgres_url: str) -> None:
    async with a_stranger(postgres_url) as stranger:
        with pytest.raises(ConfigurationError, match="may not make the transport's tables") as told:
            async with SqlTransport(stranger):
                pass
    said = str(told.value)
    assert "`stepfast migrate --transport`" in said
    assert "--sql" in said
    assert "SELECT, INSERT, UPDATE and DELETE" in said
    assert "secret" not in said


@contextlib.asynccontextmanager
async def a_stranger(url: str) -> AsyncIterator[str]:
    """The URL of a user who may connect to a Postgres, and nothing else."""
    name = f"stranger_{uuid.uuid4().hex[:12]}"
    operator = await asyncpg.connect(url)
    await operator.execute(f"REVOKE CREATE ON SCHEMA public FROM PUBLIC; CREATE ROLE {name} LOGIN PASSWORD 'secret'")
    try:
        yield re.sub(r"//[^@/]*@", f"//{name}:secret@", url)
    finally:
        await operator.execute(f"DROP ROLE {name}")
        await operator.close()


async def test_prefixes_keep_apart_and_capitals_count_where_they_can(url: str) -> None:
    async with SqlTransport(url, "mine") as mine, SqlTransport(url, "Your-s2") as yours:
        await mine.dispatch([Task("run:0", "run", 0, "echo", "echo", "1")])
        assert await yours.lost(["run:0"]) == ["run:0"]
        tables = await Tables(url, "mine").open()
        async with quick_worker(url, prefix="mine"):
            assert (await result_of(tables, "run:0"))["output"] == 1
        await tables.close()


async def test_a_pool_of_the_application_s_own_is_used_and_left_open(url: str, tables: Tables) -> None:
    pool: Any
    if tables.is_mysql:
        pool = await asyncmy.create_pool(**address(parse_transport_url(url).text), minsize=0, maxsize=4)
    else:
        settings = {"default_transaction_isolation": "serializable"}
        pool = await asyncpg.create_pool(url, min_size=0, max_size=4, server_settings=settings)
    worker = RemoteWorker(pool=pool, group="echo", poll_interval=0.02)

    @worker.handle("echo")
    async def echo(input: Any) -> Any:
        return input

    async with worker, SqlTransport(pool=pool) as transport:
        await transport.dispatch([Task("run:0", "run", 0, "echo", "echo", '"x"')])
        assert (await result_of(tables, "run:0"))["output"] == "x"
        connection = await pool.acquire()
        pool.release(connection) if tables.is_mysql else await pool.release(connection)
    connection = await pool.acquire()  # it is still ours
    pool.release(connection) if tables.is_mysql else await pool.release(connection)
    if tables.is_mysql:
        pool.close()
        await pool.wait_closed()
    else:
        await pool.close()


async def test_a_task_can_be_sent_in_a_transaction_of_the_caller_s(
    url: str, transport: SqlTransport, tables: Tables
) -> None:
    connection = tables._connection
    await (connection.begin() if tables.is_mysql else tables.fetch("BEGIN"))
    await transport.dispatch([Task("run:0", "run", 0, "echo", "echo", None)], connection)
    assert await transport.lost(["run:0"]) == ["run:0"]
    await tables.fetch("ROLLBACK")
    assert await tables.tasks() == []
    await tables.fetch("BEGIN")
    await transport.dispatch([Task("run:0", "run", 0, "echo", "echo", None)], connection)
    await tables.fetch("COMMIT")
    assert await tables.fetch("SELECT input, attempt, status FROM [tasks]") == [("null", 1, "pending")]


async def test_many_tasks_are_sent_at_once(transport: SqlTransport, tables: Tables) -> None:
    tasks = [Task(f"run:{n}", "run", n, "echo", "echo", f'"{"x" * 4000}%s {n}"') for n in range(400)]
    await transport.dispatch(tasks)
    await transport.dispatch(tasks)
    assert await tables.fetch("SELECT count(*) FROM [tasks]") == [(400,)]
    assert len(await transport.cancel([task.step_id for task in tasks])) == 400


async def test_a_result_that_the_database_does_not_take_fails_its_own_step(
    url: str, tables: Tables, transport: SqlTransport
) -> None:
    """On MariaDB a packet has a limit. On Postgres the test sets one for the column."""
    if tables.is_mysql:
        size = 3_000_000
    else:
        size = 100_000
        await tables.fetch("ALTER TABLE [results] ADD CONSTRAINT small CHECK (length(output) < 50000)")
    worker = quick_worker(url, settings=Settings(max_payload=2**26, warn_payload=2**26))

    @worker.handle("large")
    async def large(input: Any) -> str:
        return "x" * size

    await tables.put_task("run:0", "large", created_at=1)
    await tables.put_task("run:1", input="small", created_at=2)
    async with worker:
        assert (await result_of(tables, "run:1"))["output"] == "small"
        result = await result_of(tables, "run:0")
    assert (result["status"], result["error"]["retryable"]) == ("failed", False)
    assert "the transport does not take the result" in result["error"]["message"]


async def test_tables_that_others_have_made_with_other_collations(mariadb_url: str) -> None:
    """Node's transport makes its tables with whatever collation is the server's default."""
    script = SqlTransport(mariadb_url).script().replace(" COLLATE utf8mb4_bin", " COLLATE utf8mb4_general_ci")
    tables = await Tables(mariadb_url).open()
    for statement in script.split(";\n"):
        if "CREATE" in statement:
            await tables.fetch(statement)
    await tables.put_task("run:0", group="ECHO")
    await tables.put_task("run:1", group="echo", input="Grüße 🎈")
    async with quick_worker(mariadb_url):
        assert (await result_of(tables, "run:1"))["output"] == "Grüße 🎈"
    assert await tables.tasks() == ["run:0"]
    await tables.close()


@pytest.mark.parametrize("name", ["x" * 192, "", "a\0b", "\ud800", 7])
def test_names_that_cannot_be_kept_are_refused(name: Any) -> None:
    worker = quick_worker("postgresql://u@h/d")
    with pytest.raises(ConfigurationError):
        worker.handle(name)
    with pytest.raises(ConfigurationError):
        RemoteWorker("postgresql://u@h/d", group=name)


async def test_ids_and_names_that_are_too_long_are_not_sent(transport: SqlTransport) -> None:
    with pytest.raises(DatabaseRefused):
        await transport.dispatch([Task("r" * 190 + ":0", "r", 0, "echo", "echo", None)])
    with pytest.raises(ConfigurationError):
        await transport.dispatch([Task("r:0", "r", 0, "e" * 192, "echo", None)])


@pytest.mark.parametrize(
    "url",
    [
        "sqlite:///x.db", "sqs://k:hush@queue", "oracle://u@h/d", "", "mysql://u:hush@h", "mysql://u:hush@h:99999/d",
        "mysql://u:hush@h/d?speed=hush", "mysql://u:hu/sh@h/d", "mysql://u@x:hush@h/d", "mysql://u:hush@h/d#x",
        "mysql+pymysql://u:hush@h/d",
    ],
)  # fmt: skip
def test_addresses_that_cannot_be_are_refused_without_the_password(url: str) -> None:
    with pytest.raises(ConfigurationError) as refused:
        RemoteWorker(url, group="echo")
    assert "hush" not in str(refused.value)


def test_addresses_as_they_are_read() -> None:
    options = address(parse_transport_url("mariadb+asyncmy://us%40er:p%2Fw@h:13/n%20m?unix_socket=/s").text)
    assert (options["host"], options["port"], options["user"]) == ("h", 13, "us@er")
    assert (options["password"], options["db"], options["unix_socket"]) == ("p/w", "n m", "/s")
    assert "p/w" not in repr(parse_transport_url("mysql://u:p%2Fw@h/d"))


@pytest.mark.parametrize("scheme", ["postgresql", "mysql"])
async def test_a_database_that_is_not_there_is_told_at_once_without_the_password(scheme: str) -> None:
    with pytest.raises(DatabaseUnavailable) as refused:
        await quick_worker(f"{scheme}://u:hush@127.0.0.1:1/d").start()
    assert "hush" not in str(refused.value) and f"{scheme}://u:***@127.0.0.1:1/d" in str(refused.value)


def test_a_worker_needs_one_database(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("STEPFAST_URL", raising=False)
    with pytest.raises(ConfigurationError, match="STEPFAST_URL"):
        RemoteWorker(group="echo")
    with pytest.raises(ConfigurationError, match="not both"):
        RemoteWorker("postgresql://u@h/d", "echo", pool=object())
    with pytest.raises(ConfigurationError, match="asyncpg or asyncmy"):
        RemoteWorker(group="echo", pool=object())
    monkeypatch.setenv("STEPFAST_URL", "postgresql://u@h/d")
    assert RemoteWorker(group="echo").group == "echo"


def test_handlers_that_could_never_be_called_are_refused() -> None:
    worker = quick_worker("postgresql://u@h/d")
    with pytest.raises(ConfigurationError, match="already"):
        worker.handle("echo")(lambda value: value)
    with pytest.raises(ConfigurationError, match="must take the input"):
        worker.handle("none")(lambda: None)
    with pytest.raises(ConfigurationError, match="must take the input"):
        worker.handle("three")(lambda a, b, c: None)
    with pytest.raises(ConfigurationError, match="must be a function"):
        worker.handle("nothing")(None)  # type: ignore[type-var]
    assert worker.handlers == ["echo"]


@pytest.mark.parametrize("count", [8, 300])
async def test_a_claim_locks_no_more_than_it_takes(url: str, tables: Tables, count: int) -> None:
    """A server that sorts before it takes the first few would lock them all, and the next worker would find nothing."""
    async with SqlTransport(url) as transport:
        await transport.dispatch([Task(f"run:{n}", "run", n, "echo", "echo", "null") for n in range(count)])
    database = open_database(located(url, None, "durable"), Settings())
    await database.open()
    try:
        async with database.transaction() as one, database.transaction() as other:
            first = await one.fetch("due", grp="echo", lease=30_000, most=3)
            second = await other.fetch("due", grp="echo", lease=30_000, most=3)
            assert len(first) == len(second) == 3
            assert not {row[0] for row in first} & {row[0] for row in second}
    finally:
        await database.close()


async def test_leftovers_are_told_page_by_page_each_once(transport: SqlTransport, tables: Tables) -> None:
    for number in range(6):
        if number != 2:
            await tables.put_task(f"run:{number}")
        if number % 2 == 0:
            await tables.put_result(f"run:{number}")
    await tables.put_task("run:7", created_at=await tables.now())
    found, page = [], await transport.leftovers("", 4)
    while page:
        assert len(page) <= 4
        found += page
        page = await transport.leftovers(page[-1], 4)
    assert found == [f"run:{number}" for number in range(6)]


# -- functions of others on the search_path


def called() -> set[str]:
    """The functions that the statements call."""
    folder = resources.files("stepfast.remote.postgres")
    text = "".join((folder / name).read_text() for name in ("tables.sql", "transport.sql"))
    return set(re.findall(r"(?<![\w.])([a-z_]+)\(", re.sub(r"--[^\n]*", "", text))) | {"statement_timestamp"}


async def test_overloads_of_strangers_are_never_called(postgres_url: str) -> None:
    connection = await asyncpg.connect(postgres_url)
    shapes = await connection.fetch(
        "SELECT DISTINCT proname::text, pronargs::int FROM pg_proc WHERE pronamespace = 'pg_catalog'::regnamespace "
        "AND proname = ANY ($1) AND pronargs BETWEEN 1 AND 2",
        list(called()),
    )
    await connection.execute(overloads([(name, count) for name, count in shapes]))
    await connection.close()
    async with SqlTransport(postgres_url) as transport:
        await use_everything(postgres_url, transport)


async def use_everything(url: str, transport: SqlTransport) -> None:
    database = open_database(located(url, None, "durable"), Settings())
    await database.open()
    serving = Serving(database, "worker", "echo", 30)
    try:
        await transport.dispatch([Task(f"run:{n}", "run", n, "echo", "echo", None) for n in range(4)])
        tasks = await serving.claim(3)
        assert await serving.renew([tasks[0].key]) == {tasks[0].key}
        await serving.give_back([tasks[1].key])
        await serving.give_back_unknown([tasks[0].key])
        await serving.record([TaskOutcome(tasks[0].step_id, 1, "failed", None, "{}", 1)])
        await transport.dispatch([Task(tasks[0].step_id, "run", 0, "echo", "echo", None, 2)])
        assert len(await transport.cancel([f"run:{n}" for n in range(4)])) == 4
        assert len(await transport.lost([f"run:{n}" for n in range(4)])) == 4
        await transport.remove(await transport.results(["run:0"]))
    finally:
        await database.close()


# -- outages


IMPATIENT = Settings(outage_backoff_max=0.1, connect_timeout=5)


def worker_of(url: str, **options: Any) -> RemoteWorker:
    return quick_worker(url, settings=IMPATIENT, **options)


async def test_broken_connections_end_neither_the_worker_nor_its_handlers(url: str, tables: Tables) -> None:
    gate, calls = Gate(), list[Any]()
    worker = slow_worker(url, gate, calls, settings=IMPATIENT)
    await tables.put_task("run:0", "slow")
    async with worker:
        await gate.reached()
        await tables.end_connections()
        await tables.put_task("run:1", input="next")
        assert (await result_of(tables, "run:1"))["output"] == "next"
        await tables.end_connections()
        gate.open()
        assert (await result_of(tables, "run:0"))["output"] == "done"
    assert calls == [None]
    assert await tables.tasks() == []


async def test_a_network_that_is_cut_and_refuses_for_a_while(
    url: str, tables: Tables, caplog: pytest.LogCaptureFixture
) -> None:
    parts = url.rpartition("@")[2].partition("/")[0].partition(":")
    protocol = "raw" if tables.is_mysql else "postgres"
    async with Proxy(parts[0], int(parts[2]), protocol=protocol) as proxy:  # type: ignore[arg-type]
        async with worker_of(proxy.url(url)):
            await tables.put_task("run:0")
            await result_of(tables, "run:0")
            proxy.refuse()
            proxy.cut()
            await tables.put_task("run:1")
            await eventually(lambda: "trying again" in caplog.text)
            proxy.refuse(False)
            await result_of(tables, "run:1")


async def test_a_claim_whose_answer_is_lost_is_given_back_before_its_lease_is_over(postgres_url: str) -> None:
    """On Postgres, where the proxy can lose the reply to a commit that was carried out."""
    async with SqlTransport(postgres_url):
        tables = await Tables(postgres_url).open()
    port = int(postgres_url.rpartition(":")[2].partition("/")[0])
    async with Proxy("127.0.0.1", port) as proxy:
        worker = worker_of(proxy.url(postgres_url), lease=600, poll_interval=0.05)
        async with worker:
            lost = proxy.swallow(lambda tag: tag == b"COMMIT")
            await tables.put_task("run:0", input=5)
            await asyncio.wait_for(lost.happened.wait(), 20)
            assert (await result_of(tables, "run:0"))["output"] == 5
    await tables.close()


async def test_a_record_whose_answer_is_lost_is_written_once(postgres_url: str) -> None:
    gate = Gate()
    async with SqlTransport(postgres_url):
        tables = await Tables(postgres_url).open()
    port = int(postgres_url.rpartition(":")[2].partition("/")[0])
    async with Proxy("127.0.0.1", port) as proxy:
        worker = slow_worker(proxy.url(postgres_url), gate, settings=IMPATIENT, concurrency=1)
        await tables.put_task("run:0", "slow")
        async with worker:
            await gate.reached()
            lost = proxy.swallow(lambda tag: tag == b"COMMIT")
            gate.open()
            await asyncio.wait_for(lost.happened.wait(), 20)
            assert (await result_of(tables, "run:0"))["output"] == "done"
            await tables.put_task("run:1")
            await result_of(tables, "run:1")
    assert len(await tables.results()) == 2
    await tables.close()


@pytest.mark.thorough
async def test_a_postgres_that_crashes_and_comes_back(caplog: pytest.LogCaptureFixture) -> None:
    with PrivatePostgres(fsync=True) as server:
        await survive(server.create_database("remote"), server.kill9, server.restart, caplog)


@pytest.mark.thorough
async def test_a_mariadb_that_restarts(caplog: pytest.LogCaptureFixture) -> None:
    server = PrivateMariaDb()
    try:
        await survive(server.start().create_database(), server.stop, server.start, caplog)
    finally:
        server.close()


async def survive(url: str, down: Any, up: Any, caplog: pytest.LogCaptureFixture) -> None:
    async with worker_of(url) as worker:
        tables = await Tables(url).open()
        await tables.put_task("run:0")
        await result_of(tables, "run:0")
        await tables.close()
        await asyncio.to_thread(down)
        await eventually(lambda: "trying again" in caplog.text)
        await asyncio.to_thread(up)
        tables = await Tables(url).open()
        await tables.put_task("run:1")
        await result_of(tables, "run:1")
        await tables.close()
        assert not worker.broken.is_set()
        await eventually(lambda: worker.running == 0)
