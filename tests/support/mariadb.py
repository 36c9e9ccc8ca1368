"""A private MariaDB for tests, started in a second.

It runs without its system tables: nobody has to log in, and the data folder need not be installed first. So what
depends on users and rights cannot be tried on it.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import os
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, Self

import asyncmy

from stepfast.model.urls import parse_url
from stepfast.settings import Settings
from stepfast.store.dialects import MYSQL
from stepfast.store.migrations import Migration, made_by, meta_of, migrations
from stepfast.store.mysql.connections import Connector
from stepfast.store.mysql.driver import Driver, load, words_of
from stepfast.store.mysql.schema import Schema
from tests.support.needs import MARIADB, need
from tests.support.postgres import HOST, _free_port, _start_guard, _temporary_folder, _unprivileged_account

START_TIMEOUT = 60.0


class MariaDbUnavailable(Exception):
    """It did not start."""


class PrivateMariaDb:
    """A server of this test process's own. Nothing is kept when it is closed. Without ``durable`` a crash may cost it
    the commits of the last second; with ``log_commits=1`` each commit reaches the disk, as it does for users."""

    def __init__(self, durable: bool = False, log_commits: int | None = None, pool: str = "32M") -> None:
        self._durable = durable
        self._log_commits = (2 if durable else 0) if log_commits is None else log_commits
        self._pool = pool
        self._program = need(MARIADB)
        self._account = _unprivileged_account()
        self._folder = _temporary_folder(self._account, in_memory=not durable)
        self._process: subprocess.Popen[bytes] | None = None
        self._made = 0
        self._used: list[str] = []
        self._looks: dict[str, list[Any]] = {}
        """What the databases with tables looked like when these were new."""
        self._thread = ThreadPoolExecutor(1)
        self.port = _free_port()
        for name in ("data", "tmp"):
            (self._folder / name).mkdir()
            if self._account:
                os.chown(self._folder / name, self._account.pw_uid, self._account.pw_gid)
        self._guard = _start_guard(self._folder)

    def start(self) -> Self:
        """Start it, or start it again on the same data."""
        if self.running:
            return self
        fresh = not any((self._folder / "data").iterdir())
        self._launch()
        if fresh and self._durable:
            # A crash before the first checkpoint leaves files that it refuses to open ("Header page consists of zero
            # bytes"); a stop in good order writes them out.
            self.stop()
            self._launch()
        return self

    def _launch(self) -> None:
        (self._folder / "log").write_bytes(b"")
        with (self._folder / "log").open("ab") as log:
            self._process = subprocess.Popen(
                [self._program, *self._options()],
                stdin=subprocess.DEVNULL, stdout=log, stderr=log, cwd=self._folder, start_new_session=True,
                **self._identity,
            )  # fmt: skip
        deadline = time.monotonic() + START_TIMEOUT
        while b"ready for connections" not in (self._folder / "log").read_bytes():
            if self._process.poll() is not None or time.monotonic() > deadline:
                raise MariaDbUnavailable(f"it did not start:\n{(self._folder / 'log').read_text()}")
            time.sleep(0.01)

    @property
    def _identity(self) -> dict[str, Any]:
        """How the server is started: as whom, and in which environment."""
        known: dict[str, Any] = {"env": self._environment()}
        if self._account:
            known |= {"user": self._account.pw_uid, "group": self._account.pw_gid, "extra_groups": []}
        return known

    def _environment(self) -> dict[str, str] | None:
        return None

    def _options(self) -> list[str]:
        folder = self._folder
        return [
            "--no-defaults", "--skip-grant-tables", "--skip-name-resolve", "--skip-log-bin", "--performance-schema=off",
            f"--datadir={folder}/data", f"--socket={folder}/socket", f"--port={self.port}", f"--bind-address={HOST}",
            # A server that starts removes the temporary tables in its folder, also those of other servers.
            f"--tmpdir={folder}/tmp",
            # Where the guard, which was made for Postgres, looks for whom to end.
            f"--pid-file={folder}/data/postmaster.pid",
            "--max-allowed-packet=2M",
            f"--innodb-flush-log-at-trx-commit={self._log_commits}",
            f"--innodb-log-file-size={'8M' if self._pool == '32M' else '256M'}",
            f"--innodb-buffer-pool-size={self._pool}",
        ]  # fmt: skip

    def stop(self, how: signal.Signals = signal.SIGTERM) -> None:
        """End it; SIGKILL is a crash."""
        if self._process is not None:
            with contextlib.suppress(ProcessLookupError):
                self._process.send_signal(how)
            try:
                self._process.wait(20)
            except subprocess.TimeoutExpired:
                self._process.kill()
                self._process.wait()
            self._process = None

    @property
    def running(self) -> bool:
        """Whether it has not ended."""
        return self._process is not None and self._process.poll() is None

    def kill9(self) -> None:
        """A crash."""
        self.stop(signal.SIGKILL)

    def restart(self) -> None:
        """Bring it back, on the same port and data; stop it first, in good order, if it still runs."""
        self.stop()
        self.start()

    def close(self) -> None:
        """End it for good. If it has ended by itself, what it said last is shown."""
        if self._process is not None and self._process.poll() is not None:
            sys.stderr.write((self._folder / "log").read_text()[-20_000:])
        self.stop(signal.SIGKILL)
        assert self._guard.stdin
        self._guard.stdin.close()  # it removes the folder
        self._guard.wait(10)
        self._thread.shutdown()

    def create_database(self) -> str:
        """The URL of a new, empty database. Its default collation is the server's: capitals are small letters."""
        self._made += 1
        name = f"stepfast_test_{os.getpid()}_{self._made}"
        self.execute(f"CREATE DATABASE {name} CHARACTER SET utf8mb4")
        return f"mysql://tester:secret@{HOST}:{self.port}/{name}"

    def drop_database(self, url: str) -> None:
        """Remove it with all that is in it."""
        self.execute(f"DROP DATABASE IF EXISTS {Path(url).name}")

    def take_database(self) -> str:
        """The URL of a database with the tables of Stepfast: a used one, if its tables are what they were."""
        for url in reversed(self._used):
            name = Path(url).name
            if self.execute(_CLIENTS.format(name)):
                continue  # a test has left something behind, or the server is about to end its sessions
            self._used.remove(url)
            if self.execute(_LOOK.format(name)) == self._looks[url]:
                self.execute(*_empty(name))
                return url
            self.drop_database(url)
        url = self.create_database()
        self._thread.submit(asyncio.run, _make_tables(url)).result()
        self._looks[url] = self.execute(_LOOK.format(Path(url).name))
        return url

    def give_back(self, url: str) -> None:
        """Let another test have it."""
        self._used.append(url)

    def execute(self, *statements: str) -> list[Any]:
        """Statements; the rows of the last one. The caller may be inside an event loop."""
        return self._thread.submit(asyncio.run, self._execute(statements)).result()

    async def _execute(self, statements: Sequence[str]) -> list[Any]:
        connection = await asyncmy.connect(host=HOST, port=self.port, user="tester", autocommit=True)
        try:
            cursor = connection.cursor()
            for sql in statements:
                await cursor.execute(sql)
            return list(await cursor.fetchall()) if statements and cursor.description else []
        finally:
            await connection.ensure_closed()


NAMESPACE = "stepfast"
_CLIENTS = "SELECT id FROM information_schema.processlist WHERE db = '{}' AND id <> CONNECTION_ID()"
_LOOK = """
SELECT count(*), max(create_time), min(create_time),
       (SELECT count(*) FROM information_schema.triggers WHERE trigger_schema = '{0}')
FROM information_schema.tables WHERE table_schema = '{0}'
"""


@functools.cache
def _known() -> list[Migration]:
    return migrations(MYSQL, words_of(NAMESPACE, 0))


async def _make_tables(url: str) -> None:
    connection = await Connector(parse_url(url), Settings()).connect()
    statements = load(words_of(NAMESPACE, 0))
    try:
        await Schema(NAMESPACE, _known(), statements, Driver(statements, lambda: None)).migrate(connection)
    finally:
        connection.close()


@functools.cache
def _empty(database: str) -> tuple[str, ...]:
    """Statements that leave the tables as they are when they are new."""
    tables = made_by(_known(), "TABLE")
    rows = {"removal": "", "prefix": f"{NAMESPACE}_"} | meta_of(_known()[-1])
    values = ", ".join(f"('{name}', '{value}')" for name, value in rows.items())
    return (
        f"USE {database}",
        *(f"DELETE FROM {table}" for table in tables),
        f"INSERT INTO {NAMESPACE}_meta (name, value) VALUES {values}",
    )
