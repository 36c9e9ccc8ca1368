"""A fresh database for each test, in a few milliseconds: an empty one, or one with Stepfast's tables in it.

CREATE DATABASE copies three hundred files, a quarter of a second on a slow disk, and making the tables costs
four times as much as an average test. So a used database is emptied and given a new name instead. The name
matters: a worker that a test left running by mistake loses its database, rather than serving the next test. The
tables stay if nobody has changed them, or written more into them than is quickly deleted.

A SQLite file with tables is a copy of one that was made before.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import os
import re
import tempfile
import time
from collections.abc import AsyncIterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, NamedTuple

import asyncmy
import asyncpg

from stepfast.model.urls import mysql_parts, parse_url
from stepfast.settings import Settings
from stepfast.store import open_store
from tests.support.postgres import PostgresServer, Session
from tests.support.wire import WireError

NAMESPACE = "stepfast"

DROP = """
DO $$
DECLARE
    room text;
BEGIN
    FOR room IN
        SELECT nspname FROM pg_namespace
        WHERE nspname !~ '^pg_' AND nspname NOT IN ('information_schema', '{kept}')
    LOOP
        EXECUTE format('DROP SCHEMA %I CASCADE', room);
    END LOOP;
    CREATE SCHEMA public;
    GRANT ALL ON SCHEMA public TO public;
    EXECUTE format('ALTER DATABASE %I RESET ALL', current_database());
END
$$
"""
"""Everything but one schema goes; `public` is made anew."""

TABLES = f"""
WITH tables AS (
    SELECT oid, xmin FROM pg_class WHERE relnamespace = to_regnamespace('{NAMESPACE}')
), facts AS (
    SELECT 'table ' || oid || ' ' || xmin AS fact FROM tables
    UNION ALL
    SELECT 'column ' || a.attrelid || ' ' || a.xmin FROM pg_attribute a JOIN tables t ON t.oid = a.attrelid
    UNION ALL
    SELECT 'constraint ' || c.oid || ' ' || c.xmin FROM pg_constraint c JOIN tables t ON t.oid = c.conrelid
    UNION ALL
    SELECT 'trigger ' || g.oid || ' ' || g.xmin FROM pg_trigger g JOIN tables t ON t.oid = g.tgrelid
    UNION ALL
    SELECT 'function ' || p.oid || ' ' || p.xmin FROM pg_proc p WHERE pronamespace = to_regnamespace('{NAMESPACE}')
    UNION ALL
    SELECT 'meta ' || name || ' ' || value FROM {NAMESPACE}.meta
    UNION ALL
    SELECT 'large' FROM tables HAVING sum(pg_relation_size(oid)) > 4000000
)
SELECT md5(string_agg(fact, ',' ORDER BY fact)) FROM facts
"""
"""Every change of a definition leaves another transaction's number in the catalogue."""

HAS_TABLES = f"SELECT 1 WHERE to_regclass('{NAMESPACE}.meta') IS NOT NULL"

REST = f"""
SELECT md5(coalesce(string_agg(fact, ',' ORDER BY fact), '')) FROM (
    SELECT 'schema ' || oid || ' ' || xmin FROM pg_namespace
    WHERE nspname !~ '^pg_' AND nspname NOT IN ('information_schema', '{NAMESPACE}')
    UNION ALL
    SELECT 'object ' || classid || ' ' || objid FROM pg_depend
    WHERE refclassid = 'pg_namespace'::regclass AND refobjid = to_regnamespace('public')
    UNION ALL
    SELECT 'setting' FROM pg_db_role_setting JOIN pg_database d ON d.oid = setdatabase
    WHERE d.datname = current_database()
) AS facts (fact)
"""
"""The same of everything beside the tables that a test can leave in a database."""

CATALOGUES = (
    "class", "attribute", "constraint", "trigger", "proc", "rewrite", "namespace", "depend", "db_role_setting",
)  # fmt: skip
"""Whatever defines anything writes into one of these."""

THERE = f"""
SELECT concat_ws(' ', count(*), sum(oid::bigint), sum(xmin::text::bigint)) FROM pg_class
WHERE relnamespace = to_regnamespace('{NAMESPACE}')
"""
"""Whether the tables are there, and which they are: a server that crashes forgets how often it was written to."""

KEPT_COUNTS = 150000
"""From this release on, how often a table was written to is known exactly when those who wrote have disconnected, or
have been told to say so (`warm.py`)."""


class DatabasePool:
    """The databases of one test process on one server."""

    def __init__(self, server: PostgresServer) -> None:
        self._server = server
        self._made = 0
        self._used: list[str] = []
        self._looks: dict[str, _Look] = {}
        """What each database looked like when it was given out, by its present name."""
        self._keeper: Session | None = None

    def take(self, tables: bool = False) -> str:
        """The name of a database never given out before: empty, or with new tables."""
        self._made += 1
        name = f"stepfast_test_{os.getpid()}_{self._made}"
        old = self._pick(tables)
        if old is None:
            self._server.create_database(name)
        else:
            self._disconnect_everyone(old)
            self._keep(f'ALTER DATABASE "{old}" RENAME TO "{name}"')
        with contextlib.closing(self._server.session(name)) as session:
            self._looks[name] = _prepare(session, tables, self._looks.pop(old, None) if old else None)
        return name

    def give_back(self, name: str) -> None:
        self._used.append(name)

    def empty(self, name: str, session: Session) -> bool | None:
        """Empty a database that was given out, and keeps its name and its sessions: whether more than rows had to go.
        None: somebody has changed the tables themselves, and they are not what they were."""
        before = self._looks[name]
        if _traces(session) == before.traces != "":
            session.execute(_deletions())
            return False
        now = _look(session)
        if now.tables != before.tables:
            return None
        if now.rest != before.rest:
            session.execute(DROP.replace("{kept}", NAMESPACE))
        session.execute(_deletions())
        self._looks[name] = _look(session)._replace(traces=_traces(session))
        return now.rest != before.rest

    def close(self) -> None:
        while self._used:
            self._server.drop_database(self._used.pop())
        if self._keeper is not None:
            self._keeper.close()

    def _pick(self, tables: bool) -> str | None:
        """Preferably one that is already as it is wanted."""
        fitting = [name for name in self._used if (self._looks[name].tables is not None) == tables]
        old = fitting[-1] if fitting else next(iter(self._used), None)
        if old is not None:
            self._used.remove(old)
        return old

    def _disconnect_everyone(self, name: str) -> None:
        """Renaming wants the database for itself, and looks again only every 100 ms, so wait for it here."""
        sql = f"SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = '{name}'"
        deadline = time.monotonic() + 10
        while self._keep(sql) and time.monotonic() < deadline:
            time.sleep(0.002)

    def _keep(self, sql: str) -> list[str]:
        """Run a statement on the connection that is kept for the pool itself. A test may have cut it."""
        if self._keeper is not None:
            with contextlib.suppress(OSError, WireError):
                return self._keeper.execute(sql)
            self._keeper.close()
        self._keeper = self._server.session()
        return self._keeper.execute(sql)


class _Look(NamedTuple):
    """What a database looks like, in two numbers; no tables: None. And what shows quickly that it is as it was."""

    tables: str | None
    rest: str
    traces: str = ""


def _prepare(session: Session, tables: bool, before: _Look | None) -> _Look:
    """Make a database as it is wanted. Whatever the last test has left as it was stays."""
    if before is not None and (before.tables is not None) == tables and _traces(session) == before.traces != "":
        if tables:
            session.execute(_deletions())
        return before
    now = _look(session)
    kept = tables and before is not None and now.tables == before.tables is not None
    dropped = before is None or now.rest != before.rest or (now.tables is not None and not kept)
    if dropped:
        session.execute(DROP.replace("{kept}", NAMESPACE if kept else "nothing"))
    if kept:
        session.execute(_deletions())
    elif tables:
        session.execute(_script())
    look = _look(session) if dropped or tables != kept else now
    return look._replace(traces=_traces(session))


def _look(session: Session) -> _Look:
    there = session.execute(HAS_TABLES)
    return _Look(session.execute(TABLES)[0] if there else None, session.execute(REST)[0])


def _traces(session: Session) -> str:
    """What differs after every change of a definition, found with a third of the work of a look. Nothing, where the
    server does not know it in time."""
    if int(session.execute("SHOW server_version_num")[0]) < KEPT_COUNTS:
        return ""
    session.execute("SELECT pg_stat_force_next_flush()")  # what this session has written counts, too
    return session.execute(_counts())[0]


@functools.cache
def _counts() -> str:
    written_to = [f"pg_catalog.pg_{name}" for name in CATALOGUES] + [f"{NAMESPACE}.meta"]
    kinds = ("inserted", "updated", "deleted")
    counts = [f"pg_stat_get_tuples_{kind}(to_regclass('{table}'))" for table in written_to for kind in kinds]
    size = " + ".join(f"pg_relation_size(to_regclass('{NAMESPACE}.{name}'))" for name in _tables())
    return f"SELECT concat_ws(' ', {', '.join(counts)}, {size} > 4000000, ({THERE}))"


@functools.cache
def _script() -> str:
    """What `stepfast migrate --sql` prints."""
    return open_store(parse_url("postgresql://nobody@nowhere/nothing"), NAMESPACE, Settings()).migration_sql()


@functools.cache
def _deletions() -> str:
    """A statement for each table; all of them together take a third of what a loop would."""
    return ";".join(f"DELETE FROM {NAMESPACE}.{name}" for name in _tables())


@functools.cache
def _tables() -> list[str]:
    """The tables that the script makes and that tests fill. Those left out have rows from the beginning."""
    names = re.findall(rf'^CREATE TABLE "?{NAMESPACE}"?\.(\w+)', _script(), re.MULTILINE)
    assert len(names) > 5, "the script of the tables is not read aright"
    return [name for name in names if name not in ("meta", "turns")]


@functools.cache
def file_with_tables() -> bytes:
    """What a SQLite file holds when Stepfast has made its tables and nothing else."""
    with tempfile.TemporaryDirectory() as folder, ThreadPoolExecutor(1) as thread:
        file = Path(folder, "stepfast.db")
        thread.submit(asyncio.run, _make_file(file)).result()  # the caller may be inside an event loop
        assert os.listdir(folder) == [file.name], "what is written is not all in the file"
        return file.read_bytes()


async def _make_file(file: Path) -> None:
    store = open_store(parse_url(f"sqlite:///{file}"), NAMESPACE, Settings())
    await store.open()
    await store.migrate()
    await store.close()


@asynccontextmanager
async def connected(url: str) -> AsyncIterator[Any]:
    """A second connection to a Postgres database."""
    connection = await asyncpg.connect(url)
    try:
        yield connection
    finally:
        await connection.close()


@asynccontextmanager
async def in_transaction(url: str) -> AsyncIterator[Any]:
    """A caller's connection to a server, within a transaction that is committed at the end."""
    if parse_url(url).kind == "mysql":
        parts = mysql_parts(url)
        where = {"host": parts.host, "port": parts.port, "user": parts.user, "db": parts.database, "charset": "utf8mb4"}
        theirs = await asyncmy.connect(**where)
        try:
            yield theirs
            await theirs.commit()
        finally:
            theirs.close()
        return
    async with connected(url) as connection, connection.transaction():
        yield connection


async def execute(connection: Any, sql: str, *values: Any) -> None:
    """A statement on a connection of asyncpg's, or of asyncmy's; values are named as on Postgres."""
    if hasattr(connection, "execute"):
        await connection.execute(sql, *values)
    else:
        await connection.cursor().execute(re.sub(r"\$\d+", "%s", sql), values or None)
