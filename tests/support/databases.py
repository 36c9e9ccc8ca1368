"""A fresh, empty database for each test, in a few milliseconds.

CREATE DATABASE copies three hundred files, a quarter of a second on a slow disk. So a used database is
emptied and given a new name instead. The name matters: a worker that a test left running by mistake loses its
database, rather than serving the next test.
"""

from __future__ import annotations

import os
import time

from tests.support.postgres import PostgresServer

EMPTY = """
DO $$
DECLARE
    room text;
BEGIN
    FOR room IN
        SELECT nspname FROM pg_namespace WHERE nspname !~ '^pg_' AND nspname <> 'information_schema'
    LOOP
        EXECUTE format('DROP SCHEMA %I CASCADE', room);
    END LOOP;
    CREATE SCHEMA public;
    GRANT ALL ON SCHEMA public TO public;
    EXECUTE format('ALTER DATABASE %I RESET ALL', current_database());
END
$$
"""


class DatabasePool:
    """The databases of one test process on one server."""

    def __init__(self, server: PostgresServer) -> None:
        self._server = server
        self._made = 0
        self._used: list[str] = []

    def take(self) -> str:
        """The name of an empty database, never given out before."""
        self._made += 1
        name = f"holdfast_test_{os.getpid()}_{self._made}"
        if self._used:
            self._recycle(self._used.pop(), name)
        else:
            self._server.create_database(name)
        return name

    def give_back(self, name: str) -> None:
        self._used.append(name)

    def close(self) -> None:
        while self._used:
            self._server.drop_database(self._used.pop())

    def _recycle(self, old: str, new: str) -> None:
        self._disconnect_everyone(old)
        self._server.execute(f'ALTER DATABASE "{old}" RENAME TO "{new}"')
        self._server.execute(EMPTY, database=new)

    def _disconnect_everyone(self, name: str) -> None:
        """Renaming wants the database for itself, and looks again only every 100 ms, so wait for it here."""
        sql = f"SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = '{name}'"
        deadline = time.monotonic() + 10
        while self._server.execute(sql) and time.monotonic() < deadline:
            time.sleep(0.002)
