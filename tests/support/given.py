"""One database of a server that stands elsewhere: `make test-engine URL=…` runs the tests of the store on it.

It may be a cluster, a service, or a release that the tests cannot fetch. Beyond what Stepfast does, the tests make
schemas on it and end sessions; they use one database, and crash nothing. There must be no schema `stepfast` in it. Each
test finds the database as it was given, or with the tables and no rows.
"""

from __future__ import annotations

import asyncio
import os
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import asyncpg
import pytest

from stepfast.model.urls import parse_url
from stepfast.settings import Settings
from stepfast.store import open_store
from tests.support.databases import NAMESPACE, TABLES, _tables

VARIABLE = "STEPFAST_TEST_ENGINE"
URL = os.environ.get(VARIABLE, "")

_SCHEMAS = "SELECT nspname::text FROM pg_namespace WHERE nspname !~ '^pg_'"
_OBJECTS = "SELECT relname::text FROM pg_class WHERE relnamespace = 'public'::regnamespace AND relkind IN ('r', 'v')"
_END_OTHERS = """
SELECT pg_terminate_backend(pid) FROM pg_stat_activity
WHERE datname = current_database() AND pid <> pg_backend_pid() AND backend_type = 'client backend'
  AND application_name NOT LIKE 'citus%'
"""


def select(items: list[pytest.Item], config: pytest.Config, database: Any) -> None:
    """Keep the tests that can run on it."""
    kept = [item for item in items if _fits(item, database(item))]
    config.hook.pytest_deselected(items=[item for item in items if item not in kept])
    items[:] = kept


def _fits(item: pytest.Item, database: str) -> bool:
    asked = getattr(item, "fixturenames", ())
    own = getattr(getattr(item, "_fixtureinfo", None), "argnames", ())
    if "postgres_server" in own or "durable_server" in own or item.get_closest_marker("plain_server"):
        return False
    return database == "postgres" if database else "postgres_url" in asked


class GivenDatabase:
    """Prepares the database for each test."""

    def __init__(self, url: str) -> None:
        self.url = url
        self._before: tuple[set[str], set[str]] | None = None
        self._tables: str | None = None
        """What its tables look like when they are new."""

    def prepare(self, tables: bool) -> str:
        with ThreadPoolExecutor(1) as thread:  # the caller may be inside an event loop
            thread.submit(asyncio.run, self._prepare(tables)).result()
        return self.url

    async def _prepare(self, tables: bool) -> None:
        connection = await asyncpg.connect(self.url)
        try:
            await connection.fetch(_END_OTHERS)
            if self._before is None:
                self._before = await _contents(connection)
                assert NAMESPACE not in self._before[0], f"the database has a schema {NAMESPACE!r}: give one without"
            await self._tidy(connection, keep=tables and self._tables is not None)
            if tables:
                await self._empty(connection)
        finally:
            await connection.close()

    async def _tidy(self, connection: Any, keep: bool) -> None:
        """Drop what the last test left, but for the tables if they are as they were."""
        assert self._before is not None
        schemas, objects = await _contents(connection)
        same = keep and NAMESPACE in schemas and (await connection.fetchval(TABLES)) == self._tables
        for name in sorted(objects - self._before[1]):
            await connection.execute(f'DROP TABLE IF EXISTS public."{name}" CASCADE')
        for name in sorted(schemas - self._before[0] - ({NAMESPACE} if same else set())):
            await connection.execute(f'DROP SCHEMA "{name}" CASCADE')
        if not same:
            self._tables = None

    async def _empty(self, connection: Any) -> None:
        if self._tables is not None:
            for name in _tables():
                await connection.execute(f"DELETE FROM {NAMESPACE}.{name}")
            return
        store = open_store(parse_url(self.url), NAMESPACE, Settings())
        await store.open()
        try:
            await store.migrate()
        finally:
            await store.close()
        self._tables = await connection.fetchval(TABLES)


async def _contents(connection: Any) -> tuple[set[str], set[str]]:
    """The schemas, and what is in the public one."""
    schemas, objects = [await connection.fetch(sql) for sql in (_SCHEMAS, _OBJECTS)]
    return {name for (name,) in schemas}, {name for (name,) in objects}
