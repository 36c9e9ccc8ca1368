"""Applications with remote steps: with the transport in the same database, or in another one."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass
from typing import Any

import pytest

from stepfast import Settings, Stepfast
from stepfast.remote import RemoteWorker, SqlTransport
from tests.remote.conftest import mariadb_server, mariadb_url
from tests.remote.tables import Tables
from tests.support.engine import eventually

__all__ = ["mariadb_server", "mariadb_url"]

QUICK = Settings(sweep=0.2, poll=0.1, backoff_base=0.01)
"""For tests that wait for a sweep."""

HOMES = ("joined", "outbox", "mariadb")


@dataclass
class Home:
    """An application, and where its remote steps go."""

    app: Stepfast
    workers_url: str
    tables: Tables
    make: Callable[..., Stepfast]
    """Another application on the same tables."""

    def worker(self, group: str = "echo", **options: Any) -> RemoteWorker:
        """A worker elsewhere, which looks often."""
        return RemoteWorker(self.workers_url, group, **{"poll": 0.02, **options})

    async def nothing_is_left(self) -> None:
        """Wait until the transport's tables are empty."""

        async def empty() -> bool:
            return not await self.tables.tasks() and not await self.tables.results()

        await eventually(empty)


@pytest.fixture(params=HOMES)
async def home(request: pytest.FixtureRequest) -> AsyncIterator[Home]:
    """``joined``: Postgres, and the transport's tables beside ours. ``outbox``: a SQLite store, and the transport on a
    Postgres. ``mariadb``: a Postgres, and the transport on a MariaDB."""
    which = request.param
    store = request.getfixturevalue("sqlite_url" if which == "outbox" else "postgres_url")
    other = {"joined": store, "outbox": "postgres_url", "mariadb": "mariadb_url"}[which]
    url = store if which == "joined" else request.getfixturevalue(other)
    made: list[Stepfast] = []

    def make(**options: Any) -> Stepfast:
        transport = None if which == "joined" else SqlTransport(url)
        made.append(Stepfast(store, **{"settings": QUICK, "transport": transport, **options}))
        return made[-1]

    async with SqlTransport(url):
        tables = await Tables(url).open()
    yield Home(make(), url, tables, make)
    await tables.close()
    for app in made:
        await app.close()
