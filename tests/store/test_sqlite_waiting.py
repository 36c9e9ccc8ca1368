"""What is SQLite's own about waiting: users' functions in the writer's thread, and callers' connections to the file."""

from __future__ import annotations

import asyncio
import sqlite3
import time
from collections.abc import AsyncIterator, Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from typing import Any

import pytest
import sqlalchemy.orm
from sqlalchemy.ext.asyncio import AsyncSession, create_async_engine

from stepfast.errors import ConfigurationError, ContextMisuse, DatabaseUnavailable, InvalidState, StepTimeout
from stepfast.model.records import Claimed, StepRecord
from stepfast.settings import Settings
from stepfast.store.sqlite import SqliteStore
from tests.store.scene import Rows, Scene, failed, move, new_run, signal, step, waiting
from tests.store.test_sqlite import Held, sqlite_store, writer_of


@pytest.fixture
async def store(sqlite_url: str) -> AsyncIterator[SqliteStore]:
    store = sqlite_store(sqlite_url)
    await store.open()
    await store.migrate()
    yield store
    await store.close()


@pytest.fixture
async def scene(store: SqliteStore) -> Scene:
    scene = Scene(store, Rows(store))
    scene.worker = await scene.add_worker()
    await scene.rows.fetch("CREATE TABLE bookings (id INTEGER PRIMARY KEY, cents INTEGER UNIQUE)")
    return scene


@pytest.fixture
def path(sqlite_url: str) -> str:
    return sqlite_url.removeprefix("sqlite:///")


async def transact(
    scene: Scene, run: Claimed, call: Callable[[sqlite3.Connection], Any], timeout: float | None = None
) -> StepRecord:
    place = ("", 0)
    made, _ = await scene.store.transact(
        scene.worker, run.id, run.claim, place, call, lambda result: step(run, 0, f'"{result}"'), timeout
    )
    return made


async def bookings(scene: Scene) -> list[int]:
    return [cents for (cents,) in await scene.rows.fetch("SELECT cents FROM bookings ORDER BY cents")]


def book(connection: sqlite3.Connection, cents: int = 5) -> str:
    connection.execute("INSERT INTO bookings (cents) VALUES (?)", (cents,))
    return "booked"


# -- functions that make SQLite roll everything back --------------------------------------------------------


def never_ends(connection: sqlite3.Connection) -> None:
    """SQLite undoes the whole transaction when a write is interrupted."""
    book(connection, 1)
    connection.execute(
        "WITH RECURSIVE n(i) AS (SELECT 10 UNION ALL SELECT i + 1 FROM n WHERE i < 1e9) "
        "INSERT INTO bookings SELECT i, i FROM n"
    )


def rolls_back(connection: sqlite3.Connection) -> None:
    book(connection, 2)
    connection.execute("INSERT OR ROLLBACK INTO bookings (cents) VALUES (2)")


def rolls_back_and_goes_on(connection: sqlite3.Connection) -> None:
    for _ in range(2):  # the second time every statement is prepared already
        try:
            rolls_back(connection)
        except sqlite3.Error:
            pass


@pytest.mark.parametrize(
    ("call", "timeout", "error"),
    [
        (never_ends, 0.05, StepTimeout),
        (rolls_back, 30, sqlite3.IntegrityError),
        (rolls_back_and_goes_on, 30, ContextMisuse),
    ],
)
async def test_the_others_of_the_group_are_done_again(
    scene: Scene, store: SqliteStore, call: Callable[[sqlite3.Connection], Any], timeout: float, error: type[Exception]
) -> None:
    await scene.start_many(4)
    runs = await scene.claim(4)
    async with Held(writer_of(store)):
        jobs: list[asyncio.Task[Any]] = [
            asyncio.create_task(job)
            for job in (
                scene.flush(step(runs[0])),
                transact(scene, runs[1], lambda connection: book(connection, 3)),
                transact(scene, runs[2], call, timeout),
                transact(scene, runs[3], call, timeout),
                store.start([new_run()]),
            )
        ]
        await asyncio.sleep(0)
    answers: list[Any] = await asyncio.gather(*jobs, return_exceptions=True)
    first, second, bad, worse, last = answers
    assert (type(bad), type(worse)) == (error, error)
    assert (first.lost, second.output, len(last)) == (set(), '"booked"', 1)
    assert [len(await store.steps(run.id)) for run in runs] == [1, 1, 0, 0]
    assert await bookings(scene) == [3]
    assert (await transact(scene, runs[2], book)).output == '"booked"', "the writer goes on"


async def test_a_function_that_only_takes_its_time_is_undone_too(scene: Scene) -> None:
    def call(connection: sqlite3.Connection) -> None:
        book(connection)
        time.sleep(0.02)

    run = await scene.running()
    with pytest.raises(StepTimeout, match=r"0\.01 s"):
        await transact(scene, run, call, 0.01)
    assert await bookings(scene) == []


async def test_what_no_handler_may_catch_reaches_the_caller_and_not_the_writer(scene: Scene) -> None:
    class Gone(BaseException):
        pass

    def call(connection: sqlite3.Connection) -> None:
        book(connection)
        raise Gone

    run = await scene.running()
    with pytest.raises(Gone):
        await transact(scene, run, call)
    assert await bookings(scene) == []


# -- the connection is not the function's own ---------------------------------------------------------------


@pytest.mark.parametrize(
    "words",
    ["COMMIT", "ROLLBACK", "BEGIN IMMEDIATE", "SAVEPOINT a", "PRAGMA query_only = ON", "ATTACH ':memory:' AS x"],
)
async def test_a_refused_statement_is_refused_each_time(scene: Scene, run: Claimed, words: str) -> None:
    """Also after it was prepared for the writer itself."""
    for _ in range(3):
        with pytest.raises(ContextMisuse):
            await transact(scene, run, lambda connection: (book(connection), connection.execute(words)))
        await scene.start()
    assert await bookings(scene) == []


async def test_the_writer_keeps_its_connection(scene: Scene, run: Claimed) -> None:
    with pytest.raises(ContextMisuse):
        await transact(scene, run, lambda connection: connection.close())
    with pytest.raises(ContextMisuse):
        await transact(scene, run, lambda connection: connection.set_authorizer(None))
    assert (await transact(scene, run, book)).output == '"booked"'


async def test_a_changed_isolation_level_commits_nothing(scene: Scene) -> None:
    """Python commits whenever it is set to None, and that is what the writer's is."""

    def call(connection: sqlite3.Connection) -> None:
        connection.isolation_level = "DEFERRED"
        book(connection)
        raise KeyError("after all")

    run = await scene.running()
    with pytest.raises(KeyError):
        await transact(scene, run, call)
    assert await bookings(scene) == []
    assert await writer_of(scene.store).do(lambda database: database.isolation_level) is None  # type: ignore[arg-type]


async def test_questions_about_tables_may_be_asked(scene: Scene, run: Claimed) -> None:
    record = await transact(scene, run, lambda c: len(c.execute("PRAGMA table_info(bookings)").fetchall()))
    assert record.output == '"2"'


async def test_an_error_that_keeps_a_cursor_alive_does_not_stop_the_writer(scene: Scene, path: str) -> None:
    """A half-read question holds an old state of the file; who holds one may not write after somebody else has."""

    def call(connection: sqlite3.Connection) -> None:
        cursor = connection.execute("SELECT 1 FROM stepfast_runs, (SELECT 1 UNION ALL SELECT 2)")
        raise KeyError("in the middle", cursor.fetchone())

    run = await scene.running()
    with pytest.raises(KeyError) as kept:
        await transact(scene, run, call)
    with closing(sqlite3.connect(path)) as other:
        book(other)
        other.commit()
    assert await scene.start()
    assert kept.value.args == ("in the middle", (1,))


# -- what would be lost or wait for ever otherwise ------------------------------------------------------------


async def test_a_retried_parent_hears_of_children_that_ended_while_it_had_ended(scene: Scene) -> None:
    parent, [child] = await scene.family()
    await scene.flush(failed(parent))
    await scene.flush(move(child, "completed", output="7", child=True))
    assert (await scene.deliver()).moved == 1
    assert (await scene.mailbox(parent.id)).mail == []
    await scene.store.retry(parent.id)
    [again] = await scene.claim()
    await scene.flush(waiting(again, None, waiting_for="child", awaits=again.ends + 1))
    await scene.deliver()
    assert [(mail.kind, mail.name, mail.value) for mail in (await scene.mailbox(parent.id)).mail] == [
        ("child", "completed", "7")
    ]
    assert (await scene.info(parent.id)).ready


@pytest.mark.parametrize("how", ["mark", "mail"])
async def test_a_cancellation_follows_the_run_that_goes_on(scene: Scene, run: Claimed, how: str) -> None:
    if how == "mark":
        await scene.store.cancel(run.id)
    else:
        await scene.post(signal(run.id, "", None, kind="cancel"))
    successor = new_run()
    end = move(run, "completed", reason="continued", output=f'"{successor.id}"', successor=successor)
    answer = await scene.flush(end)
    assert answer.undelivered or how == "mail"
    assert (await scene.deliver()).ended
    assert (await scene.info(successor.id)).status == "cancelled"


async def test_a_pause_that_was_taken_back_meanwhile_holds_nobody(scene: Scene, run: Claimed) -> None:
    await scene.store.pause(run.id)
    assert (await scene.store.resume(run.id)).done
    await scene.flush(move(run, "paused"))
    row = await scene.info(run.id)
    assert (row.status, row.ready) == ("queued", True)


async def test_a_cancellation_meets_an_owner_that_heard_of_a_pause(scene: Scene, run: Claimed) -> None:
    await scene.store.pause(run.id)
    await scene.store.cancel(run.id)
    await scene.flush(move(run, "paused"))
    row = await scene.info(run.id)
    assert (row.status, row.ready, row.asked) == ("queued", True, "cancel")


# -- connections of callers ---------------------------------------------------------------------------------


@pytest.mark.parametrize("level", [None, "", "IMMEDIATE"])
@pytest.mark.parametrize("begun", [True, False])
async def test_a_start_is_all_or_none_and_the_transaction_goes_on(
    scene: Scene, path: str, level: Any, begun: bool
) -> None:
    await scene.rows.fetch("CREATE TRIGGER no BEFORE INSERT ON [run_tags] BEGIN SELECT RAISE(ABORT, 'no tags'); END")
    with closing(sqlite3.connect(path, isolation_level=level)) as connection:
        if begun:
            connection.execute("BEGIN")
            book(connection)
        with pytest.raises(Exception, match="no tags"):
            await scene.store.start_within(connection, [new_run(), new_run(tags=("a",))])
        assert connection.in_transaction is begun
        [run_id] = await scene.store.start_within(connection, [new_run()])
        connection.commit()
    assert [run.id for run in await scene.store.runs()] == [run_id]
    assert await bookings(scene) == ([5] if begun else [])


async def test_a_rollback_takes_starts_and_signals_back(scene: Scene, run: Claimed, path: str) -> None:
    await scene.flush(waiting(run, None))
    with closing(sqlite3.connect(path)) as connection:
        await scene.store.start_within(connection, [new_run()])
        assert (await scene.store.send_within(connection, signal(run.id))).done
        connection.rollback()
    assert len(await scene.store.runs()) == 1
    assert (await scene.store.deliver(10)).moved == 0


async def test_a_connection_of_another_thread_is_refused_in_one_sentence(scene: Scene, path: str) -> None:
    with ThreadPoolExecutor(1) as other:
        connection = await asyncio.wrap_future(other.submit(sqlite3.connect, path))
        with pytest.raises(ConfigurationError, match="thread"):
            await scene.store.start_within(connection, [new_run()])
        await asyncio.wrap_future(other.submit(connection.close))


async def test_a_transaction_that_may_not_write_any_more_is_told_how_to_begin(scene: Scene, path: str) -> None:
    with closing(sqlite3.connect(path, isolation_level=None, timeout=0)) as connection:
        connection.execute("BEGIN")
        connection.execute("SELECT count(*) FROM bookings").fetchall()
        await scene.start()
        with pytest.raises(DatabaseUnavailable, match="BEGIN IMMEDIATE"):
            await scene.store.start_within(connection, [new_run()])


@pytest.mark.parametrize("kind", ["session", "connection"])
@pytest.mark.parametrize("end", ["commit", "rollback"])
async def test_sqlalchemy_over_sqlite_may_be_joined(scene: Scene, path: str, kind: str, end: str) -> None:
    engine = sqlalchemy.create_engine(f"sqlite:///{path}")
    joined: Any
    with sqlalchemy.orm.Session(engine) if kind == "session" else engine.connect() as joined:
        [run_id] = await scene.store.start_within(joined, [new_run(key="k", tags=("a",))])
        assert await scene.store.start_within(joined, [new_run(key="k")]) == [run_id]
        getattr(joined, end)()
    engine.dispose()
    assert len(await scene.store.runs()) == (1 if end == "commit" else 0)


@pytest.mark.parametrize("kind", ["session", "connection"])
@pytest.mark.parametrize("end", ["commit", "rollback"])
async def test_sqlalchemy_over_aiosqlite_may_be_joined(scene: Scene, path: str, kind: str, end: str) -> None:
    engine = create_async_engine(f"sqlite+aiosqlite:///{path}")
    waits = await scene.running()
    await scene.flush(waiting(waits, None))
    joined: Any
    async with AsyncSession(engine) if kind == "session" else engine.connect() as joined:
        [run_id] = await scene.store.start_within(joined, [new_run(key="k", tags=("a",))])
        assert await scene.store.start_within(joined, [new_run(key="k")]) == [run_id]
        assert (await scene.store.send_within(joined, signal(waits.id))).done
        await getattr(joined, end)()
    await engine.dispose()
    assert len(await scene.store.runs()) == (2 if end == "commit" else 1)
    assert (await scene.store.deliver(10)).moved == (1 if end == "commit" else 0)


@pytest.mark.parametrize("begun", [True, False], ids=["after a row of its own", "first"])
async def test_a_signal_without_room_leaves_nothing_in_a_transaction_over_aiosqlite(
    scene: Scene, store: SqliteStore, path: str, begun: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The caller may go on after the refusal, and commit."""
    monkeypatch.setattr(store, "_settings", Settings(max_signals=1))
    run_id = await scene.start()
    await scene.store.send(signal(run_id))
    engine = create_async_engine(f"sqlite+aiosqlite:///{path}")
    async with AsyncSession(engine) as session:
        if begun:
            await session.execute(sqlalchemy.text("INSERT INTO bookings (cents) VALUES (1)"))
        with pytest.raises(InvalidState, match="max_signals"):
            await scene.store.send_within(session, signal(run_id))
        await session.execute(sqlalchemy.text("INSERT INTO bookings (cents) VALUES (2)"))
        await session.commit()
    await engine.dispose()
    assert await scene.rows.fetch("SELECT cents FROM bookings") == [(1,), (2,)][0 if begun else 1 :]
    assert len((await scene.mailbox(run_id)).mail) == 1
