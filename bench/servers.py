"""Where the engines work: one private Postgres and one MariaDB, every commit on the disk, and a folder for SQLite."""

from __future__ import annotations

import tempfile
from pathlib import Path
from types import TracebackType
from typing import Self

from bench.engines import ENGINES
from tests.support.mariadb import PrivateMariaDb
from tests.support.postgres import PrivatePostgres

SETTINGS: dict[str, str | int] = {
    "max_connections": 300,
    "shared_buffers": "512MB",
    "max_wal_size": "4GB",  # so that no checkpoint falls into a measurement by chance
    "checkpoint_timeout": "30min",
}


class Servers:
    """Gives out empty databases, and takes them back. Settings of Postgres may be added for a measurement."""

    def __init__(self, **settings: str | int) -> None:
        self._settings = {**SETTINGS, **settings}

    def __enter__(self) -> Self:
        self._postgres = PrivatePostgres(fsync=True, settings=self._settings).start()
        self._folder = tempfile.TemporaryDirectory(prefix="stepfast-bench-")
        self._made = 0
        self._mariadb: PrivateMariaDb | None = None
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._postgres.stop()
        if self._mariadb is not None:
            self._mariadb.close()
        self._folder.cleanup()

    def version(self) -> str:
        """Which Postgres this is."""
        return self._postgres.execute("SHOW server_version")[0]

    def empty(self, engine: str) -> str:
        """The URL of an empty database of the engine's kind."""
        self._made += 1
        name = f"bench_{self._made}"
        if ENGINES[engine].sqlite:
            return f"sqlite:///{Path(self._folder.name, name)}.db"
        if ENGINES[engine].mariadb:
            if self._mariadb is None:
                self._mariadb = PrivateMariaDb(durable=True, log_commits=1, pool="512M").start()
            return self._mariadb.create_database()
        return self._postgres.create_database(name)

    def discard(self, url: str) -> None:
        """Remove a database again, so that its cleaning disturbs nobody."""
        if url.startswith("sqlite"):
            for file in Path(self._folder.name).glob(Path(url).name + "*"):
                file.unlink()
        elif url.startswith("mysql") and self._mariadb is not None:
            self._mariadb.drop_database(url)
        else:
            self._postgres.drop_database(url.rsplit("/", 1)[1])
