"""A fresh database for each test, in a few milliseconds: an empty one, or one with Stepfast's tables in it.

CREATE DATABASE copies three hundred files, a quarter of a second on a slow disk, and making the tables costs
four times as much as an average test. So a used database is emptied and given a new name instead. The name
matters: a worker that a test left running by mistake loses its database, rather than serving the next test. The
tables stay if nobody has changed them, or written more into them than is quickly deleted.
"""

from __future__ import annotations

import functools
import os
import time

from stepfast.model.url import parse_url
from stepfast.settings import Settings
from stepfast.store import open_store
from tests.support.postgres import PostgresServer

NAMESPACE = "stepfast"

EMPTY = """
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
    FOR room IN SELECT relname FROM pg_class WHERE relnamespace = to_regnamespace('{kept}') AND relkind = 'r'
    LOOP
        IF room <> 'meta' THEN
            EXECUTE format('DELETE FROM {kept}.%I', room);
        END IF;
    END LOOP;
    CREATE SCHEMA public;
    GRANT ALL ON SCHEMA public TO public;
    EXECUTE format('ALTER DATABASE %I RESET ALL', current_database());
END
$$
"""

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


class DatabasePool:
    """The databases of one test process on one server."""

    def __init__(self, server: PostgresServer) -> None:
        self._server = server
        self._made = 0
        self._used: list[str] = []
        self._tables: dict[str, str] = {}
        """What the tables looked like when they were made, by the present name of the database."""

    def take(self, tables: bool = False) -> str:
        """The name of a database never given out before: empty, or with new tables."""
        self._made += 1
        name = f"stepfast_test_{os.getpid()}_{self._made}"
        old = self._pick(tables)
        if old is None:
            self._server.create_database(name)
        else:
            self._recycle(old, name, tables)
        if tables and name not in self._tables:
            self._server.execute(_script(), database=name)
            self._tables[name] = self._server.execute(TABLES, database=name)[0]
        return name

    def give_back(self, name: str) -> None:
        self._used.append(name)

    def close(self) -> None:
        while self._used:
            self._server.drop_database(self._used.pop())

    def _pick(self, tables: bool) -> str | None:
        """Preferably one that is already as it is wanted."""
        fitting = [name for name in self._used if (name in self._tables) == tables]
        old = fitting[-1] if fitting else next(iter(self._used), None)
        if old is not None:
            self._used.remove(old)
        return old

    def _recycle(self, old: str, new: str, tables: bool) -> None:
        self._disconnect_everyone(old)
        self._server.execute(f'ALTER DATABASE "{old}" RENAME TO "{new}"')
        made = self._tables.pop(old, None)
        untouched = tables and made is not None and self._look(new) == made
        self._server.execute(EMPTY.replace("{kept}", NAMESPACE if untouched else "nothing"), database=new)
        if untouched:
            self._tables[new] = made or ""

    def _look(self, name: str) -> str | None:
        there = self._server.execute(HAS_TABLES, database=name)
        return self._server.execute(TABLES, database=name)[0] if there else None

    def _disconnect_everyone(self, name: str) -> None:
        """Renaming wants the database for itself, and looks again only every 100 ms, so wait for it here."""
        sql = f"SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = '{name}'"
        deadline = time.monotonic() + 10
        while self._server.execute(sql) and time.monotonic() < deadline:
            time.sleep(0.002)


@functools.cache
def _script() -> str:
    """What `stepfast migrate --sql` prints."""
    return open_store(parse_url("postgresql://nobody@nowhere/nothing"), NAMESPACE, Settings()).migration_sql()
