"""The oldest release that we support understands every statement. What they do there is tried by `make test-all`."""

from __future__ import annotations

import asyncpg

from stepfast import Context, Stepfast
from stepfast.model.urls import parse_url
from stepfast.settings import Settings
from stepfast.store.postgres import PostgresStore
from stepfast.store.postgres.connections import know_arrays

SCRIPTS = ("script_head", "script_tail")
"""Several statements in one, for people; a migration is such a script, and this database was made by one."""


async def test_every_statement_is_understood(postgres12_url: str) -> None:
    store = PostgresStore(parse_url(postgres12_url), "stepfast", Settings())
    connection = know_arrays(await asyncpg.connect(postgres12_url))
    try:
        assert connection.get_server_version() < (13, 0)
        statements = {name: sql for name, sql in store._sql.items() if name not in SCRIPTS}
        assert len(statements) > 100
        for name, sql in statements.items():
            assert await connection.prepare(sql), name
    finally:
        await connection.close()


async def test_runs_that_sql_starts_get_their_secrets_at_the_first_claim(postgres12_url: str) -> None:
    """That release has no strong source of chance."""
    app = Stepfast(postgres12_url)
    graph = app.dag("graph")
    graph.approval("ok")

    @app.workflow
    async def draws(ctx: Context) -> str:
        return str(ctx.uuid())

    connection = await asyncpg.connect(postgres12_url)
    try:
        await (await app._connect()).store_definitions(list(app.workflows.values()))
        ids = [
            await connection.fetchval(f"SELECT stepfast.start('{name}', 'null')")
            for name in ("draws", "draws", "graph")
        ]
        assert len({*ids}) == 3
        assert await connection.fetchval("SELECT DISTINCT seed FROM stepfast.runs") == ""
        await app.drain()
        assert await app.get(str(ids[0])).result() != await app.get(str(ids[1])).result()
        seeds = await connection.fetch("SELECT seed FROM stepfast.runs WHERE started_at IS NOT NULL AND graph IS NULL")
        assert len({seed for (seed,) in seeds if len(seed) == 32}) == 2
    finally:
        await connection.close()
        await app.close()
