"""Functions and operators are those of pg_catalog, whatever strangers make in a schema on the search_path (rule 54)."""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncIterator
from typing import Any

import asyncpg
import pytest

import stepfast
from stepfast import Context, Stepfast
from stepfast.store.dialects import POSTGRES
from stepfast.store.flows.base import standing_columns
from stepfast.store.postgres import PostgresStore
from stepfast.store.postgres.connections import SEARCH_PATH, Connector, know_arrays, qualify
from stepfast.store.sql import load_all, load_migrations
from tests.support.engine import PATIENCE
from tests.support.overloads import USED, overloads

pytestmark = pytest.mark.empty

GRAMMAR = {"ALL", "ANY", "ARRAY", "COALESCE", "GREATEST", "LEAST", "NULLIF", "ROW", "VALUES", "EXISTS"}
"""What stands in capitals before a parenthesis and is no function."""
THEIRS = '"$user", public'
"""What is on the search_path unless somebody says otherwise."""


def texts() -> dict[str, str]:
    """Every statement as it is written, and every migration."""
    words = {"schema": '"stepfast"', "now": "clock_timestamp()", "standing": standing_columns()}
    found = load_all(POSTGRES, words)
    return found | {name: text for _, name, text in load_migrations(POSTGRES)}


def bare(sql: str) -> str:
    """Without comments and texts."""
    return re.sub(r"--[^\n]*|'(?:[^']|'')*'", " ", sql)


def called() -> set[str]:
    """The functions that our statements call."""
    return {name for sql in texts().values() for name in re.findall(r"(?<![\w.])([a-z_]+)\(", bare(sql))}


@pytest.fixture
async def attacked(postgres_url: str) -> AsyncIterator[str]:
    """An empty database in which a role without rights has filled `public` with overloads."""
    connection = await asyncpg.connect(postgres_url)
    shapes = await connection.fetch(
        "SELECT DISTINCT proname::text, pronargs::int FROM pg_proc WHERE pronamespace = 'pg_catalog'::regnamespace "
        "AND proname = ANY ($1) AND pronargs BETWEEN 1 AND 2",
        list(called()),
    )
    try:
        await connection.execute("DROP ROLE IF EXISTS stepfast_stranger; CREATE ROLE stepfast_stranger")
        await connection.execute("GRANT CREATE, USAGE ON SCHEMA public TO PUBLIC; SET ROLE stepfast_stranger")
        await connection.execute(overloads((name, count) for name, count in shapes))
        await connection.execute("RESET ROLE")
        yield postgres_url
    finally:
        await connection.execute("RESET ROLE; DROP OWNED BY stepfast_stranger CASCADE; DROP ROLE stepfast_stranger")
        await connection.close()


async def test_no_statement_and_no_view_comes_to_an_overload(attacked: str) -> None:
    """The server resolves each statement as it does on a caller's connection; what it came to is in its catalogue."""
    store = PostgresStore(stepfast.Stepfast(attacked).url, "stepfast", stepfast.Settings())
    connection = know_arrays(await asyncpg.connect(attacked))
    try:
        await store._schema.migrate(connection)
        for name, sql in store._sql.items():
            if re.match(r"\s*(SELECT|INSERT|UPDATE|DELETE|WITH)\b", bare(sql)) and name != "script_tail":
                types = [f"{kind.schema}.{kind.name}" for kind in (await connection.prepare(sql)).get_parameters()]
                await connection.execute(
                    f"CREATE FUNCTION stepfast.probe_{name}({', '.join(types)}) RETURNS void BEGIN ATOMIC {sql}; END"
                )
        assert [text for (text,) in await connection.fetch(USED)] == []
    finally:
        await connection.close()


async def test_the_whole_product_works_among_them(attacked: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each overload raises, so whatever came to one would fail: in sessions of ours, on those of a user's pool and on
    those behind a pooler, where no session is ours."""
    await _work(Stepfast(attacked, namespace="direct"))
    async with asyncpg.create_pool(attacked, min_size=0, max_size=14) as pool:
        await _work(Stepfast(attacked, namespace="pool", pool=pool))

    async def behind_pooler(_connector: Connector) -> bool:
        return True

    monkeypatch.setattr(Connector, "_is_behind_pooler", behind_pooler)
    await _work(Stepfast(attacked, namespace="pooler"))


async def _work(app: Stepfast) -> None:
    async def look(connection: Any) -> str:
        return str(await connection.fetchval("SHOW search_path"))

    @app.workflow
    async def child(ctx: Context, number: int) -> int:
        return number

    @app.workflow
    async def parent(ctx: Context, name: str) -> str:
        assert await ctx.transaction(look) == THEIRS
        await ctx.call(child, 1)
        await ctx.set("at", "signal")
        return str(await ctx.wait_signal("go", type=str))

    graph = app.dag("graph")

    @graph.step
    async def first(ctx: Any) -> int:
        return 1

    @graph.step(after=[first])
    async def second(ctx: Any) -> int:
        return 2

    try:
        await app.migrate()
        async with asyncio.timeout(PATIENCE), app.worker():
            run = await app.start(parent, "a", key="k", tags=["t"])
            await run.signal("go", "there")
            assert await run.result() == "there"
            assert await (await app.start(graph, None)).result() == {"first": 1, "second": 2}
            await _join(app, parent)
            await _operate(app, parent)
        await (await app.store()).doctor()
    finally:
        await app.close()


async def _join(app: Stepfast, parent: Any) -> None:
    """A start and a signal in transactions of the caller's; and a look at the views."""
    theirs = await asyncpg.connect(app.url.text)
    try:
        async with theirs.transaction():
            run = await app.start(parent, "b", connection=theirs)
        async with theirs.transaction():
            await run.signal("go", "joined", connection=theirs)
        assert await theirs.fetchval("SHOW search_path") == THEIRS
        assert await run.result() == "joined"
        for view in ("runs_readable", "steps_readable", "activity_readable", "workers_readable"):
            await theirs.fetch(f"SELECT * FROM {app.namespace}.{view}")
    finally:
        await theirs.close()


async def _operate(app: Stepfast, parent: Any) -> None:
    run = await app.start(parent, "c", delay=60)
    await run.pause()
    await run.resume()
    await run.cancel()
    await run.retry()
    await run.cancel()
    assert await app.runs(tag="t")
    await run.activity()


async def test_sessions_that_are_ours_look_nowhere_else(postgres_url: str) -> None:
    store = PostgresStore(Stepfast(postgres_url).url, "stepfast", stepfast.Settings())
    duty = await store._connector.connect()
    try:
        assert await duty.fetchval("SHOW search_path") == SEARCH_PATH
    finally:
        await duty.close()
        await store.close()


def test_functions_are_qualified_and_grammar_is_not() -> None:
    assert qualify("SELECT count(*), 'max(1)', extract(epoch FROM now()) -- min(1)") == (
        "SELECT pg_catalog.count(*), 'max(1)', extract(epoch FROM pg_catalog.now()) -- min(1)"
    )
    assert qualify('FROM unnest($1::uuid[]) AS u(id) JOIN "s".f(1)') == (
        'FROM pg_catalog.unnest($1::uuid[]) AS u(id) JOIN "s".f(1)'
    )
    # Several arguments are grammar, which knows unnest by its bare name only, and means that of pg_catalog.
    assert qualify("FROM unnest(f($1, 2), $2) AS u(a, b)") == "FROM unnest(pg_catalog.f($1, 2), $2) AS u(a, b)"
    assert qualify("unnest(ARRAY[1, 2])") == "pg_catalog.unnest(ARRAY[1, 2])"


def test_calls_are_written_so_that_they_are_seen() -> None:
    """In small letters, with the parenthesis right behind: otherwise they would stay unqualified."""
    for name, text in texts().items():
        sql = re.sub(r"\b(INTO|ON|TABLE)\s+\S+", r"\1", bare(text))  # names of tables, before their columns
        assert set(re.findall(r"(?<![\w.])([A-Z]\w*)\(", sql)) <= GRAMMAR, name
        apart = re.findall(r"(?<![\w.])(\w*[a-z]\w*)\s+\(", sql)
        assert apart == [], f"{name}: write {apart[0]}(…) without the space"
