"""Starts and signals in the caller's own transaction: inserts only, and nothing before its commit (rule 10)."""

from __future__ import annotations

import asyncio
import contextlib
import inspect
import sqlite3
import threading
from collections.abc import AsyncIterator
from typing import Any

import aiomysql
import asyncmy
import asyncpg
import pymysql
import pytest
import sqlalchemy
import sqlalchemy.orm
from sqlalchemy.ext.asyncio import AsyncSession, create_async_engine

from stepfast.errors import ConfigurationError
from stepfast.model.ids import new_id
from stepfast.model.records import Claimed, Lane
from stepfast.model.urls import mysql_parts
from tests.store.conftest import ON_POSTGRES, SHARED, Stores, only_on
from tests.store.scene import DAY, Rows, Scene, child_of, completed, move, new_run, signal, step, waiting

LANE = Lane("order", "order", 0)
KINDS = ("connection", "pooled", "alchemy connection", "alchemy session")
ON_MARIADB = ("asyncmy", "aiomysql", "pymysql", "alchemy connection", "alchemy session", "alchemy that blocks")
_ROW_LOCKS = [
    *((database, kind) for database in ON_POSTGRES for kind in KINDS),
    *(("mariadb", kind) for kind in ON_MARIADB),
]
WHERE_ROWS_ARE_LOCKED = pytest.mark.parametrize(("store_url", "caller"), _ROW_LOCKS, indirect=True)
"""SQLite has one lock for all that write."""
EACH_CALLER = pytest.mark.parametrize(("store_url", "caller"), [*_ROW_LOCKS, ("sqlite", "connection")], indirect=True)
"""On the databases that it can connect to; SQLite has connections of its own alone."""


class Caller:
    """Somebody with a transaction of their own, by way of each library."""

    def __init__(self, kind: str, stores: Stores) -> None:
        self.kind = kind
        self.url = stores.url
        self.connection: Any = None
        """What is handed to the store."""
        self._closing: list[Any] = []

    async def open(self) -> None:
        if self.url.kind == "sqlite":
            assert self.url.path is not None
            self.connection = sqlite3.connect(self.url.path, timeout=30)
        elif self.url.kind == "mysql":
            await self._open_mysql()
        elif self.kind == "connection":
            self.connection = await asyncpg.connect(self.url.text)
            self._closing.append(self.connection.close)
            await self._begin()
        elif self.kind == "pooled":
            pool = await asyncpg.create_pool(self.url.text, min_size=1, max_size=1)
            self.connection = await pool.acquire()
            self._closing += [pool.close, lambda: pool.release(self.connection)]
            await self._begin()
        else:
            engine = create_async_engine(self.url.text.replace("postgresql://", "postgresql+asyncpg://"))
            self.connection = AsyncSession(engine) if self.kind == "alchemy session" else engine.connect()
            if self.kind == "alchemy connection":
                await self.connection.start()
            self._closing += [engine.dispose, self.connection.close]

    async def _open_mysql(self) -> None:
        parts = mysql_parts(self.url.text)
        where = {"host": parts.host, "port": parts.port, "user": parts.user, "charset": "utf8mb4"}
        if self.kind.startswith("alchemy"):
            driver = "pymysql" if self.kind == "alchemy that blocks" else "asyncmy"
            url = self.url.text.replace("mysql://", f"mysql+{driver}://")
            if driver == "pymysql":
                engine: Any = sqlalchemy.create_engine(url)
                self.connection = sqlalchemy.orm.Session(engine)
            else:
                engine = create_async_engine(url)
                self.connection = AsyncSession(engine) if self.kind == "alchemy session" else engine.connect()
            if self.kind == "alchemy connection":
                await self.connection.start()
            self._closing += [engine.dispose, self.connection.close]
            return
        where["db" if self.kind != "pymysql" else "database"] = parts.database
        connect = {"asyncmy": asyncmy.connect, "aiomysql": aiomysql.connect, "pymysql": pymysql.connect}[self.kind]
        made = connect(**where)
        self.connection = made if self.kind == "pymysql" else await made
        self._closing.append(self.connection.close)

    async def _begin(self) -> None:
        self._transaction = self.connection.transaction()
        await self._transaction.start()

    async def note(self, text: str) -> None:
        """A row of the caller's own."""
        sql = f"INSERT INTO notes VALUES ('{text}')"
        if isinstance(self.connection, sqlite3.Connection):
            self.connection.execute(sql)
        elif self.kind.startswith("alchemy"):
            await _done(self.connection.execute(sqlalchemy.text(sql)))
        elif self.url.kind == "mysql":
            cursor = await _done(self.connection.cursor())
            await _done(cursor.execute(sql))
        else:
            await self.connection.execute(sql)

    async def commit(self) -> None:
        await self._end("commit")

    async def rollback(self) -> None:
        await self._end("rollback")

    async def _end(self, how: str) -> None:
        if isinstance(self.connection, sqlite3.Connection):
            getattr(self.connection, how)()
        elif self.kind.startswith("alchemy") or self.url.kind == "mysql":
            await _done(getattr(self.connection, how)())
        else:
            await getattr(self._transaction, how)()

    async def close(self) -> None:
        if isinstance(self.connection, sqlite3.Connection):
            self.connection.close()
        for close in reversed(self._closing):
            await _done(close())


async def _done(result: Any) -> Any:
    """What a driver returns, at once or later."""
    return await result if inspect.isawaitable(result) else result


@pytest.fixture
async def caller(request: pytest.FixtureRequest, scene: Scene, stores: Stores) -> AsyncIterator[Caller]:
    """With a table of notes. A transaction is open, or (SQLite, SQLAlchemy) opens with the first statement."""
    await scene.rows.fetch("CREATE TABLE notes (text text)")
    caller = Caller(request.param, stores)
    await caller.open()
    yield caller
    await caller.close()


async def notes(scene: Scene) -> list[str]:
    return [text for (text,) in await scene.rows.fetch("SELECT text FROM notes")]


# -- starting -----------------------------------------------------------------------------------------------


@EACH_CALLER
async def test_a_start_is_committed_with_the_caller_s_rows(scene: Scene, caller: Caller) -> None:
    run = new_run(input='{"a":1}', tags=("red",), priority=3)
    await caller.note("order 1")
    assert await scene.store.start_within(caller.connection, [run]) == [run.id]
    assert await scene.store.run(run.id) is None, "nobody sees it before the commit"
    await caller.commit()
    assert await notes(scene) == ["order 1"]
    row = await scene.info(run.id)
    assert (row.status, row.ready, row.input, row.tags, row.priority) == ("queued", True, '{"a":1}', ["red"], 3)
    assert [tagged.id for tagged in await scene.store.runs(tag="red")] == [run.id]
    assert [claimed.id for claimed in await scene.claim()] == [run.id]


@EACH_CALLER
async def test_a_start_is_rolled_back_with_the_caller_s_rows(scene: Scene, caller: Caller) -> None:
    before = await scene.rows.dump()
    await caller.note("order 1")
    await scene.store.start_within(caller.connection, [new_run(tags=("red",)), new_run(key="k")])
    await caller.rollback()
    assert await notes(scene) == []
    assert await scene.rows.dump() == before


@EACH_CALLER
async def test_rows_written_after_the_start_belong_to_the_same_transaction(scene: Scene, caller: Caller) -> None:
    await scene.store.start_within(caller.connection, [new_run()])
    await caller.note("order 1")
    await caller.rollback()
    assert await notes(scene) == []
    assert await scene.store.runs() == []


@EACH_CALLER
async def test_many_are_started_in_their_order(scene: Scene, caller: Caller) -> None:
    runs = [new_run() for _ in range(30)]
    assert await scene.store.start_within(caller.connection, runs) == [run.id for run in runs]
    await caller.commit()
    assert [run.id for run in await scene.claim(50)] == [run.id for run in runs]


@EACH_CALLER
async def test_one_call_may_start_runs_of_many_kinds(scene: Scene, caller: Caller) -> None:
    parent = await scene.running()
    child, later, mail = child_of(parent, 0, "report"), new_run(delay_ms=DAY), new_run("mail")
    later.origin = parent.id
    assert await scene.store.start_within(caller.connection, [child, later, mail]) == [child.id, later.id, mail.id]
    await caller.commit()
    assert (await scene.info(child.id)).parent_id == parent.id
    row = await scene.info(later.id)
    assert (row.ready, row.origin_id) == (False, parent.id)
    assert (await scene.info(mail.id)).ready


@EACH_CALLER
async def test_a_key_that_is_taken_names_the_run_that_has_it(scene: Scene, caller: Caller) -> None:
    """Rule 35."""
    taken = await scene.start(key="a")
    runs = [new_run(key="b"), new_run(key="a"), new_run(), new_run(key="b")]
    answer = await scene.store.start_within(caller.connection, runs)
    assert answer == [runs[0].id, taken, runs[2].id, runs[0].id]
    await caller.commit()
    assert len(await scene.store.runs()) == 3


@EACH_CALLER
async def test_a_key_may_be_taken_in_the_same_transaction(scene: Scene, caller: Caller) -> None:
    [first] = await scene.store.start_within(caller.connection, [new_run(key="a")])
    assert await scene.store.start_within(caller.connection, [new_run(key="a")]) == [first]
    await caller.commit()
    assert len(await scene.store.runs()) == 1


@EACH_CALLER
async def test_starting_nothing_within_is_nothing(scene: Scene, caller: Caller) -> None:
    assert await scene.store.start_within(caller.connection, []) == []
    await caller.commit()
    assert await scene.store.runs() == []


# -- sending ------------------------------------------------------------------------------------------------


@EACH_CALLER
async def test_a_signal_is_delivered_after_the_commit(scene: Scene, run: Claimed, caller: Caller) -> None:
    await scene.flush(waiting(run, None, waiting_for="signal"))
    await caller.note("paid")
    mail = signal(run.id, "paid", '{"a":1}', format=2)
    asked = await scene.store.send_within(caller.connection, mail)
    assert (asked.status, asked.done) == ("waiting", True)
    assert (await scene.mailbox(run.id)).mail == []
    assert not (await scene.store.tick(scene.worker, ["order"], True)).mail
    await caller.commit()
    assert await notes(scene) == ["paid"]
    assert (await scene.mailbox(run.id)).mail == [mail]
    assert (await scene.info(run.id)).status == "waiting", "it wakes nobody by itself"
    assert (await scene.store.tick(scene.worker, ["order"], True)).mail
    assert (await scene.deliver()).lanes == {LANE}
    assert (await scene.info(run.id)).ready


@EACH_CALLER
async def test_a_signal_is_rolled_back_with_the_caller_s_rows(scene: Scene, run: Claimed, caller: Caller) -> None:
    before = await scene.rows.dump()
    await caller.note("paid")
    await scene.store.send_within(caller.connection, signal(run.id))
    await caller.rollback()
    assert await notes(scene) == []
    assert await scene.rows.dump() == before


@EACH_CALLER
async def test_a_signal_within_sent_twice_is_one_signal(scene: Scene, run_id: str, caller: Caller) -> None:
    mail = signal(run_id)
    assert (await scene.store.send_within(caller.connection, mail)).done
    assert (await scene.store.send_within(caller.connection, mail)).done
    await caller.commit()
    assert (await scene.mailbox(run_id)).mail == [mail]
    assert (await scene.deliver()).moved == 1
    assert (await scene.mailbox(run_id)).wakes == 1


@EACH_CALLER
async def test_a_signal_within_to_a_run_that_has_ended_is_refused(scene: Scene, run: Claimed, caller: Caller) -> None:
    await scene.flush(completed(run))
    asked = await scene.store.send_within(caller.connection, signal(run.id))
    assert (asked.status, asked.done) == ("completed", False)
    await caller.commit()
    assert await scene.rows.fetch("SELECT * FROM [mailbox]") == []


@EACH_CALLER
async def test_a_signal_within_to_a_run_that_does_not_exist_is_refused(scene: Scene, caller: Caller) -> None:
    asked = await scene.store.send_within(caller.connection, signal(new_id()))
    assert (asked.status, asked.done) == (None, False)
    await caller.commit()
    assert await scene.rows.fetch("SELECT * FROM [mailbox]") == []


@EACH_CALLER
async def test_a_run_may_be_started_and_sent_to_in_one_transaction(scene: Scene, caller: Caller) -> None:
    run = new_run()
    await scene.store.start_within(caller.connection, [run])
    assert (await scene.store.send_within(caller.connection, signal(run.id))).done
    await caller.commit()
    assert (await scene.deliver()).moved == 1
    [claimed] = await scene.claim()
    assert (claimed.id, claimed.wakes) == (run.id, 1)


@EACH_CALLER
async def test_a_signal_committed_while_its_run_goes_to_sleep_is_not_slept_over(scene: Scene, caller: Caller) -> None:
    """It was in nobody's mailbox when the run looked, and its delivery finds the run asleep."""
    run = await scene.running()
    if caller.url.kind != "sqlite":
        await scene.store.send_within(caller.connection, signal(run.id))
    look = await scene.mailbox(run.id)
    assert look.mail == []
    await scene.flush(waiting(run, None, wakes=look.wakes))
    if caller.url.kind == "sqlite":  # where an open transaction keeps every other writer out
        await scene.store.send_within(caller.connection, signal(run.id))
    await caller.commit()
    await scene.deliver()
    assert (await scene.info(run.id)).ready


# -- locking nothing ----------------------------------------------------------------------------------------


@WHERE_ROWS_ARE_LOCKED
async def test_an_open_transaction_stands_in_nobody_s_way(scene: Scene, run: Claimed, caller: Caller) -> None:
    """A handler that waits for the journal while its own transaction holds its run's row would freeze the worker."""
    taken = await scene.start("mail", key="a")
    await scene.store.send_within(caller.connection, signal(run.id))
    await scene.store.start_within(caller.connection, [child_of(run), new_run("mail", key="a")])
    async with asyncio.timeout(20):
        answer = await scene.flush(step(run, 0))
        assert (answer.busy, answer.lost) == (set(), set())
        assert (await scene.store.send(signal(run.id))).done
        assert (await scene.store.cancel(taken)).ended
        assert (await scene.flush(completed(run))).busy == set()
    await caller.commit()
    await scene.deliver()
    assert (await scene.info(run.id)).status == "completed"


@WHERE_ROWS_ARE_LOCKED
async def test_a_signal_committed_after_its_run_has_ended_is_thrown_away(scene: Scene, caller: Caller) -> None:
    run = await scene.running()
    assert (await scene.store.send_within(caller.connection, signal(run.id))).done
    await scene.flush(completed(run))
    await caller.commit()
    assert (await scene.deliver()).moved == 1
    assert await scene.rows.fetch("SELECT * FROM [mailbox]") == []


@WHERE_ROWS_ARE_LOCKED
async def test_a_signal_committed_after_its_run_went_on_as_another_is_for_that_one(
    scene: Scene, run: Claimed, caller: Caller
) -> None:
    await scene.store.send_within(caller.connection, signal(run.id))
    successor = new_run()
    await scene.flush(move(run, "completed", reason="continued", output=f'"{successor.id}"', successor=successor))
    await caller.commit()
    await scene.deliver()
    box = await scene.mailbox(successor.id)
    assert (box.wakes, [mail.name for mail in box.mail]) == (1, ["approved"])


@WHERE_ROWS_ARE_LOCKED
async def test_nobody_stands_in_the_way_of_the_caller(scene: Scene, caller: Caller, stores: Stores) -> None:
    run_id = await scene.start(key="a")
    other = Rows(scene.store, url=stores.url.text)
    try:
        async with asyncio.timeout(20):
            await other.fetch("BEGIN")
            await other.fetch("SELECT 1 FROM [runs] WHERE id = ? FOR UPDATE", run_id)
            assert (await scene.store.send_within(caller.connection, signal(run_id))).done
            assert await scene.store.start_within(caller.connection, [new_run(key="a")]) == [run_id]
            await caller.commit()
    finally:
        await other.close()


@only_on("sqlite")
@pytest.mark.parametrize("begin", ["", "BEGIN"], ids=["none", "deferred"])
async def test_a_caller_waits_for_the_lock_of_whoever_writes(scene: Scene, stores: Stores, begin: str) -> None:
    """SQLite waits for it only where nothing was read before in the same transaction; after that it refuses at once."""
    writes = threading.Event()

    def write_until_somebody_waits(other: sqlite3.Connection) -> None:
        writes.wait(20)
        other.commit()

    with (
        contextlib.closing(sqlite3.connect(stores.url.path or "", timeout=20, isolation_level=None)) as caller,
        contextlib.closing(sqlite3.connect(stores.url.path or "", check_same_thread=False)) as other,
    ):
        other.execute("CREATE TABLE IF NOT EXISTS others (text text)")
        other.execute("INSERT INTO others VALUES ('a')")
        caller.execute(begin)
        caller.set_trace_callback(lambda sql: writes.set() if sql.lstrip("- ").startswith("One start") else None)
        writer = asyncio.create_task(asyncio.to_thread(write_until_somebody_waits, other))
        await asyncio.sleep(0)
        [run_id] = await scene.store.start_within(caller, [new_run()])
        await writer
        if begin:
            caller.execute("COMMIT")
    assert (await scene.info(run_id)).ready


# -- which connections --------------------------------------------------------------------------------------


ACCEPTED = {"postgres": "asyncpg", "sqlite": "sqlite3", "mysql": "asyncmy"}


@pytest.mark.parametrize("wrong", [None, "postgresql://localhost", object()], ids=["none", "text", "object"])
async def test_what_is_no_connection_is_refused_by_name(scene: Scene, wrong: Any) -> None:
    accepted = ACCEPTED[scene.store.dialect]
    with pytest.raises(ConfigurationError, match=accepted):
        await scene.store.start_within(wrong, [new_run()])
    with pytest.raises(ConfigurationError, match=accepted):
        await scene.store.send_within(wrong, signal(await scene.start()))


async def test_a_connection_of_another_database_is_refused_by_name(scene: Scene, postgres_url: str) -> None:
    if scene.store.dialect == "sqlite":
        connection: Any = await asyncpg.connect(postgres_url)
        with pytest.raises(ConfigurationError, match="sqlite3"):
            await scene.store.start_within(connection, [new_run()])
        await connection.close()
    else:
        connection = sqlite3.connect(":memory:")
        with pytest.raises(ConfigurationError, match=ACCEPTED[scene.store.dialect]):
            await scene.store.start_within(connection, [new_run()])
        connection.close()


@only_on(*SHARED)
async def test_a_connection_without_a_transaction_commits_at_once(scene: Scene, stores: Stores) -> None:
    if stores.url.kind == "sqlite":
        assert stores.url.path is not None
        connection: Any = sqlite3.connect(stores.url.path, isolation_level=None)
    elif stores.url.kind == "mysql":
        parts = mysql_parts(stores.url.text)
        connection = await asyncmy.connect(
            host=parts.host, port=parts.port, user=parts.user, db=parts.database, charset="utf8mb4", autocommit=True
        )
    else:
        connection = await asyncpg.connect(stores.url.text)
    [run_id] = await scene.store.start_within(connection, [run := new_run(tags=("red",))])
    assert (await scene.store.send_within(connection, signal(run_id))).done
    assert run_id == run.id
    assert (await scene.info(run_id)).ready
    assert [row.id for row in await scene.store.runs(tag="red")] == [run_id]
    assert len((await scene.mailbox(run_id)).mail) == 1
    closing = connection.close()
    if closing is not None:
        await closing


@only_on("sqlite")
async def test_the_settings_of_the_caller_s_connection_do_not_matter_and_stay(scene: Scene, stores: Stores) -> None:
    """Rows as dictionaries, text as bytes: the caller's own business."""
    assert stores.url.path is not None
    taken = await scene.start(key="a")
    connection = sqlite3.connect(stores.url.path)
    factory = lambda cursor, row: dict(zip([column[0] for column in cursor.description], row, strict=True))
    connection.row_factory = factory
    assert await scene.store.start_within(connection, [new_run(key="a")]) == [taken]
    assert (await scene.store.send_within(connection, signal(taken))).status == "queued"
    assert connection.row_factory is factory
    assert connection.execute("SELECT 1 AS one").fetchone() == {"one": 1}
    connection.rollback()
    connection.close()
