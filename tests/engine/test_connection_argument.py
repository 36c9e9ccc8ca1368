"""``connection=``: starts and signals join the caller's own transaction, and end with it (rule 10)."""

from __future__ import annotations

import asyncio
import sqlite3
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, closing
from pathlib import Path
from typing import Any

import asyncpg
import pytest
import sqlalchemy
from sqlalchemy.ext.asyncio import AsyncSession, create_async_engine

from stepfast import ConfigurationError, Context, DatabaseUnavailable, InvalidInput, InvalidState, RunNotFound, Stepfast
from stepfast.settings import Settings
from stepfast.telemetry import Observer
from tests.engine.conftest import MakeApp
from tests.store.scene import Rows
from tests.support.databases import in_transaction
from tests.support.engine import Calls, drained, finished
from tests.support.waiting import reached
from tests.support.workflows import task

ON_POSTGRES = ["asyncpg", "asyncpg pool", "alchemy session", "alchemy connection"]
ENOUGH = ["asyncpg", "sqlite3"]
"""Each kind of connection is tried by the tests of the store; here these are enough for `make test`."""


def only_with(*kinds: str) -> pytest.MarkDecorator:
    """The test is made for these kinds of connection alone."""
    return pytest.mark.parametrize("kind", [_kind(kind) for kind in kinds], indirect=True)


def _kind(kind: str) -> Any:
    return pytest.param(kind, marks=() if kind in ENOUGH else pytest.mark.thorough)


class Caller:
    """Somebody with a transaction of their own and a table in it, by way of one library."""

    def __init__(self, kind: str, app: Stepfast) -> None:
        self.kind = kind
        self.app = app

    @asynccontextmanager
    async def transaction(self) -> AsyncIterator[Any]:
        """Commits at the end of the block, rolls back if it raises."""
        if self.kind == "sqlite3":
            assert self.app.url.path is not None
            connection = sqlite3.connect(self.app.url.path, timeout=30)
            try:
                with connection:
                    yield connection
            finally:
                connection.close()
        elif self.kind in ("asyncpg", "asyncmy"):
            async with in_transaction(self.app.url.text) as connection:
                yield connection
        elif self.kind == "asyncpg pool":
            async with asyncpg.create_pool(self.app.url.text, min_size=1, max_size=1) as pool:
                async with pool.acquire() as connection, connection.transaction():
                    yield connection
        else:
            engine = create_async_engine(self.app.url.text.replace("postgresql://", "postgresql+asyncpg://"))
            try:
                if self.kind == "alchemy session":
                    async with AsyncSession(engine) as session, session.begin():
                        yield session
                else:
                    async with engine.begin() as joined:
                        yield joined
            finally:
                await engine.dispose()

    async def note(self, connection: Any, text: str) -> None:
        """A row of the caller's own."""
        sql = f"INSERT INTO notes VALUES ('{text}')"
        if self.kind == "sqlite3":
            connection.execute(sql)
        elif self.kind == "asyncmy":
            await connection.cursor().execute(sql)
        else:
            await connection.execute(sqlalchemy.text(sql) if self.kind.startswith("alchemy") else sql)

    async def notes(self) -> list[str]:
        return [text for (text,) in await self.fetch("SELECT text FROM notes ORDER BY text")]

    async def fetch(self, sql: str) -> list[tuple[Any, ...]]:
        rows = Rows(await self.app.store(), self.app.namespace, self.app.url.text)
        try:
            return await rows.fetch(sql)
        finally:
            await rows.close()


@pytest.fixture(params=[_kind(kind) for kind in (*ON_POSTGRES, "asyncmy", "sqlite3")])
def kind(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def url(kind: str, request: pytest.FixtureRequest) -> str:
    """The database that this kind of connection goes to."""
    return str(request.getfixturevalue({"sqlite3": "sqlite_url", "asyncmy": "mariadb_url"}.get(kind, "postgres_url")))


@pytest.fixture
async def caller(kind: str, app: Stepfast) -> Caller:
    caller = Caller(kind, app)
    await caller.fetch("CREATE TABLE notes (text text)")
    return caller


@pytest.fixture
def double(app: Stepfast, calls: Calls) -> Any:
    @app.task
    async def double(number: int) -> int:
        calls.hit(str(number))
        return number * 2

    return double


class Stop(Exception):
    """Rolls the caller's transaction back."""


async def test_a_start_is_committed_with_the_callers_rows(app: Stepfast, caller: Caller, double: Any) -> None:
    """Nothing of it before the commit, all of it after."""
    async with app.worker():
        async with caller.transaction() as connection:
            await caller.note(connection, "before")
            run = await app.start(double, 4, connection=connection)
            await caller.note(connection, "after")
        assert await run.result(timeout=20) == 8
    assert await caller.notes() == ["after", "before"]


async def test_a_start_is_rolled_back_with_the_callers_rows(
    app: Stepfast, caller: Caller, double: Any, calls: Calls
) -> None:
    with pytest.raises(Stop):
        async with caller.transaction() as connection:
            await caller.note(connection, "a")
            run = await app.start(double, 4, connection=connection)
            raise Stop
    await app.drain()
    assert await app.runs() == []
    assert await caller.notes() == []
    assert calls == {}
    with pytest.raises(RunNotFound):
        await run.result(timeout=1)


async def test_the_same_key_is_the_same_run(app: Stepfast, caller: Caller, double: Any, calls: Calls) -> None:
    """Within one transaction, against what was there before, and for the starts that come after."""
    old = await app.start(double, 1, key="old")
    async with caller.transaction() as connection:
        again = await app.start(double, 1, key="old", connection=connection)
        new = await app.start(double, 2, key="new", connection=connection)
        twice = await app.start(double, 3, key="new", connection=connection)
    later = await app.start(double, 4, key="new")
    assert again.id == old.id
    assert new.id == twice.id == later.id
    await app.drain()
    assert calls == {"1": 1, "2": 1}


async def test_an_input_that_does_not_fit_leaves_the_transaction_usable(
    app: Stepfast, caller: Caller, double: Any
) -> None:
    """Refused before anything is written; the caller's rows are the caller's."""
    async with caller.transaction() as connection:
        await caller.note(connection, "kept")
        with pytest.raises(InvalidInput):
            await app.start(double, "many", connection=connection)
    assert await caller.notes() == ["kept"]
    assert await app.runs() == []


async def test_the_first_use_of_an_application_may_join_a_transaction(
    make_app: MakeApp, caller: Caller, double: Any
) -> None:
    """A process that has done nothing yet: what it must write for itself is not part of the caller's transaction."""
    fresh = make_app()
    newcomer = task(fresh, "newcomer")
    await caller.app.start(double, 1)
    if caller.kind == "sqlite3":
        await fresh.store()  # the caller holds SQLite's only lock from its first row on
        await fresh.start(newcomer, 0)
    async with caller.transaction() as connection:
        await caller.note(connection, "a")
        run = await fresh.start(newcomer, 5, connection=connection)
    assert await finished(fresh, run) == 5


# -- signals -------------------------------------------------------------------------------------------------------


@pytest.fixture
def waiter(app: Stepfast) -> Any:
    @app.workflow
    async def waiter(ctx: Context) -> Any:
        return [await ctx.wait_signal("word"), await ctx.wait_signal("word")]

    return waiter


async def test_a_signal_is_delivered_when_the_caller_commits(app: Stepfast, caller: Caller, waiter: Any) -> None:
    run = await app.start(waiter)
    async with app.worker():
        await reached(run, "waiting")
        async with caller.transaction() as connection:
            await caller.note(connection, "a")
            await run.signal("word", 1, connection=connection)
            await app.signal(run.id, "word", 2, connection=connection)
        assert await run.result(timeout=20) == [1, 2]
    assert await caller.notes() == ["a"]


async def test_a_signal_to_the_first_of_a_chain_that_has_ended_is_refused(app: Stepfast, caller: Caller) -> None:
    """As one without a connection is: whoever delivers it would throw it away."""

    @app.workflow
    async def counter(ctx: Context, number: int) -> None:
        if number < 2:
            ctx.continue_as(number + 1)

    run = await drained(app, counter, 0)
    with pytest.raises(InvalidState) as usual:
        await run.signal("word")
    async with caller.transaction() as connection:
        await caller.note(connection, "kept")
        with pytest.raises(InvalidState) as refused:
            await run.signal("word", connection=connection)
    assert str(refused.value) == str(usual.value) and run.id not in str(usual.value)
    assert await caller.notes() == ["kept"]
    assert await caller.fetch("SELECT id FROM [mailbox]") == []


async def test_a_signal_to_the_first_of_a_chain_is_as_one_to_its_last(make_app: MakeApp, kind: str) -> None:
    """Observers are told of the last; its bound holds for all who send to it; and when it is gone, nobody is there."""
    told = list[str]()
    hears = type("Hears", (Observer,), {"signalled": lambda self, event: told.append(event.run_id)})()
    app = make_app(observers=[hears], settings=Settings(max_signals=2))
    caller = Caller(kind, app)

    @app.workflow
    async def counter(ctx: Context, number: int) -> None:
        ctx.continue_as(number + 1) if number < 2 else await ctx.sleep(600)

    run = await drained(app, counter, 0)
    last = await (await app.store()).continuation(run.id)
    for _ in range(2):
        async with caller.transaction() as connection:
            await run.signal("word", connection=connection)
    assert told == [last] * 2 and last != run.id
    async with caller.transaction() as connection:
        with pytest.raises(InvalidState, match=f"{last} has 2 signals"):
            await run.signal("word", connection=connection)
    await caller.fetch(f"DELETE FROM [runs] WHERE id = '{last}'")
    async with caller.transaction() as connection:
        with pytest.raises(InvalidState, match="is completed; a signal can only be sent"):
            await run.signal("word", connection=connection)


@only_with(*ON_POSTGRES)
async def test_a_waiting_run_is_not_locked_by_a_signal_that_is_not_committed(
    app: Stepfast, caller: Caller, waiter: Any
) -> None:
    """Rule 10: inserts only. The run goes on meanwhile, woken by others. SQLite has one writer at a time."""
    run = await app.start(waiter)
    async with app.worker():
        await reached(run, "waiting")
        async with caller.transaction() as connection:
            await run.signal("word", "late", connection=connection)
            await run.signal("word", "first")
            await run.signal("word", "second")
            assert await run.result(timeout=20) == ["first", "second"]


async def test_many_transactions_at_once_start_and_signal(app: Stepfast, caller: Caller, calls: Calls) -> None:
    """Each commits its own; none blocks another for ever, and nothing is slept over."""

    @app.workflow
    async def waiter(ctx: Context) -> Any:
        calls.hit("began")
        return await ctx.wait_signal("word")

    async def one(number: int) -> Any:
        async with caller.transaction() as connection:
            run = await app.start(waiter, connection=connection)
        async with caller.transaction() as connection:
            await run.signal("word", number, connection=connection)
        return await run.result(timeout=30)

    async with app.worker():
        if caller.kind == "sqlite3":  # in one thread, one after the other
            assert [await one(number) for number in range(5)] == list(range(5))
        else:
            assert await asyncio.gather(*(one(number) for number in range(10))) == list(range(10))


async def test_the_first_use_of_an_application_may_be_inside_a_transaction(make_app: MakeApp) -> None:
    """It connects and looks at the tables without wanting the lock that its caller holds."""
    earlier = make_app()
    await earlier.migrate()
    await earlier.close()
    app = make_app()

    @app.task
    async def task() -> str:
        return "done"

    caller = Caller("sqlite3" if app.url.kind == "sqlite" else "asyncpg", app)
    async with caller.transaction() as connection:
        if caller.kind == "sqlite3":
            connection.execute("BEGIN IMMEDIATE")
        run = await asyncio.wait_for(app.start(task, connection=connection), 20)
    assert await finished(app, run) == "done"


async def test_a_result_is_waited_for_through_an_outage_also_by_a_mere_id(app: Stepfast, double: Any) -> None:
    run = await drained(app, double, 21)
    store: Any = await app.store()
    asked, look = [], store.run

    async def away_at_first(run_id: str) -> Any:
        asked.append(run_id)
        if len(asked) < 3:
            raise DatabaseUnavailable("away")
        return await look(run_id)

    store.run = away_at_first
    assert await app.get(run.id).result(timeout=20) == 42
    assert len(asked) == 3


# -- another database ------------------------------------------------------------------------------------------------


@only_with("sqlite3")
@pytest.mark.parametrize("tables", [True, False])
async def test_a_connection_to_another_file_is_refused(
    kind: str, app: Stepfast, tmp_path: Path, tables: bool, double: Any
) -> None:
    """Also if it has the same tables: the run would be started over there."""
    run = await app.start(double, 1)
    async with Stepfast(f"sqlite:///{tmp_path / 'elsewhere.db'}") as other:
        if tables:
            await other.migrate()
        with closing(sqlite3.connect(other.url.path or "")) as connection:
            for _ in range(2):
                with pytest.raises(ConfigurationError, match="nothing was written"):
                    await app.start(double, 2, connection=connection)
                with pytest.raises(ConfigurationError, match="nothing was written"):
                    await run.signal("word", 2, connection=connection)
        assert not tables or await other.runs() == []


@only_with("sqlite3")
async def test_a_file_that_is_attached_to_the_callers_connection_is_joined(
    sqlite_url: str, kind: str, app: Stepfast, tmp_path: Path, double: Any
) -> None:
    await app.migrate()
    connection = sqlite3.connect(tmp_path / "own.db")
    connection.execute("ATTACH ? AS jobs", (app.url.path,))
    run = await app.start(double, 2, connection=connection)
    connection.commit()
    connection.close()
    assert await finished(app, run) == 4
