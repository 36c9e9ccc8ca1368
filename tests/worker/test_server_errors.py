"""Errors of the server that are not about the data: no run pays for them, no duty ends by them (rule 48)."""

from __future__ import annotations

import asyncio
import logging
import sqlite3
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager, closing
from typing import Any
from urllib.parse import urlsplit

import asyncpg
import pytest

from stepfast import ConfigurationError, Context, DatabaseRefused, DatabaseUnavailable, SchemaError, Stepfast
from stepfast.remote import SqlTransport
from stepfast.settings import Settings
from stepfast.store.answers import MissingRight
from stepfast.store.postgres.errors import translate
from tests.support.engine import PATIENCE, Calls, Gate, eventually

QUICK = Settings(poll_interval=0.05, sweep_interval=0.05, outage_backoff_max=0.1, lease=5)

RAISING = """
CREATE FUNCTION stepfast.trouble() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN RAISE EXCEPTION 'the server has a bad day' USING ERRCODE = '{state}'; END $$;
CREATE TRIGGER trouble BEFORE {moment} ON stepfast.{table} FOR EACH STATEMENT EXECUTE FUNCTION stepfast.trouble();
"""
CALM = "DROP TRIGGER trouble ON stepfast.{table}; DROP FUNCTION stepfast.trouble();"


@pytest.fixture
async def stack() -> AsyncIterator[AsyncExitStack]:
    async with AsyncExitStack() as stack:
        yield stack


@pytest.fixture
async def operator(postgres_url: str, stack: AsyncExitStack) -> Any:
    """Somebody else's connection to the same database."""
    connection = await asyncpg.connect(postgres_url)
    stack.push_async_callback(connection.close)
    return connection


def make_app(url: str, calls: Calls, gate: Gate | None = None) -> Stepfast:
    app = Stepfast(url, settings=QUICK)

    @app.workflow(max_attempts=1)
    async def work(ctx: Context, number: int) -> int:
        async def step() -> int:
            calls.hit(f"step {number}")
            if gate is not None:
                await gate.passing()
            return number

        return await ctx.step(step)

    return app


async def told(caplog: pytest.LogCaptureFixture, *words: str) -> None:
    """Wait until the log has a line with these words."""
    await eventually(lambda: any(all(w in record.getMessage() for w in words) for record in caplog.records))


async def nobody_paid(app: Stepfast, runs: list[Any], calls: Calls, operator: Any) -> None:
    assert [await run.result(timeout=PATIENCE) for run in runs] == [1, 2, 3]
    assert {calls[f"step {n}"] for n in (1, 2, 3)} == {1}
    rows = await operator.fetch("SELECT DISTINCT status, attempt, losses FROM stepfast.runs")
    assert [tuple(row) for row in rows] == [("completed", 1, 0)]


async def start_three(app: Stepfast) -> list[Any]:
    return list(await app.start_many(app.workflows["work"], [1, 2, 3]))


# -- locks and limits of the server ------------------------------------------------------------------------------------


@asynccontextmanager
async def locked(operator: Any, table: str, mode: str) -> AsyncIterator[None]:
    async with operator.transaction():
        await operator.execute(f"LOCK TABLE stepfast.{table} IN {mode} MODE")
        yield


@pytest.mark.parametrize("setting", ["lock_timeout", "statement_timeout"])
async def test_an_index_built_on_the_steps_costs_no_run(
    postgres_url: str, operator: Any, calls: Calls, caplog: pytest.LogCaptureFixture, setting: str
) -> None:
    """CREATE INDEX takes a SHARE lock, for longer than the server lets a statement wait."""
    name = urlsplit(postgres_url).path[1:]
    await operator.execute(f"ALTER DATABASE \"{name}\" SET {setting} = '2s'")
    async with make_app(postgres_url, calls) as app, app.worker() as worker:
        with caplog.at_level(logging.WARNING, "stepfast"):
            async with locked(operator, "steps", "SHARE"):
                runs = await start_three(app)
                await told(caplog, "journal", "canceling statement due to")
        await nobody_paid(app, runs, calls, operator)
        assert not worker.broken.is_set()


async def test_a_locked_table_of_runs_does_not_end_an_idle_worker(
    postgres_url: str, operator: Any, calls: Calls, caplog: pytest.LogCaptureFixture
) -> None:
    name = urlsplit(postgres_url).path[1:]
    await operator.execute(f"ALTER DATABASE \"{name}\" SET lock_timeout = '100ms'")
    async with make_app(postgres_url, calls) as app, app.worker() as worker:
        with caplog.at_level(logging.WARNING, "stepfast"):
            async with locked(operator, "runs", "ACCESS EXCLUSIVE"):
                await told(caplog, "sweep", "lock timeout")
        await nobody_paid(app, await start_three(app), calls, operator)
        assert not worker.broken.is_set()


async def test_a_server_that_became_read_only_costs_no_run(
    postgres_url: str, operator: Any, calls: Calls, caplog: pytest.LogCaptureFixture
) -> None:
    name = urlsplit(postgres_url).path[1:]
    others = (
        "SELECT pg_terminate_backend(pid) FROM pg_stat_activity "
        "WHERE datname = current_database() AND pid <> pg_backend_pid()"
    )
    gate = Gate()
    async with make_app(postgres_url, calls, gate) as app, app.worker():
        runs = await start_three(app)
        await eventually(lambda: gate.arrivals == 3)
        await operator.execute(f'ALTER DATABASE "{name}" SET default_transaction_read_only = on')
        await operator.fetch(others)
        with caplog.at_level(logging.WARNING, "stepfast"):
            gate.open()
            await told(caplog, "read-only")
        await operator.execute("SET default_transaction_read_only = off")
        await operator.execute(f'ALTER DATABASE "{name}" RESET default_transaction_read_only')
        await operator.fetch(others)
        await nobody_paid(app, runs, calls, operator)


# -- whatever the server says ------------------------------------------------------------------------------------------

TROUBLES = ["53100", "XX000", "40P01", "25006", "42883"]


@pytest.mark.parametrize("state", TROUBLES)
async def test_a_refused_journal_costs_no_run(
    postgres_url: str, operator: Any, calls: Calls, caplog: pytest.LogCaptureFixture, state: str
) -> None:
    """Disk full, an internal error, a deadlock …: told once with the server's words, and ridden out."""
    async with make_app(postgres_url, calls) as app:
        runs = await start_three(app)
        await operator.execute(RAISING.format(state=state, moment="INSERT", table="steps"))
        with caplog.at_level(logging.WARNING, "stepfast"):
            async with app.worker():
                await told(caplog, "journal", "the server has a bad day")
                await operator.execute(CALM.format(table="steps"))
                await nobody_paid(app, runs, calls, operator)
    lines = [record.getMessage() for record in caplog.records if "bad day" in record.getMessage()]
    assert len(lines) <= 2  # the second, if the table was locked again meanwhile


@pytest.mark.parametrize("state", ["XX000", "42501", "22023", "23514", "54000"])
async def test_no_duty_ends_by_a_refused_statement(
    postgres_url: str, operator: Any, calls: Calls, caplog: pytest.LogCaptureFixture, state: str
) -> None:
    """A claim is refused whatever it claims, even with words that speak of data."""
    async with make_app(postgres_url, calls) as app:
        runs = await start_three(app)
        await operator.execute(RAISING.format(state=state, moment="UPDATE", table="runs"))
        with caplog.at_level(logging.WARNING, "stepfast"):
            async with app.worker() as worker:
                await told(caplog, "claim", "the server has a bad day")
                await operator.execute(CALM.format(table="runs"))
                await nobody_paid(app, runs, calls, operator)
                assert not worker.broken.is_set()


# -- rights ------------------------------------------------------------------------------------------------------------


@pytest.fixture
async def clerk(postgres_url: str, operator: Any, stack: AsyncExitStack) -> str:
    """The database, as a user who may do what a worker needs and no more."""
    name = f"clerk_{urlsplit(postgres_url).path[1:]}"
    await operator.execute(f"CREATE ROLE {name} LOGIN PASSWORD 'clerk'")

    async def leave() -> None:
        await operator.execute(f"DROP OWNED BY {name}; DROP ROLE {name}")

    stack.push_async_callback(leave)
    await operator.execute(f"GRANT USAGE ON SCHEMA stepfast TO {name}")
    await operator.execute(f"GRANT ALL ON ALL TABLES IN SCHEMA stepfast TO {name}")
    await operator.execute(f"GRANT ALL ON ALL SEQUENCES IN SCHEMA stepfast TO {name}")
    parts = urlsplit(postgres_url)
    host = parts.netloc.rpartition("@")[2]
    return parts._replace(netloc=f"{name}:clerk@{host}").geturl()


async def test_a_missing_right_is_told_and_costs_no_run(
    clerk: str, operator: Any, calls: Calls, caplog: pytest.LogCaptureFixture
) -> None:
    """An upgrade without its GRANT: the worker goes on when the right is there."""
    name = urlsplit(clerk).username
    app = make_app(clerk, calls)
    async with app:
        runs = await start_three(app)
        await operator.execute(f"REVOKE INSERT ON stepfast.steps FROM {name}")
        with caplog.at_level(logging.ERROR, "stepfast"):
            async with app.worker():
                await told(caplog, "lacks a right", "permission denied for table steps", "does not end by itself")
                await asyncio.sleep(0)
                await operator.execute(f"GRANT INSERT ON stepfast.steps TO {name}")
                await nobody_paid(app, runs, calls, operator)


@pytest.mark.parametrize("verb", ["make", "use"])
async def test_a_right_that_remote_steps_lack_is_told_and_costs_no_run(
    clerk: str, operator: Any, postgres_url: str, caplog: pytest.LogCaptureFixture, verb: str
) -> None:
    """A worker that may not make the transport's tables, or use them, waits for somebody who lets it. Its other runs
    do not wait with that one."""
    await operator.execute("REVOKE CREATE ON SCHEMA public FROM PUBLIC")
    async with Stepfast(clerk, settings=QUICK) as app:

        @app.workflow(max_attempts=1)
        async def shop(ctx: Context) -> str:
            try:
                return str(await ctx.remote("echo", timeout=0.05))
            except TimeoutError:
                return "it was sent"

        @app.workflow
        async def other(ctx: Context) -> str:
            return await ctx.step("say", lambda: "said")

        transport = SqlTransport(postgres_url)
        if verb == "use":
            await transport.open()
        run = await app.start(shop)
        with caplog.at_level(logging.ERROR, "stepfast"):
            async with app.worker():
                await told(caplog, f"may not {verb} the transport's tables", "grant", "does not end by itself")
                assert await (await app.start(other)).result(timeout=PATIENCE) == "said"
                if verb == "make":
                    await transport.open()
                await operator.execute(f"GRANT ALL ON ALL TABLES IN SCHEMA public TO {urlsplit(clerk).username}")
                await transport.close()
                assert await run.result(timeout=PATIENCE) == "it was sent"


async def test_a_caller_hears_of_a_missing_right_at_once(clerk: str, operator: Any, calls: Calls) -> None:
    name = urlsplit(clerk).username
    async with make_app(clerk, calls) as app:
        await operator.execute(f"REVOKE INSERT ON stepfast.runs FROM {name}")
        with pytest.raises(ConfigurationError, match="permission denied"):
            await app.start(app.workflows["work"], 1)


# -- SQLite ----------------------------------------------------------------------------------------------------------


async def test_missing_tables_of_sqlite_cost_no_run(
    sqlite_url: str, calls: Calls, caplog: pytest.LogCaptureFixture
) -> None:
    """Told loudly, and waited for, as on Postgres."""
    app = make_app(sqlite_url, calls)
    async with app:
        runs = await start_three(app)
        path = sqlite_url.removeprefix("sqlite:///")
        with caplog.at_level(logging.WARNING, "stepfast"), closing(sqlite3.connect(path, timeout=PATIENCE)) as operator:
            operator.execute("PRAGMA legacy_alter_table = ON")
            operator.execute("ALTER TABLE stepfast_steps RENAME TO elsewhere")
            operator.commit()
            async with app.worker() as worker:
                await told(caplog, "run `stepfast migrate`", "does not end by itself")
                operator.execute("ALTER TABLE elsewhere RENAME TO stepfast_steps")
                operator.commit()
                assert [await run.result(timeout=PATIENCE) for run in runs] == [1, 2, 3]
                assert not worker.broken.is_set()
    assert {calls[f"step {n}"] for n in (1, 2, 3)} == {1}


# -- the table ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("state", "meaning"),
    [
        *((state, DatabaseRefused) for state in ("22P05", "22003", "23505", "54000", "54001")),
        *(
            (state, DatabaseUnavailable)
            for state in (
                *TROUBLES[:-1],
                "55P03",
                "57014",
                "0A000",
                "P0001",
                "08006",
                "57P01",
                "28P01",
                "40001",
                "58030",
            )
        ),
        *((state, SchemaError) for state in ("42P01", "42703", "42883", "3F000")),
        ("42501", MissingRight),
        ("99999", DatabaseUnavailable),
    ],
)
def test_what_a_state_means(state: str, meaning: type[Exception]) -> None:
    error = asyncpg.PostgresError.new({"C": state, "M": "words"})
    known = translate(error)
    assert type(known) is meaning
    assert "words" in str(known)
