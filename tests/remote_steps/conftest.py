"""Applications with remote steps: with the transport in the same database, or in another one."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass
from typing import Any

import pytest

from stepfast import Run, Settings, Stepfast
from stepfast.remote import RemoteWorker, SqlTransport
from tests.remote.tables import Tables
from tests.support.engine import PATIENCE, Calls, eventually
from tests.support.workflows import calling

QUICK = Settings(sweep_interval=0.2, poll_interval=0.1, backoff_base=0.01, inline_wait=0.2)
"""For tests that wait for a sweep."""

joined = pytest.mark.parametrize("home", ["joined"], indirect=True)
"""Enough with the transport in the same database."""

elsewhere = pytest.param("outbox", marks=pytest.mark.thorough)
enough_joined = pytest.mark.parametrize("home", ["joined", elsewhere], indirect=True)
"""What the other database adds to it is thorough."""

everywhere = pytest.mark.parametrize(
    "home",
    ["joined", "outbox", *(pytest.param(home, marks=pytest.mark.thorough) for home in ("mariadb", "on mariadb"))],
    indirect=True,
)
"""Wherever the transport is."""

HOMES = ("joined", "outbox", "mariadb", "on mariadb")


@dataclass
class Home:
    """An application, and where its remote steps go."""

    app: Stepfast
    workers_url: str
    tables: Tables
    make: Callable[..., Stepfast]
    """Another application on the same tables."""

    def worker(self, group: str = "echo", **options: Any) -> RemoteWorker:
        return RemoteWorker(self.workers_url, group, **{"poll_interval": 0.02, **options})

    def echoing(self, calls: Calls | None = None) -> RemoteWorker:
        return echoing_worker(self.workers_url, calls)

    async def count_tasks(self, count: int) -> bool:
        return len(await self.tables.tasks()) == count

    async def answer(self, run_id: str, seq: int = 0, **columns: Any) -> None:
        """Play a worker of others: when the task is there, write a result and delete the task, in two commits."""
        step_id = f"{run_id}:{seq}"
        await eventually(lambda: self._has_task(step_id))
        await self.tables.put_result(step_id, **{"status": "completed", **columns})
        await self.tables.fetch("DELETE FROM [tasks] WHERE step_id = ?", step_id)

    async def _has_task(self, step_id: str) -> bool:
        return step_id in await self.tables.tasks()

    async def fetch(self, sql: str, *values: Any) -> list[Any]:
        store: Any = await self.app.store()
        rows: list[Any] = await store._with_connection(lambda connection: connection.fetch(sql, *values))
        return rows

    async def inserts(self) -> int:
        """How many transactions have put tasks into the table: each stamps them with its time."""
        rows = await self.fetch("SELECT count(DISTINCT xmin::text) FROM public.durable_transport_tasks")
        return int(rows[0][0])

    async def nothing_is_left(self, patience: float = PATIENCE) -> None:
        async def empty() -> bool:
            return not await self.tables.tasks() and not await self.tables.results()

        await eventually(empty, patience)


def echoing_worker(url: str, calls: Calls | None = None) -> RemoteWorker:
    """A worker whose handler ``echo`` returns its input."""
    worker = RemoteWorker(url, "echo", poll_interval=0.02)

    @worker.handle("echo")
    async def echo(input: Any) -> Any:
        if calls is not None:
            calls.hit("echo")
        return input

    return worker


async def start_shop(app: Stepfast, *given: Any, **options: Any) -> Run[Any]:
    """Start a workflow of one remote step, ``echo``."""
    shop = calling(app, lambda ctx: ctx.remote("echo", *given, **options), name="shop")
    return await app.start(shop)


@pytest.fixture
def calls() -> Calls:
    return Calls()


@pytest.fixture(params=HOMES)
async def home(request: pytest.FixtureRequest) -> AsyncIterator[Home]:
    """``joined``: Postgres, and the transport's tables beside ours. ``outbox``: a SQLite store, and the transport on a
    Postgres. ``mariadb``: a Postgres, and the transport on a MariaDB. ``on mariadb``: both on one MariaDB."""
    which = request.param
    stores = {"joined": "postgres_url", "outbox": "sqlite_url", "mariadb": "postgres_url", "on mariadb": "mariadb_url"}
    others = {"outbox": "postgres_url", "mariadb": "mariadb_url"}
    store = request.getfixturevalue(stores[which])
    url = request.getfixturevalue(others[which]) if which in others else store
    made: list[Stepfast] = []

    def make(**options: Any) -> Stepfast:
        transport = SqlTransport(url) if which in others else None
        made.append(Stepfast(store, **{"settings": QUICK, "transport": transport, **options}))
        return made[-1]

    async with SqlTransport(url):
        tables = await Tables(url).open()
    yield Home(make(), url, tables, make)
    await tables.close()
    for app in made:
        await app.close()


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Steps on Postgres take up sessions of earlier tests."""
    for item in items:
        parameters = getattr(item, "callspec", None)
        home = parameters.params.get("home") if parameters is not None else None
        if "tests/remote_steps/" in item.nodeid and home == "joined":
            item.add_marker(pytest.mark.warm)
