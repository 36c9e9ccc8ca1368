"""Sessions on Postgres that outlive a test: the next test finds them warm.

A test opens seven sessions or more, and a new one costs a process of the server, its caches of the catalogue, and a
plan for every statement: more than half of what a test of the store took. A test that is marked `warm` works on a
database that keeps its name. When it closes a connection, the session is cleaned as a pool would clean it and put on a
shelf; the next connection that is asked for with the same options is taken from there. Stores, pools and applications
are new in every test, and so are all rows.

The mark is not for tests that count sessions, end them, or look at what a new one does. What a test has made beside
the tables goes; if it has changed the tables themselves, the next test gets another database. A session that a test
forgot is ended.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import inspect
import time
from collections import defaultdict
from collections.abc import Collection, Iterator
from typing import Any

import asyncpg
import pytest
import pytest_asyncio.plugin

from tests.support import given
from tests.support.databases import DatabasePool
from tests.support.postgres import PostgresServer, Session

CLEAN = """
CLOSE ALL; SET SESSION AUTHORIZATION DEFAULT; RESET ALL; UNLISTEN *; SELECT pg_advisory_unlock_all();
DISCARD TEMP; DISCARD SEQUENCES
"""
"""What DISCARD ALL does, except that the plans stay."""
TELL = "SELECT pg_stat_force_next_flush()"
"""From release 15 on: how often this session wrote to which table is to be seen by others at once."""

CLIENTS = (
    "SELECT pid FROM pg_stat_get_activity(NULL) WHERE pid <> pg_backend_pid() AND backend_type = 'client backend' "
    "AND datid = (SELECT oid FROM pg_database WHERE datname = current_database())"
)


def is_warm(node: pytest.Item) -> bool:
    """Whether a test takes up sessions of earlier ones. That needs an event loop that outlives a test, too."""
    return (
        not given.URL
        and node.get_closest_marker("warm") is not None
        and hasattr(pytest_asyncio.plugin, "_session_scoped_runner")
    )


def take_up_sessions(items: list[pytest.Item], folder: str, cold: Collection[str]) -> None:
    """Mark the tests of a folder that run on the newest Postgres, except in the files (`cold`) whose subject sessions
    are."""
    for item in items:
        warm = item.nodeid.startswith(f"tests/{folder}/") and item.path.stem.removeprefix("test_") not in cold
        if warm and _is_on_postgres(item) and item.get_closest_marker("empty") is None:
            item.add_marker(pytest.mark.warm)


def _is_on_postgres(item: pytest.Item) -> bool:
    parameters = getattr(item, "callspec", None)
    values = parameters.params if parameters is not None else {}
    database = values.get("url", values.get("store_url"))
    return database == "postgres" or (database is None and "postgres_url" in getattr(item, "fixturenames", ()))


class Shelf:
    """The sessions that nobody uses at the moment, by what they were asked for with."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        """The sessions belong to it. Whoever connects in another one has a session of his own."""
        self._url = ""
        self._idle: defaultdict[str, list[Any]] = defaultdict(list)

    @property
    def pids(self) -> set[int]:
        """The server's processes of all of them."""
        return {each.get_server_pid() for idle in self._idle.values() for each in idle if each.lives()}

    def put(self, key: str, connection: Any) -> None:
        self._idle[key].append(connection)

    def take(self, key: str) -> Any:
        """One that still works; None: there is none."""
        while self._idle[key]:
            connection = self._idle[key].pop()
            if connection.lives():
                connection.shelved = False
                return connection
        return None

    def forget_statements(self) -> None:
        """Tables that they speak of are gone, and may come again with other columns."""
        for idle in self._idle.values():
            for connection in idle:
                connection._drop_local_statement_cache()

    async def clear(self) -> None:
        """End them all."""
        for idle in self._idle.values():
            for connection in idle:
                connection.terminate()
        self._idle.clear()
        await asyncio.sleep(0)  # only now are their sockets closed

    @contextlib.contextmanager
    def serving(self, url: str) -> Iterator[None]:
        """Whoever connects to this database by the driver, or makes a pool, gets what is here first."""
        self._url = url
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(asyncpg, "connect", self._connect)
            if "connect" in inspect.signature(asyncpg.create_pool).parameters:
                patch.setattr(asyncpg, "create_pool", functools.partial(asyncpg.create_pool, connect=self._connect))
            yield

    async def _connect(self, dsn: str | None = None, *, loop: Any = None, **options: Any) -> Any:
        if dsn != self._url or asyncio.get_running_loop() is not self._loop:
            return await asyncpg.connection.connect(dsn, **options)
        key = f"{dsn} {sorted(options.items(), key=repr)!r}"
        if (connection := self.take(key)) is None:
            kind = options.pop("connection_class", None) or asyncpg.Connection
            connection = await asyncpg.connection.connect(dsn, connection_class=_returning(kind), **options)
            connection.to_shelf = functools.partial(self.put, key, connection)
        return connection


@functools.cache
def _returning(kind: type[Any]) -> type[Any]:
    """A class of connections that go to the shelf instead of being closed. There they say that they are closed."""

    class Returning(kind):  # type: ignore[misc]
        to_shelf: Any = None
        shelved = False

        async def close(self, *, timeout: float | None = None) -> None:
            if self.is_closed() or self.is_in_transaction() or self._proxy is not None or self.to_shelf is None:
                await super().close(timeout=timeout)
                return
            try:
                await self.execute(
                    f"{CLEAN}; {TELL}" if self.get_server_version() >= (15, 0) else CLEAN, timeout=timeout
                )
            except (OSError, asyncpg.PostgresError, asyncpg.InterfaceError):  # the server has ended it
                self.terminate()
                return
            self.shelved = True
            self._cleanup()
            self.to_shelf()

        def is_closed(self) -> bool:
            return self.shelved or not self.lives()

        def lives(self) -> bool:
            return not super().is_closed()

        def _mark_stmts_as_closed(self) -> None:
            if not self.shelved:
                super()._mark_stmts_as_closed()

    Returning.__name__ = kind.__name__
    return Returning


class WarmDatabase:
    """The database of a test process that keeps its name, and its sessions."""

    def __init__(self, server: PostgresServer, pool: DatabasePool, runner: Any) -> None:
        self._server = server
        self._pool = pool
        self._runner = runner
        self._name: str | None = None
        self._session: Session | None = None
        self.shelf = Shelf(runner.get_loop())

    def take(self) -> str:
        """Its name; it has tables, and nothing in them."""
        if self._name is not None and not self._emptied():
            self.retire()
        if self._name is None:
            self._name = self._pool.take(tables=True)
        return self._name

    def retire(self) -> None:
        """It goes back to the others, which are given another name before they are used again."""
        self._runner.run(self.shelf.clear())
        if self._session is not None:
            self._session.close()
            self._session = None
        if self._name is not None:
            self._pool.give_back(self._name)
            self._name = None

    def _emptied(self) -> bool:
        """Whether it is as it was when it was new."""
        assert self._name is not None
        if self._session is None:
            self._session = self._server.session(self._name)
        try:
            self._end_strangers(self._session)
            more_than_rows = self._pool.empty(self._name, self._session)
        except Exception:  # the test has cut this session too, or dropped what was to be emptied
            return False
        if more_than_rows:
            self.shelf.forget_statements()
        return more_than_rows is not None

    def _end_strangers(self, session: Session) -> None:
        deadline = time.monotonic() + 10
        while strangers := {int(pid) for pid in session.execute(CLIENTS)} - self.shelf.pids:
            session.execute(f"SELECT pg_terminate_backend(pid) FROM unnest(ARRAY{sorted(strangers)}) AS pid")
            assert time.monotonic() < deadline, "a session of an earlier test does not end"
            time.sleep(0.002)
