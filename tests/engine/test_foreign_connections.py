"""``connection=`` of other drivers: psycopg's, with an event loop or without, and what SQLAlchemy wraps around them;
from ``app`` and from ``app.sync`` (rule 10)."""

from __future__ import annotations

import asyncio
import inspect
import sqlite3
import threading
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from typing import Any

import asyncpg
import psycopg
import psycopg2
import pytest
import sqlalchemy
from sqlalchemy import orm, pool
from sqlalchemy.ext.asyncio import AsyncSession, create_async_engine

from stepfast import ConfigurationError, Context, DatabaseUnavailable, InvalidState, RunNotFound, Stepfast
from tests.engine.conftest import MakeApp
from tests.support.engine import PATIENCE, eventually
from tests.support.postgres import BLOCKED

SYNC = ["psycopg", "psycopg2", "session", "connection", "session over psycopg2", "scoped session"]
ASYNC = ["psycopg async", "async session over psycopg"]
ENOUGH = ["psycopg", "session", "psycopg async"]


def kinds(*names: str) -> pytest.MarkDecorator:
    """The test is made once for each of these; `make test` has enough with some."""
    marked = [pytest.param(name, marks=() if name in ENOUGH else pytest.mark.thorough) for name in names]
    return pytest.mark.parametrize("kind", marked)


@pytest.fixture
def url(postgres_url: str) -> str:
    return postgres_url


def engine(url: str, driver: str) -> Any:
    return sqlalchemy.create_engine(url.replace("postgresql://", f"postgresql+{driver}://"), poolclass=pool.NullPool)


@contextmanager
def connection_of(kind: str, url: str) -> Iterator[Any]:
    """A connection without an event loop, whose first statement begins a transaction."""
    if kind in ("psycopg", "psycopg2"):
        connection: Any = psycopg.connect(url) if kind == "psycopg" else psycopg2.connect(url)
        try:
            yield connection
        finally:
            connection.close()
    else:
        made = engine(url, "psycopg2" if kind.endswith("psycopg2") else "psycopg")
        if kind == "connection":
            with made.connect() as connection:
                yield connection
        elif kind == "scoped session":
            registry = orm.scoped_session(orm.sessionmaker(made))
            yield registry
            registry.remove()
        else:
            with orm.Session(made) as session:
                yield session


@asynccontextmanager
async def async_connection_of(kind: str, url: str) -> AsyncIterator[Any]:
    if kind == "psycopg async":
        connection = await psycopg.AsyncConnection.connect(url)
        try:
            yield connection
        finally:
            await connection.close()
    else:
        made = create_async_engine(url.replace("postgresql://", "postgresql+psycopg://"), poolclass=pool.NullPool)
        async with AsyncSession(made) as session:
            yield session


async def ended(connection: Any, how: str) -> None:
    """Commit, or roll back."""
    end = getattr(connection, how)
    if inspect.iscoroutinefunction(end):
        await end()
    else:
        await asyncio.to_thread(end) if not isinstance(connection, orm.scoped_session) else end()


def declare(app: Stepfast) -> Any:
    graph = app.dag("graph")
    graph.approval("ok")

    @app.workflow
    async def asks(ctx: Context, n: int) -> Any:
        if n < 0:
            ctx.continue_as(-n)
        return [n, await ctx.wait_signal("more")]

    return asks


@kinds(*SYNC, *ASYNC)
async def test_starts_and_signals_join_the_transaction(make_app: MakeApp, url: str, kind: str) -> None:
    app = make_app()
    asks = declare(app)
    earlier = await app.start(asks, 1, key="old")
    if kind in ASYNC:
        async with async_connection_of(kind, url) as connection:
            await _join(app, asks, connection, earlier)
    else:
        with connection_of(kind, url) as connection:
            await _join(app, asks, connection, earlier)
    if kind in ("psycopg", "psycopg2", "psycopg async", "connection"):  # a session connects anew
        with pytest.raises(DatabaseUnavailable, match="closed"):
            await app.start(asks, 9, connection=connection)


async def _join(app: Stepfast, asks: Any, connection: Any, earlier: Any) -> None:
    gone = await app.start(asks, 0, connection=connection)
    await earlier.signal("more", "gone", connection=connection)
    await ended(connection, "rollback")
    again = await app.start(asks, 1, key="old", connection=connection)
    assert again.id == earlier.id
    many = await app.start_many(asks, [2, 3], tags=["a", "b"], priority=-2, delay=0, connection=connection)
    graph = await app.start("graph", {"a": "100 %"}, unique="g", connection=connection)
    same = await app.start("graph", unique="g", signal=("ok", True), connection=connection)
    assert (same.id, same.existed) == (graph.id, True)
    for run, value in zip([again, *many], ["x", None, {"50%": "'$1"}], strict=True):
        await run.signal("more", value, connection=connection)
    chain = await app.start(asks, -4, connection=connection)
    await chain.signal("more", "y", connection=connection)
    with pytest.raises(RunNotFound):
        await app.signal(gone.id, "more", connection=connection)
    assert len(await app.runs()) == 1
    await ended(connection, "commit")
    await app.drain()
    assert [await run.result() for run in (again, *many)] == [[1, "x"], [2, None], [3, {"50%": "'$1"}]]
    assert (await graph.result(), (await graph.info()).input) == ({"ok": True}, {"a": "100 %"})
    assert len(await app.runs(tag="b")) == 2
    assert await chain.result() == [4, "y"]
    for run in (again, chain):
        with pytest.raises(InvalidState, match="completed"):
            await run.signal("more", connection=connection)
    await ended(connection, "rollback")


@kinds(*SYNC)
def test_app_sync_joins_it_in_the_thread_of_the_caller(url: str, kind: str) -> None:
    app = Stepfast(url)
    asks = declare(app)
    try:
        with connection_of(kind, url) as connection:
            app.sync.start(asks, 1, connection=connection)
            connection.rollback()
            one, two = app.sync.start_many(asks, [2, 3], connection=connection)
            one.signal("more", "a", connection=connection)
            app.sync.signal(two.id, "more", "b", connection=connection)
            assert app.sync.runs() == []
            connection.commit()
        app.sync.drain()
        assert [one.result(), two.result()] == [[2, "a"], [3, "b"]]
        assert len(app.sync.runs()) == 2
    finally:
        app.sync.close()


def test_app_sync_uses_a_connection_of_sqlite3_which_knows_one_thread(sqlite_url: str) -> None:
    app = Stepfast(sqlite_url)
    asks = declare(app)
    app.sync.migrate()
    connection = sqlite3.connect(str(app.url.path))
    try:
        with connection:
            run = app.sync.start(asks, 1, connection=connection)
            run.signal("more", 2, connection=connection)
        app.sync.drain()
        assert run.result() == [1, 2]
    finally:
        connection.close()
        app.sync.close()


async def test_what_commits_each_statement_by_itself_is_refused_unless_it_has_a_transaction(
    app: Stepfast, url: str
) -> None:
    asks = declare(app)
    await app.migrate()
    alchemy = engine(url, "psycopg").execution_options(isolation_level="AUTOCOMMIT")
    with psycopg.connect(url, autocommit=True) as connection, alchemy.connect() as wrapped:
        for each in (connection, wrapped):
            with pytest.raises(ConfigurationError, match="autocommit"):
                await app.start(asks, 1, connection=each)
        with connection.transaction():
            await app.start(asks, 1, connection=connection)
    assert len(await app.runs()) == 1


async def test_a_connection_to_another_database_is_refused(app: Stepfast, url: str) -> None:
    asks = declare(app)
    await app.migrate()
    with psycopg.connect(url.rpartition("/")[0] + "/postgres") as connection:
        with pytest.raises(ConfigurationError, match="nothing was written"):
            await app.start(asks, 1, connection=connection)


async def test_a_connection_of_an_event_loop_is_no_good_to_app_sync(app: Stepfast, url: str) -> None:
    asks = declare(app)
    ours = await asyncpg.connect(url)
    theirs = await psycopg.AsyncConnection.connect(url)
    try:
        for connection in (ours, theirs):
            with pytest.raises(ConfigurationError, match="belongs to an event loop"):
                await asyncio.to_thread(app.sync.start, asks, 1, connection=connection)
    finally:
        await ours.close()
        await theirs.close()


async def test_a_wait_for_a_key_blocks_no_event_loop_and_can_be_cancelled(app: Stepfast, url: str) -> None:
    """Two transactions of one loop want the same key: the second waits beside the loop, where the first can commit."""
    asks = declare(app)
    with psycopg.connect(url) as first, psycopg.connect(url) as second, psycopg.connect(url) as third:
        run = await app.start(asks, 1, key="k", connection=first)
        waits = asyncio.create_task(app.start(asks, 1, key="k", connection=second))
        given_up = asyncio.create_task(app.start(asks, 1, key="k", connection=third))
        blocked = f"SELECT count(*) = 2 {BLOCKED}"
        await eventually(lambda: first.execute(blocked).fetchone() == (True,))
        given_up.cancel()
        with pytest.raises(asyncio.CancelledError):
            await asyncio.wait_for(given_up, PATIENCE)
        third.rollback()  # it is free again
        first.commit()
        assert (await asyncio.wait_for(waits, PATIENCE)).id == run.id


def test_an_interruption_stays_in_the_thread_that_it_met(url: str) -> None:
    app = Stepfast(url)
    asks = declare(app)
    app.sync.migrate()
    threads = []

    class Interrupted(psycopg.Connection[Any]):
        def cursor(self, *args: Any, **options: Any) -> Any:
            threads.append(threading.current_thread())
            raise KeyboardInterrupt

    try:
        with Interrupted.connect(url) as connection:
            with pytest.raises(KeyboardInterrupt):
                app.sync.start(asks, 1, connection=connection)
        assert threads == [threading.current_thread()]
        assert app.sync.runs() == []
    finally:
        app.sync.close()


@pytest.mark.parametrize("driver", ["asyncpg", "psycopg"])
async def test_a_savepoint_takes_with_it_what_was_started_sent_and_published(
    make_app: MakeApp, url: str, driver: str
) -> None:
    app = make_app()
    asks = declare(app)
    earlier = await app.start(asks, 1)
    made = create_async_engine(url.replace("postgresql://", f"postgresql+{driver}://"), poolclass=pool.NullPool)

    async def join(session: AsyncSession, what: str) -> str:
        run = await app.start(asks, 2, tags=[what], connection=session)
        await earlier.signal("more", what, connection=session)
        await app.publish("happened", what, id=what, connection=session)
        return run.id

    async with AsyncSession(made) as session, session.begin():
        with pytest.raises(ZeroDivisionError):
            async with session.begin_nested():
                await join(session, "gone")
                raise ZeroDivisionError
        async with session.begin_nested():
            kept = await join(session, "kept")
        assert len(await app.runs()) == 1  # the transaction is still open
    assert {run.id for run in await app.runs()} == {earlier.id, kept}
    assert [event.data for event in await app.events(name="happened")] == ["kept"]
    await app.drain()
    assert await earlier.result(timeout=PATIENCE) == [1, "kept"]
